"""Tables that are written row by row: the file is there whole, or not at all."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mlpot.errors import UserError
from mlpot.screen.formats.parquet import pyarrow

ENDINGS = (".csv", ".tsv", ".parquet")
TEXTS = ("id", "smiles", "status", "reason", "standardised", "changes", "coordinates")
INTEGERS = ("line", "duplicate_of", "same_id_as", "passes")
GROUP = 20_000  # rows of a group in Parquet
Write = Callable[[Mapping[str, Any]], None]


def check_ending(path: Path) -> None:
    """UserError for an ending that no table here has, and for Parquet where pyarrow is not installed."""
    if path.suffix not in ENDINGS:
        raise UserError(f"{path}: results are written as {', '.join(ENDINGS)}.")
    if path.suffix == ".parquet":
        pyarrow()


@contextmanager
def table(path: Path, columns: Sequence[str]) -> Iterator[Write]:
    """Yields what writes a row, a value or None for each column; UserError where the file cannot be written."""
    check_ending(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (_parquet if path.suffix == ".parquet" else _text)(temporary, columns, path.suffix) as write:
            yield write
        os.replace(temporary, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror or error}).") from None
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def _text(path: Path, columns: Sequence[str], ending: str) -> Iterator[Write]:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t" if ending == ".tsv" else ",")
        writer.writerow(columns)
        yield lambda row: writer.writerow(["" if row[name] is None else row[name] for name in columns])


@contextmanager
def _parquet(path: Path, columns: Sequence[str], ending: str) -> Iterator[Write]:
    import pyarrow as pa

    kinds = [pa.string() if c in TEXTS else pa.int64() if c in INTEGERS else pa.float64() for c in columns]
    schema = pa.schema(list(zip(columns, kinds, strict=True)))
    rows: list[Mapping[str, Any]] = []
    with pyarrow().ParquetWriter(path, schema) as writer:

        def write(row: Mapping[str, Any]) -> None:
            rows.append(row)
            if len(rows) >= GROUP:
                finish()

        def finish() -> None:
            writer.write_table(pa.Table.from_pylist(rows, schema))
            rows.clear()

        yield write
        finish()
