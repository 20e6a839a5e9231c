"""A file of molecules in any format there is."""

from __future__ import annotations

import hashlib
import importlib
import itertools
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from mlpot.data.reading import existing
from mlpot.errors import UserError
from mlpot.screen import formats
from mlpot.screen.lines import Columns, Line


def format_modules() -> dict[str, ModuleType]:
    """The formats by name of their module."""
    names = sorted(found.name for found in pkgutil.iter_modules(formats.__path__))
    return {name: importlib.import_module(f"{formats.__name__}.{name}") for name in names}


class Input:
    """A file of molecules. Iterating gives a `Line` for every entry, blank ones too; nothing is kept in memory.

    smiles_column, id_column: of a table; found by name where they are not given.
    Raises UserError for a file that is not there or empty, another ending, and columns that are not there.
    """

    def __init__(self, path: Path, smiles_column: str | None = None, id_column: str | None = None) -> None:
        self.path = existing(path)
        self.columns = Columns(smiles_column, id_column)
        ending = Path(path.name.removesuffix(".gz")).suffix.lower()
        known = format_modules()
        self.format = next((name for name, module in known.items() if ending in module.SUFFIXES), "")
        if not self.format:
            endings = "; ".join(f"{module.FORMAT} ({', '.join(module.SUFFIXES)})" for module in known.values())
            raise UserError(f"{path}: expected molecules: {endings}; most of them also with .gz.")
        self._module = known[self.format]
        if next(iter(self), None) is None:
            raise UserError(f"{path}: it holds no molecules.")

    def __iter__(self) -> Iterator[Line]:
        entries = self._module.lines(self.path, self.columns)
        try:
            yield from entries
        except (OSError, EOFError) as error:  # a .gz that is none, or is cut short
            raise UserError(f"{self.path}: cannot be read ({error}).") from None

    def chunks(self, size: int) -> Iterator[list[Line]]:
        """The entries, `size` at a time."""
        entries = iter(self)
        while chunk := list(itertools.islice(entries, size)):
            yield chunk

    def sha(self) -> str:
        """sha256 of the file's bytes."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
