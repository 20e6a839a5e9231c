"""The report of a training run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlpot.report import plots
from mlpot.report.html import (
    Card,
    Markup,
    Page,
    beside,
    cards,
    details,
    duration,
    figure,
    grid,
    mapping,
    note,
    number,
    table,
)
from mlpot.report.inputs import Predictions, TrainingResult

# quantity in the metrics -> (heading, unit)
QUANTITIES = {
    "energy": ("Energy", "meV"),
    "energy_per_atom": ("Energy per atom", "meV/atom"),
    "forces": ("Force components", "meV/Å"),
    "stress": ("Stress components", "meV/Å³"),
}
# what a key figure is called, and its unit, by its name in the metrics
FIGURES = {
    "forces_mae_meV_per_A": ("Force error (MAE)", "meV/Å"),
    "energy_mae_meV_per_atom": ("Energy error (MAE)", "meV/atom"),
    "stress_mae_meV_per_A3": ("Stress error (MAE)", "meV/Å³"),
}
MOST_BARS = 14


def write_run_report(path: str | Path, *, title: str, result: TrainingResult, subtitle: str = "") -> None:
    """Write the report of a training run to `path`: one HTML file that needs nothing else.

    Parts with nothing to show (no forces, no config types, no log) are left out. UserError where it cannot be written.
    """
    page = Page(title, subtitle)
    page.add(cards(key_figures(result)), *remarks(result))
    training_sections(page, result)
    page.write(path)


def remarks(result: TrainingResult) -> list[Markup]:
    """Warnings, then notes; predictions that are not numbers are a warning of their own."""
    broken = [
        f"{_times(count, 'prediction')} of {quantity} on the {name} set: not a finite number, left out of the figures."
        for name, predictions in result.predictions.items()
        for quantity in ("energy", "forces", "stress")
        if (count := predictions.not_finite(quantity))
    ]
    return [
        *(note(text, warning=True) for text in broken),
        *(note(text, warning=True) for text in result.warnings),
        *(note(text) for text in result.notes),
    ]


def key_figures(result: TrainingResult) -> list[Card]:
    """Errors of the set named last in the metrics, judged by the goals; the time that training took."""
    out = []
    if result.metrics:
        name = list(result.metrics)[-1]
        for key, (label, unit) in FIGURES.items():
            value = _float(result.metrics[name].get(key))
            if not math.isnan(value):
                out.append(_judged(label, value, unit, result.goals.get(key), name))
    seconds = [value for value in (_float(row.get("seconds")) for row in result.log_rows) if not math.isnan(value)]
    if seconds:
        out.append(Card("Training time", duration(max(seconds)), "", _times(len(result.log_rows), "validation")))
    return out


def _times(count: int, word: str) -> str:
    return f"{number(count)} {word}{'' if count == 1 else 's'}"


def _judged(label: str, value: float, unit: str, goal: float | None, name: str) -> Card:
    if goal is None:
        return Card(label, value, unit, f"{name} set")
    good = value < goal
    return Card(label, value, unit, f"{'below' if good else 'not below'} {goal:g} {unit}, {name} set", good)


def training_sections(page: Page, result: TrainingResult) -> None:
    """Add errors, comparisons, learning curves and settings to a page."""
    tables = _error_tables(result.metrics)
    if tables:
        page.section("Errors", *tables)
    names = reversed(list(dict.fromkeys([*result.predictions, *result.metrics])))
    compared = [(n, _comparison(result.predictions.get(n), result.metrics.get(n, {}))) for n in names]
    compared = [(name, pictures) for name, pictures in compared if pictures]
    if compared:
        (name, pictures), others = compared[0], compared[1:]
        folded = [details(f"The same for the {other} set", grid(more)) for other, more in others]
        page.section(f"Predictions against labels, {name} set", grid(pictures), *folded)
    pictures = learning_curves(result.log_rows)
    if pictures:
        page.section("Training", grid(pictures))
    settings = [details("Settings, resolved", mapping(result.config))] if result.config else []
    if result.provenance:
        settings.append(details("Versions, data and hashes", mapping(result.provenance)))
    if settings:
        page.section("How to do it again", *settings)


def series(rows: Sequence[Mapping[str, Any]], key: str, over: str) -> tuple[list[float], list[float]]:
    """Values of `key` over those of `over` in the log's rows, without the rows where either is missing."""
    points = [(_float(row.get(over)), _float(row.get(key))) for row in rows]
    kept = [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)]
    return [x for x, _ in kept], [y for _, y in kept]


def _float(value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan


def learning_curves(rows: Sequence[Mapping[str, Any]]) -> list[Markup]:
    """Losses, validation errors and learning rate over epochs (or steps, where there is one epoch at most)."""
    epochs = {_float(row.get("epoch")) for row in rows}
    over, label = ("epoch", "Epoch") if len({e for e in epochs if math.isfinite(e)}) > 2 else ("step", "Step")

    def lines(names: Mapping[str, str]) -> list[plots.Series]:
        found = [(text, *series(rows, key, over)) for key, text in names.items()]
        return [line for line in found if line[1]]

    out = []
    losses = lines({"train_loss": "training", "valid_loss": "validation"})
    if losses:
        caption = "The validation loss has the final weights of its terms, and averaged parameters where there are any."
        out.append(figure(plots.curves("Loss", losses, label, "Loss"), caption))
    for key, name, unit in (
        ("valid_forces_mae_meV_per_A", "Force error on the validation set", "meV/Å"),
        ("valid_energy_mae_meV_per_atom", "Energy error on the validation set", "meV/atom"),
        ("valid_stress_mae_meV_per_A3", "Stress error on the validation set", "meV/Å³"),
    ):
        line = lines({key: "validation"})
        if line:
            out.append(figure(plots.curves(name, line, label, f"MAE ({unit})", mark_lowest=0)))
    rate = lines({"learning_rate": "learning rate"}) or lines({"lr": "learning rate"})
    if rate:
        out.append(figure(plots.curves("Learning rate", rate, label, "Learning rate", log=False)))
    return out


def _error_tables(metrics: Mapping[str, Mapping[str, Any]]) -> list[Markup]:
    rows = [
        [f"{heading} ({unit})", name, entry["mae"], entry["rmse"], entry["max"], entry["n"]]
        for quantity, (heading, unit) in QUANTITIES.items()
        for name, summary in metrics.items()
        if (entry := summary.get(quantity))
    ]
    if not rows:
        return []
    out = [table(["Quantity", "Set", "MAE", "RMSE", "Largest", "Values"], rows, words=2)]
    for key, title in (("per_element", "Element"), ("per_config_type", "Config type")):
        parts = [_grouped(title, name, summary.get(key) or {}) for name, summary in metrics.items()]
        out.append(beside([part for part in parts if part]))
    return out


def _grouped(title: str, name: str, groups: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Markup | None:
    present = [q for q in QUANTITIES if any(q in group for group in groups.values())]
    if not present:
        return None
    header: list[str] = [title]
    for quantity in present:
        heading, unit = QUANTITIES[quantity]
        header += [f"{heading}: MAE ({unit})", "RMSE", "Values"]
    rows: list[list[object]] = []
    for group, entries in groups.items():
        row: list[object] = [group]
        for quantity in present:
            entry = entries.get(quantity)
            row += [entry["mae"], entry["rmse"], entry["n"]] if entry else ["–", "–", "–"]
        rows.append(row)
    body = table(header, rows, f"By {title.lower()}, {name} set")
    return details(f"By {title.lower()}, {name} set ({len(rows)})", body) if len(rows) > MOST_BARS else body


def _comparison(predictions: Predictions | None, summary: Mapping[str, Any]) -> list[Markup]:
    out: list[Markup] = []
    energy = predictions.pair("energy") if predictions else None
    if energy is not None:
        reference, predicted = energy
        shift = float(reference.mean())
        unit, scale = ("meV/atom", 1000.0) if float(np.ptp(reference)) < 2 else ("eV/atom", 1.0)
        shifted = scale * (reference - shift), scale * (predicted - shift)
        caption = f"Total energy per atom, less the labels' mean of {number(shift, 6)} eV/atom."
        drawn = plots.parity("Energy", *shifted, unit, "Energy", "meV/atom", 1000 / scale)
        out += [
            figure(drawn, caption),
            figure(plots.error_histogram("Energy errors", 1000 * (predicted - reference), "meV/atom")),
        ]
    for name, title, unit, factor, error_unit in (
        ("forces", "Force", "eV/Å", 1000.0, "meV/Å"),
        ("stress", "Stress", "eV/Å³", 1000.0, "meV/Å³"),
    ):
        pair = predictions.pair(name) if predictions else None
        if pair is not None:
            drawn = plots.parity(f"{title} components", *pair, unit, title, error_unit, factor)
            errors = plots.error_histogram(f"{title} errors", factor * (pair[1] - pair[0]), error_unit)
            out += [figure(drawn), figure(errors)]
    for key, title in (("per_element", "Force error by element"), ("per_config_type", "Force error by config type")):
        groups = {group: entry["forces"] for group, entry in (summary.get(key) or {}).items() if "forces" in entry}
        if 1 < len(groups) <= MOST_BARS:
            means = {group: float(entry["mae"]) for group, entry in groups.items()}
            squares = {group: float(entry["rmse"]) for group, entry in groups.items()}
            out.append(figure(plots.bars(title, means, "MAE (meV/Å); the tick marks the RMSE", squares)))
    return out
