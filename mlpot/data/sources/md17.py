"""MD17 and rMD17: npz files of one molecule (Chmiela et al. 2017; Christensen & von Lilienfeld 2020).

MD17 has E, F, R, z; rMD17 energies, forces, coords, nuclear_charges. Both are in kcal/mol and kcal/mol/Å. Files with
a unit_cell are of the same shape but of other origin (also padded ones, with a node_mask): their units must be stated.
"""

from __future__ import annotations

import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlpot.data.frame import Frame
from mlpot.data.options import ReadOptions, Unit, note, resolve
from mlpot.errors import UserError
from mlpot.structure import Structure

FORMAT = "MD17 or rMD17 (.npz)"
SUFFIXES = (".npz",)
KEYS = ("energy", "forces")
# label -> its name in MD17, in rMD17
NAMES = {
    "numbers": ("z", "nuclear_charges"),
    "positions": ("R", "coords"),
    "energy": ("E", "energies"),
    "forces": ("F", "forces"),
}


def recognises(path: Path) -> bool:
    """A zip archive of .npy arrays."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(".npy") for name in archive.namelist())
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return False


def _arrays(path: Path) -> dict[str, Any]:
    found = {}
    with np.load(path, allow_pickle=False) as archive:
        for name in archive.files:
            try:
                found[name] = archive[name]
            except ValueError as error:
                if "pickle" not in str(error):
                    raise
                raise UserError(
                    f'{path}: the array "{name}" is a pickle of Python objects, which could run code; it is not '
                    f"opened. Save it as plain numbers."
                ) from None
    return found


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


def _units(arrays: Mapping[str, Any], options: ReadOptions, path: Path) -> dict[str, Unit]:
    if "unit_cell" in arrays:
        if "energy" not in options.units and any(name in arrays for name in (*NAMES["energy"], *NAMES["forces"])):
            raise UserError(
                f"{path}: it has a unit_cell, so it is not MD17, and npz files carry no units. State them, "
                f"e.g. units.energy=eV (or kcal/mol); forces follow."
            )
        return resolve(options, str(path))
    return resolve(
        options,
        str(path),
        convention={"energy": "kcal/mol", "forces": "kcal/mol/Å"},
        by="the convention of MD17 and rMD17",
    )


def _of_frame(array: Any, index: int, n: int, shared: int) -> Any:
    """An entry of an array of frames, or the array itself where all frames share it."""
    return array[index] if array.ndim > shared and len(array) == n else array


def _theory(arrays: Mapping[str, Any]) -> tuple[str, ...]:
    stated = arrays.get("theory")
    if stated is None:
        return ()
    text = stated.item().decode(errors="replace") if stated.dtype.kind == "S" and stated.ndim == 0 else str(stated)
    return () if text in ("", "unknown") else (f"level of theory, as the file states it: {text}",)


def read(path: Path, options: ReadOptions) -> Iterator[tuple[Frame, tuple[str, ...]]]:
    """The frames, with notes on what was converted."""
    arrays = _arrays(path)
    numbers = _find(arrays, "numbers", options, path, True)
    positions = _find(arrays, "positions", options, path, True)
    energy = _find(arrays, "energy", options, path, False)
    forces = _find(arrays, "forces", options, path, False)
    unit = _units(arrays, options, path)
    told = {"length": positions, "energy": energy, "forces": forces}
    notes = (
        *(text for label, array in told.items() if array is not None for text in note(label, unit[label])),
        *_theory(arrays),
    )
    n = len(positions)
    if positions.ndim != 3 or numbers.ndim not in (1, 2) or numbers.shape[-1] != positions.shape[1]:
        raise UserError(
            f"{path}: positions of shape {positions.shape} for atomic numbers of shape {numbers.shape}; "
            f"expected (frames, atoms, 3)."
        )
    for name, array, shape in (("energy", energy, (n,)), ("forces", forces, positions.shape)):
        if array is not None and array.shape[: len(shape)] != shape:
            raise UserError(
                f"{path}: {name} of shape {array.shape} for positions of shape {positions.shape}; "
                f"the file is inconsistent."
            )
    for index in range(n):
        species = numbers[index] if numbers.ndim == 2 else numbers
        real = arrays["node_mask"][index].astype(bool) if "node_mask" in arrays else species > 0
        cell = _of_frame(arrays["unit_cell"], index, n, 2) if "unit_cell" in arrays else np.zeros((3, 3))
        pbc = _of_frame(arrays["pbc"], index, n, 1) if "pbc" in arrays else "unit_cell" in arrays
        structure = Structure(
            species[real].astype(np.int64),
            positions[index][real].astype(np.float64) * unit["length"].factor,
            cell.astype(np.float64).reshape(3, 3) * unit["length"].factor,
            np.broadcast_to(np.array(pbc, dtype=bool), (3,)).copy(),
        )
        yield (
            Frame(
                structure,
                None if energy is None else float(np.ravel(energy[index])[0]) * unit["energy"].factor,
                None if forces is None else forces[index][real].astype(np.float64) * unit["forces"].factor,
            ),
            notes,
        )


def held(path: Path) -> tuple[Counter[str], Counter[str]]:
    """Arrays of the file, with their lengths."""
    arrays = _arrays(path)
    n = max((len(array) for array in arrays.values() if array.ndim), default=0)
    sizes = {name: len(array) if array.ndim else 1 for name, array in arrays.items()}
    atoms = {name for name, array in arrays.items() if array.ndim == 3 and len(array) == n}
    return Counter({k: v for k, v in sizes.items() if k not in atoms}), Counter(
        {k: v for k, v in sizes.items() if k in atoms}
    )
