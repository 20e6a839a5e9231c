"""mlpot data fetch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


def fetch(
    name: Annotated[str | None, typer.Argument(help="the data set; without one, the sets are listed")] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="the folder to put its files in")] = Path("."),
    as_json: Annotated[bool, typer.Option("--json", help="print the result as JSON")] = False,
) -> None:
    """Fetch a published data set, check it against its published checksum, and go on where a download broke off.

    Example:  mlpot data fetch qm9 -o data
    """
    from mlpot.data.fetch import SETS
    from mlpot.data.fetch import fetch as fetched

    console = Console(highlight=False, soft_wrap=True, stderr=as_json)
    if name is None:
        if as_json:
            print(json.dumps({key: {"bytes": sum(f.size for f in s.files)} for key, s in SETS.items()}))
            return
        for key, published in SETS.items():
            size = sum(file.size for file in published.files)
            console.print(f"{key:8} {size / 1e6:9,.0f} MB  {published.citation}", markup=False)
        return
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        tasks: dict[str, TaskID] = {}

        def tell(file: str, there: int, whole: int) -> None:
            if file not in tasks:
                tasks[file] = progress.add_task(file, total=whole)
            progress.update(tasks[file], completed=there)

        paths = fetched(name, out, tell)
    if as_json:
        print(json.dumps({"files": [str(path) for path in paths]}, ensure_ascii=False))
        return
    for path in paths:
        console.print(f"{path}: {path.stat().st_size:,} bytes, MD5 as published", markup=False)
    console.print(f"{SETS[name].citation}\nthen:  {SETS[name].then}", markup=False)
