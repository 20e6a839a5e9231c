"""From a finished run to its report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from mlpot.data.dataset import Dataset, Subset
from mlpot.data.frame import LABELS
from mlpot.data.loader import Loader, plan_batches
from mlpot.data.references import References
from mlpot.potential import Potential, as_potential, predict
from mlpot.property_model import PropertyModel
from mlpot.report.inputs import Predictions, TrainingResult
from mlpot.report.properties import write_property_report
from mlpot.report.run import write_run_report
from mlpot.train.run import Finished
from mlpot.train.scores import ScoreTable

MOST_FRAMES = 1000  # compared in the plots of a report


def predictions_of(potential: Potential, dataset: Dataset) -> Predictions:
    """Predictions beside labels, for at most `MOST_FRAMES` frames spread evenly over a data set."""
    rows = np.unique(np.linspace(0, len(dataset) - 1, min(MOST_FRAMES, len(dataset))).astype(np.int64))
    chosen = Subset(dataset, rows)
    counts = chosen.counts()
    has = {label: counts[label] > 0 for label in LABELS}
    device = next((tensor.device for tensor in potential.parameters()), torch.device("cpu"))
    loader = Loader(chosen, potential.cutoff, cache_bytes=0)
    columns: dict[str, list[torch.Tensor]] = {}
    for batch in loader.batches(plan_batches(np.arange(len(chosen)), 32)):
        out = predict(potential, batch.graph.to(device), forces=has["forces"], stress=has["stress"])
        for label in LABELS:
            if not has[label]:
                continue
            present = getattr(batch.labels, f"has_{label}")
            present = present[batch.graph.batch] if label == "forces" else present
            reference = getattr(batch.labels, label).clone()
            reference[~present] = torch.nan
            columns.setdefault(f"{label}_reference", []).append(reference)
            columns.setdefault(f"{label}_predicted", []).append(getattr(out, label).cpu())
    arrays = {name: torch.cat(parts).numpy() for name, parts in columns.items()}
    return Predictions(chosen.n_atoms(), **arrays)


def training_result(
    finished: Finished, goals: Mapping[str, float] | None = None, warnings: Sequence[str] = ()
) -> TrainingResult:
    """What a report of the run shows."""
    prepared = finished.prepared
    names = {"valid": ("validation", prepared.valid), "test": ("test", prepared.test)}
    sets = {shown: (finished.metrics[key], data) for key, (shown, data) in names.items() if data is not None}
    return TrainingResult(
        config=prepared.config.model_dump(mode="json"),
        log_rows=finished.rows,
        metrics={shown: summary for shown, (summary, _) in sets.items()},
        predictions={
            shown: predictions_of(as_potential(finished.potential), data) for shown, (_, data) in sets.items()
        },
        goals=goals or {},
        provenance=provenance(finished),
        warnings=(*warnings, *_ambiguous(prepared.references)),
    )


def provenance(finished: Finished) -> dict[str, object]:
    """Data, versions, hardware, and what was found and chosen."""
    return {
        **finished.metrics["data"],
        **finished.metrics["versions"],
        "hardware": finished.metrics["hardware"],
        "found and chosen": "; ".join(finished.prepared.notes),
    }


def _ambiguous(references: References | None) -> list[str]:
    if references is None or not references.ambiguous:
        return []
    return [
        f"Reference energies: the data do not tell {', '.join(references.ambiguous)} apart (rank {references.rank} of "
        f"{references.n_elements}). Energies of the compositions seen are right; atomisation energies are not."
    ]


def report_run(finished: Finished, warnings: Sequence[str] = ()) -> Path:
    """Write report.html in the run's folder and return its path."""
    path = finished.folder / "report.html"
    subtitle = f"{prepared_name(finished)}, {len(finished.prepared.train)} training frames"
    if isinstance(finished.potential, PropertyModel):
        write_property_report(
            path,
            title=f"Run {finished.folder.name}",
            tables={name: table for name, table in finished.tables.items() if isinstance(table, ScoreTable)},
            rows=finished.rows,
            config=finished.prepared.config.model_dump(mode="json"),
            provenance=provenance(finished),
            notes=warnings,
            subtitle=subtitle,
        )
        return path
    write_run_report(
        path, title=f"Run {finished.folder.name}", result=training_result(finished, None, warnings), subtitle=subtitle
    )
    return path


def prepared_name(finished: Finished) -> str:
    """What was trained, for a heading."""
    model = finished.prepared.config.model
    return f"{Path(model.start).name if model.start else model.name} on {Path(finished.prepared.train.path).name}"
