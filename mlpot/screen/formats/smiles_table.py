"""A table with a column of SMILES, and perhaps one of names."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from mlpot.errors import UserError
from mlpot.screen.formats.smiles_list import molecule as molecule
from mlpot.screen.lines import Columns, Line, chosen, opened, whole

FORMAT = "tables of SMILES"
SUFFIXES = (".csv", ".tsv")


def lines(path: Path, columns: Columns) -> Iterator[Line]:
    """Every row; UserError for columns that are not there."""
    tabs = Path(path.name.removesuffix(".gz")).suffix.lower() == ".tsv"
    with opened(path) as file:
        rows = csv.reader(whole(file), delimiter="\t" if tabs else ",")
        names = [cell.strip() for cell in next(rows, [])]
        smiles, identifier = chosen(path, names, columns)
        before = rows.line_num
        try:
            for cells in rows:
                text = _cell(cells, smiles)
                if rows.line_num > before + 1 and len(cells) != len(names):  # a quote that was not closed in time
                    text = "\n".join(cells)[:200] + "\n"
                yield Line(rows.line_num, _cell(cells, identifier), text)
                before = rows.line_num
        except csv.Error as error:
            raise UserError(f"{path}: line {before + 1}: {error}; is a quote in it not closed?") from None


def _cell(cells: list[str], place: int) -> str:
    return cells[place].strip() if 0 <= place < len(cells) else ""
