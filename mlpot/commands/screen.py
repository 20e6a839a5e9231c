"""mlpot screen."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlpot.commands.terminal import AsJson
from mlpot.errors import UserError, suggestion

if TYPE_CHECKING:
    from mlpot.screen.expressions import Expression
    from mlpot.screen.run import Screening


def screen(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="a model of properties: a file or a run folder")],
    molecules: Annotated[Path, typer.Argument(help="SMILES: .smi, .txt, .csv or .tsv, also with .gz")],
    output: Annotated[Path, typer.Option("--output", "-o", help="table to write, .csv or .tsv")],
    also: Annotated[
        list[str] | None, typer.Option("--also", help="further models of the same targets: means and spreads are given")
    ] = None,
    condition: Annotated[str | None, typer.Option("--filter", help='e.g. "gap < 3 and MW < 500"')] = None,
    rank: Annotated[str | None, typer.Option("--rank", help="column to rank by; default: the first target")] = None,
    ascending: Annotated[bool, typer.Option("--ascending", help="the smallest values are the best")] = False,
    top: Annotated[int, typer.Option("--top", min=1, help="how many of the best are kept")] = 100,
    diverse: Annotated[int | None, typer.Option("--diverse", min=1, help="draw this many of them, far apart")] = None,
    smiles_column: Annotated[str | None, typer.Option("--smiles-column")] = None,
    id_column: Annotated[str | None, typer.Option("--id-column")] = None,
    processes: Annotated[int | None, typer.Option("--processes", min=1, help="by default one a core")] = None,
    restart: Annotated[bool, typer.Option("--restart", help="throw earlier work on this output away")] = False,
    as_json: AsJson = False,
) -> None:
    """Predict properties of a long list of molecules, filter and rank them.

    Example:  mlpot screen runs/esol candidates.smi -o ranked.csv --filter "logS > -4 and MW < 500" --top 50

    OUT has one row for each line of the input, with a status and a reason where there is no prediction; OUT.top.csv
    holds the best and OUT.html shows them. Work is kept in OUT.parts: the same command goes on after it was stopped.
    Columns beside the model's targets: MW, logP, TPSA, HBD, HBA, rings, rotatable_bonds, heavy_atoms, QED.
    """
    from mlpot.commands import terminal
    from mlpot.commands.files import model_path
    from mlpot.screen.chunk import Settings, Worker, column_names, descriptors
    from mlpot.screen.expressions import Expression
    from mlpot.screen.lines import Input
    from mlpot.screen.run import Screening

    begin = time.perf_counter()
    shown = terminal.console(as_json)
    if output.suffix not in (".csv", ".tsv"):
        raise UserError(f"{output}: results are written as .csv or .tsv.")
    source = Input(molecules, smiles_column, id_column)
    wanted = Expression(condition) if condition else None
    models = tuple(str(model_path(name)) for name in (model, *(also or [])))
    named = {*(wanted.names if wanted else ()), *([rank] if rank else [])}
    used = tuple(name for name in descriptors() if name in named)
    worker = Worker(Settings(models, used))
    predicted = [name for target in worker.targets for name in column_names(target)]
    values = [*predicted, *([f"{name}_std" for name in predicted] if len(models) > 1 else []), *used]
    _check_names(wanted, rank, values, list(descriptors()))
    screening = Screening(source, worker, output.with_name(f"{output.name}.parts"), restart)
    n = sum(1 for _ in source)
    with terminal.bar("screening", n, shown) as update:
        done = 0

        def tell(lines: int) -> None:
            nonlocal done
            done += lines
            update(done)

        try:
            screening.run(processes or os.cpu_count() or 1, tell)
        except KeyboardInterrupt:
            shown.print("stopped; the same command goes on from here.")
            raise typer.Exit(130) from None
    _results(screening, output, values, wanted, rank or predicted[0], ascending, top, diverse, shown, as_json)
    seconds = time.perf_counter() - begin
    stages = ", ".join(f"{name} {done / s:.0f}/s" for name, s in screening.stages.items() if s > 0 and done)
    rates = f" (by stage: {stages})" if stages else ""
    shown.print(f"{n} lines in {seconds:.1f} s, {n / seconds:.0f} a second{rates}")


def _check_names(wanted: Expression | None, rank: str | None, values: list[str], offered: list[str]) -> None:
    if wanted is not None:
        unknown = sorted(name for name in wanted.names if name not in values)
        if unknown:
            near = suggestion(unknown[0], [*values, *offered])
            raise UserError(f'filter "{wanted.text}": there is no column "{unknown[0]}".{near}')
    if rank is not None and rank not in values:
        raise UserError(f'--rank: there is no column "{rank}".{suggestion(rank, [*values, *offered])}')


def _results(
    screening: Screening,
    output: Path,
    values: list[str],
    wanted: Expression | None,
    rank: str,
    ascending: bool,
    top: int,
    diverse: int | None,
    shown: Any,
    as_json: bool,
) -> None:
    from mlpot.commands import terminal
    from mlpot.commands.files import write_rows
    from mlpot.report.screening import write_screening_report
    from mlpot.screen.result import diverse as far_apart
    from mlpot.screen.result import write_table
    from mlpot.structure import SYMBOLS

    summary = write_table(output, screening.rows(), values, wanted, rank, ascending, top)
    picked = far_apart(summary.top, diverse) if diverse else summary.top[:24]
    best = output.with_name(f"{output.stem}.top{output.suffix}")
    write_rows(best, summary.top)
    known = screening.worker.models[0].elements
    domain = (
        f"Trained on {', '.join(SYMBOLS[z] for z in known)}; molecules with other elements are not predicted. "
        if known
        else ""
    )
    report = output.with_name(f"{output.name}.html")
    write_screening_report(
        report,
        title=f"Screening of {screening.source.path.name}",
        summary=summary,
        picked=picked,
        values=values,
        units={target.name: target.unit for target in screening.worker.targets},
        settings={
            "input": str(screening.source.path),
            "models": list(screening.settings.models),
            "filter": wanted.text if wanted else "none",
            "rank": f"{rank}, {'ascending' if ascending else 'descending'}",
        },
        domain=f"{domain}A prediction far from the training data may be wrong by much more than the test errors say.",
    )
    counts = ", ".join(f"{status} {count}" for status, count in summary.status.most_common())
    shown.print(f"{output}: {summary.n_lines} rows ({counts}); {summary.duplicates} duplicates; {summary.passed} pass")
    shown.print(f"{best}: the best {len(summary.top)}   {report}: report")
    if as_json:
        terminal.print_json(
            {
                "output": str(output),
                "lines": summary.n_lines,
                "status": dict(summary.status),
                "duplicates": summary.duplicates,
                "passed": summary.passed,
                "seconds_by_stage": dict(screening.stages),
                "top": summary.top,
            }
        )
