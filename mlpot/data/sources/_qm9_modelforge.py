"""The properties of QM9 in modelforge's HDF5: a group a molecule, each array with its unit.

In its version 1.1 the polarizability and the spatial extent are the published numbers in a0³ and a0², said to be Å³ and
Å² (so, in nm³ and nm²): methane's polarizability would be 13.21 Å³; it is 13.21 a0³ or 1.96 Å³. They are told apart by
what atoms can have.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mlpot.data.sources._groups import numbers_of
from mlpot.errors import UserError
from mlpot.units import BOHR, KJ_PER_MOL

_KEYS = {
    "mu": "dipole_moment_scalar_per_system",
    "alpha": "polarizability",
    "homo": "energy_of_homo",
    "gap": "lumo-homo_gap",
    "r2": "electronic_spatial_extent",
    "zpve": "zero_point_vibrational_energy",
    "u0": "internal_energy_at_0K",
    "u298": "internal_energy_at_298.15K",
    "h298": "enthalpy_at_298.15K",
    "g298": "free_energy_at_298.15K",
    "cv": "heat_capacity_at_298.15K",
}
_FACTORS = {
    "kilojoule_per_mole": KJ_PER_MOL,
    "kilojoule_per_mole / kelvin": KJ_PER_MOL,
    "elementary_charge * nanometer": 10.0,
    "nanometer ** 2": 100.0,
    "nanometer ** 3": 1000.0,
}
# Å³ that a hydrogen and another atom of QM9 add to the polarizability (Miller, JACS 112, 8533 (1990)), rounded.
_HYDROGEN, _OTHER = 0.4, 1.1
MISLABELLED = "alpha and r2: said to be in Å³ and Å², but these are the published numbers, which are in a0³ and a0²"


def is_qm9(group: Any) -> bool:
    """Whether a group has all of QM9's properties."""
    return all(name in group for name in (*_KEYS.values(), "rotational_constants"))


def properties(group: Any, where: str) -> tuple[dict[str, float], tuple[str, ...]]:
    """In our units, with a note where a stated unit is wrong.

    The energy of the lowest empty orbital, which is not there, is that of the highest occupied one and the gap; both
    are rounded to 0.003 eV.
    """
    found = {name: _value(group, key, where) for name, key in _KEYS.items()}
    found["lumo"] = found["homo"] + found["gap"]
    found |= dict(zip("ABC", map(float, group["rotational_constants"][0]), strict=True))
    numbers = numbers_of(group["atomic_numbers"])
    possible = float(np.where(numbers == 1, _HYDROGEN, _OTHER).sum())
    if found["alpha"] < 2.5 * possible:  # in a0³ it would be 6.7 times as large
        return found, ()
    found["alpha"] *= BOHR**3
    found["r2"] *= BOHR**2
    return found, (MISLABELLED,)


def _value(group: Any, key: str, where: str) -> float:
    stated = group[key].attrs["u"]
    unit = stated.decode() if isinstance(stated, bytes) else str(stated)
    if unit not in _FACTORS:
        raise UserError(f"{where}: {key} is in {unit}; expected one of {', '.join(_FACTORS)}.")
    return float(group[key][0, 0]) * _FACTORS[unit]
