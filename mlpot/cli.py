"""The command line: each command is a file in mlpot/commands; nothing heavy is imported before it is needed."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable

import typer
from rich.console import Console

from mlpot import __version__
from mlpot.allocator import keep_freed_memory
from mlpot.commands.bench import accuracy, speed
from mlpot.commands.compare import compare
from mlpot.commands.data_convert import convert
from mlpot.commands.data_fetch import fetch
from mlpot.commands.data_inspect import inspect
from mlpot.commands.demo import demo
from mlpot.commands.evaluate import evaluate
from mlpot.commands.explain import explain
from mlpot.commands.md import md
from mlpot.commands.models import models
from mlpot.commands.predict import predict
from mlpot.commands.relax import relax
from mlpot.commands.screen import screen
from mlpot.commands.train import train
from mlpot.errors import PhysicsWarning, UserError

app = typer.Typer(
    name="mlpot",
    help="Machine-learning interatomic potentials: train on your data, check, relax and run dynamics.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data = typer.Typer(
    help="Look into files of labelled structures, convert them, fetch published ones.", no_args_is_help=True
)
bench = typer.Typer(help="Time models on standard systems; run recipes again.", no_args_is_help=True)
_COMMANDS: tuple[Callable[..., None], ...] = (
    train,
    evaluate,
    predict,
    relax,
    md,
    screen,
    explain,
    compare,
    models,
    demo,
)
_DATA_COMMANDS: tuple[Callable[..., None], ...] = (inspect, convert, fetch)
for command in _COMMANDS:
    app.command()(command)
for command in _DATA_COMMANDS:
    data.command()(command)
for command in (speed, accuracy):
    bench.command()(command)
app.add_typer(data, name="data")
app.add_typer(bench, name="bench")


def _version(value: bool) -> None:
    if value:
        print(f"mlpot {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Options of all commands."""


def _show_warning(message: Warning | str, category: type[Warning], *rest: object, **more: object) -> None:
    if issubclass(category, PhysicsWarning):
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"warning: {message}", style="yellow", markup=False)


def main() -> None:
    """Run the command line. A user's mistake is one message and exit code 2."""
    warnings.showwarning = _show_warning
    keep_freed_memory()
    try:
        app()
    except UserError as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print(f"error: {error}", style="red", markup=False)
        sys.exit(2)
    except BrokenPipeError:  # the reader of a pipe, such as head, has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
