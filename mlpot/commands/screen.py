"""mlpot screen."""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlpot.commands.terminal import AsJson
from mlpot.errors import UserError, suggestion

if TYPE_CHECKING:
    from mlpot.screen.chunk import Settings, Worker
    from mlpot.screen.cluster import Cluster
    from mlpot.screen.expressions import Expression
    from mlpot.screen.processes import Processes
    from mlpot.screen.result import Selection
    from mlpot.screen.run import Screening


def screen(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="a model of properties: a file or a run folder")],
    molecules: Annotated[Path, typer.Argument(metavar="INPUT", help="SMILES (.smi, .csv ...), .sdf, .xyz or .parquet")],
    output: Annotated[Path, typer.Option("--output", "-o", help="table to write, .csv, .tsv or .parquet")],
    also: Annotated[
        list[str] | None, typer.Option("--also", help="further models of the same targets: means and spreads are given")
    ] = None,
    condition: Annotated[str | None, typer.Option("--filter", help='e.g. "gap < 3 and MW < 500"')] = None,
    rank: Annotated[str | None, typer.Option("--rank", help="column to rank by; default: the first target")] = None,
    ascending: Annotated[bool, typer.Option("--ascending", help="the smallest values are the best")] = False,
    top: Annotated[int, typer.Option("--top", min=1, help="how many of the best are kept")] = 100,
    diverse: Annotated[int | None, typer.Option("--diverse", min=1, help="draw this many of them, far apart")] = None,
    smiles_column: Annotated[str | None, typer.Option("--smiles-column")] = None,
    id_column: Annotated[str | None, typer.Option("--id-column", help="column, or data field of an SDF")] = None,
    tautomers: Annotated[bool, typer.Option("--tautomers", help="predict rdkit's canonical tautomer")] = False,
    keep_charges: Annotated[bool, typer.Option("--keep-charges", help="do not neutralise")] = False,
    relax: Annotated[str | None, typer.Option("--relax", metavar="POTENTIAL", help="relax conformers by it")] = None,
    fmax: Annotated[float, typer.Option("--fmax", help="relax until no force exceeds this, eV/Å")] = 0.05,
    relax_steps: Annotated[int, typer.Option("--relax-steps", min=0, help="and for so many steps at most")] = 200,
    processes: Annotated[int | None, typer.Option("--processes", min=1, help="by default one a core")] = None,
    scheduler: Annotated[
        str | None, typer.Option("--scheduler", metavar="ADDRESS|FILE", help="work on a cluster of Dask distributed")
    ] = None,
    restart: Annotated[bool, typer.Option("--restart", help="throw earlier work on this output away")] = False,
    as_json: AsJson = False,
) -> None:
    """Predict properties of a long list of molecules, filter and rank them.

    Example:  mlpot screen runs/esol candidates.smi -o ranked.csv --filter "logS > -4 and MW < 500" --top 50

    OUT has one row for each entry of the input, with a status and a reason where there is no prediction; OUT.top.csv
    holds the best and OUT.html shows them. Work is kept in OUT.parts: the same command goes on after it was stopped.
    Columns beside the model's targets: MW, logP, TPSA, HBD, HBA, rings, rotatable_bonds, heavy_atoms, QED; with --relax
    relax_converged, relax_steps, relax_energy (eV) and relax_max_force (eV/Å).
    """
    from mlpot.commands import terminal
    from mlpot.commands.files import model_path
    from mlpot.screen.chunk import Relaxation, Settings, descriptors, worker_of
    from mlpot.screen.expressions import Expression
    from mlpot.screen.input import Input
    from mlpot.screen.molecule import Treatment
    from mlpot.screen.result import Selection
    from mlpot.screen.run import Screening
    from mlpot.screen.tables import check_ending

    begin = time.perf_counter()
    shown = terminal.console(as_json)
    check_ending(output)
    source = Input(molecules, smiles_column, id_column)
    wanted = Expression(condition) if condition else None
    named = {*(wanted.names if wanted else ()), *([rank] if rank else [])}
    if not (math.isfinite(fmax) and fmax > 0):
        raise UserError(f"--fmax is {fmax}; expected a force above zero, in eV/Å.")
    settings = Settings.of(
        source.format,
        [str(model_path(name).resolve()) for name in (model, *(also or []))],
        descriptors=tuple(name for name in descriptors() if name in named),
        treatment=Treatment(not keep_charges, tautomers),
        relaxation=Relaxation(str(model_path(relax).resolve()), fmax, relax_steps) if relax else None,
    )
    worker = worker_of(settings)
    values = worker.columns()
    _check_names(wanted, rank, values, list(descriptors()))
    screening = Screening(source, settings, output.with_name(f"{output.name}.parts"), restart)
    n = sum(1 for _ in source)
    workers = _workers(settings, processes, scheduler, shown)
    with terminal.bar("screening", n, shown) as update:
        done = 0

        def tell(lines: int) -> None:
            nonlocal done
            done += lines
            update(done)

        try:
            screening.run(workers, tell)
        except KeyboardInterrupt:
            shown.print("stopped; the same command goes on from here.")
            raise typer.Exit(130) from None
        finally:
            workers.close()
    selection = Selection(wanted, rank or values[0], ascending, top)
    predicted = _results(screening, worker, [model, *(also or [])], output, selection, diverse, shown, as_json)
    seconds = time.perf_counter() - begin
    stages = ", ".join(f"{name} {done / s:.0f}/s" for name, s in screening.stages.items() if s > 0 and done)
    rates = f" (of one process by stage: {stages})" if stages else ""
    shown.print(f"{n} lines in {seconds:.1f} s, {n / seconds:.0f} a second{rates}")
    if not predicted:
        shown.print("no molecule was predicted; the table says why.")
        raise typer.Exit(1)


def _workers(settings: Settings, processes: int | None, scheduler: str | None, shown: Any) -> Processes | Cluster:
    from mlpot.screen.cluster import Cluster
    from mlpot.screen.processes import Processes

    if scheduler is None:
        return Processes(settings, processes or os.cpu_count() or 1)
    if processes is not None:
        raise UserError("--processes is for this machine alone; with --scheduler its workers do the work.")
    return Cluster(settings, scheduler, lambda text: shown.print(text))


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
    worker: Worker,
    models: list[str],
    output: Path,
    selection: Selection,
    diverse: int | None,
    shown: Any,
    as_json: bool,
) -> int:
    """Write the tables and the report; the number of molecules that were predicted."""
    from mlpot.commands import terminal
    from mlpot.commands.files import write_frames
    from mlpot.report.screening import write_screening_report
    from mlpot.screen.result import diverse as far_apart
    from mlpot.screen.result import geometries, write_rows, write_table
    from mlpot.structure import SYMBOLS

    values = worker.columns()
    summary = write_table(output, screening.rows(), values, selection)
    picked = far_apart(summary.top, diverse) if diverse else summary.top[:24]
    best = output.with_name(f"{output.stem}.top{output.suffix}")
    write_rows(best, summary.top, values)
    if frames := geometries(summary.top, selection.rank):
        write_frames(best.with_suffix(".xyz"), frames)
    known = worker.elements
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
        units={target.name: target.unit for target in worker.targets},
        settings={
            "input": str(screening.source.path),
            "models": models,
            "filter": selection.condition.text if selection.condition else "none",
            "standardisation": ", ".join(
                ["largest fragment", *(["neutralised"] if screening.settings.treatment.neutralise else [])]
                + (["canonical tautomer"] if screening.settings.treatment.tautomers else [])
            ),
            "rank": f"{selection.rank}, {'ascending' if selection.ascending else 'descending'}",
        },
        domain=f"{domain}A prediction far from the training data may be wrong by much more than the test errors say.",
    )
    counts = ", ".join(f"{status} {count}" for status, count in summary.status.most_common())
    shown.print(f"{output}: {summary.n_lines} rows ({counts}); {summary.duplicates} duplicates; {summary.passed} pass")
    if summary.repeated_ids:
        shown.print(f"{summary.repeated_ids} rows have an id that came before; see the column same_id_as.")
    shown.print(f"{best}: the best {len(summary.top)}   {report}: report")
    if as_json:
        terminal.print_json(
            {
                "output": str(output),
                "lines": summary.n_lines,
                "status": dict(summary.status),
                "duplicates": summary.duplicates,
                "repeated_ids": summary.repeated_ids,
                "passed": summary.passed,
                "seconds_by_stage": dict(screening.stages),
                "top": [{name: value for name, value in row.items() if name != "geometry"} for row in summary.top],
            }
        )
    return summary.status["ok"]
