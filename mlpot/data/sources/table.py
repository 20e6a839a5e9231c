"""A table of molecules: a column of SMILES and columns of properties (.csv, .tsv, .txt), as in MoleculeNet or FreeSolv.

Every column of numbers is a property; keys.NAME=COLUMN picks some and names them, units.NAME=UNIT states a unit, which
is kept as it is. Columns of 0 and 1, and of two words such as Active and Inactive, are yes or no.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from mlpot.convert.conformers import embedded
from mlpot.convert.smiles import from_smiles
from mlpot.data.frame import Frame
from mlpot.data.options import ReadOptions
from mlpot.errors import UserError, suggestion
from mlpot.structure import Structure
from mlpot.target import Target

FORMAT = "table with SMILES (.csv, .tsv, .txt)"
SUFFIXES = (".csv", ".tsv", ".txt", ".smi")
KEYS = ("smiles",)
OWN_KEYS = True  # names of properties are the user's
MOST_REFUSED = 0.1  # of the rows
SHOWN = 5
YES = ("1", "yes", "true", "active", "positive", "toxic", "y", "t")
NO = ("0", "no", "false", "inactive", "negative", "nontoxic", "n", "f")


class Table(NamedTuple):
    """The text of a table: columns, and rows with the number of their line."""

    columns: list[str]
    rows: list[tuple[int, list[str]]]

    def column(self, name: str) -> list[str]:
        """The cells of a column, "" where a row is too short."""
        place = self.columns.index(name)
        return [cells[place].strip() if place < len(cells) else "" for _, cells in self.rows]


def _smiles_column(columns: Sequence[str]) -> str | None:
    exact = [c for c in columns if c.lower() in ("smiles", "canonical_smiles", "smile")]
    return next(iter(exact or [c for c in columns if "smiles" in c.lower()]), None)


def _head(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(65536).decode("utf-8", errors="replace")


def _heading(text: str) -> tuple[list[str], str] | None:
    """The names of the columns and what parts them: the first line, or the comment line that names SMILES."""
    for line in text.splitlines()[:20]:
        comment = line.startswith("#")
        parts = {sign: line.lstrip("#").split(sign) for sign in ("\t", ";", ",")}
        sign = max(parts, key=lambda s: len(parts[s]))
        names = next(csv.reader([line.lstrip("# ")], delimiter=sign))
        names = [name.strip() for name in names]
        if len(names) > 1 and _smiles_column(names) is not None:
            return names, sign
        if not comment:
            return None
    return None


def recognises(path: Path) -> bool:
    """Text whose first line, or a comment before it, names a column of SMILES."""
    if path.suffix.lower() not in SUFFIXES:
        return False
    try:
        return _heading(_head(path)) is not None
    except (OSError, csv.Error):
        return False


def _table(path: Path) -> Table:
    text = path.read_text(encoding="utf-8-sig")
    found = _heading(text)
    assert found is not None
    names, sign = found
    repeated = [name for name, n in Counter(names).items() if n > 1]
    if repeated:
        raise UserError(f"{path}: {len(repeated)} names stand over several columns: {', '.join(repeated[:SHOWN])}.")
    rows = []
    reader = csv.reader(io.StringIO(text), delimiter=sign)
    for cells in reader:
        number = reader.line_num
        stripped = [cell.strip() for cell in cells]
        if not any(stripped) or stripped[0].startswith("#") or stripped == names:
            continue
        rows.append((number, cells))
    return Table(names, rows)


def _value(text: str) -> float | None:
    """The number in a cell; NaN for an empty one; None where it is no number."""
    if text.lower() in ("", "nan", "na", "n/a", "none", "null", "-"):
        return math.nan
    try:
        return float(text)
    except ValueError:
        return None


def _numbers(cells: Sequence[str]) -> list[float] | None:
    """A column as numbers, or as 0 and 1 where it holds two words for no and yes; None for text."""
    values = [_value(cell) for cell in cells]
    if all(value is not None for value in values):
        return [math.nan if value is None else value for value in values]
    words = {cell.lower() for cell in cells if cell}
    if len(words) == 2 and len(words & set(YES)) == 1 and words <= {*YES, *NO}:
        return [math.nan if not cell else float(cell.lower() in YES) for cell in cells]
    return None


def _columns(table: Table, path: Path, options: ReadOptions) -> tuple[str, dict[str, tuple[str, list[float]]]]:
    """The column of SMILES, and for each property its column and numbers."""
    smiles = options.keys.get("smiles") or _smiles_column(table.columns)
    wanted = {name: column for name, column in options.keys.items() if name != "smiles"}
    for name, column in {**wanted, **({"smiles": smiles} if smiles else {})}.items():
        if column not in table.columns:
            raise UserError(
                f'{path}: keys.{name}={column}: there is no column "{column}".{suggestion(str(column), table.columns)}'
            )
    assert smiles is not None
    found: dict[str, tuple[str, list[float]]] = {}
    if wanted:
        for name, column in wanted.items():
            numbers = _numbers(table.column(column))
            if numbers is None:
                bad = next(k for k, cell in enumerate(table.column(column)) if _value(cell) is None)
                raise UserError(
                    f'{path}: keys.{name}={column}: line {table.rows[bad][0]} holds "{table.column(column)[bad]}", '
                    f"which is no number; expected numbers, or two words such as Active and Inactive."
                )
            found[name] = column, numbers
    else:
        for column in table.columns:
            numbers = None if column == smiles else _numbers(table.column(column))
            if numbers is not None and not all(map(math.isnan, numbers)):
                found[_bare(column)[0]] = column, numbers
    for name in options.units:
        if name not in found:
            raise UserError(f"{path}: units.{name}: there is no such property.{suggestion(name, found)}")
    return smiles, found


def _bare(column: str) -> tuple[str, str]:
    """A column's name without the unit in brackets after it, and the unit."""
    match = re.fullmatch(r"(.+?)\s*[\(\[]([^()\[\]]+)[\)\]]", column)
    return (match[1], match[2]) if match else (column, "")


def targets(path: Path, options: ReadOptions) -> tuple[Target, ...]:
    """A target for each property: binary for 0 and 1, else intensive; the unit as stated, or in the column's name."""
    _, found = _columns(_table(path), path, options)
    return tuple(
        Target(
            name=name,
            unit=options.units.get(name, _bare(column)[1]),
            kind="binary" if {x for x in numbers if not math.isnan(x)} == {0.0, 1.0} else "intensive",
            description="" if name == column else column,
        )
        for name, (column, numbers) in found.items()
    )


def read(path: Path, options: ReadOptions) -> Iterator[tuple[Frame, tuple[str, ...]]]:
    """The molecules that rdkit reads, with notes on those that it refuses and on labels that contradict each other."""
    table = _table(path)
    smiles, found = _columns(table, path, options)
    texts = [column for column in table.columns if column not in {c for c, _ in found.values()}]
    cells = {column: table.column(column) for column in texts}
    seen = _Seen()
    waiting: Frame | None = None  # the last frame comes with what is known of all
    for k, (line, _) in enumerate(table.rows):
        try:
            structure = _structure(cells[smiles][k], options, line)
        except UserError as error:
            seen.refused.append(f"line {line}: {error}")
            continue
        properties = {name: numbers[k] for name, (_, numbers) in found.items() if not math.isnan(numbers[k])}
        info: dict[str, str | float | int] = {"line": line}
        info |= {"smiles" if c == smiles else c: v[k] for c, v in cells.items() if v[k]}
        if waiting is not None:
            yield waiting, ()
        waiting = Frame(structure, info=info, properties=properties)
        seen.add(waiting)
    if len(seen.refused) > MOST_REFUSED * len(table.rows):
        raise UserError(
            f"{path}: {len(seen.refused)} of {len(table.rows)} molecules are refused; at most a tenth may be. "
            f"{' '.join(seen.refused[:SHOWN])}"
        )
    if waiting is not None:
        yield waiting, _notes(table, seen, found, options)


class _Seen:
    """What went by: rows that were refused, and SMILES that came again with other labels."""

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.contradictions: list[str] = []
        self._labels: dict[str, Mapping[str, object]] = {}

    def add(self, frame: Frame) -> None:
        key = str(frame.info["smiles"])
        before = self._labels.setdefault(key, frame.properties)
        if any(frame.properties[name] != before[name] for name in frame.properties if name in before):
            self.contradictions.append(key)


def _structure(smiles: str, options: ReadOptions, line: int) -> Structure:
    return embedded(smiles, seed=line) if options.embed else from_smiles(smiles)


def _notes(
    table: Table, seen: _Seen, found: Mapping[str, tuple[str, list[float]]], options: ReadOptions
) -> tuple[str, ...]:
    out = [f"properties: {', '.join(found) or 'none'}"]
    if options.embed:
        out.append("coordinates: one conformer of each molecule (rdkit ETKDGv3 and MMFF94), hydrogens added")
    if seen.refused:
        more = f" and {len(seen.refused) - SHOWN} more" if len(seen.refused) > SHOWN else ""
        out.append(
            f"{len(seen.refused)} of {len(table.rows)} molecules left out: {'; '.join(seen.refused[:SHOWN])}{more}"
        )
    if seen.contradictions:
        n = len(seen.contradictions)
        out.append(f"{n} molecules come more than once with different labels, e.g. {seen.contradictions[0]}")
    return tuple(out)


def held(path: Path) -> tuple[Counter[str], Counter[str]]:
    """The columns, with the number of rows that fill each."""
    table = _table(path)
    return Counter({column: sum(map(bool, table.column(column))) for column in table.columns}), Counter()
