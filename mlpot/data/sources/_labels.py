"""From the named values of a frame to a Frame: which value is which label, and in which unit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from mlpot.convert import ase as convert
from mlpot.data.frame import Frame
from mlpot.data.options import ReadOptions, Unit, known, note, resolve
from mlpot.errors import UserError
from mlpot.structure import Structure

DEFAULT_KEYS = {
    "energy": "energy",
    "forces": "forces",
    "stress": "stress",
    "config_type": "config_type",
    "weight": "config_weight",
}
# How files name the unit of a label beside it, e.g. energy_unit=eV or force-unit=hartree/bohr.
UNIT_KEY = re.compile(r"^(energy|forces?|stress|virial|length|positions?)[-_]units?$", re.IGNORECASE)


def stated_units(info: Mapping[str, Any]) -> dict[str, str]:
    """Units that a frame states itself."""
    found = {}
    for key, value in info.items():
        match = UNIT_KEY.match(key)
        if match:
            name = match[1].lower()
            name = "forces" if name.startswith("force") else "length" if name.startswith("position") else name
            found[name] = re.sub("angstroms?", "Å", str(value), flags=re.IGNORECASE)
    return found


def scaled(structure: Structure, length: Unit) -> Structure:
    """The structure in Å."""
    if length.factor == 1.0:
        return structure
    return Structure(
        structure.numbers,
        structure.positions * length.factor,
        structure.cell * length.factor,
        structure.pbc,
        structure.charge,
        structure.spin,
    )


def labelled(
    structure: Structure,
    info: Mapping[str, Any],
    arrays: Mapping[str, Any],
    options: ReadOptions,
    where: str,
    stated: Mapping[str, str] | None = None,
) -> tuple[Frame, tuple[str, ...]]:
    """The frame, and notes on what was converted. `info` holds values of the frame, `arrays` values of its atoms."""
    keys = {**DEFAULT_KEYS, **options.keys}
    unit = resolve(options, where, {**(stated or {}), **stated_units(info)})
    structure = scaled(structure, unit["length"])
    notes = list(note("length", unit["length"]))
    energy = _number(info.get(keys["energy"]), f'{where}: "{keys["energy"]}"')
    if energy is not None:
        energy *= unit["energy"].factor
        notes += note("energy", unit["energy"])
    forces = arrays.get(keys["forces"])
    if forces is not None:
        forces = _numbers(forces, f'{where}: "{keys["forces"]}"') * unit["forces"].factor
        notes += note("forces", unit["forces"])
    stress, told = _stress(structure, info, keys, unit, where)
    weight = _number(info.get(keys["weight"]), f"{where}: weight")
    used = {*keys.values(), "charge", "spin"}
    frame = Frame(
        structure,
        energy,
        forces,
        stress,
        1.0 if weight is None else weight,
        str(info.get(keys["config_type"], "")),
        {key: plain for key, value in info.items() if key not in used and (plain := _plain(value)) is not None},
    )
    return frame, (*notes, *told)


def _stress(
    structure: Structure, info: Mapping[str, Any], keys: Mapping[str, str], unit: Mapping[str, Unit], where: str
) -> tuple[Any, tuple[str, ...]]:
    """Stress (3, 3) in eV/Å³ from a stress, or from a virial that the user named; none where there is no volume."""
    value, virial = info.get(keys["stress"]), info.get(keys.get("virial", ""))
    if value is not None:
        full = convert.as_stress(_numbers(value, f'{where}: "{keys["stress"]}"'), where)
        told = ("stress: six numbers, taken in ASE's order xx yy zz yz xz xy",) if np.size(value) == 6 else ()
        return full * known(unit["stress"], "stress", where), (*note("stress", unit["stress"]), *told)
    if virial is None or abs(np.linalg.det(structure.cell)) < 1e-9:
        return None, ()
    full = convert.as_stress(_numbers(virial, f'{where}: "{keys["virial"]}"'), where) * unit["energy"].factor
    name = keys["virial"]
    return convert.stress_from_virial(full, structure.cell), (
        f"stress: -{name} / volume, {name} in {unit['energy'].name}",
    )


def _plain(value: Any) -> str | float | int | None:
    """A value of a frame as plain text or number; None for arrays."""
    if isinstance(value, np.generic):
        value = value.item()
    return value if isinstance(value, str | int | float) else None


def _number(value: Any, where: str) -> float | None:
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UserError(f"{where} is {str(value)[:60]!r}; expected a number.") from None


def _numbers(value: Any, where: str) -> Any:
    try:
        return np.array(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise UserError(f"{where} is {str(value)[:60]!r}; expected numbers.") from None
