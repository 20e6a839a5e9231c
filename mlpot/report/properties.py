"""The report of a run, or an evaluation, of a model of properties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlpot.report import plots
from mlpot.report.html import Markup, Page, details, figure, grid, mapping, note, number, table
from mlpot.report.run import series
from mlpot.target import Target
from mlpot.train.scores import ScoreTable, roc_curve, scores_of


def write_property_report(
    path: str | Path,
    *,
    title: str,
    tables: Mapping[str, ScoreTable],
    rows: Sequence[Mapping[str, Any]] = (),
    config: Mapping[str, Any] | None = None,
    provenance: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
    subtitle: str = "",
) -> None:
    """Write one offline HTML file: scores with intervals, predictions over labels, learning curves, settings.

    tables: labels and predictions of each set by its name; the set named last is drawn. rows: those of log.csv.
    """
    page = Page(title, subtitle)
    page.add(*(note(text) for text in notes))
    page.section("Scores", *score_tables(tables))
    for number_of_set, name in enumerate(reversed(list(tables))):
        pictures = grid(comparisons(tables[name]))
        heading = f"Predictions against labels, {name} set"
        page.section(heading, pictures if number_of_set == 0 else details(heading, pictures))
    if rows:
        page.section("Training", grid(learning_curves(rows, next(iter(tables.values())).targets)))
    folded = [details("Settings, resolved", mapping(config))] if config else []
    folded += [details("Versions, data and hashes", mapping(provenance))] if provenance else []
    if folded:
        page.section("How to do it again", *folded)
    page.write(path)


def score_tables(tables: Mapping[str, ScoreTable]) -> list[Markup]:
    """One table for the targets that share figures, a row for each target and set, with 95 % bootstrap intervals."""
    groups: dict[tuple[str, ...], list[list[object]]] = {}
    for name, scores in tables.items():
        for target, entry in scores.summary(intervals=True)["targets"].items():
            figures = tuple(key for key in entry if f"{key}_95" in entry)
            bounds = {key: " to ".join(number(end) for end in entry[f"{key}_95"]) for key in figures}
            cells = [f"{number(entry[key])} ({bounds[key]})" for key in figures]
            label = f"{target} ({entry['unit']})" if entry["unit"] else target
            groups.setdefault(figures, []).append([label, name, *cells, entry["n"]])
    return [
        table(["Target", "Set", *map(_heading, figures), "Labels"], rows, words=2 + len(figures))
        for figures, rows in groups.items()
    ]


def _heading(figure_name: str) -> str:
    return figure_name.upper().replace("_", " ")


def comparisons(scores: ScoreTable) -> list[Markup]:
    """A picture for each target: parity, or the ROC curve of a class."""
    out = []
    for target in scores.targets:
        labels, values = scores.pair(target.name)
        if not len(labels):
            continue
        if target.kind == "binary":
            x, y = roc_curve(labels, values)
            out.append(
                figure(
                    plots.curves(
                        f"{target.name}: ROC",
                        [("model", x, y), ("chance", [0.0, 1.0], [0.0, 1.0])],
                        "False positive rate",
                        "True positive rate",
                        log=False,
                    )
                )
            )
        elif target.kind != "classes":
            flat = np.asarray(labels, dtype=np.float64).ravel(), np.asarray(values, dtype=np.float64).ravel()
            out.append(figure(plots.parity(target.name, *flat, target.unit or "-", target.name, target.unit, 1.0)))
    return out


def learning_curves(rows: Sequence[Mapping[str, Any]], targets: Sequence[Target]) -> list[Markup]:
    """Losses, and the main figure of each target, over epochs."""
    names = {"train_loss": "training", "valid_loss": "validation"}
    losses = [(label, *series(rows, key, "epoch")) for key, label in names.items()]
    out = [figure(plots.curves("Loss", [line for line in losses if line[1]], "Epoch", "Loss"))]
    for target in targets:
        main = next(iter(scores_of(target)))
        line = (target.name, *series(rows, f"valid_{target.name}_{main}", "epoch"))
        if line[1]:
            label = f"{_heading(main)} {f'({target.unit})' if target.unit else ''}".strip()
            out.append(figure(plots.curves(f"{target.name} on the validation set", [line], "Epoch", label)))
    return out
