"""Molecular dynamics with any ASE calculator: to a trajectory and a log, restartable, stopped when it runs away."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from mlpot.errors import PhysicsWarning, UserError
from mlpot.simulate import files
from mlpot.simulate.integrators import ENSEMBLES, StochasticCell, VelocityVerlet
from mlpot.simulate.result import MDResult
from mlpot.simulate.settings import Settings
from mlpot.simulate.system import Bonds, refuse_overlap, start_velocities
from mlpot.units import GPA

FloatArray = NDArray[np.float64]


class SimulationStoppedError(UserError):
    """The run went where it makes no sense to follow; what was good is kept in its files."""


Progress = Callable[[int, dict[str, float]], None]


def run_md(
    atoms: Atoms,
    *,
    output: str | Path | None = None,
    restart: bool = False,
    overwrite: bool = False,
    keep_positions: bool = True,
    progress: Progress | None = None,
    **settings: Any,
) -> MDResult:
    """Run dynamics of `atoms` with their calculator; settings are those of `Settings`. The atoms are moved.

    output: a trajectory (.xyz or .traj); beside it a log (.csv) and what a restart needs (.restart.npz). Frames carry
        energy, forces, momenta, step and time_fs.
    restart: go on from the files at `output` until step `steps`. The same numbers come out as of a run that was never
        stopped, on one machine; if the .restart.npz is lost, from the last frame, which holds 8 decimals.
    progress: called with the step and the columns of each row.
    Raises UserError for settings or files that do not fit, SimulationStoppedError where the run leaves reason.
    """
    return _Run(atoms, Settings(**settings), output, keep_positions, progress).go(restart, overwrite)


@dataclass
class _Run:
    atoms: Atoms
    settings: Settings
    output: str | Path | None
    keep_positions: bool
    progress: Progress | None
    kept: list[tuple[float, FloatArray, FloatArray]] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.atoms.calc is None:
            raise UserError("the atoms have no calculator; set atoms.calc first.")
        refuse_overlap(self.atoms, "structure")
        self.path = None if self.output is None else Path(self.output)
        self.frames = None if self.path is None else files.frames_file(self.path)
        self.log = files.Log(None if self.path is None else self.path.with_suffix(".csv"), self.settings.columns)
        self.state_file = None if self.path is None else self.path.with_suffix(".restart.npz")
        self.rng = np.random.default_rng(self.settings.seed)
        self.more: dict[str, float] = {}

    def go(self, restart: bool, overwrite: bool) -> MDResult:
        """The whole run."""
        began = perf_counter()
        self._doubts()
        self.bonds = Bonds(self.atoms)
        step = self._last_step = self._resume() if restart else self._begin(overwrite)
        self.integrator = self._integrator()
        if not restart:
            self._record(0)
        try:
            for number in range(step + 1, self.settings.steps + 1):
                self.integrator.step(number, self.settings.target(number))
                self._guard(number)
                if number % self.settings.every == 0 or number == self.settings.steps:
                    self._record(number)
        except SimulationStoppedError:
            raise
        except UserError as error:
            raise self._stopped(number, str(error)) from None
        finally:
            self.log.flush()
        return self._result(perf_counter() - began)

    def _doubts(self) -> None:
        if (self.atoms.numbers == 1).any() and self.settings.timestep > 1.0:
            warnings.warn(
                f"a time step of {self.settings.timestep} fs is long for hydrogen, which moves by about 10 fs a "
                f"vibration; 0.5 fs is usual.",
                PhysicsWarning,
                stacklevel=4,
            )

    def _integrator(self) -> VelocityVerlet:
        s = self.settings
        kind = ENSEMBLES[s.ensemble]
        options: dict[str, float] = {"time": s.thermostat_time} if kind.has_bath else {}
        if kind is StochasticCell:
            options |= {"pressure": s.pressure, "pressure_time": s.barostat_time, **self.more}
        made = kind(self.atoms, s.timestep, self.rng, not s.keep_velocities, **options)
        if isinstance(made, StochasticCell):
            self.more = {"compressibility": made.compressibility}
        return made

    def _begin(self, overwrite: bool) -> int:
        if self.path is not None and self.frames is not None:
            if self.path.exists() and not overwrite:
                raise UserError(
                    f"{self.path}: the file is there already. Go on with it (--restart), or replace it (--force)."
                )
            self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.settings.keep_velocities:
            start_velocities(self.atoms, self.settings.temperature, self.rng)
        elif "momenta" not in self.atoms.arrays or not self.atoms.arrays["momenta"].any():
            raise UserError("the velocities were to be kept, but the structure has none.")
        if self.path is not None:
            self.atoms.get_forces()  # what cannot be computed at all is said before an old file is replaced
            for stale in (self.path, self.state_file):
                if stale is not None:
                    stale.unlink(missing_ok=True)
            self.log.create()
        return 0

    def _resume(self) -> int:
        """Mend the files, set the atoms and the generator to the last step they all have, and return it."""
        if self.path is None or self.frames is None or self.state_file is None:
            raise UserError("a restart needs the output of the run to go on with.")
        if not self.path.is_file():
            raise UserError(f"{self.path}: there is no such trajectory to restart from.")
        steps = self.frames.steps()
        if not steps:
            raise UserError(f"{self.path}: it has no complete frame to restart from.")
        state = files.load_state(self.state_file)
        exact = state is not None and int(state["step"]) in steps
        step = int(state["step"]) if state is not None and exact else steps[-1]
        last = self.frames.keep(steps.index(step) + 1)
        self._same_run(last, step)
        self.log.keep_until(step)
        self.atoms.set_cell(last.cell)
        self.atoms.arrays["positions"][:] = last.positions
        self.atoms.set_momenta(last.get_momenta(), apply_constraint=False)
        if state is not None and exact:
            self.atoms.set_cell(state["cell"])
            self.atoms.arrays["positions"][:] = state["positions"]
            self.atoms.set_momenta(state["momenta"], apply_constraint=False)
            self.rng.bit_generator.state = json.loads(str(state["rng"]))
            self.more = {k: float(state[k]) for k in ("compressibility",) if k in state}
        else:
            self.rng = np.random.default_rng([self.settings.seed, step])
        return step

    def _same_run(self, last: Atoms, step: int) -> None:
        if not np.array_equal(last.numbers, self.atoms.numbers):
            raise UserError(f"{self.path}: its atoms are not those of the structure given; it is another run's.")
        spacing = float(last.info.get("time_fs", 0.0)) / step if step else self.settings.timestep
        if abs(spacing - self.settings.timestep) > 1e-6 * spacing:
            raise UserError(
                f"{self.path}: it was run with a time step of {spacing:g} fs, not {self.settings.timestep:g} fs; "
                f"go on with the same, or begin a new run."
            )

    def _guard(self, step: int) -> None:
        """Stop where temperature or a bond runs away, or numbers are no numbers any more."""
        temperature = self.integrator.temperature()
        if not temperature <= self.settings.limit:  # NaN too
            raise self._stopped(
                step, f"the temperature reached {temperature:.0f} K; the limit is {self.settings.limit:.0f} K"
            )
        ratio, i, j, length = self.bonds.longest(self.atoms)
        if self.settings.max_bond and not ratio <= self.settings.max_bond:
            names = f"{i} ({self.atoms.symbols[i]}) and {j} ({self.atoms.symbols[j]})"
            raise self._stopped(
                step,
                f"the bond between atoms {names} is {length:.2f} Å long, {ratio:.1f} times its covalent length; "
                f"the limit is {self.settings.max_bond:g} times",
            )

    def _stopped(self, step: int, reason: str) -> SimulationStoppedError:
        kept = ""
        if self.path is not None:
            kept = f" {self.path} holds every frame up to step {self._last_step:d}."
        return SimulationStoppedError(
            f"stopped at step {step} ({step * self.settings.timestep:g} fs): {reason.rstrip('.')}.{kept}"
        )

    def _record(self, step: int) -> None:
        """A row and a frame: the log first, the state last, so that a restart finds no frame without its row."""
        atoms, s = self.atoms, self.settings
        if s.ensemble == "npt":
            pressure = self.integrator.internal_pressure() / GPA  # type: ignore[attr-defined]
        potential, kinetic = float(atoms.get_potential_energy()), self.integrator.kinetic()
        row = [step, step * s.timestep, potential, kinetic, potential + kinetic, self.integrator.temperature()]
        row.append(s.target(step))
        if s.ensemble == "npt":
            row += [pressure, float(atoms.get_volume())]
        self.log.add(row)
        if self.keep_positions:
            self.kept.append((row[1], atoms.get_positions(), atoms.cell.array.copy()))
        if self.path is not None and self.frames is not None and self.state_file is not None:
            results = {"energy": potential, "forces": atoms.get_forces()}
            if s.ensemble == "npt":
                results["stress"] = atoms.get_stress()
            self.log.flush()
            self.frames.append(files.labelled(atoms, results, step=step, time_fs=row[1]))
            files.save_state(self.state_file, step, atoms, self.rng, **self.more)
        self._last_step = step
        if self.progress is not None:
            self.progress(step, dict(zip(s.columns, row, strict=True)))

    def _result(self, seconds: float) -> MDResult:
        columns = np.array(self.log.rows, dtype=np.float64).reshape(-1, len(self.settings.columns)).T
        times, positions, cells = zip(*self.kept, strict=True) if self.kept else ([], [], [])
        held = bool(self.kept)
        return MDResult(
            self.settings,
            self.atoms,
            dict(zip(self.settings.columns, columns, strict=True)),
            np.array(times) if held else None,
            np.array(positions) if held else None,
            np.array(cells) if held else None,
            self.path,
            self.log.path,
            seconds,
        )
