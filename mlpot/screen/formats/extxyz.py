"""Structures with positions, molecules or crystals, as extended xyz; they are taken as they are."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from mlpot.convert.rdkit import with_bonds
from mlpot.data.sources.extxyz import frame_of
from mlpot.errors import UserError
from mlpot.screen.lengths import refuse_doubtful
from mlpot.screen.lines import Columns, Line, opened, whole, without_columns
from mlpot.screen.molecule import Molecule, Refused, Standardiser

FORMAT = "extxyz"
SUFFIXES = (".xyz", ".extxyz")
MOST_ATOMS = 5000


def lines(path: Path, columns: Columns) -> Iterator[Line]:
    """Every frame, numbered from 1. Where a number of atoms cannot be read, the rest of the file is one entry."""
    without_columns(path, columns)
    with opened(path) as file:
        texts = whole(file)
        number = 0
        for first in texts:
            if not first.strip():
                continue
            number += 1
            count = first.strip()
            n_atoms = int(count) if count.isdecimal() and len(count) < 10 else 0
            if not n_atoms:
                yield Line(number, "", first[:100])
                if count != "0":
                    return  # nobody can tell where the next frame begins
                next(texts, None)
                continue
            frame = [first, *islice(texts, 1 + min(n_atoms, MOST_ATOMS))]
            for _ in islice(texts, max(0, n_atoms - MOST_ATOMS)):
                pass
            yield Line(number, _name(frame[1] if len(frame) > 1 else ""), "".join(frame))


def _name(comment: str) -> str:
    """The value of name= or id= of a comment."""
    for word in comment.split():
        key, found, value = word.partition("=")
        if found and key.lower() in ("name", "id"):
            return value.strip("\"'")[:200]
    return ""


def molecule(text: str, standardise: Standardiser, coordinates: bool) -> Molecule:
    """The structure of a frame; its bonds by rdkit from the distances where the model reads no positions."""
    count = text.partition("\n")[0].strip()
    if not (count.isdecimal() and int(count)):
        raise Refused(
            "not a structure", f"expected the number of atoms, found {count[:40]!r}; nothing is read beyond it"
        )
    if int(count) > MOST_ATOMS:
        raise Refused("too large", f"{count} atoms; at most {MOST_ATOMS} are predicted")
    try:
        structure = frame_of(text)
        structure.check()
    except UserError as error:
        raise Refused("not a structure", str(error)) from None
    refuse_doubtful(structure)
    if not coordinates:
        try:
            structure = with_bonds(structure)
        except UserError as error:
            raise Refused("no bonds", str(error)) from None
    return Molecule("", None, "", own=structure)
