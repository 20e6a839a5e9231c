"""Parquet with a column of SMILES, read batch by batch with pyarrow (the extra `parquet`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlpot.errors import UserError
from mlpot.screen.formats.smiles_list import molecule as molecule
from mlpot.screen.lines import LONGEST, Columns, Line, chosen

FORMAT = "Parquet"
SUFFIXES = (".parquet",)
BATCH = 2000  # rows


def pyarrow() -> Any:
    """The module pyarrow.parquet; UserError that names the extra where it is not installed."""
    try:
        import pyarrow.parquet
    except ImportError:
        raise UserError(
            'Parquet needs pyarrow, which is not installed: pip install "mlpot[parquet]", or use .csv.'
        ) from None
    return pyarrow.parquet


def lines(path: Path, columns: Columns) -> Iterator[Line]:
    """Every row, numbered from 1; UserError for a damaged file and for a column that holds no text."""
    reader = pyarrow()
    from pyarrow import ArrowException, types

    try:
        with reader.ParquetFile(path) as file:
            schema = file.schema_arrow
            smiles, identifier = chosen(path, schema.names, columns)
            kind = schema.types[smiles]
            if types.is_dictionary(kind):
                kind = kind.value_type
            if not (types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)):
                raise UserError(f'{path}: the column "{schema.names[smiles]}" holds {kind}, not text; expected SMILES.')
            names = [schema.names[place] for place in (smiles, identifier) if place >= 0]
            number = 0
            for batch in file.iter_batches(BATCH, columns=list(dict.fromkeys(names))):
                texts = batch.column(names[0]).to_pylist()
                ids = batch.column(names[1]).to_pylist() if identifier >= 0 else [None] * len(texts)
                for text, key in zip(texts, ids, strict=True):
                    number += 1
                    yield Line(number, "" if key is None else str(key), (text or "")[: 2 * LONGEST].strip())
    except (ArrowException, OSError) as error:
        detail = str(error).strip().splitlines()[0][:200]
        raise UserError(f"{path}: cannot be read as Parquet ({detail}).") from None
