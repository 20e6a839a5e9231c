"""Entries of a list of molecules, and reading text so that no line can fill the memory."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from mlpot.errors import UserError, suggestion

LONGEST = 5000  # characters of a SMILES; longer ones are no molecules
LONGEST_ENTRY = 2_000_000  # characters of an entry of many lines


class Line(NamedTuple):
    """One entry of the input: its number in the file, an identifier, and the text that a molecule is read from."""

    number: int
    id: str
    text: str


class Columns(NamedTuple):
    """Names of columns that the user gave."""

    smiles: str | None = None
    id: str | None = None


def opened(path: Path) -> IO[str]:
    """A text file, also a compressed one; bytes that are no text become marks that no parser takes."""
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding="utf-8-sig", errors="replace", newline="")
    return path.open(encoding="utf-8-sig", errors="replace", newline="")


def whole(file: IO[str]) -> Iterator[str]:
    """The lines of a file; of one that never ends only the beginning, so that it cannot fill the memory."""
    limit = 20 * LONGEST
    while text := file.readline(limit):
        if len(text) == limit and not text.endswith("\n"):
            while (rest := file.readline(limit)) and not rest.endswith("\n"):
                pass
            text = text[: 2 * LONGEST] + "\n"
        yield text.replace("\0", "\ufffd")


def chosen(path: Path, names: list[str], columns: Columns) -> tuple[int, int]:
    """Places of the SMILES and of the identifier among the names of columns; -1 for no identifier.

    Raises UserError for a column that is not there, and where no name looks like SMILES.
    """
    lower = [name.lower() for name in names]
    for wanted in columns:
        if wanted is not None and wanted not in names:
            raise UserError(f'{path}: there is no column "{wanted}".{suggestion(wanted, names)}')
    guesses = [place for place, name in enumerate(lower) if "smiles" in name]
    exact = [place for place in guesses if lower[place] in ("smiles", "canonical_smiles")]
    if columns.smiles is None and not guesses:
        raise UserError(
            f"{path}: no column is named SMILES; name it with --smiles-column. Columns: {', '.join(names) or 'none'}."
        )
    usual = [place for place, name in enumerate(lower) if name in ("id", "name", "identifier", "compound id")]
    smiles = (exact or guesses)[0] if columns.smiles is None else names.index(columns.smiles)
    return smiles, names.index(columns.id) if columns.id is not None else next(iter(usual), -1)


def without_columns(path: Path, columns: Columns) -> None:
    """UserError where names of columns were given for a file that has none."""
    if columns.smiles or columns.id:
        raise UserError(f"{path}: this format has no columns; leave out the names of columns.")
