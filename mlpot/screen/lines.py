"""A list of molecules, read line by line: SMILES with an optional name, or a table with a column of SMILES."""

from __future__ import annotations

import csv
import gzip
import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NamedTuple

from mlpot.errors import UserError, suggestion

LONGEST = 5000  # characters of a SMILES; longer ones are no molecules
TABLES = {".csv": ",", ".tsv": "\t"}
LISTS = (".smi", ".smiles", ".txt")


class Line(NamedTuple):
    """One line of the input: its number in the file, an identifier and a SMILES, both as they stand there."""

    number: int
    id: str
    smiles: str


class Input:
    """A file of molecules. Iterating gives a `Line` for every line, blank ones too; nothing is kept in memory.

    smiles_column, id_column: of a table; found by name where they are not given.
    Raises UserError for a file that is not there or empty, another ending, and columns that are not there.
    """

    def __init__(self, path: Path, smiles_column: str | None = None, id_column: str | None = None) -> None:
        self.path = path
        name = path.name.removesuffix(".gz")
        self.kind = Path(name).suffix.lower()
        if not path.is_file():
            near = [p.name for p in path.parent.iterdir()] if path.parent.is_dir() else []
            raise UserError(f"{path}: there is no such file.{suggestion(path.name, near)}")
        if self.kind not in (*TABLES, *LISTS):
            raise UserError(f"{path}: expected SMILES: {', '.join((*LISTS, *TABLES))}, or one of these with .gz.")
        self.columns: list[str] = []
        self._smiles = self._id = -1
        if self.kind in TABLES:
            self._find_columns(smiles_column, id_column)
        elif smiles_column or id_column:
            raise UserError(f"{path}: a list of SMILES has no columns; leave out the names of columns.")
        if next(iter(self), None) is None:
            raise UserError(f"{path}: it holds no molecules.")

    def _find_columns(self, smiles: str | None, identifier: str | None) -> None:
        with self._opened() as file:
            rows = csv.reader(_whole(file), delimiter=TABLES[self.kind])
            self.columns = [cell.strip() for cell in next(rows, [])]
        lower = [column.lower() for column in self.columns]
        for wanted in (smiles, identifier):
            if wanted is not None and wanted not in self.columns:
                raise UserError(f'{self.path}: there is no column "{wanted}".{suggestion(wanted, self.columns)}')
        guesses = [place for place, column in enumerate(lower) if "smiles" in column]
        exact = [place for place in guesses if lower[place] in ("smiles", "canonical_smiles")]
        if smiles is None and not guesses:
            raise UserError(
                f"{self.path}: no column is named SMILES; name it with --smiles-column. "
                f"Columns: {', '.join(self.columns) or 'none'}."
            )
        self._smiles = (exact or guesses)[0] if smiles is None else self.columns.index(smiles)
        names = [place for place, column in enumerate(lower) if column in ("id", "name", "identifier", "compound id")]
        if identifier is not None:
            self._id = self.columns.index(identifier)
        elif names:
            self._id = names[0]

    def _opened(self) -> IO[str]:
        if self.path.suffix == ".gz":
            return gzip.open(self.path, "rt", encoding="utf-8", errors="replace", newline="")
        return self.path.open(encoding="utf-8", errors="replace", newline="")

    def __iter__(self) -> Iterator[Line]:
        with self._opened() as file:
            if self.kind in TABLES:
                rows = csv.reader(_whole(file), delimiter=TABLES[self.kind])
                next(rows, None)
                for cells in rows:
                    yield Line(rows.line_num, _cell(cells, self._id), _cell(cells, self._smiles))
                return
            for number, text in enumerate(_whole(file), 1):
                words = text.split(None, 1)
                if not (number == 1 and words and words[0].lower() == "smiles"):
                    yield Line(number, words[1].strip() if len(words) > 1 else "", words[0] if words else "")

    def chunks(self, size: int) -> Iterator[list[Line]]:
        """The lines, `size` at a time."""
        lines = iter(self)
        while chunk := list(itertools.islice(lines, size)):
            yield chunk

    def sha(self) -> str:
        """sha256 of the file's bytes."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()


def _whole(file: IO[str]) -> Iterator[str]:
    """The lines of a file; of one that never ends only the beginning, so that it cannot fill the memory."""
    limit = 20 * LONGEST
    while text := file.readline(limit):
        if len(text) == limit and not text.endswith("\n"):
            while (rest := file.readline(limit)) and not rest.endswith("\n"):
                pass
            text = text[: 2 * LONGEST] + "\n"
        yield text.replace("\0", "\ufffd")


def _cell(cells: list[str], place: int) -> str:
    return cells[place].strip() if 0 <= place < len(cells) else ""
