"""ASE: Atoms to and from Structure. Voigt order and the sign of stress live here only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlpot.errors import UserError
from mlpot.structure import Structure

VOIGT = ((0, 0), (1, 1), (2, 2), (1, 2), (0, 2), (0, 1))  # xx, yy, zz, yz, xz, xy


def number(info: Mapping[str, Any], key: str) -> float | None:
    """A number in ``atoms.info``, None where there is none; UserError for anything else."""
    value = info.get(key)
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UserError(f'atoms.info["{key}"] is {value!r}; expected a number.') from None


def structure(atoms: Any) -> Structure:
    """Structure of an ``ase.Atoms``; total charge and spin multiplicity are read from ``atoms.info``."""
    if not (hasattr(atoms, "positions") and hasattr(atoms, "pbc") and hasattr(atoms, "cell")):
        raise UserError(f"expected an ase.Atoms, got {type(atoms).__name__}.")
    return Structure.of(
        atoms.numbers,
        atoms.positions,
        atoms.cell.array,
        atoms.pbc,
        number(atoms.info, "charge"),
        number(atoms.info, "spin"),
    )


def atoms(source: Structure) -> Any:
    """An ``ase.Atoms`` of a Structure."""
    import ase

    info = {key: value for key in ("charge", "spin") if (value := getattr(source, key)) is not None}
    return ase.Atoms(source.numbers, positions=source.positions, cell=source.cell, pbc=source.pbc, info=info)


def to_voigt(stress: NDArray[np.float64]) -> NDArray[np.float64]:
    """(3, 3) to (6,) in ASE's order xx, yy, zz, yz, xz, xy; the off-diagonal pairs are averaged."""
    symmetric = 0.5 * (stress + stress.T)
    return np.array([symmetric[i, j] for i, j in VOIGT])


def from_voigt(stress: NDArray[np.float64]) -> NDArray[np.float64]:
    """(6,) in ASE's order xx, yy, zz, yz, xz, xy to a symmetric (3, 3)."""
    full = np.empty((3, 3))
    for value, (i, j) in zip(stress, VOIGT, strict=True):
        full[i, j] = full[j, i] = value
    return full


def stress_from_virial(virial: NDArray[np.float64], cell: NDArray[np.float64]) -> NDArray[np.float64]:
    """Stress (3, 3) in eV/Å³ with ASE's sign from a virial in eV: stress = -virial / volume."""
    volume = abs(np.linalg.det(cell))
    if volume < 1e-9:
        raise UserError("a virial needs a cell with a volume to become a stress; this cell has none.")
    return -np.asarray(virial, dtype=np.float64).reshape(3, 3) / volume


def as_stress(value: Any, where: str) -> NDArray[np.float64]:
    """A stress of 6 numbers (Voigt: xx, yy, zz, yz, xz, xy), 9 or (3, 3) as (3, 3)."""
    array = np.asarray(value, dtype=np.float64)
    if array.size == 6:
        return from_voigt(array.reshape(6))
    if array.size == 9:
        return array.reshape(3, 3)
    raise UserError(f"{where}: a stress has 6 or 9 numbers; this one has {array.size}.")
