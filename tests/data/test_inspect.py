"""Inspection: silent on good data, and right about what was spoilt on purpose."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import typer
from ase.build import bulk
from ase.calculators.lj import LennardJones
from typer.testing import CliRunner

from mlpot import units
from mlpot.commands.data_inspect import inspect as command
from mlpot.data.dataset import MemoryDataset
from mlpot.data.frame import Frame
from mlpot.data.inspection import Inspection, inspect
from mlpot.data.inspection_duplicates import leakage
from mlpot.data.inspection_sample import sample_rows
from mlpot.data.opening import open_dataset
from mlpot.data.options import ReadOptions
from mlpot.data.store import write_store
from mlpot.structure import Structure

WATER = np.array([[0.0, 0.0, 0.0], [0.76, 0.59, 0.0], [-0.76, 0.59, 0.0]])
ATOMS = np.array([8, 1, 1])


def turned(rng: np.random.Generator) -> np.ndarray:
    """A random rotation."""
    q, _ = np.linalg.qr(rng.standard_normal((3, 3)))
    return q * np.sign(np.linalg.det(q))


def water(n: int, seed: int = 0) -> list[Frame]:
    """Water of springs (O-H 47.5 eV/Å²) about an all-electron total, at random places and turns."""
    rng = np.random.default_rng(seed)
    springs = [(0, 1, 47.5, 0.9621), (0, 2, 47.5, 0.9621), (1, 2, 8.0, 1.52)]
    frames = []
    for _ in range(n):
        x = (WATER + rng.uniform(-0.08, 0.08, (3, 3))) @ turned(rng) + rng.uniform(-3, 3, 3)
        energy, forces = -2079.9, np.zeros((3, 3))
        for i, j, k, length in springs:
            arm = x[j] - x[i]
            stretch = np.linalg.norm(arm) - length
            energy += 0.5 * k * stretch**2
            pull = k * stretch * arm / np.linalg.norm(arm)
            forces[i] += pull
            forces[j] -= pull
        frames.append(Frame(Structure.of(ATOMS, x), float(energy), forces))
    return frames


def argon(n: int, seed: int = 0) -> list[Frame]:
    """Rattled and strained Lennard-Jones argon."""
    rng = np.random.default_rng(seed)
    frames = []
    for _ in range(n):
        atoms = bulk("Ar", cubic=True, a=5.2)
        strain = 0.02 * rng.standard_normal((3, 3))
        atoms.set_cell(atoms.cell @ (np.eye(3) + 0.5 * (strain + strain.T)), scale_atoms=True)
        atoms.rattle(0.03, rng=rng)
        atoms.calc = LennardJones(sigma=3.4, epsilon=0.0104, rc=8, smooth=True)
        structure = Structure.of(atoms.numbers, atoms.positions, atoms.cell.array, True)
        stress = atoms.get_stress(voigt=False)
        frames.append(Frame(structure, atoms.get_potential_energy(), atoms.get_forces(), stress))
    return frames


def look(frames: list[Frame]) -> dict[str, tuple[str, str]]:
    return {check.name: (check.status, check.message) for check in inspect(MemoryDataset(frames)).checks}


def scaled(frames: list[Frame], energy: float = 1.0, forces: float = 1.0, stress: float = 1.0) -> list[Frame]:
    """The frames as they look when labels are read in a wrong unit or sign."""
    return [
        dataclasses.replace(
            f,
            energy=None if f.energy is None else f.energy * energy,
            forces=None if f.forces is None else f.forces * forces,
            stress=None if f.stress is None else f.stress * stress,
        )
        for f in frames
    ]


def alarms(found: dict[str, tuple[str, str]]) -> set[str]:
    return {name for name, (status, _) in found.items() if status == "suspicious"}


@pytest.fixture(scope="module")
def molecules() -> list[Frame]:
    return water(120)


@pytest.fixture(scope="module")
def crystals() -> list[Frame]:
    return argon(60)


def test_good_molecules(molecules: list[Frame]) -> None:
    found = look(molecules)
    assert not alarms(found)
    for name in ("forces against energies", "energy scale", "force scale"):
        assert found[name][0] == "ok", found[name]


def test_good_crystals(crystals: list[Frame]) -> None:
    found = look(crystals)
    assert not alarms(found)
    for name in ("forces against energies", "stress against energies", "stress sign"):
        assert found[name][0] == "ok", found[name]


KCAL, HA = 1 / units.KCAL_PER_MOL, 1 / units.HARTREE


@pytest.mark.parametrize(
    ("factors", "expected"),
    [
        ({"energy": KCAL}, {"forces against energies": "energies are in kcal/mol", "energy scale": "kcal/mol"}),
        ({"forces": KCAL}, {"forces against energies": "forces are in kcal/mol/Å", "force scale": "kcal/mol/Å"}),
        ({"forces": -1.0}, {"forces against energies": "opposite sign", "force scale": "gradients"}),
        ({"forces": units.BOHR}, {"forces against energies": "eV/Bohr", "force scale": "units.forces=eV/Bohr"}),
        ({"energy": HA, "forces": HA}, {"energy scale": "units.energy=Hartree", "force scale": "Hartree/Å"}),
        (
            {"energy": HA, "forces": HA * units.BOHR},
            {"energy scale": "Hartree", "force scale": "Hartree/Bohr", "forces against energies": "per Bohr"},
        ),
        ({"energy": KCAL, "forces": KCAL}, {"energy scale": "kcal/mol", "force scale": "kcal/mol/Å"}),
    ],
)  # fmt: skip
def test_wrong_units_of_molecules(molecules: list[Frame], factors: dict, expected: dict) -> None:
    found = look(scaled(molecules, **factors))
    assert set(expected) <= alarms(found)
    for name, words in expected.items():
        assert words in found[name][1]


@pytest.mark.parametrize(
    ("factor", "expected"),
    [
        (-1.0, {"stress against energies": "sign of a pressure", "stress sign": "sign of a pressure"}),
        (1 / units.GPA, {"stress against energies": "units.stress=GPa"}),
        (-10 / units.GPA, {"stress against energies": "units.stress=kbar_vasp"}),
    ],
)
def test_wrong_stress(crystals: list[Frame], factor: float, expected: dict) -> None:
    found = look(scaled(crystals, stress=factor))
    assert set(expected) <= alarms(found)
    for name, words in expected.items():
        assert words in found[name][1]
    assert "forces against energies" not in alarms(found)


def test_forces_of_other_frames(molecules: list[Frame]) -> None:
    close = [molecules[0]]
    rng = np.random.default_rng(3)
    for _ in range(40):  # a walk in small steps
        structure = Structure.of(ATOMS, close[-1].structure.positions + 0.01 * rng.standard_normal((3, 3)))
        close.append(dataclasses.replace(molecules[len(close)], structure=structure))
    assert "do not follow each other" in look(close)["forces against energies"][1]


def test_too_few_frames_are_not_judged(molecules: list[Frame]) -> None:
    found = look(molecules[:3])
    assert not alarms(found)
    assert found["forces against energies"][0] == "not testable"


def test_outliers_zeros_gaps_and_overlap(molecules: list[Frame]) -> None:
    spoilt = list(molecules)
    large = molecules[7].forces * 1.0
    large[1] += 200.0
    large[0] -= 200.0
    spoilt[7] = dataclasses.replace(spoilt[7], forces=large)
    spoilt[20] = dataclasses.replace(spoilt[20], energy=spoilt[20].energy + 5.0)
    spoilt[30] = dataclasses.replace(spoilt[30], forces=np.zeros((3, 3)))
    spoilt[40] = dataclasses.replace(spoilt[40], forces=None)
    spoilt[50] = dataclasses.replace(spoilt[50], forces=spoilt[50].forces + 1.0)
    overlapping = spoilt[60].structure.positions.copy()
    overlapping[2] = overlapping[1] + 0.01
    spoilt[60] = dataclasses.replace(spoilt[60], structure=Structure.of(ATOMS, overlapping))
    found = look(spoilt)
    assert "1 of 119 frames have forces that are all exactly zero (30)" in found["zero forces"][1]
    assert "frame 7 atom" in found["force outliers"][1]
    assert re.search(r"1 of 120 frames; frame 20: \+1\.[67]\d* eV/atom", found["energy outliers"][1])
    assert "1 frames lack forces (40)" in found["missing labels"][1]
    assert "in 1 of" in found["net force"][1]
    assert "50" in found["net force"][1]
    assert "1 frames (60)" in found["close atoms"][1]
    assert "H-H 0.0173 Å" in found["close atoms"][1]


def test_duplicates_whatever_way_they_are_turned(molecules: list[Frame]) -> None:
    rng = np.random.default_rng(1)
    first = molecules[5]
    order = [0, 2, 1]
    again = Structure.of(ATOMS[order], first.structure.positions[order] @ turned(rng) + 7.0)
    near = Structure.of(ATOMS, molecules[9].structure.positions + 0.003 * rng.standard_normal((3, 3)))
    frames = [*molecules, dataclasses.replace(first, structure=again, energy=first.energy + 0.3), Frame(near, -2079.0)]
    found = look(frames)
    assert "1 of 122 frames repeat an earlier one (frames 5 = 120)" in found["duplicates"][1]
    assert "frames 5 and 120" in found["conflicting labels"][1]
    inspection = inspect(MemoryDataset(frames))
    assert (9, 121) in {(pair.first, pair.second) for pair in inspection.duplicates}


def test_a_trajectory_is_known_by_its_steps(shared: Path) -> None:
    steps = inspect(open_dataset(shared / "data/md17/md17_ethanol_dft_first2000.npz", ReadOptions(index=":100")))
    drawn = inspect(open_dataset(shared / "data/md17/ethanol_ccsd_t-train.npz", ReadOptions(index=":100")))
    assert "split it by blocks" in {c.name: c.message for c in steps.suspicious}["order of frames"]
    assert "order of frames" not in {c.name for c in drawn.suspicious}


def test_crystal_images_and_order_do_not_hide_a_duplicate(crystals: list[Frame]) -> None:
    first = crystals[3].structure
    moved = first.positions[[2, 0, 3, 1]] + first.cell[0] - 2 * first.cell[2] + 0.7
    again = dataclasses.replace(crystals[3], structure=Structure.of(first.numbers, moved, first.cell, True))
    summary, verdict = leakage(MemoryDataset(crystals), MemoryDataset([again, *argon(5, seed=9)]))
    assert verdict.status == "suspicious"
    assert (summary["exact"], summary["near"], summary["frames"]) == (1, 0, 6)
    closest = summary["closest"][0]  # type: ignore[index]
    assert (closest.first, closest.second) == (3, 0)
    assert leakage(MemoryDataset(crystals), MemoryDataset(argon(5, seed=9)))[1].status == "ok"


def test_large_sets_are_sampled_in_stretches() -> None:
    rows = sample_rows(np.full(1_000_000, 20))
    assert 3_900 < len(rows) <= 4_000
    assert rows[0] == 0
    assert rows[-1] == 999_999
    assert np.mean(np.diff(rows) == 1) > 0.9
    assert len(sample_rows(np.full(15, 20))) == 15


def test_the_facts(molecules: list[Frame], crystals: list[Frame]) -> None:
    atom = Frame(Structure.of([1], [[0, 0, 0]]), -13.6, config_type="IsolatedAtom")
    found = inspect(MemoryDataset([*molecules[:10], *crystals[:5], atom]))
    assert found.frames == found.looked_at == 16
    assert found.periodicity == {"free": 11, "bulk": 5}
    assert found.elements["H"] == {"frames": 11, "atoms": 21}
    assert found.atoms_per_frame["max"] == 4
    assert found.config_types == {"": 15, "IsolatedAtom": 1}
    assert found.isolated_atoms == ["H"]
    assert found.labels["stress"]["frames"] == 5
    pressures = [-np.trace(f.stress) / 3 * 160.21766 for f in crystals[:5]]
    assert found.labels["stress"]["max"] == pytest.approx(max(pressures), rel=1e-6)
    json.dumps(found.to_dict())


def test_command(tmp_path: Path, molecules: list[Frame]) -> None:
    app = typer.Typer()
    app.command()(command)
    file, other = tmp_path / "water.h5", tmp_path / "test.h5"
    write_store(file, molecules)
    write_store(other, [molecules[4], *water(3, seed=5)])
    shown = CliRunner().invoke(app, [str(file), "--against", str(other)])
    assert shown.exit_code == 0, shown.output
    assert "1 of 4 test frames are in the training set" in " ".join(shown.output.split())
    plain = json.loads(CliRunner().invoke(app, [str(file), "--json"]).output)
    assert plain["frames"] == 120
    assert {c["status"] for c in plain["checks"]} <= {"ok", "suspicious", "not testable"}


UNIT_CHECKS = (
    "forces against energies", "stress against energies", "energy scale", "force scale", "stress scale", "stress sign",
    "net force", "net torque", "close atoms", "zero forces", "zero stress",
)  # fmt: skip
DFT = {"energy": "dft_energy", "forces": "dft_forces", "stress": "dft_stress"}
REF = {"energy": "REF_energy", "forces": "REF_forces", "stress": "REF_stress"}


@pytest.mark.parametrize(
    ("name", "keys", "index"),
    [
        ("acac/train_300K.xyz", {}, ":100"),
        ("ethanol_botnet/train.xyz", {}, ":100"),
        ("3bpa/train_300K.xyz", {}, ":100"),
        ("md17/md17_ethanol_dft_first2000.npz", {}, ":100"),
        ("md17/ethanol_ccsd_t-train.npz", {}, ":100"),
        ("mptrj/mptrj-random-1k.xyz", {}, ":100"),
        ("alexandria/alexandria-random-1k.xyz", {}, ":100"),
        ("boron/B_DFT_data.xyz", REF, ":"),
        ("mof_janus/mlip_train.xyz", DFT, ":"),
        ("carbon/carbon_reduced_100.xyz", {"forces": "force", "virial": "virial"}, ":"),
        ("solvent_xtb/solvent_train.xyz", {}, ":"),
        ("water_mattersim/high_level_water.xyz", {}, ":"),
    ],
)
def test_no_false_alarm_about_units(shared: Path, name: str, keys: dict[str, str], index: str) -> None:
    found: Inspection = inspect(open_dataset(shared / "data" / name, ReadOptions(keys=keys, index=index)))
    wrong = [check for check in found.suspicious if check.name in UNIT_CHECKS]
    assert not wrong


def spoil_both_hartree(frames: list[Frame]) -> list[Frame]:
    return scaled(frames, energy=HA, forces=HA)


@pytest.mark.parametrize(
    ("name", "spoil", "check", "words"),
    [
        ("acac/train_300K.xyz", lambda f: scaled(f, energy=KCAL), "energy scale", "kcal/mol"),
        ("ethanol_botnet/train.xyz", lambda f: scaled(f, forces=-1), "forces against energies", "opposite sign"),
        ("3bpa/train_300K.xyz", spoil_both_hartree, "force scale", "Hartree/Å"),
        ("solvent_xtb/solvent_train.xyz", lambda f: scaled(f, KCAL, KCAL), "force scale", "kcal/mol/Å"),
        ("mof_janus/mlip_train.xyz", lambda f: scaled(f, stress=-1), "stress sign", "pressure"),
        ("mptrj/mptrj-random-1k.xyz", lambda f: scaled(f, stress=10 / units.GPA), "stress scale", "kbar"),
    ],
)
def test_real_sets_spoilt(
    shared: Path, name: str, spoil: Callable[[list[Frame]], list[Frame]], check: str, words: str
) -> None:
    dataset = open_dataset(shared / "data" / name, ReadOptions(keys=DFT if "mof" in name else {}, index=":100"))
    found = look(spoil([dataset[i] for i in range(len(dataset))]))
    assert found[check][0] == "suspicious", found
    assert words in found[check][1]


def test_a_published_set_in_kcal_is_noticed(shared: Path) -> None:
    found = inspect(open_dataset(shared / "data/md17/ethanol_reduced_100.xyz"))
    said = {check.name: check.message for check in found.suspicious}
    assert "units.energy=kcal/mol" in said["energy scale"]
    assert "units.forces=kcal/mol/Å" in said["force scale"]
