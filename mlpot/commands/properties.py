"""What `mlpot evaluate` and `mlpot predict` do with a model of properties."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table

from mlpot.errors import UserError

if TYPE_CHECKING:
    from mlpot.data.dataset import Dataset
    from mlpot.data.options import ReadOptions
    from mlpot.property_model import PropertyModel
    from mlpot.target import Target

TABLES = (".csv", ".tsv", ".txt", ".smi")


def evaluate_properties(
    name: str,
    model: PropertyModel,
    dataset: Dataset,
    output: Path | None,
    report: Path | None,
    batch_atoms: int,
    screen: Any,
) -> dict[str, Any]:
    """Score every target that the data carries; rows and a report where asked for. The summary, as JSON has it."""
    from mlpot.commands import terminal
    from mlpot.commands.files import write_rows
    from mlpot.report.properties import write_property_report
    from mlpot.train.scores import ScoreTable

    known = {target.name for target in dataset.targets}
    scored = [target for target in model.targets if target.name in known]
    if not scored:
        raise UserError(
            f"{dataset.path}: it carries none of the model's targets ({', '.join(t.name for t in model.targets)}); "
            f"it has {', '.join(sorted(known)) or 'no properties'}. Name a column with keys.TARGET=COLUMN."
        )
    table = ScoreTable(scored)
    with terminal.bar("evaluating", len(dataset), screen) as update:
        rows = values_of(model, dataset, batch_atoms, update, table)
    if output is not None:
        write_rows(output, rows)
        screen.print(f"{output}: predictions and labels of each frame")
    if report is not None:
        title = f"{Path(name).name} on {Path(dataset.path).name}"
        provenance = {"model": name, "data": dataset.path, "sha256": dataset.sha, "theory": dataset.theory}
        write_property_report(report, title=title, tables={Path(dataset.path).name: table}, provenance=provenance)
        screen.print(f"{report}: report")
    summary = table.summary(intervals=True)
    show(summary, screen)
    return summary


def predict_molecules(
    model: PropertyModel, path: Path, output: Path, index: str, batch_atoms: int, screen: Any
) -> list[dict[str, Any]]:
    """Predict every molecule of a file and write a table (.csv), or structures with their properties in `info`."""
    from mlpot.commands import terminal
    from mlpot.commands.files import write_frames, write_rows
    from mlpot.convert import ase as convert
    from mlpot.data.options import ReadOptions

    table = output.suffix in (".csv", ".tsv", ".txt")
    if not table and "positions" not in model.needs:
        raise UserError(f"{output}: this model reads bonds; its predictions go to a table: -o {output.stem}.csv.")
    dataset = molecules(path, with_coordinates(model, path, ReadOptions(index=index)))
    with terminal.bar("predicting", len(dataset), screen) as update:
        rows = values_of(model, dataset, batch_atoms, update)
    if table:
        write_rows(output, rows)
    else:
        frames = [convert.atoms(dataset[k].structure) for k in range(len(dataset))]
        for atoms, row in zip(frames, rows, strict=True):
            atoms.info.update({key: value for key, value in row.items() if key != "frame"})
        write_frames(output, frames)
    units = ", ".join(f"{t.name} in {t.unit}" if t.unit else t.name for t in model.targets)
    screen.print(f"{output}: {len(rows)} structures; {units}")
    return rows


def with_coordinates(model: PropertyModel, path: Path, options: ReadOptions) -> ReadOptions:
    """The options with `embed` where the model reads positions and the file is a table of SMILES."""
    if "positions" in model.needs and path.suffix in TABLES:
        return options.model_copy(update={"embed": True})
    return options


def molecules(path: Path, options: Any) -> Dataset:
    """The structures of a file, labelled or not: a format of ours, or another of ASE."""
    from mlpot.convert import ase as convert
    from mlpot.data.dataset import MemoryDataset
    from mlpot.data.frame import Frame
    from mlpot.data.opening import open_dataset, read_structures

    if path.suffix in (*TABLES, ".h5", ".hdf5", ".gz"):
        return open_dataset(path, options, require_labels=False)
    frames = [Frame(convert.structure(atoms)) for atoms in read_structures(path, options.index)]
    return MemoryDataset(frames, str(path))


def values_of(
    model: PropertyModel, dataset: Dataset, batch_atoms: int, update: Any, table: Any = None
) -> list[dict[str, Any]]:
    """A row for each frame: its info, the prediction of each target and, where there is one, the label."""
    import torch

    from mlpot.data.loader import Loader, plan_batches
    from mlpot.property_model import predict_properties
    from mlpot.train.properties import Answer

    place = next(model.parameters()).device
    loader = Loader(dataset, model.cutoff, cache_bytes=0)
    rows = []
    for indices in plan_batches(np.arange(len(dataset)), None, dataset.n_atoms(), batch_atoms):
        batch = loader.batch(indices).to(torch.device(place))
        try:
            values = predict_properties(model, batch.graph)
        except UserError as error:
            raise UserError(f"{dataset.path}: frames {indices[0]} to {indices[-1]}: {error}") from None
        if table is not None:
            table.add(batch, Answer({}, {}, values))
        plain = {name: value.cpu().numpy() for name, value in values.items()}
        for k, index in enumerate(indices):
            frame = dataset[int(index)]
            row: dict[str, Any] = {"frame": int(index), **frame.info}
            for target in model.targets:
                row |= cells(target, plain[target.name][k])
                if target.name in frame.properties:
                    row |= {f"{key}_label": v for key, v in cells(target, frame.properties[target.name], True).items()}
            rows.append(row)
        update(int(indices[-1]) + 1)
    return rows


def cells(target: Target, value: Any, label: bool = False) -> dict[str, float]:
    """Columns of one value: the name of the target, with x, y, z or the class where it has several numbers."""
    array = np.asarray(value, dtype=np.float64)
    if array.ndim == 0:
        return {target.name: float(array)}
    if target.kind == "classes" and not label:
        return {f"{target.name}_{number}": float(p) for number, p in enumerate(array)}
    axes = "xyz"
    ends = list(axes) if array.ndim == 1 else [a + b for a in axes for b in axes]
    return {f"{target.name}_{end}": float(x) for end, x in zip(ends, array.ravel(), strict=True)}


def show(summary: dict[str, Any], screen: Any) -> None:
    """A table of the scores with their intervals."""
    shown = Table("target", "labels", "score", "value", "95 % interval", "unit", box=None, pad_edge=False)
    for name, entry in summary["targets"].items():
        scores = [key for key in entry if f"{key}_95" in entry]
        for place, key in enumerate(scores):
            low, high = entry[f"{key}_95"]
            shown.add_row(
                name if place == 0 else "",
                str(entry["n"]) if place == 0 else "",
                key.upper().replace("_", " "),
                f"{entry[key]:.4g}",
                f"{low:.4g} to {high:.4g}",
                entry["unit"] if key in ("mae", "rmse") else "",
            )
    screen.print(shown)
