"""mlpot demo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="folder to write")] = Path("demo"),
    data: Annotated[Path, typer.Option("--data", help="folder of the data that come with the repository")] = Path(
        "data"
    ),
    budget: Annotated[str, typer.Option("--budget", help="time to train for")] = "3min",
    picoseconds: Annotated[float, typer.Option("--ps", min=0.05, help="length of each of the two dynamics, ps")] = 5.0,
    device: Annotated[str, typer.Option("--device", help="cpu, cuda or auto")] = "cpu",
    as_json: Annotated[bool, typer.Option("--json", help="print the figures as JSON")] = False,
) -> None:
    """The main job from data to dynamics, on ethanol: train, evaluate on unseen frames, run NVE and NVT, report.

    Example:  mlpot demo --out demo
    """
    from mlpot.demonstration import run_demo

    console = Console(stderr=as_json, highlight=False, soft_wrap=True)
    metrics = run_demo(out, data, budget, picoseconds, device, lambda text: console.print(text, markup=False))
    if as_json:
        print(json.dumps(metrics))
