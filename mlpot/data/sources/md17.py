"""MD17 and rMD17: npz files of one molecule (Chmiela et al. 2017; Christensen & von Lilienfeld 2020).

MD17 has E, F, R, z; rMD17 energies, forces, coords, nuclear_charges. Both are in kcal/mol and kcal/mol/Å. Files with
a unit_cell are of the same shape but of other origin: their units must be stated.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlpot import units
from mlpot.data.frame import Frame
from mlpot.data.options import ReadOptions
from mlpot.errors import UserError
from mlpot.structure import Structure

FORMAT = "MD17 or rMD17 (.npz)"
SUFFIXES = (".npz",)
# label -> its name in MD17, in rMD17
NAMES = {
    "numbers": ("z", "nuclear_charges"),
    "positions": ("R", "coords"),
    "energy": ("E", "energies"),
    "forces": ("F", "forces"),
}


def recognises(path: Path) -> bool:
    """A zip archive that ends in .npz."""
    return path.suffix == ".npz" and zipfile.is_zipfile(path)


def _arrays(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _find(arrays: Mapping[str, Any], label: str, options: ReadOptions, path: Path, needed: bool) -> Any:
    named = options.keys.get(label)
    for name in (named,) if named else NAMES[label]:
        if name in arrays:
            return arrays[name]
    if not needed and not named:
        return None
    raise UserError(
        f"{path}: no array of {label}; expected {named or ' or '.join(NAMES[label])}. It holds: {', '.join(arrays)}."
    )


def _units(arrays: Mapping[str, Any], options: ReadOptions, path: Path) -> tuple[dict[str, float], tuple[str, ...]]:
    if "unit_cell" in arrays and "energy" not in options.units and "E" in arrays:
        raise UserError(
            f"{path}: it has a unit_cell, so it is not MD17, and npz files carry no units. State them, "
            f"e.g. units.energy=eV units.forces=eV/Å (or kcal/mol and kcal/mol/Å)."
        )
    factors = options.factors(energy="kcal/mol", forces="kcal/mol/Å")
    source = {label: options.units.get(label) for label in ("energy", "forces")}
    default = {"energy": "kcal/mol", "forces": "kcal/mol/Å"}
    notes = tuple(
        f"{label}: {unit or default[label]} -> {units.INTERNAL[label]} "
        f"({'stated by you' if unit else 'the convention of MD17 and rMD17'})"
        for label, unit in source.items()
    )
    return factors, notes


def read(path: Path, options: ReadOptions) -> Iterator[tuple[Frame, tuple[str, ...]]]:
    """The frames, with notes on what was converted."""
    arrays = _arrays(path)
    numbers = _find(arrays, "numbers", options, path, True)
    positions = _find(arrays, "positions", options, path, True)
    energy = _find(arrays, "energy", options, path, False)
    forces = _find(arrays, "forces", options, path, False)
    factors, notes = _units(arrays, options, path) if energy is not None or forces is not None else ({}, ())
    n = len(positions)
    for name, array in (("energy", energy), ("forces", forces)):
        if array is not None and len(array) != n:
            raise UserError(f"{path}: {len(array)} entries of {name} for {n} of positions; the file is inconsistent.")
    theory = arrays.get("theory")
    info = {} if theory is None else {"theory": theory.item().decode() if theory.dtype.kind == "S" else str(theory)}
    for index in range(n):
        species = numbers[index] if numbers.ndim == 2 else numbers
        real = arrays["node_mask"][index] if "node_mask" in arrays else species > 0
        cell = arrays["unit_cell"][index] if "unit_cell" in arrays else None
        pbc = arrays["pbc"][index] if "pbc" in arrays else cell is not None
        structure = Structure(
            species[real].astype(np.int64),
            positions[index][real].astype(np.float64) * units.factor(options.units.get("length", "Å"), "length"),
            np.zeros((3, 3)) if cell is None else cell.astype(np.float64),
            np.broadcast_to(np.array(pbc, dtype=bool), (3,)).copy(),
        )
        structure.check(f"{path}: frame {index}")
        yield (
            Frame(
                structure,
                None if energy is None else float(np.ravel(energy[index])[0]) * factors["energy"],
                None if forces is None else forces[index][real].astype(np.float64) * factors["forces"],
                info=info,
            ),
            notes,
        )


def explain_missing(path: Path, options: ReadOptions) -> str:
    """What the file holds in place of labels."""
    held = ", ".join(f"{name} {array.shape}" for name, array in _arrays(path).items())
    return f"Expected E and F, or energies and forces; it holds {held}."
