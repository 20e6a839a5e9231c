"""mlpot data convert."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from mlpot.errors import UserError


def convert(
    source: Annotated[Path, typer.Argument(help="a file of labelled structures")],
    target: Annotated[Path, typer.Argument(help="the store to write (.h5)")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="e.g. keys.energy=REF_energy units.energy=kcal/mol")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="replace a file that is there")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False,
) -> None:
    """Write labelled structures to a store: one HDF5 file with units, read a frame at a time.

    Example:  mlpot data convert spice.hdf5 spice.h5
    """
    from mlpot.commands.common import read_options
    from mlpot.data.opening import open_dataset
    from mlpot.data.store import frames_of, write_store

    if target.exists() and not force:
        raise UserError(f"{target}: the file is there already; --force replaces it.")
    if target.exists() and target.resolve() == source.resolve():
        raise UserError(f"{target}: source and target are the same file.")
    options = read_options(overrides)
    dataset = open_dataset(source, options)
    n = write_store(target, frames_of(dataset), options.theory or dataset.theory, dataset.notes, f"{source} sha256:{dataset.sha}")
    console = Console(highlight=False, soft_wrap=True)
    if as_json:
        print(json.dumps({"frames": n, "labels": dataset.counts(), "notes": dataset.notes, "target": str(target)}))
        return
    for note in dataset.notes:
        console.print(note, markup=False)
    labels = ", ".join(f"{label} {count}" for label, count in dataset.counts().items())
    console.print(f"{target}: {n} frames; frames with {labels}", markup=False)
