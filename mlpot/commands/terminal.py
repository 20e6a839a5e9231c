"""What the commands that use a trained potential share: loading it, telling progress, parsing times."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from mlpot.errors import UserError

if TYPE_CHECKING:
    from mlpot.potential import Potential
    from mlpot.property_model import PropertyModel

Model = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="a .mlpot file, the folder of a training run, or a model file of mace-torch"),
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:0 or auto")]
Dtype = Annotated[str | None, typer.Option("--dtype", help="float32 or float64; by default that of the model")]
AsJson = Annotated[bool, typer.Option("--json", help="print the result as JSON")]
TIME = re.compile(r"\s*([0-9.eE+-]+)\s*(fs|ps|ns)\s*")


def load_potential(model: str, device: str, dtype: str | None) -> Potential:
    """The potential of a file or run folder, on a device, in a dtype, ready to predict; UserError for other models."""
    from mlpot.potential import as_potential

    return as_potential(load_model(model, device, dtype), model)


def load_model(model: str, device: str, dtype: str | None) -> Potential | PropertyModel:
    """The model of a file or run folder, whatever it predicts."""
    from mlpot.checkpoint import DTYPES
    from mlpot.commands.files import model_path
    from mlpot.device import device_of
    from mlpot.errors import unknown
    from mlpot.pretrained import load

    if dtype is not None and dtype not in DTYPES:
        raise unknown("dtype", dtype, DTYPES)
    place = device_of(device)
    found = load(model_path(model))
    found = found if dtype is None else found.to(DTYPES[dtype])
    return found.to(place).eval().requires_grad_(False)


def femtoseconds(text: str) -> float:
    """ "5ps" as 5000.0; UserError where the unit is missing."""
    match = TIME.fullmatch(text)
    try:
        return float(match[1]) * {"fs": 1.0, "ps": 1e3, "ns": 1e6}[match[2]] if match else float("x")
    except ValueError:
        raise UserError(f'"{text}" is not a time; write a number with its unit: 500fs, 5ps, 1ns.') from None


def console(as_json: bool) -> Console:
    """Where words go: to the terminal, or beside the JSON on standard error."""
    return Console(stderr=as_json, highlight=False, soft_wrap=True, markup=False)


@contextmanager
def bar(label: str, total: int | None, screen: Console) -> Iterator[Any]:
    """A progress bar with the time left; yields ``update(done, text)``. Nothing is drawn where there is no terminal."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Progress(*columns, console=screen, disable=not screen.is_terminal, transient=True) as progress:
        task = progress.add_task(label, total=total, note="")
        yield lambda done, text="": progress.update(task, completed=done, note=text)


@contextmanager
def share(label: str, screen: Console) -> Iterator[Callable[[float], None]]:
    """A progress bar for the part of a whole that is done, with the time left; yields ``update(fraction)``."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen, disable=not screen.is_terminal, transient=True) as progress:
        task = progress.add_task(label, total=1.0)
        yield lambda fraction: progress.update(task, completed=fraction)


def print_json(values: Mapping[str, Any]) -> None:
    """One line of JSON; numbers that are none become null."""
    print(json.dumps(_plain(values), allow_nan=False))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and value - value != 0.0:
        return None
    return str(value) if isinstance(value, Path) else value
