"""ANI-1x and ANI-1: HDF5 with a group a formula (Smith et al., Sci. Data 7, 134, 2020; 4, 170193, 2017).

Hartree, Å and Hartree/Å; the files carry no units. ANI-1x holds several levels of theory, NaN where one is missing.
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
from mlpot.errors import UserError

FORMAT = "ANI-1x or ANI-1 (.h5, .hdf5)"
SUFFIXES = (".h5", ".hdf5")
KEYS = ("energy", "forces")
_ENERGIES = ("wb97x_dz.energy", "energies", "energy")
_FORCES = ("wb97x_dz.forces", "forces")


def _wanted(group: Any) -> bool:
    return "coordinates" in group and ("atomic_numbers" in group or "species" in group)


def recognises(path: Path) -> bool:
    """An HDF5 file with a group that has coordinates and atomic_numbers or species."""
    return _groups.recognises(path, _wanted)


def _level(name: str) -> str:
    return name.rpartition(".")[0]


def read(path: Path, options: ReadOptions) -> Iterator[tuple[Frame, tuple[str, ...]]]:
    """The frames, with notes on what was converted; conformations without the chosen energy are left out."""
    unit = resolve(
        options, str(path), convention={"energy": "Hartree", "forces": "Hartree/Å"}, by="the convention of ANI"
    )
    with h5py.File(path) as file:
        for group in _groups.groups(file, _wanted):
            where = f"{path}: {group.name}"
            energy_key = _groups.pick(group, options.keys.get("energy"), _ENERGIES)
            forces_key = _groups.pick(group, options.keys.get("forces"), _FORCES)
            if energy_key and forces_key and _level(energy_key) != _level(forces_key):
                if "forces" in options.keys:
                    raise UserError(f"{where}: {energy_key} and {forces_key} are of different levels of theory.")
                forces_key = None  # energies of another level were asked for; its own forces must be named too
            notes = [*note("length", unit["length"])]
            notes += [f"{text}: {energy_key}" for text in note("energy", unit["energy"]) if energy_key]
            notes += [f"{text}: {forces_key}" for text in note("forces", unit["forces"]) if forces_key]
            energy, forces = (
                None if key is None else np.asarray(group[key][()], dtype=np.float64)
                for key in (energy_key, forces_key)
            )
            if energy is not None:
                energy = energy.reshape(-1)
                kept = np.isfinite(energy)
                if not kept.all():
                    notes.append(f"conformations without {energy_key} are left out")
            else:
                kept = np.ones(len(group["coordinates"]), dtype=bool)
            for frame in _groups.frames(
                where,
                _groups.numbers_of(group["atomic_numbers" if "atomic_numbers" in group else "species"]),
                group["coordinates"][()].astype(np.float64)[kept] * unit["length"].factor,
                None if energy is None else energy[kept] * unit["energy"].factor,
                None if forces is None else forces[kept] * unit["forces"].factor,
                {"molecule": group.name.strip("/")},
            ):
                yield frame, tuple(notes)


def held(path: Path) -> tuple[Counter[str], Counter[str]]:
    """Arrays of the groups, with the number of groups that carry each."""
    return _groups.held(path, _wanted)
