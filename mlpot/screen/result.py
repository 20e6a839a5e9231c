"""What a screening leaves: a table with a row for each line, and the best of them."""

from __future__ import annotations

import csv
import heapq
import math
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlpot.errors import UserError
from mlpot.screen.chunk import Row
from mlpot.screen.expressions import Expression

FIRST = ("line", "id", "smiles", "status", "reason", "standardised", "changes", "duplicate_of")
SAMPLE = 20_000  # values of a column kept for its distribution


@dataclass
class Summary:
    """Counts and the best rows. `passed` is the number that meet the filter and are no duplicates."""

    n_lines: int = 0
    passed: int = 0
    status: Counter[str] = field(default_factory=Counter)
    duplicates: int = 0
    top: list[Row] = field(default_factory=list)
    columns: dict[str, list[float]] = field(default_factory=dict)


def write_table(
    path: Path,
    rows: Iterable[Row],
    values: Sequence[str],
    condition: Expression | None,
    rank: str | None,
    ascending: bool,
    n_top: int,
) -> Summary:
    """Write every row, in the order of the lines, and collect the best. The file is there whole, or not at all.

    `values` are the columns of predictions and descriptors. "passes" says whether a row meets the filter.
    """
    summary = Summary(columns={name: [] for name in values})
    best: list[tuple[float, int, Row]] = []
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [*FIRST, *values, "passes"], restval="", delimiter=_delimiter(path))
            writer.writeheader()
            for row in rows:
                good = row["status"] == "ok"
                row["passes"] = int(good and (condition is None or condition.holds(row)))
                writer.writerow({key: "" if value is None else value for key, value in row.items()})
                _count(summary, row, values)
                value = row.get(rank) if rank and row["passes"] and not row.get("duplicate_of") else None
                if value is not None and math.isfinite(value):
                    key = -value if ascending else value
                    heapq.heappush(best, (key, -row["line"], row))
                    if len(best) > n_top:
                        heapq.heappop(best)
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}).") from None
    finally:
        temporary.unlink(missing_ok=True)
    summary.top = [row for _, _, row in sorted(best, key=lambda entry: (-entry[0], -entry[1]))]
    return summary


def _delimiter(path: Path) -> str:
    if path.suffix not in (".csv", ".tsv"):
        raise UserError(f"{path}: results are written as .csv or .tsv.")
    return "," if path.suffix == ".csv" else "\t"


def _count(summary: Summary, row: Row, values: Sequence[str]) -> None:
    summary.n_lines += 1
    summary.status[row["status"]] += 1
    summary.duplicates += row.get("duplicate_of") is not None
    summary.passed += bool(row["passes"]) and row.get("duplicate_of") is None
    # Every line at first, then ever fewer: a fair picture of a list of any length.
    if row["status"] == "ok" and row["line"] % max(1, summary.n_lines // SAMPLE) == 0:
        for name in values:
            if name in row:
                summary.columns[name].append(row[name])


def diverse(rows: Sequence[Row], n: int) -> list[Row]:
    """The first row, and n - 1 others that lie far from each other (MaxMin over Morgan fingerprints of radius 2)."""
    from rdkit import Chem
    from rdkit.Chem import rdFingerprintGenerator
    from rdkit.SimDivFilters.rdSimDivPickers import MaxMinPicker

    if len(rows) <= n:
        return list(rows)
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=2048)
    prints = [generator.GetFingerprint(Chem.MolFromSmiles(row["standardised"])) for row in rows]
    picks = MaxMinPicker().LazyBitVectorPick(prints, len(prints), n, [0], 0)
    return [rows[k] for k in sorted(picks)]


def number(value: Any) -> str:
    """A value for a page: four digits, or the text."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
