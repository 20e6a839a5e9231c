"""mlpot evaluate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from mlpot.commands.terminal import AsJson, Device, Dtype, Model
from mlpot.errors import UserError

if TYPE_CHECKING:
    from mlpot.data.dataset import Dataset
    from mlpot.potential import Potential
    from mlpot.train.metrics import ErrorTable


def evaluate(
    model: Model,
    data: Annotated[Path, typer.Argument(help="labelled structures, in any format that mlpot train takes")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="e.g. keys.energy=REF_energy units.energy=kcal/mol"),
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="errors of each frame, as CSV")] = None,
    report: Annotated[Path | None, typer.Option("--report", help="report with parity plots, as HTML")] = None,
    batch_atoms: Annotated[int, typer.Option("--batch-atoms", min=1, help="atoms in one batch, at most")] = 2000,
    device: Device = "cpu",
    dtype: Dtype = None,
    as_json: AsJson = False,
) -> None:
    """Errors of a model against labels: overall, per element and per config type, or of each property.

    Example:  mlpot evaluate runs/mydata test.xyz keys.energy=REF_energy keys.forces=REF_forces

    Frames that lack a label count for the others. Errors of energies, forces and stress are in meV, meV/Å and meV/Å³,
    those of properties in the unit of the target, with bootstrap intervals.
    """
    from mlpot.commands import terminal
    from mlpot.commands.files import read_options, write_rows
    from mlpot.commands.properties import evaluate_properties, with_coordinates
    from mlpot.data.opening import open_dataset
    from mlpot.property_model import PropertyModel

    screen = terminal.console(as_json)
    found = terminal.load_model(model, device, dtype)
    options = read_options(overrides)
    if isinstance(found, PropertyModel):
        options = with_coordinates(found, data, options)
    dataset = open_dataset(data, options)
    for text in dataset.notes:
        screen.print(text)
    if isinstance(found, PropertyModel):
        summary = evaluate_properties(model, found, dataset, output, report, batch_atoms, screen)
        if as_json:
            terminal.print_json(summary)
        return
    potential = found
    with terminal.bar("evaluating", len(dataset), screen) as update:
        table, rows = errors_of(potential, dataset, batch_atoms, update)
    summary = table.summary()
    if output is not None:
        write_rows(output, rows)
        screen.print(f"{output}: errors of each frame")
    if report is not None:
        from mlpot.report.finished import predictions_of
        from mlpot.report.inputs import TrainingResult
        from mlpot.report.run import write_run_report

        provenance = {"model": model, "data": str(data), "sha256": dataset.sha, "theory": dataset.theory}
        result = TrainingResult(
            {},
            metrics={data.name: summary},
            predictions={data.name: predictions_of(potential, dataset)},
            provenance=provenance,
        )
        write_run_report(report, title=f"{Path(model).name} on {data.name}", result=result)
        screen.print(f"{report}: report")
    show(summary, screen)
    if as_json:
        terminal.print_json(summary)


def errors_of(
    potential: Potential, dataset: Dataset, batch_atoms: int, update: Any
) -> tuple[ErrorTable, list[dict[str, Any]]]:
    """Errors over a data set, and a row for each of its frames with what it carries besides."""
    import numpy as np
    import torch

    from mlpot.data.loader import Loader, plan_batches
    from mlpot.potential import predict
    from mlpot.train.metrics import ErrorTable

    counts = dataset.counts()
    table, rows = ErrorTable(), []
    place = next((p.device for p in potential.parameters()), torch.device("cpu"))
    loader = Loader(dataset, potential.cutoff, cache_bytes=0)
    for indices in plan_batches(np.arange(len(dataset)), None, dataset.n_atoms(), batch_atoms):
        batch = loader.batch(indices).to(place)
        try:
            out = predict(potential, batch.graph, forces=counts["forces"] > 0, stress=counts["stress"] > 0)
        except UserError as error:
            raise UserError(f"{dataset.path}: frames {indices[0]} to {indices[-1]}: {error}") from None
        table.add(batch, out)
        energies = (out.energy - batch.labels.energy).cpu().numpy()
        atoms = batch.graph.batch.cpu().numpy()
        off = None if out.forces is None else (out.forces - batch.labels.forces).abs().cpu().numpy()
        for k, index in enumerate(indices):
            frame = dataset[int(index)]
            row: dict[str, Any] = {
                "frame": int(index),
                "config_type": frame.config_type,
                "n_atoms": len(frame.structure),
            }
            row["energy_eV"] = float(out.energy[k])
            row["energy_error_eV"] = float(energies[k]) if frame.has("energy") else None
            if off is not None:
                row["force_mae_eV_per_A"] = float(off[atoms == k].mean()) if frame.has("forces") else None
                row["force_max_error_eV_per_A"] = float(off[atoms == k].max()) if frame.has("forces") else None
            rows.append({**row, **{key: value for key, value in frame.info.items() if key not in row}})
        update(int(indices[-1]) + 1)
    return table, rows


def show(summary: dict[str, Any], screen: Any) -> None:
    """Tables of the errors."""
    from mlpot.train.metrics import UNITS

    total = Table("", "labels", "MAE", "RMSE", "largest", "unit", box=None, pad_edge=False)
    groups = [("all", summary), *summary["per_element"].items(), *summary["per_config_type"].items()]
    for name, entry in groups:
        for quantity, (unit, _) in UNITS.items():
            if quantity in entry:
                e = entry[quantity]
                label = quantity.replace("_", " ")
                total.add_row(
                    label if name == "all" else f"{label}, {name}",
                    str(e["n"]),
                    *(f"{e[key]:.4g}" for key in ("mae", "rmse", "max")),
                    unit,
                )
    screen.print(total)
