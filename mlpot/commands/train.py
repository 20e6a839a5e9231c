"""mlpot train."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from mlpot.errors import UserError


def train(
    source: Annotated[
        str, typer.Argument(metavar="RECIPE|DATA|RUN", help="a recipe (.yaml), a file of frames, or a run folder")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="settings laid over the recipe's")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="go on with the run in folder SOURCE")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the metrics as JSON")] = False,
) -> None:
    """Train a potential, or a model of molecular properties, on your own data.

    With a recipe:     mlpot train recipes/acac-schnet.yaml budget=1h

    Without one:       mlpot train mydata.xyz budget=30min keys.energy=REF_energy keys.forces=REF_forces

    Properties:        mlpot train molecules.csv targets=[logS] embed=true model.name=painn

    After a crash:     mlpot train runs/mydata --resume

    On two processes:  torchrun --nproc-per-node 2 -m mlpot train recipe.yaml

    Sensible choices are made for all that is left open, and printed. The folder runs/NAME then holds best.mlpot,
    metrics.json and report.html.
    """
    from mlpot.train.config import resolve

    where, values, resuming = settings(source, list(overrides or []), resume)
    config = resolve(values, where)

    from mlpot.commands import terminal
    from mlpot.report.finished import report_run
    from mlpot.train.run import train as run_training

    screen = terminal.console(as_json)
    say = screen.print
    with terminal.share("training", screen) as watch:
        finished = run_training(config, say, resuming, watch)
    report = report_run(finished)
    for name in ("valid", "test"):
        if name in finished.metrics:
            say(f"{name}: {headline(finished.metrics[name])}")
    say(f"potential: {finished.folder / 'best.mlpot'}   report: {report}")
    if as_json:
        print(json.dumps(finished.metrics))


def headline(summary: dict[str, Any]) -> str:
    """The main errors in one line."""
    if "targets" in summary:
        return ", ".join(
            f"{name} {entry['figure'].upper().replace('_', ' ')} {entry[entry['figure']]:.4g} {entry['unit']}".rstrip()
            for name, entry in summary["targets"].items()
        )
    names = (
        ("energy_mae_meV_per_atom", "energy MAE", "meV/atom"),
        ("forces_mae_meV_per_A", "forces MAE", "meV/Å"),
        ("forces_rmse_meV_per_A", "RMSE", "meV/Å"),
        ("stress_mae_meV_per_A3", "stress MAE", "meV/Å³"),
    )
    return ", ".join(f"{label} {summary[key]:.2f} {unit}" for key, label, unit in names if key in summary)


def settings(source: str, overrides: list[str], resume: bool) -> tuple[str, dict[str, Any], bool]:
    """Where the settings come from, the settings of a run, a recipe or a file of frames, and whether to resume."""
    from mlpot.train.config import apply_overrides, read_recipe

    path = Path(source)
    if "resume=true" in [text.replace(" ", "").lower() for text in overrides]:
        overrides, resume = [o for o in overrides if o.replace(" ", "").lower() != "resume=true"], True
    if resume:
        from mlpot.train.run import read_run

        if path.suffix in (".yaml", ".yml"):
            recipe = apply_overrides(read_recipe(path), overrides)
            path = Path(recipe.get("out") or f"runs/{Path(recipe['data']['train']).stem}")
        elif path.is_file():
            path = Path(f"runs/{path.stem}")
        elif overrides:
            raise UserError(
                "a resumed run keeps its settings, so that it ends as if it had never stopped; leave out the rest."
            )
        if not path.is_dir():
            raise UserError(f"{path}: there is no such run folder to resume.")
        return str(path / "config.yaml"), read_run(path).model_dump(mode="json"), True
    if path.suffix in (".yaml", ".yml"):
        return source, apply_overrides(read_recipe(path), overrides), False
    if path.is_dir():
        raise UserError(f"{path}: is a folder. To go on with the run in it: mlpot train {path} --resume.")
    return "command line", apply_overrides({"data": {"train": source}}, overrides), False
