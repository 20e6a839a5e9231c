"""mlpot bench speed, mlpot bench accuracy."""

from __future__ import annotations

import sys
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from mlpot.commands.terminal import AsJson
from mlpot.errors import UserError, unknown

Output = Annotated[Path | None, typer.Option("--output", "-o", help="write the raw figures here, as JSON")]


def speed(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ROW]...", help="shape/system/task, or part of it: mace, water192, train"),
    ] = None,
    threads: Annotated[int | None, typer.Option("--threads", min=1, help="CPU threads")] = None,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Time energies and forces, and training steps, of model shapes on standard systems.

    Example:  mlpot bench speed mace-off-small ethanol --threads 1 -o speed.json

    Weights are random, float32, through the ASE calculator. Timings beside other packages, in one run, are made by the
    scripts in the repository's benchmarks folder.
    """
    import torch

    from mlpot.allocator import keep_freed_memory
    from mlpot.bench.speed import rows, timed
    from mlpot.commands import terminal

    every = rows()
    parts = {part for row in every for part in row}
    for name in names or []:
        if name not in parts and not any(name == row.name or name in row.shape for row in every):
            raise unknown("row", name, sorted(parts))
    chosen = [row for row in every if all(n in row or n == row.name or n in row.shape for n in names or [])]
    if not chosen:
        raise UserError(f"no row is all of {', '.join(names or [])}. Rows: {', '.join(row.name for row in every)}.")
    keep_freed_memory()
    if threads is not None:
        torch.set_num_threads(threads)
    screen = terminal.console(as_json)
    results = {}
    for row in chosen:
        results[row.name] = timed(row)
        figures = results[row.name]
        screen.print(f"{row.name:40s} {figures['ms']:9.2f} ms   {figures['us_per_atom']:9.1f} µs per atom")
    _finish(output, as_json, {**_header(), "threads": torch.get_num_threads(), "rows": results})


def accuracy(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="a recipe, e.g. recipes/acac-mace.yaml")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="settings laid over it")
    ] = None,
    output: Output = None,
    as_json: AsJson = False,
) -> None:
    """Train by a recipe again, and print its errors beside those that were recorded for it.

    Example:  mlpot bench accuracy recipes/acac-mace.yaml out=runs/again -o again.json
    """
    from mlpot.bench.accuracy import recorded, rerun
    from mlpot.commands import terminal

    screen = terminal.console(as_json)
    before = recorded(recipe)
    found = {**_header(), **rerun(recipe, list(overrides or []), screen.print)}
    shown = Table("set", "error", "now", "recorded", box=None, pad_edge=False)
    for name, errors in found["errors"].items():
        for figure, value in errors.items():
            old = ((before or {}).get("errors") or {}).get(name, {}).get(figure)
            shown.add_row(name, figure, f"{value:.4g}", "–" if old is None else f"{old:.4g}")
    screen.print(shown)
    _finish(output, as_json, found)


def _header() -> dict[str, Any]:
    import platform

    from mlpot.train.run import versions

    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    return {
        "date": date.today().isoformat(),
        "command": " ".join(words),
        "hardware": _processor() or platform.machine(),
        "versions": versions(),
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} logical cores" if names else ""


def _finish(output: Path | None, as_json: bool, result: dict[str, Any]) -> None:
    import json

    from mlpot.commands import terminal
    from mlpot.simulate.files import replace_file

    if output is not None:
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            replace_file(output, (json.dumps(result, indent=2, ensure_ascii=False) + "\n").encode())
        except OSError as error:
            raise UserError(f"{output}: cannot be written ({error.strerror}).") from None
    if as_json:
        terminal.print_json(result)
