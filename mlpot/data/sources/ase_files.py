"""ASE's own files: trajectories (.traj) and databases (.db), and databases as schnetpack writes them (QM9 is one).

Both hold JSON and plain arrays; opening them runs no code from the file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mlpot import units
from mlpot.convert import ase as convert
from mlpot.data.frame import Frame
from mlpot.data.options import KEYS as KEYS
from mlpot.data.options import ReadOptions
from mlpot.data.sources import _labels, _qm9
from mlpot.errors import UserError
from mlpot.target import Target

FORMAT = "ASE trajectory or database (.traj, .db)"
SUFFIXES = (".traj", ".db")
_QM9 = {
    "rotational_constant_A": "A",
    "rotational_constant_B": "B",
    "rotational_constant_C": "C",
    "dipole_moment": "mu",
    "isotropic_polarizability": "alpha",
    "homo": "homo",
    "lumo": "lumo",
    "gap": "gap",
    "electronic_spatial_extent": "r2",
    "zpve": "zpve",
    "energy_U0": "u0",
    "energy_U": "u298",
    "enthalpy_H": "h298",
    "free_energy": "g298",
    "heat_capacity": "cv",
}
# What schnetpack states for the units that QM9 was published in.
_QM9_UNITS = {"GHz", "D", "Debye", "a0^3", "Ha", "Hartree", "a0^2", "a0 a0 a0", "a0 a0", "cal/mol/K"}
_STRUCTURE = ("numbers", "positions", "momenta", "tags", "initial_magmoms", "initial_charges")
_FRAME_RESULTS = ("energy", "stress", "free_energy")


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(16).startswith(b"SQLite format 3")


def recognises(path: Path) -> bool:
    """An ULM file (ASE trajectory) or an SQLite database with a table of systems."""
    with path.open("rb") as file:
        if file.read(16).startswith(b"- of UlmASE-Traj"):
            return True
    return _is_database(path)


def _rows(path: Path) -> Iterator[tuple[Any, dict[str, Any], dict[str, Any], dict[str, str]]]:
    """Atoms, values of the frame, values of its atoms, and the units that the file states for them."""
    if _is_database(path):
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

    with ase.db.connect(path, type="db", append=True, use_lock_file=False) as database:
        stated = dict(database.metadata.get("_property_unit_dict", {}))
        if "_distance_unit" in database.metadata:
            stated["length"] = database.metadata["_distance_unit"]
        for row in database.select():
            atoms = row.toatoms(add_additional_information=False)
            results = {} if atoms.calc is None else atoms.calc.results
            data = {key: np.asarray(value) for key, value in row.data.items() if not isinstance(value, str | Mapping)}
            per_atom = {key: value for key, value in data.items() if value.ndim > 1 and len(value) == len(atoms)}
            per_frame = {
                key: value.item() if value.size == 1 else value for key, value in data.items() if key not in per_atom
            }
            yield (
                atoms,
                {**per_frame, **row.key_value_pairs, **_of_frame(results)},
                {**per_atom, **_extra(atoms), **_of_atoms(results, len(atoms))},
                stated,
            )


def targets(path: Path, options: ReadOptions) -> tuple[Target, ...]:
    """All of QM9's properties, where the file is a database of them in the units they were published in."""
    import ase.db

    if not _is_database(path):
        return ()
    with ase.db.connect(path, type="db", append=True, use_lock_file=False) as database:
        stated = dict(database.metadata.get("_property_unit_dict", {}))
    return _qm9.TARGETS if set(_QM9) <= set(stated) and set(map(stated.get, _QM9)) <= _QM9_UNITS else ()


def _of_frame(results: Mapping[str, Any]) -> dict[str, Any]:
    return {key: results[key] for key in _FRAME_RESULTS if results.get(key) is not None}


def _of_atoms(results: Mapping[str, Any], n: int) -> dict[str, Any]:
    return {
        key: v
        for key, v in results.items()
        if key not in _FRAME_RESULTS and v is not None and len(np.atleast_1d(v)) == n
    }


def _extra(atoms: Any) -> dict[str, Any]:
    return {key: value for key, value in atoms.arrays.items() if key not in _STRUCTURE}


def read(path: Path, options: ReadOptions) -> Iterator[tuple[Frame, tuple[str, ...]]]:
    """The frames, with notes on what was converted."""
    is_qm9 = bool(targets(path, options))
    for number, (atoms, info, arrays, stated) in enumerate(_rows(path)):
        where = f"{path}: frame {number}"
        try:
            structure = convert.structure(atoms)
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        # A database states units by its own names; what counts is the unit of the value the user named.
        named = {label: stated[key] for label in units.INTERNAL if (key := options.keys.get(label, label)) in stated}
        properties = _qm9.converted({ours: float(info[theirs]) for theirs, ours in _QM9.items()}) if is_qm9 else {}
        frame, notes = _labels.labelled(structure, info, arrays, options, where, named)
        yield replace(frame, properties=properties), notes


def held(path: Path) -> tuple[Counter[str], Counter[str]]:
    """Values of a frame and of its atoms, with the number of frames that carry each."""
    of_frame: Counter[str] = Counter()
    of_atoms: Counter[str] = Counter()
    for _, info, arrays, _ in _rows(path):
        of_frame.update(list(info))
        of_atoms.update(list(arrays))
    return of_frame, of_atoms
