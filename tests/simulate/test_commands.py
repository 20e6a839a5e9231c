"""predict, evaluate, relax and md as commands (cases C08, D06, D07, U02, U04, U05)."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from ase.build import bulk, fcc111, molecule
from ase.constraints import FixAtoms, FixInternals
from ase.io import read, write

from mlpot import checkpoint, models
from mlpot.commands.evaluate import evaluate
from mlpot.commands.md import md
from mlpot.commands.predict import predict
from mlpot.commands.relax import relax
from mlpot.commands.terminal import femtoseconds
from mlpot.errors import UserError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two models and some structures; the commands run in it."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    checkpoint.save("net.mlpot", models.build("schnet", channels=8, cutoff=4.0))
    checkpoint.save("metal.mlpot", models.build("lennard_jones", sigma=2.3, epsilon=0.3, cutoff=6.0))
    copper, ethanol = bulk("Cu", a=3.65).repeat(2), molecule("CH3CH2OH")
    copper.rattle(0.03, seed=0)
    copper.info.update(mp_id="mp-1", config_type="bulk")
    write("mixed.xyz", [ethanol, copper])
    write("copper.xyz", copper)
    write("ethanol.xyz", ethanol)
    return tmp_path


def test_predict_writes_what_evaluate_reads(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predict("net.mlpot", Path("mixed.xyz"), output=Path("out.xyz"))
    ethanol, copper = read("out.xyz", index=":")
    assert copper.info["mp_id"] == "mp-1"
    assert copper.get_stress().shape == (6,)
    assert "stress" not in ethanol.calc.results
    one = read("mixed.xyz", index=1)
    from mlpot.calculator import Calculator

    one.calc = Calculator("net.mlpot")
    np.testing.assert_allclose(copper.get_potential_energy(), one.get_potential_energy(), rtol=1e-6)
    np.testing.assert_allclose(copper.get_forces(), one.get_forces(), atol=1e-5)
    capsys.readouterr()
    evaluate("net.mlpot", Path("out.xyz"), output=Path("errors.csv"), as_json=True)
    summary = json.loads(capsys.readouterr().out)
    assert summary["n_frames"] == 2
    assert summary["forces_mae_meV_per_A"] < 0.1
    assert set(summary["per_element"]) == {"C", "Cu", "H", "O"}
    assert "bulk" in summary["per_config_type"]
    with open("errors.csv") as file:
        rows = list(csv.DictReader(file))
    assert [row["mp_id"] for row in rows] == ["", "mp-1"]


def test_evaluate_gives_the_errors(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    predict("net.mlpot", Path("copper.xyz"), output=Path("out.xyz"))
    atoms = read("out.xyz")
    energy, forces = atoms.get_potential_energy(), atoms.get_forces()
    atoms.info["ref_e"], atoms.arrays["ref_f"], atoms.calc = energy + 0.8, forces + 0.05, None
    write("ref.xyz", atoms)
    capsys.readouterr()
    evaluate("net.mlpot", Path("ref.xyz"), ["keys.energy=ref_e", "keys.forces=ref_f"], as_json=True)
    summary = json.loads(capsys.readouterr().out)
    assert summary["energy_mae_meV_per_atom"] == pytest.approx(100.0, rel=1e-3)
    assert summary["forces_mae_meV_per_A"] == pytest.approx(50.0, rel=1e-3)


def test_own_output_is_read_again(folder: Path) -> None:
    relax("metal.mlpot", Path("copper.xyz"), output=Path("one.xyz"))
    relax("metal.mlpot", Path("one.xyz"), output=Path("two.xyz"), cell=True)
    md("metal.mlpot", Path("two.xyz"), output=Path("run.xyz"), steps=4, timestep=2.0)
    predict("metal.mlpot", Path("run.xyz"), output=Path("three.xyz"))
    evaluate("metal.mlpot", Path("three.xyz"))
    assert read("two.xyz").info["mp_id"] == "mp-1"
    assert read("two.xyz").get_potential_energy() < read("one.xyz").get_potential_energy()


def test_relax_keeps_constraints_and_writes_whatever_they_are(folder: Path) -> None:
    slab = fcc111("Cu", (2, 2, 2), a=3.7, vacuum=6.0)
    slab.rattle(0.05, seed=0)
    slab.set_constraint([FixAtoms([0, 1]), FixInternals(bonds=[[slab.get_distance(4, 5), [4, 5]]])])
    write("slab.traj", slab)
    with pytest.raises(typer.Exit) as stop:
        relax("metal.mlpot", Path("slab.traj"), output=Path("out.xyz"), steps=3, fmax=1e-5)
    assert stop.value.exit_code == 1
    out = read("out.xyz")
    np.testing.assert_allclose(out.positions[:2], slab.positions[:2], atol=1e-8)
    assert out.get_distance(4, 5) == pytest.approx(slab.get_distance(4, 5), abs=1e-4)
    assert not out.info["converged"]


def test_npt_of_a_primitive_cell_and_restart(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"ensemble": "npt", "timestep": 2.0, "every": 1, "output": Path("npt.xyz")}
    md("metal.mlpot", Path("copper.xyz"), steps=5, **options)
    capsys.readouterr()
    md("metal.mlpot", Path("copper.xyz"), steps=8, restart=True, as_json=True, **options)
    assert json.loads(capsys.readouterr().out)["steps"] == 8
    frames = read("npt.xyz", index=":")
    assert [frame.info["step"] for frame in frames] == list(range(9))
    assert frames[-1].get_volume() != frames[0].get_volume()


def test_requests_that_cannot_be_met_leave_nothing_behind(folder: Path) -> None:
    before = sorted(path.name for path in folder.iterdir())
    out = Path("out.xyz")
    calls = [
        (lambda: predict("net.mlpot", Path("ethanol.xyz"), output=out, stress=True), "periodic in three directions"),
        (lambda: predict("nett.mlpot", Path("ethanol.xyz"), output=out), 'Did you mean "net.mlpot"'),
        (lambda: predict("net.mlpot", Path("ethanl.xyz"), output=out), 'Did you mean "ethanol.xyz"'),
        (lambda: predict("net.mlpot", Path("ethanol.xyz"), output=out, dtype="float16"), "float32"),
        (lambda: relax("net.mlpot", Path("ethanol.xyz"), output=out, cell=True), "not periodic"),
        (lambda: md("net.mlpot", Path("ethanol.xyz"), output=out, restart=True, steps=5), "no such trajectory"),
        (lambda: md("net.mlpot", Path("ethanol.xyz"), output=out), "how long"),
        (lambda: md("net.mlpot", Path("ethanol.xyz"), output=out, steps=5, ensemble="nvp"), "Known: bussi"),
    ]
    if not torch.cuda.is_available():
        calls.append((lambda: md("net.mlpot", Path("ethanol.xyz"), output=out, steps=5, device="cuda"), "no CUDA"))
    for call, message in calls:
        with pytest.raises(UserError, match=message):
            call()
    assert sorted(path.name for path in folder.iterdir()) == before


def test_times_need_their_unit() -> None:
    assert femtoseconds("5ps") == 5000.0
    assert femtoseconds("0.5 ns") == 5e5
    for text in ("5", "ps", "5 s", "1e-ps"):
        with pytest.raises(UserError, match="is not a time"):
            femtoseconds(text)


@pytest.mark.gpu
def test_md_on_cuda(folder: Path) -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device")
    md("net.mlpot", Path("ethanol.xyz"), output=Path("gpu.xyz"), steps=20, device="cuda", max_bond=0)
    predict("net.mlpot", Path("gpu.xyz"), output=Path("out.xyz"), device="cuda")
    evaluate("net.mlpot", Path("out.xyz"), device="cuda")
    assert len(read("out.xyz", index=":")) == 3
