"""mlpot data convert."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from mlpot.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mlpot.data.frame import Frame
    from mlpot.data.options import ReadOptions
    from mlpot.target import Target


def convert(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="IN... OUT.h5 [KEY=VALUE]...", help="files, the store to write, and what the files do not say"
        ),
    ],
    force: Annotated[bool, typer.Option("--force", help="replace a store that is there")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False,
) -> None:
    """Write labelled structures to a store: one HDF5 file with units, read a frame at a time.

    Settings: keys.energy=, keys.forces=, keys.stress=, keys.virial=, keys.config_type=, keys.weight= name labels;
    units.energy=, units.forces=, units.stress=, units.length= their units; index=:100 picks frames; theory= is kept.

    Example:  mlpot data convert set.xyz set.h5 keys.energy=REF_energy keys.forces=REF_forces units.energy=kcal/mol
    """
    from mlpot.commands.files import read_options
    from mlpot.data.opening import expanded
    from mlpot.data.store import Store, write_store

    names = [word for word in words if "=" not in word or Path(word).exists()]
    options = read_options([word for word in words if word not in names])
    if len(names) < 2:
        raise UserError("expected one or more files and the store to write, e.g. mlpot data convert set.xyz set.h5")
    inputs = [Path(path) for name in names[:-1] for path in expanded(name)]
    target = Path(names[-1])
    _check_target(target, inputs, force)
    notes: list[str] = []
    sources: list[str] = []
    theories: dict[str, None] = {}
    frames = _frames(inputs, options, notes, sources, theories)
    known = _targets(inputs, options)
    n = write_store(target, frames, lambda: ", ".join(theories), notes, lambda: "; ".join(sources), known)
    store = Store(target)
    labels = store.counts()
    if as_json:
        told = {"frames": n, "labels": labels, "properties": [t.name for t in store.targets], "notes": notes}
        print(json.dumps({**told, "target": str(target)}, ensure_ascii=False))
        return
    console = Console(highlight=False, soft_wrap=True)
    for note in notes:
        console.print(f"  {note}", markup=False)
    console.print(
        f"{target}: {n} frames; with energy {labels['energy']}, forces {labels['forces']}, stress {labels['stress']} "
        f"(eV, Å, eV/Å, eV/Å³)",
        markup=False,
    )
    if store.targets:
        console.print(f"properties: {', '.join(f'{t.name} ({t.unit or t.kind})' for t in store.targets)}", markup=False)


def _check_target(target: Path, inputs: list[Path], force: bool) -> None:
    if target.suffix not in (".h5", ".hdf5"):
        raise UserError(f"{target}: the last file is the store to write and ends in .h5.")
    if target.exists() and any(target.resolve() == source.resolve() for source in inputs):
        raise UserError(f"{target}: source and target are the same file.")
    if target.is_dir():
        raise UserError(f"{target}: is a folder; give the name of a file.")
    if target.exists() and not force:
        raise UserError(f"{target}: the file is there already; --force replaces it.")


def _targets(inputs: list[Path], options: ReadOptions) -> tuple[Target, ...]:
    """The properties of all inputs; UserError where two of them mean different things by a name."""
    from mlpot.data.opening import Reading, existing
    from mlpot.data.store import Store, is_store

    known: dict[str, Target] = {}
    for path in inputs:
        found = Store(path).targets if is_store(existing(path)) else Reading(path, options, False).targets
        for target in found:
            if known.setdefault(target.name, target) != target:
                raise UserError(f"{path}: property {target.name} differs from that of another input in unit or kind.")
    return tuple(known.values())


def _frames(
    inputs: list[Path], options: ReadOptions, notes: list[str], sources: list[str], theories: dict[str, None]
) -> Iterator[Frame]:
    """The frames of all inputs, one at a time; notes and the rest are complete when they are through."""
    from mlpot.data.opening import Reading, existing, file_hash, open_dataset
    from mlpot.data.store import frames_of, is_store

    for path in inputs:
        if is_store(existing(path)):
            dataset = open_dataset(path, options)
            yield from frames_of(dataset)
            told, sha, theory = list(dataset.notes), dataset.sha, dataset.theory
        else:
            reading = Reading(path, options)
            yield from reading
            told, sha, theory = reading.notes, file_hash(path), options.theory
        notes.extend(note for note in told if note not in notes)
        sources.append(f"{path.name} sha256:{sha}")
        if theory:
            theories[theory] = None
