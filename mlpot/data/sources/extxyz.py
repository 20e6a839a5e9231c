"""Extended xyz: frames with a comment line of key=value pairs and named columns.

ASE's own reader hides energy, forces and stress in a calculator and refuses a stress of six numbers; this one reads
the columns and keys as they stand, with ASE's parser for the comment line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from ase.io.extxyz import key_val_str_to_dict

from mlpot.data.frame import Frame
from mlpot.data.options import ReadOptions
from mlpot.data.sources import _labels
from mlpot.errors import UserError
from mlpot.structure import Structure, number_of

FORMAT = "extxyz (.xyz, .extxyz)"
SUFFIXES = (".xyz", ".extxyz")
_VOIGT = re.compile(r'(?<!\S)stress="\s*((?:[-+.\deE]+\s+){5}[-+.\deE]+)\s*"')
_TYPES: dict[str, type] = {"R": float, "I": int, "S": str, "L": str}


def recognises(path: Path) -> bool:
    """A text file whose first line is a number of atoms and whose third begins with an element."""
    with path.open("rb") as file:
        head = file.read(4096)
    if b"\0" in head:
        return False
    lines = head.decode("utf-8", errors="replace").splitlines()
    words = lines[2].split() if len(lines) > 2 else []
    counted = bool(lines) and lines[0].strip().isdigit()
    return counted and (path.suffix in SUFFIXES or (len(words) >= 4 and words[0][0].isalpha()))


def _raw_frames(path: Path) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    """First line, comment's values and columns of each frame."""
    with path.open(encoding="utf-8") as file:
        line_number, frame = 0, 0
        while True:
            line = file.readline()
            line_number += 1
            if not line:
                return
            if not line.strip():
                continue
            where = f"{path}: frame {frame} (line {line_number})"
            if not line.strip().isdigit():
                raise UserError(f"{where}: expected the number of atoms, found {line.strip()[:40]!r}.")
            n_atoms = int(line)
            comment = file.readline()
            rows = [file.readline() for _ in range(n_atoms)]
            if not comment or (rows and not rows[-1]):
                found = sum(bool(row) for row in rows)
                raise UserError(f"{where}: the file ends after {found} of {n_atoms} atoms; it is cut short.")
            yield line_number, *_parse(comment.strip(), rows, where)
            line_number += 1 + n_atoms
            frame += 1


def _parse(comment: str, rows: list[str], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    # ASE's parser refuses a stress of six numbers, so it is taken out and read here.
    voigt = _VOIGT.search(comment)
    try:
        info = key_val_str_to_dict(_VOIGT.sub(" ", comment))
    except (ValueError, KeyError, IndexError) as error:
        raise UserError(f"{where}: the comment line cannot be read ({error}).") from None
    info.pop("", None)
    if voigt:
        info["stress"] = np.array(voigt[1].split(), dtype=np.float64)
    columns = str(info.pop("Properties", "species:S:1:pos:R:3")).split(":")
    if len(columns) % 3 or any(kind not in _TYPES for kind in columns[1::3]):
        raise UserError(f"{where}: Properties={':'.join(columns)} is not a list of name:type:count.")
    words = [row.split() for row in rows]
    width = sum(int(count) for count in columns[2::3])
    for number, row in enumerate(words):
        if len(row) < width:
            raise UserError(f"{where}: atom {number} has {len(row)} columns; Properties names {width}.")
    arrays, start = {}, 0
    for name, kind, count in zip(columns[::3], columns[1::3], columns[2::3], strict=True):
        stop = start + int(count)
        try:
            values = np.array([row[start:stop] for row in words]).astype(_TYPES[kind])
        except ValueError as error:
            raise UserError(f"{where}: column {name}: {error}.") from None
        arrays[name] = values[:, 0] if stop - start == 1 else values
        start = stop
    return info, arrays


def _structure(info: dict[str, Any], arrays: dict[str, Any], where: str) -> Structure:
    if "pos" not in arrays:
        raise UserError(f"{where}: no column of positions (pos) in Properties; it has {', '.join(arrays)}.")
    symbols = arrays.pop("species", None)
    if symbols is None:
        symbols = arrays.pop("Z", None)
        if symbols is None:
            raise UserError(f"{where}: no column of elements (species or Z) in Properties; it has {', '.join(arrays)}.")
    try:
        numbers = [int(s) if str(s).isdigit() else number_of(str(s).capitalize()) for s in symbols]
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    lattice = info.pop("Lattice", None)
    cell = None if lattice is None else np.asarray(lattice, dtype=np.float64)
    if cell is not None:
        # The parser gives a matrix of nine numbers in columns; rows are the lattice vectors.
        cell = cell.T if cell.shape == (3, 3) else np.diag(cell.ravel()) if cell.size == 3 else cell.reshape(3, 3)
    pbc = info.pop("pbc", cell is not None)
    charge, spin = (info.get(key) for key in ("charge", "spin"))
    structure = Structure(
        np.array(numbers, dtype=np.int64),
        np.asarray(arrays.pop("pos"), dtype=np.float64).reshape(-1, 3),
        np.zeros((3, 3)) if cell is None else cell,
        np.broadcast_to(np.array(pbc, dtype=bool), (3,)).copy(),
        float(charge) if isinstance(charge, int | float) else None,
        float(spin) if isinstance(spin, int | float) else None,
    )
    structure.check(where)
    return structure


def read(path: Path, options: ReadOptions) -> Iterator[tuple[Frame, tuple[str, ...]]]:
    """The frames, with notes on what was converted. Stress and other matrices of nine numbers are symmetric or rows."""
    for number, (line, info, arrays) in enumerate(_raw_frames(path)):
        where = f"{path}: frame {number} (line {line})"
        structure = _structure(info, arrays, where)
        yield _labels.labelled(structure, info, arrays, options, where)


def _keys(path: Path) -> tuple[Counter[str], Counter[str]]:
    info_keys: Counter[str] = Counter()
    array_keys: Counter[str] = Counter()
    for _, info, arrays in _raw_frames(path):
        info_keys.update(key for key in info if key not in ("Lattice", "pbc"))
        array_keys.update(key for key in arrays if key not in ("species", "pos", "Z"))
    return info_keys, array_keys


def explain_missing(path: Path, options: ReadOptions) -> str:
    """What the file holds in place of labels."""
    return _labels.explain_missing(*_keys(path), options)


def hidden_forces(path: Path) -> list[str]:
    """Columns that look like forces but are not named so."""
    for _, _, arrays in _raw_frames(path):
        return [key for key in arrays if "force" in key.lower() and key != "forces"]
    return []
