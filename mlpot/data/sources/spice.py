"""SPICE: HDF5 with a group a molecule and its conformations (Eastman et al., Sci. Data 10, 11, 2023).

Units stand beside each array (bohr, hartree, hartree/bohr); the gradient is minus the force.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from mlpot import units
from mlpot.data.frame import Frame
from mlpot.data.options import ReadOptions
from mlpot.errors import UserError
from mlpot.structure import Structure

FORMAT = "SPICE (.hdf5)"
SUFFIXES = (".hdf5", ".h5")
_ENERGY, _GRADIENT = "dft_total_energy", "dft_total_gradient"


def recognises(path: Path) -> bool:
    """An HDF5 file whose first group has conformations."""
    import h5py

    if not h5py.is_hdf5(path):
        return False
    with h5py.File(path) as file:
        first = next(iter(file.values()), None)
        return isinstance(first, h5py.Group) and "conformations" in first


def _unit(array: Any, default: str) -> str:
    unit = array.attrs.get("units", default)
    return unit.decode() if isinstance(unit, bytes) else str(unit)


def read(path: Path, options: ReadOptions) -> Iterator[tuple[Frame, tuple[str, ...]]]:
    """The frames, with notes on what was converted."""
    import h5py

    energy_key, gradient_key = options.keys.get("energy", _ENERGY), options.keys.get("forces", _GRADIENT)
    with h5py.File(path) as file:
        for name, group in file.items():
            where = f"{path}: {name}"
            positions = group["conformations"][()].astype(np.float64)
            positions *= units.factor(options.units.get("length", _unit(group["conformations"], "bohr")), "length")
            energy = gradient = None
            notes = []
            if energy_key in group:
                unit = options.units.get("energy", _unit(group[energy_key], "hartree"))
                energy = group[energy_key][()] * units.factor(unit, "energy")
                notes.append(f"energy: {unit} -> eV (stated in the file)")
            if gradient_key in group:
                unit = options.units.get("forces", _unit(group[gradient_key], "hartree/bohr"))
                gradient = group[gradient_key][()].astype(np.float64) * units.factor(unit, "forces")
                notes.append(f"forces: {'minus the gradient, ' if 'gradient' in gradient_key else ''}{unit} -> eV/Å")
            if energy is not None and len(energy) != len(positions):
                raise UserError(f"{where}: {len(energy)} energies for {len(positions)} conformations.")
            sign = -1.0 if "gradient" in gradient_key else 1.0
            numbers = group["atomic_numbers"][()].astype(np.int64)
            info = _texts(group) | {"molecule": name}
            for k, place in enumerate(positions):
                yield (
                    Frame(
                        Structure(numbers, place, np.zeros((3, 3)), np.zeros(3, dtype=bool)),
                        None if energy is None else float(energy[k]),
                        None if gradient is None else sign * gradient[k],
                        info=info,
                    ),
                    tuple(notes),
                )


def _texts(group: Any) -> dict[str, str]:
    found = {}
    for key in ("smiles", "subset"):
        if key in group:
            value = np.ravel(group[key][()])[0]
            found[key] = value.decode() if isinstance(value, bytes) else str(value)
    return found


def explain_missing(path: Path, options: ReadOptions) -> str:
    """What the file holds in place of labels."""
    import h5py

    with h5py.File(path) as file:
        held = ", ".join(next(iter(file.values())))
    return f"Expected {_ENERGY} and {_GRADIENT}; its groups hold {held}. Name others with keys.energy= and keys.forces=."
