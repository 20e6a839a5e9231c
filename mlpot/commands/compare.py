"""mlpot compare."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mlpot.commands.terminal import AsJson
from mlpot.errors import UserError


def compare(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="a YAML file: base, variants, grid, seeds, ...")],
    out: Annotated[
        str | None, typer.Option("--out", "-o", help="folder for runs and report, in place of the recipe's")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="list the runs and stop")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a list of models and options on the same data, and write one report of errors, cost and learning curves.

    Example:  mlpot compare recipes/compare-esol.yaml

    What is finished is not trained again: the same command goes on where an earlier one stopped. The report is
    report.html in the folder of the comparison.
    """
    from mlpot.commands import terminal
    from mlpot.compare.config import read_comparison, to_yaml, trials

    comparison = read_comparison(recipe, {"out": out} if out else {})
    runs = trials(comparison, str(recipe))
    screen = terminal.console(as_json)
    for run in runs:
        screen.print(f"{run.folder.name}: {run.config.model.name}, seed {run.seed}")
    if dry_run:
        return

    from mlpot.compare.runs import folder_of, run_all
    from mlpot.report.compare import by_variant, spread, write_comparison
    from mlpot.train.run import versions, write_text

    folder = folder_of(comparison.out)
    kept = folder / "comparison.yaml"
    if kept.is_file() and kept.read_text(encoding="utf-8") != to_yaml(comparison):
        raise UserError(
            f"{folder}: there is another comparison in this folder ({kept.name} differs). Choose another: --out FOLDER."
        )
    write_text(kept, to_yaml(comparison))
    outcomes, failed = run_all(runs, screen.print)
    if not outcomes:
        raise UserError(f"{recipe}: no run came to its end. " + "; ".join(f"{k}: {v}" for k, v in failed.items()))
    write_comparison(folder / "report.html", comparison, outcomes, failed, dict(versions()))
    results = [
        {
            "variant": o.trial.variant,
            "size": o.trial.size,
            "seed": o.trial.seed,
            "on": o.on,
            **o.errors,
            "parameters": o.parameters,
            "train_seconds": o.seconds,
            "epochs": o.epochs,
            "microseconds_per_atom": o.microseconds_per_atom,
            "similarity": o.similarity,
        }
        for o in outcomes
    ]
    for variant, group in by_variant(outcomes).items():
        names = dict.fromkeys(name for o in group for name in o.errors)
        shown = ", ".join(f"{name} {spread(o.errors[name] for o in group if name in o.errors)}" for name in names)
        screen.print(f"{variant}: {shown}")
    screen.print(f"report: {folder / 'report.html'}")
    if as_json:
        terminal.print_json({"folder": str(folder), "runs": results, "failed": failed})
