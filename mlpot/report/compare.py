"""The report of a comparison: errors with their spread over seeds, learning curves, cost, and the Pareto front."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from mlpot.compare.config import Comparison, PlotConfig, setting
from mlpot.compare.runs import Outcome
from mlpot.report import plots
from mlpot.report.html import Markup, Page, details, duration, figure, grid, mapping, note, number, table

HIGHER_IS_BETTER = ("AUC", "R2", "ACCURACY")


def write_comparison(
    path: str | Path,
    comparison: Comparison,
    outcomes: Sequence[Outcome],
    failed: Mapping[str, str],
    provenance: Mapping[str, Any],
) -> None:
    """Write one offline HTML file."""
    variants = list(dict.fromkeys(o.trial.variant for o in outcomes))
    figures = list(dict.fromkeys(name for o in outcomes for name in o.errors))
    page = Page("Comparison", f"{len(outcomes)} runs of {len(variants)} variants, seeds {comparison.seeds}")
    page.add(*(note(f"{name}: {reason}", warning=True) for name, reason in failed.items()))
    largest = max((o.trial.size or 0 for o in outcomes), default=0) or None
    shown = [o for o in outcomes if o.trial.size == largest]
    page.section("Errors", *error_tables(shown, figures))
    page.section("Errors against cost", grid(pareto(shown, figures)))
    if len(comparison.train_sizes) > 1:
        page.section("Errors against data", grid(over_data(outcomes, figures)))
    page.section("Errors against seconds of training", grid(over_time(shown)))
    more = [picture for plot in comparison.plots for picture in over_setting(shown, figures, plot)]
    if more:
        page.section("Errors against settings", grid(more))
    page.section(
        "How to do it again",
        details("Settings", mapping(comparison.model_dump(mode="json"))),
        details("Versions and hardware", mapping(provenance)),
    )
    page.write(path)


def spread(values: Iterable[float]) -> str:
    """Mean and, of several values, their standard deviation."""
    found = [value for value in values if math.isfinite(value)]
    if not found:
        return "–"
    mean = number(statistics.fmean(found))
    return f"{mean} ± {number(statistics.stdev(found), 2)}" if len(found) > 1 else mean


def error_tables(outcomes: Sequence[Outcome], figures: Sequence[str]) -> list[Markup]:
    """A row for each variant: errors, size, cost; mean ± standard deviation over seeds."""
    rows = []
    for variant, group in by_variant(outcomes).items():
        errors = [spread(o.errors[name] for o in group if name in o.errors) for name in figures]
        cost = [
            number(group[0].parameters),
            duration(statistics.fmean(o.seconds for o in group)),
            spread(float(o.epochs) for o in group),
            spread(o.microseconds_per_atom for o in group),
            spread(o.similarity for o in group),
            str(len(group)),
        ]
        rows.append([variant, *errors, *cost])
    header = ["Variant", *figures, "Parameters", "Training", "Epochs", "µs per atom", "Similarity", "Seeds"]
    sets = sorted({o.on for o in outcomes})
    caption = (
        f"Errors on the {' and '.join(sets)} frames, mean ± standard deviation over seeds. µs per atom: a prediction "
        "(with forces, for potentials) of a batch of some 600 atoms. Similarity: mean cosine between the features of "
        "two atoms of a structure after the last layer; 1 where message passing has made them all alike."
    )
    return [table(header, rows, caption, words=len(header))]


def by_variant(outcomes: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    """Outcomes grouped by variant, in order."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(outcome.trial.variant, []).append(outcome)
    return groups


def mean(outcomes: Sequence[Outcome], name: str) -> float:
    """Mean of a figure over runs that have it; NaN where none has."""
    found = [o.errors[name] for o in outcomes if name in o.errors and math.isfinite(o.errors[name])]
    return statistics.fmean(found) if found else math.nan


def pareto(outcomes: Sequence[Outcome], figures: Sequence[str]) -> list[Markup]:
    """Error over microseconds per atom, a point for each variant; those that no other beats in both are joined."""
    pictures = []
    for name in figures:
        points = {
            variant: (statistics.fmean(o.microseconds_per_atom for o in group), mean(group, name))
            for variant, group in by_variant(outcomes).items()
        }
        points = {variant: p for variant, p in points.items() if all(math.isfinite(x) for x in p)}
        if points:
            pictures.append(figure(plots.picture(_scatter(points, name), name)))
    return pictures


def front(points: Mapping[str, tuple[float, float]], higher_is_better: bool) -> list[tuple[float, float]]:
    """The points (cost, error) that no other beats in both, by rising cost."""
    kept: list[tuple[float, float]] = []
    for cost, error in sorted(points.values()):
        if not kept or (error > kept[-1][1] if higher_is_better else error < kept[-1][1]):
            kept.append((cost, error))
    return kept


def _scatter(points: Mapping[str, tuple[float, float]], name: str) -> Any:
    def draw(axes: Axes) -> None:
        best = front(points, any(word in name for word in HIGHER_IS_BETTER))
        axes.plot(*zip(*best, strict=True), color=plots.SOFT, linewidth=1.0, zorder=1)
        for place, (variant, (x, y)) in enumerate(points.items()):
            axes.plot([x], [y], "o", color=plots.CYCLE[place % 4], markersize=5)
            axes.annotate(variant, (x, y), xytext=(5, 4), textcoords="offset points", fontsize=7)
        axes.set_xscale("log")
        axes.margins(x=0.25, y=0.15)
        axes.set_xlabel("µs per atom")
        axes.set_ylabel(name)

    return draw


def over_data(outcomes: Sequence[Outcome], figures: Sequence[str]) -> list[Markup]:
    """Error over the number of training frames, a line for each variant, with the slope of log over log."""
    pictures = []
    for name in figures:
        lines = []
        for variant, group in by_variant(outcomes).items():
            sizes = sorted({o.trial.size for o in group if o.trial.size})
            errors = [mean([o for o in group if o.trial.size == size], name) for size in sizes]
            lines.append((f"{variant}{_slope(sizes, errors)}", [float(size) for size in sizes], errors))
        pictures.append(figure(plots.curves(name, lines, "Training frames", name)))
    return pictures


def _slope(sizes: Sequence[int], errors: Sequence[float]) -> str:
    points = [(math.log(n), math.log(e)) for n, e in zip(sizes, errors, strict=True) if e > 0]
    if len(points) < 2:
        return ""
    slope = statistics.linear_regression(*zip(*points, strict=True)).slope
    return f" (slope {slope:.2f})"


def over_time(outcomes: Sequence[Outcome]) -> list[Markup]:
    """Validation figures over seconds of training, the first seed of each variant."""
    first = {variant: group[0] for variant, group in by_variant(outcomes).items()}
    keys = dict.fromkeys(
        key
        for outcome in first.values()
        for row in outcome.rows
        for key in row
        if key.startswith("valid_") and key != "valid_loss"
    )
    pictures = []
    for key in keys:
        lines = []
        for variant, outcome in first.items():
            kept = [(row["seconds"], row[key]) for row in outcome.rows if math.isfinite(row.get(key, math.nan))]
            if kept:
                lines.append((variant, [x for x, _ in kept], [y for _, y in kept]))
        title = key.removeprefix("valid_").replace("_", " ")
        pictures.append(figure(plots.curves(f"{title}, validation", lines, "Seconds", title)))
    return pictures


def over_setting(outcomes: Sequence[Outcome], figures: Sequence[str], plot: PlotConfig) -> list[Markup]:
    """Each figure, and the similarity of atoms, over the values of a setting."""
    pictures = []
    for name in (*figures, "similarity of atoms"):
        groups: dict[str, dict[float, list[float]]] = {}
        for o in outcomes:
            x = setting(o.trial.config, plot.over)
            label = str(setting(o.trial.config, plot.by)) if plot.by else "all"
            y = o.similarity if name == "similarity of atoms" else o.errors.get(name, math.nan)
            if isinstance(x, int | float) and math.isfinite(y):
                groups.setdefault(label, {}).setdefault(float(x), []).append(y)
        lines = [
            (
                f"{(plot.by or '').rpartition('.')[2]} {label}".strip(),
                sorted(points),
                [statistics.fmean(points[x]) for x in sorted(points)],
            )
            for label, points in groups.items()
        ]
        if lines:
            pictures.append(figure(plots.curves(name, lines, plot.over.rpartition(".")[2], name)))
    return pictures
