"""What a screening leaves: a table with a row for each line, and the best of them."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from mlpot.convert import ase as convert
from mlpot.screen.chunk import Row, unpacked
from mlpot.screen.expressions import Expression
from mlpot.screen.tables import table

FIRST = (
    *("line", "id", "smiles", "status", "reason", "standardised", "changes", "duplicate_of", "same_id_as"),
    "coordinates",
)
SAMPLE = 20_000  # values of a column kept for its distribution


@dataclass
class Summary:
    """Counts and the best rows. `passed` is the number that meet the filter and are no duplicates."""

    n_lines: int = 0
    passed: int = 0
    status: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    repeated_ids: int = 0
    top: list[Row] = field(default_factory=list)
    columns: dict[str, list[float]] = field(default_factory=dict)


class Selection(NamedTuple):
    """What is wanted of all rows: those that meet the condition, ranked by a column, the best n_top of them."""

    condition: Expression | None
    rank: str
    ascending: bool = False
    n_top: int = 100

    def place(self, row: Row) -> float | None:
        """The larger the better; None for a row that does not take part."""
        value = row.get(self.rank) if row["passes"] and not row.get("duplicate_of") else None
        if value is None or not math.isfinite(value):
            return None
        return -value if self.ascending else float(value)


def write_table(path: Path, rows: Iterable[Row], values: Sequence[str], selection: Selection) -> Summary:
    """Write every row, in the order of the lines, and collect the best. The file is there whole, or not at all.

    `values` are the columns of predictions and descriptors. "passes" says whether a row meets the filter.
    """
    summary = Summary(columns={name: [] for name in values})
    best: list[tuple[float, int, Row]] = []
    columns = [*FIRST, *values, "passes"]
    with table(path, columns) as write:
        for row in rows:
            good = row["status"] == "ok"
            row["passes"] = int(good and (selection.condition is None or selection.condition.holds(row)))
            write({name: row.get(name) for name in columns})
            _count(summary, row, values)
            place = selection.place(row)
            if place is not None:
                heapq.heappush(best, (place, -row["line"], row))
                if len(best) > selection.n_top:
                    heapq.heappop(best)
    summary.top = [row for _, _, row in sorted(best, key=lambda entry: (-entry[0], -entry[1]))]
    return summary


def write_rows(path: Path, rows: Iterable[Row], values: Sequence[str]) -> None:
    """Some rows as a table of their own, in their order."""
    columns = [*FIRST, *values]
    with table(path, columns) as write:
        for row in rows:
            write({name: row.get(name) for name in columns})


def geometries(rows: Iterable[Row], rank: str) -> list[Any]:
    """The structures that were predicted, as ``ase.Atoms`` with line, id, SMILES and the value ranked by."""
    frames = []
    for row in rows:
        if "geometry" in row:
            atoms = convert.atoms(unpacked(row["geometry"]))
            atoms.info = {"line": row["line"], "id": row["id"], "smiles": row["standardised"], rank: row[rank]}
            frames.append(atoms)
    return frames


def _count(summary: Summary, row: Row, values: Sequence[str]) -> None:
    summary.n_lines += 1
    summary.status[row["status"]] += 1
    summary.duplicates += row.get("duplicate_of") is not None
    summary.repeated_ids += row.get("same_id_as") is not None
    summary.passed += bool(row["passes"]) and row.get("duplicate_of") is None
    # Every line at first, then ever fewer: a fair picture of a list of any length.
    if row["status"] == "ok" and row["line"] % max(1, summary.n_lines // SAMPLE) == 0:
        for name in values:
            if name in row:
                summary.columns[name].append(row[name])


def diverse(rows: Sequence[Row], n: int) -> list[Row]:
    """The first row, and n - 1 others that lie far from each other (MaxMin over Morgan fingerprints of radius 2).

    Structures that came without bonds have no fingerprints: among them the first n are taken.
    """
    from rdkit import Chem
    from rdkit.Chem import rdFingerprintGenerator
    from rdkit.SimDivFilters.rdSimDivPickers import MaxMinPicker

    drawn = [row for row in rows if row.get("standardised")]
    if len(drawn) < len(rows):
        return list(rows[:n])
    if len(rows) <= n:
        return list(rows)
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
    prints = [generator.GetFingerprint(Chem.MolFromSmiles(row["standardised"])) for row in rows]
    picks = MaxMinPicker().LazyBitVectorPick(prints, len(prints), n, [0], 0)
    return [rows[k] for k in sorted(picks)]


def number(value: Any) -> str:
    """A value for a page: four digits, or the text."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
