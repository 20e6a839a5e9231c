"""Relaxation of atoms, and of the cell if wanted, with any ASE calculator."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from ase import Atoms
from ase.filters import FrechetCellFilter
from ase.optimize import BFGS, FIRE, LBFGS

from mlpot.errors import UserError, unknown
from mlpot.simulate.system import refuse_overlap
from mlpot.units import GPA

OPTIMIZERS: dict[str, Any] = {"bfgs": BFGS, "fire": FIRE, "lbfgs": LBFGS}


@dataclass(frozen=True)
class RelaxResult:
    """What a relaxation left.

    converged: whether forces (and stress) came below the limit. steps: taken. energy (eV) and first_energy: after and
    before. max_force: largest force on an atom, eV/Å. max_stress: largest deviation of the stress from the pressure
    wanted, GPa; None where the cell was not relaxed. atoms: relaxed, with their calculator.
    """

    atoms: Atoms
    converged: bool
    steps: int
    first_energy: float
    energy: float
    max_force: float
    max_stress: float | None


def relax(
    atoms: Atoms,
    *,
    fmax: float = 0.01,
    steps: int = 500,
    cell: bool = False,
    pressure: float = 0.0,
    optimizer: str = "bfgs",
    progress: Callable[[int, float, float], None] | None = None,
) -> RelaxResult:
    """Move the atoms (in place) downhill until no force exceeds fmax (eV/Å); constraints on them hold.

    cell: relax the cell too, at `pressure` (GPa); stress times the volume per atom then counts among the forces.
    steps: at most. optimizer: bfgs, lbfgs or fire. progress: called with step, energy (eV) and largest force (eV/Å).
    Raises UserError for settings that do not fit and where the calculator fails; the atoms then stand where they were
    last.
    """
    if optimizer not in OPTIMIZERS:
        raise unknown("optimizer", optimizer, OPTIMIZERS)
    if not (math.isfinite(fmax) and fmax > 0):
        raise UserError(f"fmax is {fmax}; expected a force above zero, in eV/Å.")
    if steps < 0:
        raise UserError(f"steps is {steps}; expected zero or more.")
    if pressure and not cell:
        raise UserError(f"pressure is {pressure} GPa, but the cell is not relaxed; ask for that too.")
    if cell and not atoms.pbc.all():
        raise UserError(f"the cell cannot be relaxed: pbc is {atoms.pbc.tolist()}, not periodic in three directions.")
    refuse_overlap(atoms, "structure")
    moved: Any = FrechetCellFilter(atoms, scalar_pressure=pressure * GPA) if cell else atoms
    if cell:
        atoms.get_stress()  # forces come with it
    first = float(atoms.get_potential_energy())
    with OPTIMIZERS[optimizer](moved, logfile=None) as dynamics:
        if progress is not None:
            dynamics.attach(lambda: progress(dynamics.nsteps, float(atoms.get_potential_energy()), _largest(atoms)))
        converged = bool(dynamics.run(fmax=fmax, steps=steps))
    stress = None
    if cell:
        excess = atoms.get_stress(voigt=False) + pressure * GPA * np.eye(3)
        stress = float(np.abs(excess).max()) / GPA
    return RelaxResult(
        atoms, converged, dynamics.nsteps, first, float(atoms.get_potential_energy()), _largest(atoms), stress
    )


def _largest(atoms: Atoms) -> float:
    return float(np.linalg.norm(atoms.get_forces(), axis=1).max())
