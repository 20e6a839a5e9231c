"""modelforge: HDF5 with a group a molecule, and each array's unit and kind in its attributes "u" and "format".

Which of a file's energies is the label is for the user to say, e.g. keys.energy=internal_energy_at_0K.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mlpot.data.frame import Frame
from mlpot.data.options import ReadOptions, note, resolve
from mlpot.data.sources import _groups

FORMAT = "modelforge (.hdf5)"
SUFFIXES = (".hdf5", ".h5")
KEYS = ("energy", "forces")
# Names of units as they are spelt there, and here.
_SPELT = {"kilojoule_per_mole": "kJ/mol", "kilocalorie_per_mole": "kcal/mol", "nanometer": "nm", "electron_volt": "eV"}


def _wanted(group: Any) -> bool:
    return "positions" in group and "atomic_numbers" in group and "u" in group["positions"].attrs


def recognises(path: Path) -> bool:
    """An HDF5 file with a group that has atomic_numbers and positions with a unit."""
    return _groups.recognises(path, _wanted)


def _unit(array: Any) -> str:
    unit = array.attrs["u"]
    text = unit.decode() if isinstance(unit, bytes) else str(unit)
    return re.sub(r"\w+", lambda word: _SPELT.get(word[0], word[0]), text).replace(" ", "").replace("**", "^")


def read(path: Path, options: ReadOptions) -> Iterator[tuple[Frame, tuple[str, ...]]]:
    """The frames, with notes on what was converted."""
    with h5py.File(path) as file:
        for group in _groups.groups(file, _wanted):
            where = f"{path}: {group.name}"
            names = {"length": "positions"}
            for label in KEYS:
                name = _groups.pick(group, options.keys.get(label), (label,))
                if name is not None:
                    names[label] = name
            unit = resolve(options, where, {label: _unit(group[name]) for label, name in names.items()})
            arrays = {
                label: np.asarray(group[name][()], dtype=np.float64) * unit[label].factor
                for label, name in names.items()
            }
            energy: NDArray[np.float64] | None = arrays.get("energy")
            notes = tuple(text for label in names for text in note(label, unit[label]))
            for frame in _groups.frames(
                where,
                _groups.numbers_of(group["atomic_numbers"]),
                arrays["length"],
                None if energy is None else energy.reshape(-1),
                arrays.get("forces"),
                {"molecule": group.name.strip("/")},
            ):
                yield frame, notes


def held(path: Path) -> tuple[Counter[str], Counter[str]]:
    """Arrays of the groups, with the number of groups that carry each."""
    return _groups.held(path, _wanted)
