"""Extended xyz: frames with a comment line of key=value pairs and named columns; plain xyz and compressed files too.

ASE's own reader hides energy, forces and stress in a calculator, refuses a stress of six numbers and does not say
where a file is broken; this one reads keys and columns as they stand, with ASE's parser for the comment line.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from ase.io.extxyz import key_val_str_to_dict

from mlpot.data.frame import Frame
from mlpot.data.options import KEYS as KEYS
from mlpot.data.options import ReadOptions
from mlpot.data.sources import _labels
from mlpot.errors import UserError
from mlpot.structure import Structure, number_of

FORMAT = "extxyz (.xyz, .extxyz)"
SUFFIXES = (".xyz", ".extxyz")
# ASE's parser takes a stress or virial of nine numbers alone, so these are read here.
_MATRIX = re.compile(r"""(?<!\S)(stress|virial)\s*=\s*["'{\[]([^"'}\]]*)["'}\]]""")
_TYPES: dict[str, type] = {"R": float, "I": int, "S": str, "L": str}
_COMPRESSED: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}


def _text(path: Path) -> IO[str]:
    # Latin-1 names of authors in a comment are no reason to refuse a file.
    return _COMPRESSED.get(path.suffix, open)(path, "rt", encoding="utf-8-sig", errors="replace")


def recognises(path: Path) -> bool:
    """Whether a text file begins with a number of atoms, a comment, and an atom (or has the usual ending)."""
    if path.suffix in _COMPRESSED and path.with_suffix("").suffix not in SUFFIXES:
        return False
    try:
        with _text(path) as file:
            lines = [file.readline(4096) for _ in range(3)]
    except (OSError, EOFError, lzma.LZMAError):
        return False
    words = lines[2].split()
    if "\0" in "".join(lines) or not lines[0].strip().isdigit() or lines[1].startswith("gdb "):
        return False
    named = any(suffix in SUFFIXES for suffix in path.suffixes)
    return named or "Properties=" in lines[1] or (len(words) >= 4 and words[0][0].isalpha())


def _raw_frames(path: Path) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    """First line, comment's values and columns of each frame."""
    with _text(path) as file:
        line_number, frame = 0, 0
        while line := file.readline():
            line_number += 1
            if not line.strip():
                continue
            where = f"{path}: frame {frame} (line {line_number})"
            if not line.strip().isdigit():
                raise UserError(f"{where}: expected the number of atoms, found {line.strip()[:40]!r}.")
            n_atoms, comment = int(line), file.readline()
            rows: list[str] = []
            while len(rows) < n_atoms and (row := file.readline()):
                rows.append(row)
            if not comment or len(rows) < n_atoms:
                raise UserError(f"{where}: the file ends after {len(rows)} of {n_atoms} atoms; it is cut short.")
            yield line_number, *_parse(comment.strip(), rows, where)
            line_number += 1 + n_atoms
            frame += 1


def _values(comment: str, where: str) -> dict[str, Any]:
    """The comment's key=value pairs; none for plain xyz, whose comment is free text."""
    if "=" not in comment:
        return {}
    matrices = {name: text.replace(",", " ").split() for name, text in _MATRIX.findall(comment)}
    try:
        info = key_val_str_to_dict(_MATRIX.sub(" ", comment))
        info.pop("", None)
        return {**info, **{name: np.array(words, dtype=np.float64) for name, words in matrices.items()}}
    except (ValueError, KeyError, IndexError) as error:
        if "Properties=" not in comment and "Lattice=" not in comment:
            return {}
        raise UserError(f"{where}: the comment line cannot be read ({error}).") from None


def _parse(comment: str, rows: list[str], where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    info = _values(comment, where)
    columns = str(info.pop("Properties", "species:S:1:pos:R:3")).split(":")
    if (
        len(columns) % 3
        or any(kind not in _TYPES for kind in columns[1::3])
        or not all(c.isdigit() for c in columns[2::3])
    ):
        raise UserError(f"{where}: Properties={':'.join(columns)} is not a list of name:type:count (types R, I, S, L).")
    words = [row.split() for row in rows]
    width = sum(int(count) for count in columns[2::3])
    for number, row in enumerate(words):
        if len(row) < width:
            raise UserError(f"{where}: atom {number} has {len(row)} columns; expected {width} ({':'.join(columns)}).")
    arrays, start = {}, 0
    for name, kind, count in zip(columns[::3], columns[1::3], columns[2::3], strict=True):
        stop = start + int(count)
        try:
            values: Any = np.array([row[start:stop] for row in words], dtype=_TYPES[kind])
        except ValueError as error:
            raise UserError(f"{where}: column {name}: {error}.") from None
        arrays[name] = values[:, 0] if stop - start == 1 and len(words) else values
        start = stop
    return info, arrays


def _numbers(arrays: dict[str, Any], where: str) -> list[int]:
    symbols = arrays.pop("species", None)
    symbols = arrays.pop("Z", None) if symbols is None else symbols
    if symbols is None:
        raise UserError(f"{where}: no column of elements (species or Z) in Properties; it has {', '.join(arrays)}.")
    try:
        return [int(s) if str(s).isdigit() else number_of(str(s).capitalize()) for s in symbols]
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def _structure(info: dict[str, Any], arrays: dict[str, Any], where: str) -> Structure:
    if "pos" not in arrays:
        raise UserError(f"{where}: no column of positions (pos) in Properties; it has {', '.join(arrays)}.")
    numbers = _numbers(arrays, where)
    lattice, cell = info.pop("Lattice", None), None
    if lattice is not None:
        box = np.asarray(lattice)
        if box.dtype.kind not in "if" or box.size not in (3, 9):
            raise UserError(f"{where}: Lattice has {box.size} values; expected nine numbers (or three, for a box).")
        # ASE's parser gives nine numbers in columns; rows are the lattice vectors.
        cell = box.T if box.shape == (3, 3) else np.diag(box.ravel()) if box.size == 3 else box.reshape(3, 3)
    charge, spin = (info.get(key) for key in ("charge", "spin"))
    return Structure(
        np.array(numbers, dtype=np.int64),
        np.asarray(arrays.pop("pos"), dtype=np.float64).reshape(-1, 3),
        np.zeros((3, 3)) if cell is None else cell.astype(np.float64),
        _periodic(info.pop("pbc", cell is not None), where),
        None if charge is None or isinstance(charge, str | list) or np.size(charge) != 1 else float(charge),
        None if spin is None or isinstance(spin, str | list) or np.size(spin) != 1 else float(spin),
    )


def _periodic(value: Any, where: str) -> Any:
    array = np.array(value)
    if array.size not in (1, 3) or array.dtype.kind not in "bi":
        raise UserError(f'{where}: pbc is {value!r}; expected three of T and F, e.g. pbc="T T F".')
    return np.broadcast_to(array.astype(bool), (3,)).copy()


def read(path: Path, options: ReadOptions) -> Iterator[tuple[Frame, tuple[str, ...]]]:
    """The frames, with notes on what was converted."""
    for number, (line, info, arrays) in enumerate(_raw_frames(path)):
        where = f"{path}: frame {number} (line {line})"
        structure = _structure(info, arrays, where)
        yield _labels.labelled(structure, info, arrays, options, where)


def frame_of(text: str) -> Structure:
    """The structure of one frame's text, labels left out; UserError for what cannot be read."""
    where = "frame"
    count, comment, *rows = text.splitlines() + [""] * (text.count("\n") < 2)
    if len(rows) != int(count):
        raise UserError(f"{where}: it ends after {len(rows)} of {int(count)} atoms; it is cut short.")
    return _structure(*_parse(comment.strip(), rows, where), where)


def held(path: Path) -> tuple[Counter[str], Counter[str]]:
    """Values of a frame and of its atoms, with the number of frames that carry each."""
    of_frame: Counter[str] = Counter()
    of_atoms: Counter[str] = Counter()
    for _, info, arrays in _raw_frames(path):
        of_frame.update(key for key in info if key not in ("Lattice", "pbc"))
        of_atoms.update(key for key in arrays if key not in ("species", "pos", "Z"))
    return of_frame, of_atoms
