"""mlpot data inspect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from mlpot.data.inspection import Inspection

STYLES = {"ok": "green", "suspicious": "bold yellow", "not testable": "dim"}
MANY = 12  # elements or config types shown one by one


def inspect(
    file: Annotated[Path, typer.Argument(help="a file of labelled structures")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="e.g. keys.energy=REF_energy units.energy=kcal/mol"),
    ] = None,
    against: Annotated[
        Path | None, typer.Option("--against", help="a test set: are any of its frames in FILE?")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False,
) -> None:
    """Say what a file of labelled structures holds, and what looks wrong with it.

    Example:  mlpot data inspect train.xyz keys.energy=REF_energy keys.forces=REF_forces --against test.xyz
    """
    from mlpot.commands.files import read_options
    from mlpot.data.inspection import inspect as look
    from mlpot.data.opening import existing, open_dataset
    from mlpot.data.store import is_store

    options = read_options(overrides)
    other = None
    if against is not None:  # a store needs no keys and units
        other = open_dataset(against, None if is_store(existing(against)) else options)
    found = look(open_dataset(file, options), other)
    if as_json:
        print(json.dumps(found.to_dict()))
        return
    _show(found, Console(highlight=False))


def _show(found: Inspection, console: Console) -> None:
    def say(text: str, style: str = "") -> None:
        console.print(Text(text, style=style), soft_wrap=True)

    say(f"{found.path}: {found.frames} frames ({found.source})", "bold")
    for note in found.notes:
        say(f"  {note}")
    if found.looked_at < found.frames:
        say(f"  {found.looked_at} frames, in stretches evenly over the set, were looked at.")
    console.print()
    console.print(_facts(found))
    console.print()
    console.print(_labels(found))
    console.print()
    console.print(_checks(found))
    n = len(found.suspicious)
    console.print()
    if n:
        say(f"{n} of {len(found.checks)} checks found something to look at.", "bold yellow")
    else:
        say("Nothing suspicious found.", "green")


def _facts(found: Inspection) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    atoms = found.atoms_per_frame
    elements = [f"{s} ({c['frames']} frames, {c['atoms']} atoms)" for s, c in found.elements.items()]
    if len(elements) > MANY:
        elements = [f"{len(elements)}: {' '.join(found.elements)}"]
    rows = {
        "elements": ", ".join(elements),
        "atoms a frame": f"{atoms['min']} to {atoms['max']}, mean {atoms['mean']:.1f}",
        "periodicity": ", ".join(f"{kind} {count}" for kind, count in found.periodicity.items()),
    }
    if found.volume_per_atom:
        volume = found.volume_per_atom
        rows["volume"] = f"{volume['min']:.3g} to {volume['max']:.3g} Å³ an atom, mean {volume['mean']:.3g}"
    types = [f"{name or '(none)'} {count}" for name, count in found.config_types.items()]
    if list(found.config_types) != [""]:
        rows["config types"] = ", ".join(types[:MANY]) + (f" and {len(types) - MANY} more" if len(types) > MANY else "")
    if found.isolated_atoms:
        rows["isolated atoms"] = ", ".join(found.isolated_atoms)
    if found.theory:
        rows["theory"] = found.theory
    for name, text in rows.items():
        table.add_row(name, Text(text))
    return table


def _labels(found: Inspection) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("label", style="bold")
    table.add_column("frames", justify="right")
    table.add_column("shown")
    for name in ("min", "mean", "max", "std"):
        table.add_column(name, justify="right")
    for label, values in found.labels.items():
        numbers = [f"{values[name]:.5g}" for name in ("min", "mean", "max", "std")]
        table.add_row(label, str(values["frames"]), f"{values['quantity']}, {values['unit']}", *numbers)
    return table


def _checks(found: Inspection) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("check", style="bold")
    table.add_column("", no_wrap=True)
    table.add_column("", overflow="fold")
    order = list(STYLES)
    for check in sorted(found.checks, key=lambda c: order.index(c.status) if c.status != "suspicious" else -1):
        table.add_row(check.name, Text(check.status, style=STYLES[check.status]), Text(check.message))
    return table
