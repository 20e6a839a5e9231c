"""SPICE: HDF5 with a group a molecule and its conformations (Eastman et al., Sci. Data 10, 11, 2023).

Units stand beside each array (bohr, hartree, hartree/bohr); the gradient is minus the force.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mlpot.data.frame import Frame
from mlpot.data.options import ReadOptions, note, resolve
from mlpot.data.sources import _groups

FORMAT = "SPICE (.hdf5)"
SUFFIXES = (".hdf5", ".h5")
KEYS = ("energy", "forces")
# The first release wrote blanks in the names.
_ENERGIES = ("dft_total_energy", "dft total energy")
_GRADIENTS = ("dft_total_gradient", "dft total gradient")


def _wanted(group: Any) -> bool:
    return "conformations" in group and "atomic_numbers" in group


def recognises(path: Path) -> bool:
    """An HDF5 file with a group that has conformations and atomic_numbers."""
    return _groups.recognises(path, _wanted)


def _stated(group: Any, **names: str | None) -> dict[str, str]:
    """Units that stand beside the arrays; a gradient has the unit of a force."""
    found = {}
    for label, name in names.items():
        unit = None if name is None else group[name].attrs.get("units")
        if unit is not None:
            found[label] = unit.decode() if isinstance(unit, bytes) else str(unit)
    return found


def read(path: Path, options: ReadOptions) -> Iterator[tuple[Frame, tuple[str, ...]]]:
    """The frames, with notes on what was converted."""
    convention = {"energy": "hartree", "forces": "hartree/bohr", "length": "bohr"}
    with h5py.File(path) as file:
        for group in _groups.groups(file, _wanted):
            where = f"{path}: {group.name}"
            energy_key = _groups.pick(group, options.keys.get("energy"), _ENERGIES)
            forces_key = _groups.pick(group, options.keys.get("forces"), _GRADIENTS)
            stated = _stated(group, length="conformations", energy=energy_key, forces=forces_key)
            unit = resolve(options, where, stated, convention, "the convention of SPICE")
            notes, energy, forces = list(note("length", unit["length"])), None, None
            if energy_key is not None:
                energy = np.asarray(group[energy_key][()], dtype=np.float64).reshape(-1) * unit["energy"].factor
                notes += note("energy", unit["energy"])
            if forces_key is not None:
                gradient = "gradient" in forces_key
                forces = group[forces_key][()].astype(np.float64) * (-1.0 if gradient else 1.0) * unit["forces"].factor
                notes += note("forces", unit["forces"])
                if gradient:
                    notes.append(f"forces: minus {forces_key}")
            for frame in _groups.frames(
                where,
                _groups.numbers_of(group["atomic_numbers"]),
                group["conformations"][()].astype(np.float64) * unit["length"].factor,
                energy,
                forces,
                {**_texts(group), "molecule": group.name.strip("/")},
            ):
                yield frame, tuple(notes)


def _texts(group: Any) -> dict[str, str]:
    found = {}
    for key in ("smiles", "subset"):
        if key in group:
            value = np.ravel(group[key][()])[0]
            found[key] = value.decode() if isinstance(value, bytes) else str(value)
    return found


def held(path: Path) -> tuple[Counter[str], Counter[str]]:
    """Arrays of the groups, with the number of groups that carry each."""
    return _groups.held(path, _wanted)
