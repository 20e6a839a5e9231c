"""From the named values of a frame to a Frame: which value is which label, and in which unit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from mlpot import units
from mlpot.convert import ase as convert
from mlpot.data.frame import Frame
from mlpot.data.options import ReadOptions
from mlpot.errors import UserError
from mlpot.structure import Structure

DEFAULT_KEYS = {"energy": "energy", "forces": "forces", "stress": "stress", "config_type": "config_type"}
# How files name the unit of a label beside it; the last word tells the label.
_UNIT_KEY = re.compile(r"^(energy|forces?|stress|virial)[-_]units?$", re.IGNORECASE)


def stated_units(info: Mapping[str, Any]) -> dict[str, str]:
    """Units that a frame states itself, e.g. ``energy_unit=eV`` or ``force-unit=hartree/bohr``."""
    found = {}
    for key, value in info.items():
        match = _UNIT_KEY.match(key)
        if match:
            name = match[1].lower()
            found["forces" if name.startswith("force") else name] = str(value).replace("angstrom", "Å")
    return found


def labelled(
    structure: Structure, info: Mapping[str, Any], arrays: Mapping[str, Any], options: ReadOptions, where: str
) -> tuple[Frame, tuple[str, ...]]:
    """The frame, and notes on what was converted. `info` holds values of the frame, `arrays` values of its atoms."""
    keys = {**DEFAULT_KEYS, **options.keys}
    stated = stated_units(info)
    unit = {**units.INTERNAL, **stated, **options.units}
    notes = [
        f"{label}: {unit[label]} -> {units.INTERNAL[label]} ({'stated by you' if label in options.units else 'stated in the file'})"
        for label in ("energy", "forces", "stress")
        if label in {**stated, **options.units} and units.factor(unit[label], label) != 1.0
    ]
    energy = _number(info.get(keys["energy"]), f'{where}: "{keys["energy"]}"')
    forces, stress = arrays.get(keys["forces"]), info.get(keys["stress"])
    if stress is not None:
        stress = convert.as_stress(stress, where) * units.factor(unit["stress"], "stress")
    elif "virial" in keys and info.get(keys["virial"]) is not None:
        virial = convert.as_stress(info[keys["virial"]], where) * units.factor(unit["energy"], "energy")
        stress = convert.stress_from_virial(virial, structure.cell)
        notes.append(f"stress: -{keys['virial']} / volume")
    weight = _number(info.get(keys.get("weight", "config_weight")), f"{where}: weight")
    used = {*keys.values(), "charge", "spin"}
    rest = {key: value for key, value in info.items() if key not in used and isinstance(value, str | int | float)}
    frame = Frame(
        structure,
        None if energy is None else energy * units.factor(unit["energy"], "energy"),
        None if forces is None else np.asarray(forces, dtype=np.float64) * units.factor(unit["forces"], "forces"),
        stress,
        1.0 if weight is None else weight,
        str(info.get(keys["config_type"], "")),
        rest,
    )
    return frame, tuple(notes)


def _number(value: Any, where: str) -> float | None:
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UserError(f"{where} is {value!r}; expected a number.") from None


def explain_missing(info: Mapping[str, int], arrays: Mapping[str, int], options: ReadOptions) -> str:
    """What a file without labels holds instead (key -> frames), and the options that would name its labels."""
    guesses = []
    for label, pattern, keys in (
        ("energy", "energy", info),
        ("forces", "force", arrays),
        ("stress", "stress", info),
        ("virial", "virial", info),
    ):
        near = [key for key in keys if re.search(pattern, key, re.IGNORECASE) and not _UNIT_KEY.match(key)]
        if near:
            guesses.append(f"keys.{label}={near[0]}")
    shown = [f"{kind}: {', '.join(f'{k} ({n})' for k, n in found.items()) or 'none'}" for kind, found in
             (("values of a frame", info), ("values of its atoms", arrays))]
    asked = f" You named {options.keys}." if options.keys else ""
    hint = f" If they are the labels, add: {' '.join(guesses)}" if guesses else ""
    return f"Found {'; '.join(shown)} (frames with each).{asked}{hint}"
