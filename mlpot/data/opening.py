"""Open any file of labelled structures, or of structures alone."""

from __future__ import annotations

import glob
import hashlib
from collections.abc import Sequence
from pathlib import Path

from mlpot.data.dataset import Concatenated, Dataset, MemoryDataset, Subset
from mlpot.data.options import ReadOptions
from mlpot.data.reading import Reading, existing, file_hash, formats
from mlpot.data.store import Store, is_store
from mlpot.data.structures import read_structures
from mlpot.errors import UserError

__all__ = ["Reading", "existing", "expanded", "file_hash", "formats", "open_dataset", "read_structures"]

Paths = str | Path | Sequence[str | Path]


def open_dataset(path: Paths, options: ReadOptions | None = None, require_labels: bool = True) -> Dataset:
    """The frames of a file (or of several: a list, or a pattern such as "run*.xyz"), labels in eV, eV/Å and eV/Å³.

    A store is opened where it lies and read as needed; other formats are read into memory. With `require_labels`, a
    file in which no energy, force or stress is seen is an error that lists what it holds instead. A file whose forces
    (or energies) seem to lie under a name that nobody gave is a PhysicsWarning. `options.index` picks frames of each
    file.
    """
    paths = expanded(path)
    if len(paths) > 1:
        return Concatenated([open_dataset(one, options, require_labels) for one in paths])
    file = existing(paths[0])
    if is_store(file):
        return _open_store(file, options or ReadOptions(), require_labels)
    reading = Reading(file, options, require_labels)
    frames = list(reading)
    return MemoryDataset(
        frames,
        str(file),
        _picked(file_hash(file), reading.options.index),
        reading.module.FORMAT,
        tuple(reading.notes),
        reading.options.theory,
        reading.targets,
    )


def _picked(sha: str, index: str) -> str:
    """The hash of some frames of a file: other frames get another, so that a split of theirs does not fit."""
    return sha if index == ":" else hashlib.sha256(f"{sha} {index}".encode()).hexdigest()


def expanded(path: Paths) -> list[str | Path]:
    """The files that a list or a pattern names; a single path stays as it is."""
    if not isinstance(path, str | Path):
        if not path:
            raise UserError("no file was given.")
        return list(path)
    if Path(path).exists() or not any(sign in str(path) for sign in "*?["):
        return [path]
    found: list[str | Path] = [*sorted(glob.glob(str(path)))]
    if not found:
        raise UserError(f"{path}: no file has a name of this pattern.")
    return found


def _open_store(file: Path, options: ReadOptions, require_labels: bool) -> Dataset:
    options.validated(str(file))
    if options.keys or options.units:
        raise UserError(f"{file}: a store knows its labels and units; leave out keys and units.")
    store = Store(file)
    if options.theory and options.theory != store.theory:
        raise UserError(
            f'{file}: the store holds labels of "{store.theory}", not "{options.theory}"; leave out theory.'
        )
    if require_labels and not any(store.counts().values()) and not store.targets:
        raise UserError(f"{file}: no labels found in {len(store)} frames; the store was written without any.")
    if options.index == ":":
        return store
    chosen = options.frames(len(store))
    if not chosen:
        raise UserError(f'{file}: index "{options.index}" picks none of its {len(store)} frames.')
    subset = Subset(store, list(chosen))
    subset.sha = _picked(store.sha, options.index)
    return subset
