"""ASE's own files: trajectories (.traj) and databases (.db), and databases as schnetpack writes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mlpot import units
from mlpot.convert import ase as convert
from mlpot.data.frame import Frame
from mlpot.data.options import ReadOptions
from mlpot.data.sources import _labels
from mlpot.errors import UserError

FORMAT = "ASE trajectory or database (.traj, .db)"
SUFFIXES = (".traj", ".db")
_STRUCTURE = ("numbers", "positions", "momenta", "tags", "initial_magmoms", "initial_charges")


def recognises(path: Path) -> bool:
    """An ULM file (ASE trajectory) or an SQLite database with a table of systems."""
    with path.open("rb") as file:
        head = file.read(16)
    if head.startswith(b"- of UlmASE-Traj"):
        return True
    return head.startswith(b"SQLite format 3") and path.suffix == ".db"


def _rows(path: Path) -> Iterator[tuple[Any, dict[str, Any], dict[str, Any], dict[str, str]]]:
    """Atoms, values of the frame, values of its atoms, and the units that the file states for them."""
    if path.suffix == ".db":
        yield from _database(path)
        return
    from ase.io.trajectory import Trajectory

    with Trajectory(path) as trajectory:
        for number in range(len(trajectory)):
            atoms = trajectory[number]
            results = {} if atoms.calc is None else atoms.calc.results
            yield atoms, {**atoms.info, **_of_frame(results)}, {**_extra(atoms), **_of_atoms(results, len(atoms))}, {}


def _database(path: Path) -> Iterator[tuple[Any, dict[str, Any], dict[str, Any], dict[str, str]]]:
    import ase.db

    with ase.db.connect(path, append=True, use_lock_file=False) as database:
        stated = database.metadata.get("_property_unit_dict", {})
        for row in database.select():
            atoms = row.toatoms(add_additional_information=False)
            results = {} if atoms.calc is None else atoms.calc.results
            data = {key: np.asarray(value) for key, value in row.data.items() if not isinstance(value, str | Mapping)}
            per_atom = {key: value for key, value in data.items() if value.ndim and len(value) == len(atoms) and value.ndim > 1}
            per_frame = {k: v.item() if v.size == 1 else v for k, v in data.items() if k not in per_atom}
            yield (
                atoms,
                {**per_frame, **row.key_value_pairs, **_of_frame(results)},
                {**per_atom, **_extra(atoms), **_of_atoms(results, len(atoms))},
                stated,
            )


def _of_frame(results: Mapping[str, Any]) -> dict[str, Any]:
    return {key: results[key] for key in ("energy", "stress", "free_energy") if results.get(key) is not None}


def _of_atoms(results: Mapping[str, Any], n: int) -> dict[str, Any]:
    return {key: v for key, v in results.items() if key not in ("energy", "stress", "free_energy") and len(np.atleast_1d(v)) == n}


def _extra(atoms: Any) -> dict[str, Any]:
    return {key: value for key, value in atoms.arrays.items() if key not in _STRUCTURE}


def read(path: Path, options: ReadOptions) -> Iterator[tuple[Frame, tuple[str, ...]]]:
    """The frames, with notes on what was converted."""
    for number, (atoms, info, arrays, stated) in enumerate(_rows(path)):
        where = f"{path}: frame {number}"
        try:
            structure = convert.structure(atoms)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        # Units that the database states for a key the user named; "Ha" and the like.
        named = {label: stated[key] for label, key in options.keys.items() if key in stated and label in units.INTERNAL}
        told = options.model_copy(update={"units": {**named, **options.units}})
        yield _labels.labelled(structure, info, arrays, told, where)


def explain_missing(path: Path, options: ReadOptions) -> str:
    """What the file holds in place of labels."""
    info_keys: Counter[str] = Counter()
    array_keys: Counter[str] = Counter()
    for _, info, arrays, _ in _rows(path):
        info_keys.update(list(info))
        array_keys.update(list(arrays))
    return _labels.explain_missing(info_keys, array_keys, options)


def hidden_forces(path: Path) -> list[str]:
    """Values of atoms that look like forces but are not named so."""
    for _, _, arrays, _ in _rows(path):
        return [key for key in arrays if "force" in key.lower() and key != "forces"]
    return []


