"""ANI-1x and ANI-1: HDF5 with a group a formula (Smith et al., Sci. Data 7, 134, 2020; 4, 170193, 2017).

Hartree, Å and Hartree/Å; the files carry no units. ANI-1x holds several levels of theory, NaN where one is missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mlpot.data.frame import Frame
from mlpot.data.options import ReadOptions
from mlpot.errors import UserError, unknown
from mlpot.structure import Structure, number_of

FORMAT = "ANI-1x or ANI-1 (.h5, .hdf5)"
SUFFIXES = (".h5", ".hdf5")
_ENERGIES = ("wb97x_dz.energy", "energies")
_FORCES = ("wb97x_dz.forces", "forces")


def recognises(path: Path) -> bool:
    """An HDF5 file with a group that has coordinates and atomic_numbers or species."""
    import h5py

    if not h5py.is_hdf5(path):
        return False
    with h5py.File(path) as file:
        return next(_groups(file), None) is not None


def _groups(parent: Any) -> Iterator[Any]:
    import h5py

    for child in parent.values():
        if isinstance(child, h5py.Group):
            if "coordinates" in child and ("atomic_numbers" in child or "species" in child):
                yield child
            else:
                yield from _groups(child)


def _array(group: Any, named: str | None, defaults: tuple[str, ...], where: str) -> tuple[str, Any] | None:
    if named is not None and named not in group:
        raise unknown("array", named, group, where)
    key = named or next((name for name in defaults if name in group), None)
    return None if key is None else (key, group[key][()].astype(np.float64))


def read(path: Path, options: ReadOptions) -> Iterator[tuple[Frame, tuple[str, ...]]]:
    """The frames, with notes on what was converted; conformations without the chosen energy are left out."""
    import h5py

    factors = options.factors(energy="Hartree", forces="Hartree/Å")
    with h5py.File(path) as file:
        for group in _groups(file):
            where = f"{path}: {group.name}"
            positions = group["coordinates"][()].astype(np.float64) * factors["length"]
            if "atomic_numbers" in group:
                numbers = group["atomic_numbers"][()].astype(np.int64)
            else:
                numbers = np.array([number_of(s.decode() if isinstance(s, bytes) else s) for s in group["species"][()]])
            energy = _array(group, options.keys.get("energy"), _ENERGIES, where)
            forces = _array(group, options.keys.get("forces"), _FORCES, where)
            if energy is not None and forces is not None and energy[0].rpartition(".")[0] != forces[0].rpartition(".")[0]:
                if "forces" in options.keys:
                    raise UserError(f"{where}: {energy[0]} and {forces[0]} are of different levels of theory.")
                forces = None  # energies of another level were asked for, and it has no forces
            notes = tuple(
                f"{label}: {found[0]}, {options.units.get(label, unit)} -> {internal} (the convention of ANI)"
                for label, found, unit, internal in (
                    ("energy", energy, "Hartree", "eV"),
                    ("forces", forces, "Hartree/Å", "eV/Å"),
                )
                if found is not None
            )
            for k, place in enumerate(positions):
                if energy is not None and np.isnan(energy[1][k]):
                    continue
                yield (
                    Frame(
                        Structure(numbers, place, np.zeros((3, 3)), np.zeros(3, dtype=bool)),
                        None if energy is None else float(energy[1][k]) * factors["energy"],
                        None if forces is None else forces[1][k] * factors["forces"],
                        info={"molecule": group.name.strip("/")},
                    ),
                    notes,
                )


def explain_missing(path: Path, options: ReadOptions) -> str:
    """What the file holds in place of labels."""
    import h5py

    with h5py.File(path) as file:
        held = ", ".join(next(_groups(file)))
    return f"Expected {' or '.join(_ENERGIES)}; its groups hold {held}. Name one with keys.energy=."
