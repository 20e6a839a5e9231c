"""modelforge: HDF5 with a group a molecule, and each array's unit and kind in its attributes "u" and "format".

Which of a file's energies is the label is for the user to say, e.g. keys.energy=internal_energy_at_0K. Of QM9 in this
form all properties are read, too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mlpot.data.frame import Frame
from mlpot.data.options import ReadOptions, note, resolve
from mlpot.data.sources import _groups, _qm9
from mlpot.data.sources._qm9_modelforge import is_qm9, properties
from mlpot.target import Target

FORMAT = "modelforge (.hdf5)"
SUFFIXES = (".hdf5", ".h5")
KEYS = ("energy", "forces")
DOUBTFUL = True  # where it is QM9
# Names of units as they are spelt there, and here.
_SPELT = {"kilojoule_per_mole": "kJ/mol", "kilocalorie_per_mole": "kcal/mol", "nanometer": "nm", "electron_volt": "eV"}


def _wanted(group: Any) -> bool:
    return "positions" in group and "atomic_numbers" in group and "u" in group["positions"].attrs


def recognises(path: Path) -> bool:
    """An HDF5 file with a group that has atomic_numbers and positions with a unit."""
    return _groups.recognises(path, _wanted)


def targets(path: Path, options: ReadOptions) -> tuple[Target, ...]:
    """All of QM9's properties, where the file is QM9."""
    with h5py.File(path) as file:
        first = next(_groups.groups(file, _wanted), None)
        return _qm9.TARGETS if first is not None and is_qm9(first) else ()


def _unit(array: Any) -> str:
    unit = array.attrs["u"]
    text = unit.decode() if isinstance(unit, bytes) else str(unit)
    return re.sub(r"\w+", lambda word: _SPELT.get(word[0], word[0]), text).replace(" ", "").replace("**", "^")


def read(path: Path, options: ReadOptions) -> Iterator[tuple[Frame, tuple[str, ...]]]:
    """The frames, with notes on what was converted, and of QM9 on molecules that are left out."""
    frames = _frames(path, options)
    return _qm9.characterized(frames, options) if targets(path, options) else frames


def _frames(path: Path, options: ReadOptions) -> Iterator[tuple[Frame, tuple[str, ...]]]:
    with h5py.File(path) as file:
        for group in _groups.groups(file, _wanted):
            where, qm9 = f"{path}: {group.name}", is_qm9(group)
            values, doubts = properties(group, where) if qm9 else ({}, ())
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
            notes = (*(text for label in names for text in note(label, unit[label])), *doubts)
            for frame in _groups.frames(
                where,
                _groups.numbers_of(group["atomic_numbers"]),
                arrays["length"],
                None if energy is None else energy.reshape(-1),
                arrays.get("forces"),
                {"molecule": group.name.strip("/")},
            ):
                if qm9:
                    name = f"gdb_{int(group.name.rpartition('_')[2])}"
                    frame = replace(frame, info={"name": name, **frame.info}, properties=values)
                yield frame, notes


def held(path: Path) -> tuple[Counter[str], Counter[str]]:
    """Arrays of the groups, with the number of groups that carry each."""
    return _groups.held(path, _wanted)
