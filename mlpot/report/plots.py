"""Figures as inline SVG: text stays text, dense clouds are small images, colours follow the page's light or dark.

matplotlib's object interface within `rc_context`, so that no setting outlives a call.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from mlpot.report.html import Markup, escape, number
from mlpot.report.inputs import Array

# The page's colours (assets/style.css) stand in for these, so that figures turn dark with it.
# The hues are told apart by colour-blind readers as well (after Okabe and Ito, darkened for contrast).
INK, SOFT, FAINT = "#1c2430", "#5b6675", "#dfe3e8"
BLUE, ORANGE, GREEN, PINK = "#0068a8", "#c25700", "#00795a", "#a8507f"
NAMES = {INK: "ink", SOFT: "soft", FAINT: "faint", BLUE: "blue", ORANGE: "orange", GREEN: "green", PINK: "pink"}
CYCLE = (BLUE, ORANGE, GREEN, PINK)
LINES = ("-", "--", "-.", ":")
# Blue that grows denser, readable on white and on black.
DENSITY = LinearSegmentedColormap.from_list("density", [(0.22, 0.56, 0.80, 0.25), (0.12, 0.49, 0.76, 1.0)])
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlepad": 9,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": SOFT,
    "axes.labelcolor": SOFT,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "axes.formatter.useoffset": False,
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 2.2,
    "lines.linewidth": 1.5,
    "lines.solid_capstyle": "round",
}
MOST_POINTS = 1200  # of a line; more cannot be told apart at this size
Series = tuple[str, Sequence[float] | Array, Sequence[float] | Array]


def picture(draw: Callable[[Axes], None], title: str, size: tuple[float, float] = (4.9, 3.35)) -> Markup:
    """One pair of axes, drawn by `draw`, as inline SVG."""
    stream = io.StringIO()
    with rc_context({**STYLE, "svg.hashsalt": title}):
        figure = Figure(figsize=size, layout="constrained")
        axes = figure.add_subplot()
        axes.set_title(title)
        draw(axes)
        figure.savefig(stream, format="svg", transparent=True, dpi=170, metadata={"Date": None, "Creator": None})
    return _inline(stream.getvalue(), title)


def _inline(svg: str, title: str) -> Markup:
    """The SVG element alone, with ids that no other figure of the page has and the page's own colours."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    used = set(re.findall(r'(?:url\(|href=")#([^")]+)', svg))
    svg = re.sub(r' id="([^"]+)"', lambda match: match[0] if match[1] in used else "", svg)
    prefix = sha256(svg.encode()).hexdigest()[:8]
    svg = re.sub(r'( id="|url\(#|href="#)', rf"\g<1>f{prefix}-", svg)
    for colour, name in NAMES.items():
        svg = svg.replace(colour, f"var(--{name})")
    svg = re.sub(r'<svg [^>]*viewBox="([^"]+)"[^>]*>', _opening(title), svg, count=1, flags=re.DOTALL)
    return Markup(re.sub(r"\n\s*", "\n", svg))


def _opening(title: str) -> Callable[[re.Match[str]], str]:
    return lambda match: f'<svg viewBox="{match[1]}" role="img" aria-label="{escape(title)}">'


def curves(
    title: str,
    series: Sequence[Series],
    x_label: str,
    y_label: str,
    log: bool | None = None,
    mark_lowest: int | None = None,
) -> Markup:
    """Lines of (label, x, y). log: a logarithmic y axis; None: where the values span more than a factor of eight.

    mark_lowest: which of the series has its lowest point marked with its value.
    """

    def draw(axes: Axes) -> None:
        every = np.concatenate([np.asarray(y, dtype=np.float64) for _, _, y in series])
        every = every[np.isfinite(every)]
        positive = bool(every.size) and bool((every > 0).all())
        logarithmic = positive and (log if log is not None else every.max() > 8 * every.min())
        marker = "o" if max(len(y) for _, _, y in series) < 3 else ""
        for i, (label, x, y) in enumerate(series):
            axes.plot(*thinned(x, y), color=CYCLE[i % 4], linestyle=LINES[i % 4], marker=marker, label=label)
        if logarithmic:
            _log(axes, float(every.min()), float(every.max()))
        if mark_lowest is not None and every.size:
            _mark(axes, *(np.asarray(values, dtype=np.float64) for values in series[mark_lowest][1:]))
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        axes.margins(x=0.02)
        if len(series) > 1:
            axes.legend(loc="best")

    return picture(draw, title)


def _mark(axes: Axes, x: Array, y: Array) -> None:
    best = int(np.nanargmin(y))
    axes.plot(x[best], y[best], "o", color=ORANGE, markersize=5, zorder=5)
    late = x[best] > 0.6 * np.nanmax(x)
    axes.annotate(
        f"lowest {number(float(y[best]))}",
        (x[best], y[best]),
        xytext=(0 if late else 6, 9),
        textcoords="offset points",
        ha="right" if late else "left",
        color=ORANGE,
    )


def _log(axes: Axes, low: float, high: float) -> None:
    axes.set_yscale("log")
    few = high / low < 300  # decades alone would leave an axis with one or two numbers
    axes.yaxis.set_major_locator(LogLocator(10, subs=(1.0, 2.0, 5.0) if few else (1.0,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(float(f"{value:.6g}"), 1)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def parity(
    title: str, reference: Array, predicted: Array, unit: str, quantity: str, error_unit: str, factor: float
) -> Markup:
    """Prediction over label, with MAE, RMSE and R². Shaded by density where there are many points.

    unit: of both arrays. factor turns their differences into `error_unit`.
    """

    def draw(axes: Axes) -> None:
        low, high = _limits(np.concatenate([reference, predicted]))
        axes.plot([low, high], [low, high], color=SOFT, linewidth=0.8, zorder=3)
        if len(reference) > 2000:
            counts, *_ = np.histogram2d(reference, predicted, bins=140, range=[[low, high], [low, high]])
            shown = np.ma.masked_equal(counts.T, 0)
            norm = LogNorm(1, max(2.0, float(counts.max())))
            extent = (low, high, low, high)
            axes.imshow(
                shown, extent=extent, origin="lower", cmap=DENSITY, norm=norm, interpolation="nearest", zorder=2
            )
        else:
            axes.scatter(
                reference, predicted, s=7, color=BLUE, alpha=0.45, linewidths=0, rasterized=len(reference) > 300
            )
        axes.set_xlim(low, high)
        axes.set_ylim(low, high)
        axes.set_aspect("equal")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(5))
        axes.set_xlabel(f"{quantity}, label ({unit})")
        axes.set_ylabel(f"{quantity}, predicted ({unit})")
        error = factor * (predicted - reference)
        lines = [f"MAE {number(float(np.abs(error).mean()))} {error_unit}"]
        lines.append(f"RMSE {number(float(np.sqrt(np.square(error).mean())))} {error_unit}")
        score = r_squared(reference, predicted)
        lines += [f"R² {score:.5f}" if score > 0.99 else f"R² {score:.3f}"] if np.isfinite(score) else []
        for i, line in enumerate([*lines, f"{number(len(error))} values"]):
            axes.text(1.05, 1 - 0.085 * i, line, transform=axes.transAxes, va="top", color=INK if i < 3 else SOFT)

    return picture(draw, title)


def r_squared(reference: Array, predicted: Array) -> float:
    """1 − squared error over variance of the labels; NaN where the labels do not vary."""
    spread = float(np.square(reference - reference.mean()).sum())
    return 1 - float(np.square(predicted - reference).sum()) / spread if spread > 0 else float("nan")


def _limits(values: Array) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    margin = 0.04 * (high - low) or 1.0
    return low - margin, high + margin


def error_histogram(title: str, error: Array, unit: str) -> Markup:
    """Distribution of signed errors; the far tails are counted in words, not drawn."""

    def draw(axes: Axes) -> None:
        reach = float(np.quantile(np.abs(error), 0.995)) or 1.0
        bins = int(np.clip(np.sqrt(len(error)), 12, 80))
        inside = error[np.abs(error) <= reach]
        axes.hist(inside, bins=bins, range=(-reach, reach), histtype="stepfilled", color=BLUE, alpha=0.35)
        axes.hist(inside, bins=bins, range=(-reach, reach), histtype="step", color=BLUE, linewidth=1.2)
        axes.axvline(0, color=SOFT, linewidth=0.8)
        axes.set_ylim(0, axes.get_ylim()[1] * 1.16)
        axes.set_xlabel(f"Predicted − label ({unit})")
        axes.set_ylabel("Count")
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.text(0.02, 0.98, f"mean {number(float(error.mean()), 2)}", transform=axes.transAxes, va="top")
        outside = len(error) - len(inside)
        if outside:
            largest = number(float(np.abs(error).max()))
            text = f"{number(outside)} beyond, at most {largest}"
            axes.text(0.98, 0.98, text, transform=axes.transAxes, va="top", ha="right", color=SOFT)

    return picture(draw, title)


def bars(title: str, values: Mapping[str, float], label: str, marks: Mapping[str, float] | None = None) -> Markup:
    """Horizontal bars by name, each with its value; `marks` adds a tick per bar (an RMSE, say)."""

    def draw(axes: Axes) -> None:
        names, places = list(values), np.arange(len(values))
        axes.barh(places, list(values.values()), height=0.62, color=BLUE, alpha=0.85)
        ends = {name: max(value, (marks or {}).get(name, 0.0)) for name, value in values.items()}
        for place, name in zip(places, names, strict=True):
            if marks and name in marks:
                axes.plot([marks[name]] * 2, [place - 0.31, place + 0.31], color=ORANGE, linewidth=2)
            text = number(values[name]) + (f", RMSE {number(marks[name])}" if marks and name in marks else "")
            axes.annotate(text, (ends[name], place), xytext=(5, 0), textcoords="offset points", va="center")
        axes.set_yticks(places, names, color=INK)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.set_xlim(0, (1.45 if marks else 1.16) * max(ends.values()) or 1.0)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel(label)

    return picture(draw, title, (4.9, 0.95 + 0.34 * max(2, len(values))))


def distributions(title: str, samples: Sequence[tuple[str, Array]], x_label: str, size: tuple[float, float]) -> Markup:
    """Normalised histograms of (name, values), the first filled and the others as outlines."""

    def draw(axes: Axes) -> None:
        every = np.concatenate([values for _, values in samples])
        low, high = np.quantile(every, [0.0005, 0.9995])
        span = (low, high) if high > low else (low - 0.5, high + 0.5)
        bins = int(np.clip(1.5 * min(len(values) for _, values in samples) ** (1 / 3), 15, 60))
        for i, (name, values) in enumerate(samples):
            look: dict[str, Any] = {"histtype": "stepfilled", "color": SOFT, "alpha": 0.35}
            if i > 0:
                look = {
                    "histtype": "step",
                    "color": CYCLE[(i - 1) % 4],
                    "linestyle": LINES[(i - 1) % 4],
                    "linewidth": 1.6,
                }
            axes.hist(values, bins, range=span, density=True, label=name, **look)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(4))
        axes.set_xlabel(x_label)

    return picture(draw, title, size)


def key(samples: Sequence[str]) -> Markup:
    """The legend of `distributions`, as a line of HTML."""
    items = [f'<span class="key filled" style="--key: var(--soft)"></span>{escape(samples[0])}']
    for i, name in enumerate(samples[1:]):
        style = f"--key: var(--{NAMES[CYCLE[i % 4]]}); --dash: {('solid', 'dashed', 'dashed', 'dotted')[i % 4]}"
        items.append(f'<span class="key" style="{style}"></span>{escape(name)}')
    return Markup(f'<p class="keys">{"".join(f"<span>{item}</span>" for item in items)}</p>')


def thinned(x: Sequence[float] | Array, y: Sequence[float] | Array, most: int = MOST_POINTS) -> tuple[Array, Array]:
    """A line of at most `most` points that looks the same: the lowest and the highest of each stretch are kept."""
    x, y = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if len(y) <= most:
        return x, y
    kept = {0, len(y) - 1}
    for stretch in np.array_split(np.arange(len(y)), most // 2 - 1):
        kept |= {int(stretch[np.argmin(y[stretch])]), int(stretch[np.argmax(y[stretch])])}
    index = np.array(sorted(kept))
    return x[index], y[index]
