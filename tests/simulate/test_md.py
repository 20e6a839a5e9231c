"""Dynamics: conservation, temperature, restarts, stops (cases C04, C05, C08, U02)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.build import bulk, molecule
from ase.calculators.calculator import BaseCalculator
from ase.calculators.emt import EMT
from ase.constraints import FixAtoms
from ase.io import read

from mlpot import models
from mlpot.calculator import Calculator
from mlpot.errors import PhysicsWarning, UserError
from mlpot.simulate.md import SimulationStoppedError, run_md
from mlpot.simulate.result import energy_drift
from mlpot.simulate.system import degrees_of_freedom, start_velocities


def argon(n: int = 2) -> Atoms:
    atoms = bulk("Ar", a=5.3, cubic=True).repeat(n)
    atoms.rattle(0.05, seed=0)
    atoms.calc = Calculator(models.build("lennard_jones", cutoff=6.0))
    return atoms


def salt() -> Atoms:
    torch.manual_seed(0)
    atoms = bulk("NaCl", "rocksalt", a=5.6, cubic=True)
    atoms.calc = Calculator(models.build("schnet", channels=8, cutoff=3.5, n_interactions=1))
    return atoms


def copper(n: int = 2) -> Atoms:
    atoms = bulk("Cu", a=3.6).repeat(n)
    atoms.calc = EMT()
    return atoms


def steps_of(path: Path) -> list[int]:
    return [int(line.split(",")[0]) for line in path.read_text().splitlines()[1:]]


def test_nve_conserves_energy_and_momentum() -> None:
    atoms = argon()
    result = run_md(atoms, steps=300, timestep=2.0, temperature=40, every=5)
    per_step = result.drift() * 1e-3 * 2e-3  # eV/atom/step
    assert abs(per_step) < 1e-7
    assert np.ptp(result.log["total_eV"]) < 1e-3 * np.ptp(result.kinetic_energy) + 1e-4
    thermal = np.sqrt((atoms.get_momenta() ** 2).sum())
    assert np.abs(atoms.get_momenta().sum(0)).max() < 1e-6 * thermal


def test_wrapping_on_the_way_changes_nothing() -> None:
    runs = []
    for wrap in (False, True):
        atoms = argon()
        atoms.positions -= 0.4  # some atoms lie outside of the cell
        start_velocities(atoms, 40, np.random.default_rng(0))
        for _ in range(5):
            if wrap:
                atoms.wrap()
            run_md(atoms, steps=10, timestep=2.0, keep_velocities=True)
        runs.append(atoms.get_total_energy())
    assert runs[0] == pytest.approx(runs[1], abs=1e-10)


def test_drift_is_the_slope_per_atom_and_picosecond() -> None:
    times = np.arange(0.0, 2000.0, 10.0)
    assert energy_drift(times, 5.0 + 3e-6 * times, 3) == pytest.approx(1.0)


class Springs(BaseCalculator):
    """Every atom on its own spring, so that thermostats can be tested in no time."""

    implemented_properties = ["energy", "free_energy", "forces"]  # noqa: RUF012

    def calculate(self, atoms: object, properties: object, system_changes: object) -> None:
        raise NotImplementedError

    def get_property(self, name: str, atoms: Atoms, allow_calculation: bool = True) -> object:
        away = atoms.positions - atoms.info["rest"]
        return -away if name == "forces" else 0.5 * float((away**2).sum())


@pytest.mark.parametrize("ensemble", ["langevin", "bussi"])
def test_thermostats_reach_the_temperature_and_its_spread(ensemble: str) -> None:
    atoms = bulk("Cu", a=3.6).repeat(2)
    atoms.info["rest"], atoms.calc = atoms.positions.copy(), Springs()
    result = run_md(
        atoms, ensemble=ensemble, steps=5000, timestep=8.0, temperature=300, thermostat_time=80, every=10, seed=3
    )
    dof = 24 if ensemble == "langevin" else 21  # Bussi's rescaling leaves the total momentum at zero
    temperature = result.temperature[40:]
    assert temperature.mean() == pytest.approx(300, rel=0.05)
    assert temperature.std() == pytest.approx(300 * np.sqrt(2 / dof), rel=0.15)


def test_velocities_have_the_temperature_no_momentum_and_no_rotation() -> None:
    atoms = molecule("CH3CH2OH")
    start_velocities(atoms, 300, np.random.default_rng(1))
    dof = degrees_of_freedom(atoms, True, True)
    assert dof == 21
    assert 2 * atoms.get_kinetic_energy() / (dof * units.kB) == pytest.approx(300)
    assert np.abs(atoms.get_momenta().sum(0)).max() < 1e-12
    assert np.abs(atoms.get_angular_momentum()).max() < 1e-10
    assert degrees_of_freedom(molecule("CO2"), True, True) == 4
    assert degrees_of_freedom(Atoms("Ar"), True, True) == 3
    same = molecule("CH3CH2OH")
    start_velocities(same, 300, np.random.default_rng(1))
    assert np.array_equal(same.get_momenta(), atoms.get_momenta())


def test_npt_takes_any_cell_and_relaxes_the_pressure() -> None:
    atoms = bulk("Ar", a=5.0).repeat(3)
    atoms.calc = Calculator(models.build("lennard_jones", cutoff=6.0))
    frame = atoms.cell.array.copy()
    result = run_md(atoms, ensemble="npt", steps=300, timestep=4.0, temperature=30, barostat_time=200, every=5)
    assert result.log["pressure_GPa"][0] > 0.5
    assert abs(result.log["pressure_GPa"][-20:].mean()) < 0.1
    ratio = atoms.cell.array / np.where(frame == 0, 1.0, frame)
    assert np.ptp(ratio[frame != 0]) < 1e-12  # the shape stays
    with pytest.raises(UserError, match="three directions"):
        run_md(_free(), ensemble="npt", steps=1)


def _free() -> Atoms:
    atoms = molecule("H2O")
    atoms.calc = EMT()
    return atoms


def test_fixed_atoms_stay() -> None:
    for ensemble in ("nve", "langevin", "bussi"):
        atoms = copper()
        atoms.set_constraint(FixAtoms([0, 3]))
        before = atoms.positions.copy()
        run_md(atoms, ensemble=ensemble, steps=10, timestep=4.0)
        assert np.array_equal(atoms.positions[[0, 3]], before[[0, 3]])
        assert not np.array_equal(atoms.positions[1], before[1])


@pytest.mark.parametrize("suffix", [".xyz", ".traj"])
@pytest.mark.parametrize("ensemble", ["nve", "langevin", "bussi", "npt"])
def test_restart_gives_the_numbers_of_a_run_never_stopped(tmp_path: Path, ensemble: str, suffix: str) -> None:
    settings: dict[str, Any] = {"ensemble": ensemble, "steps": 40, "every": 7, "timestep": 2.0, "temperature": 100}
    settings |= {"barostat_time": 200} | ({"temperature_end": 200.0} if ensemble != "nve" else {})

    def stop(step: int, row: dict[str, float]) -> None:
        if step == 21:
            raise KeyboardInterrupt

    whole, again = salt(), salt()
    run_md(whole, output=tmp_path / f"whole{suffix}", **settings)
    with pytest.raises(KeyboardInterrupt):
        run_md(salt(), output=tmp_path / f"broken{suffix}", progress=stop, **settings)
    run_md(again, output=tmp_path / f"broken{suffix}", restart=True, **settings)
    assert np.array_equal(again.positions, whole.positions)
    assert np.array_equal(again.get_momenta(), whole.get_momenta())
    assert (tmp_path / "broken.csv").read_text() == (tmp_path / "whole.csv").read_text()
    frames = read(tmp_path / f"broken{suffix}", index=":")
    assert [frame.info["step"] for frame in frames] == [0, 7, 14, 21, 28, 35, 40]
    assert steps_of(tmp_path / "broken.csv") == [0, 7, 14, 21, 28, 35, 40]


SCRIPT = """
import os, signal, sys, torch
sys.path.insert(0, {tests!r})
from test_md import salt, run_md
def kill(step, row):
    if step == 14:
        os.kill(os.getpid(), signal.SIGKILL)
run_md(salt(), output={output!r}, ensemble="langevin", steps=20, every=1, timestep=0.1, temperature=0,
       temperature_end=300, progress=kill)
"""


def test_killed_and_restarted_every_step_is_there_once(tmp_path: Path) -> None:
    output = tmp_path / "run.xyz"
    script = SCRIPT.format(tests=str(Path(__file__).parent), output=str(output))
    killed = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert killed.returncode == -9, killed.stderr.decode()
    with output.open("ab") as file:  # a frame and a row that the kill cut short
        file.write(b'8\nLattice="5.6 0 0 0 5.6 0 0 0 5.6" step=15 time_fs=1.5\nNa 0.0 0')
    with output.with_suffix(".csv").open("ab") as file:
        file.write(b"15,1.5,-3")
    settings = {
        "ensemble": "langevin",
        "steps": 20,
        "every": 1,
        "timestep": 0.1,
        "temperature": 0,
        "temperature_end": 300,
    }
    result = run_md(salt(), output=output, restart=True, **settings)
    assert steps_of(output.with_suffix(".csv")) == list(range(21))
    np.testing.assert_allclose(result.target_temperature, np.arange(21) * 15.0)
    assert [frame.info["step"] for frame in read(output, index=":")] == list(range(21))


def test_restart_without_the_state_goes_on_from_the_last_frame(tmp_path: Path) -> None:
    output = tmp_path / "run.xyz"
    atoms = argon()
    run_md(atoms, output=output, steps=20, timestep=2.0, temperature=40)
    energy = atoms.get_total_energy()
    (tmp_path / "run.restart.npz").unlink()
    output.write_bytes(output.read_bytes()[:-30])
    result = run_md(argon(), output=output, restart=True, steps=30, timestep=2.0, temperature=40)
    assert steps_of(tmp_path / "run.csv") == [0, 10, 20, 30]
    assert result.log["total_eV"][-1] == pytest.approx(energy, abs=1e-4)


def test_restart_refuses_what_does_not_fit(tmp_path: Path) -> None:
    output = tmp_path / "run.xyz"
    with pytest.raises(UserError, match="no such trajectory"):
        run_md(argon(), output=output, restart=True)
    run_md(argon(), output=output, steps=4, timestep=2.0)
    with pytest.raises(UserError, match="not those of the structure"):
        run_md(copper(), output=output, restart=True, timestep=2.0)
    with pytest.raises(UserError, match=r"time step of 2 fs, not 1 fs"):
        run_md(argon(), output=output, restart=True, timestep=1.0)
    with pytest.raises(UserError, match="there already"):
        run_md(argon(), output=output, steps=4)
    assert steps_of(tmp_path / "run.csv") == [0, 4]


def test_out_of_memory_at_step_seven_leaves_seven_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    atoms = salt()
    inner, calls = atoms.calc.potential.atom_energies, []

    def fail(graph: object) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 8:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return inner(graph)

    monkeypatch.setattr(atoms.calc.potential, "atom_energies", fail)
    with pytest.raises(SimulationStoppedError, match=r"step 7 .*8 atoms, \d+ edges"):
        run_md(atoms, output=tmp_path / "run.xyz", steps=20, every=1)
    assert len(read(tmp_path / "run.xyz", index=":")) == 7
    assert steps_of(tmp_path / "run.csv") == list(range(7))


def test_runaways_are_stopped(tmp_path: Path) -> None:
    hot = argon()
    hot.positions[0] = hot.positions[1] + 1.5
    with pytest.raises(SimulationStoppedError, match=r"temperature reached \d+ K; the limit is 1500 K.*up to step 0"):
        run_md(hot, output=tmp_path / "hot.xyz", steps=500, timestep=2.0, temperature=100)
    torn = molecule("CH3CH2OH")
    torn.calc = Calculator(models.build("lennard_jones", sigma=1.0, epsilon=1e-4, cutoff=3.0))
    with pytest.raises(SimulationStoppedError, match="times its covalent length; the limit is 2 times"):
        run_md(torn, steps=4000, timestep=1.0, temperature=500)
    run_md(torn, steps=20, max_bond=0)


def test_settings_are_checked() -> None:
    atoms = argon()
    for settings, message in (
        ({"ensemble": "langevn"}, 'Did you mean "langevin"'),
        ({"timestep": 0}, "timestep is 0"),
        ({"temperature": -3}, "temperature is -3"),
        ({"temperature_end": 300}, "no bath"),
        ({"output": "run.pdb"}, "ends in .xyz"),
        ({"keep_velocities": True}, "structure has none"),
    ):
        with pytest.raises(UserError, match=message):
            run_md(atoms, **settings)
    atoms.positions[0] = atoms.positions[1]
    with pytest.raises(UserError, match=r"atoms 0 .* and 1 "):
        run_md(atoms)
    water = _free()
    with pytest.warns(PhysicsWarning, match="long for hydrogen"):
        run_md(water, steps=0, timestep=2.0)


def test_a_bath_heats_atoms_at_rest() -> None:
    atoms = copper()
    run_md(atoms, ensemble="bussi", steps=50, timestep=2.0, temperature=0, temperature_end=300, thermostat_time=10)
    assert atoms.get_temperature() > 30
