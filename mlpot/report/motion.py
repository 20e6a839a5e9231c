"""The part of a report that shows a dynamics run: energies, drift, temperature, bond lengths, the moving picture."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from scipy import stats

from mlpot.report import plots
from mlpot.report.geometry import bond_lengths, bonds
from mlpot.report.html import Card, Markup, Page, figure, grid, join, number, paragraph, table
from mlpot.report.inputs import Array, Dynamics, Reference
from mlpot.report.viewer import Trajectory, add_player

MOST_PAIRS = 9  # kinds of bond shown
EXCHANGE_PS = 0.2  # single vibrations can be told apart over this time


def drift_card(run: Dynamics, goal: float) -> Card | None:
    """The energy drift as a key figure, judged against a goal in meV/atom/ps; None where nothing is conserved."""
    drift = run.drift()
    if drift is None:
        return None
    good = abs(drift) < goal
    word = f"{'below' if good else 'not below'} {goal:g} meV/atom/ps"
    return Card(f"Energy drift, {run.name}", abs(drift), "meV/atom/ps", word, good)


def dynamics_section(page: Page, run: Dynamics) -> None:
    """Add a section on one run: its figures and, where there are frames, the player."""
    time = np.asarray(run.times_fs, dtype=np.float64) / 1000
    parts = [figure(_exchange(run, time), _exchange_caption(run))]
    conserved = run.conserved()
    if conserved is not None:
        parts.append(figure(_drift(run, time, conserved), _drift_caption(run, conserved)))
    parts.append(figure(_temperature(run, time), _temperature_caption(run)))
    if run.target_temperature is not None:
        parts.append(figure(_spread(run, run.target_temperature), _spread_caption(run, run.target_temperature)))
    if run.positions is not None and len(run.positions):
        trajectory = Trajectory(run.numbers, run.positions, run.frame_times, run.cell, run.pbc)
        text = "The run itself, drawn from its own frames. Drag to turn, scroll to zoom."
        if not any(run.pbc):
            text += " Drift and rotation of the whole are taken out."
        parts.insert(0, figure(add_player(page, trajectory, f"Trajectory of {run.name}"), text))
    page.section(run.name, *([paragraph(run.description)] if run.description else []), grid(parts))


def _exchange(run: Dynamics, time: Array) -> Markup:
    potential = 1000 * (np.asarray(run.potential_energy) - np.min(run.potential_energy)) / run.n_atoms
    kinetic = 1000 * np.asarray(run.kinetic_energy) / run.n_atoms
    shown = (time <= time[0] + EXCHANGE_PS) if len(time) > 3 else np.ones(len(time), dtype=bool)
    shown = shown if shown.sum() > 3 else np.ones(len(time), dtype=bool)
    time, potential, kinetic = time[shown], potential[shown], kinetic[shown]
    series = [("potential − lowest", time, potential), ("kinetic", time, kinetic)]
    series += [("sum", time, potential + kinetic)] if run.conserves_energy else []

    def draw(axes: Axes) -> None:
        for i, (label, x, y) in enumerate(series):
            colour = (plots.BLUE, plots.ORANGE, plots.INK)[i]
            axes.plot(*plots.thinned(x, y, 800), color=colour, linestyle=plots.LINES[i % 2], label=label)
        axes.set_ylim(0, 1.22 * max(float(y.max()) for _, _, y in series))
        axes.set_xlabel("Time (ps)")
        axes.set_ylabel("Energy (meV/atom)")
        axes.margins(x=0.01)
        axes.legend(loc="upper left", ncols=3)

    return plots.picture(draw, "Potential and kinetic energy")


def _exchange_caption(run: Dynamics) -> str:
    start = f"The first {number(1000 * min(EXCHANGE_PS, (run.times_fs[-1] - run.times_fs[0]) / 1000))} fs."
    if run.conserves_energy:
        return f"{start} Energy moves between the two; their sum should stay level."
    return f"{start} The thermostat exchanges energy with the atoms, so that the sum of the two varies."


def _drift(run: Dynamics, time: Array, conserved: Array) -> Markup:
    energy = 1000 * (conserved - conserved[0]) / run.n_atoms
    slope, start = np.polyfit(time, energy, 1)

    def draw(axes: Axes) -> None:
        axes.plot(*plots.thinned(time, energy), color=plots.BLUE, linewidth=0.6)
        axes.plot(time[[0, -1]], start + slope * time[[0, -1]], color=plots.ORANGE, linewidth=1.8, linestyle="--")
        low, high = float(energy.min()), float(energy.max())
        span = max(high - low, 1e-6)
        axes.set_ylim(low - 0.08 * span, high + 0.24 * span)
        text = f"slope {number(float(slope), 2)} meV/atom/ps"
        axes.text(0.02, 0.97, text, transform=axes.transAxes, va="top", color=plots.ORANGE)
        axes.set_xlabel("Time (ps)")
        axes.set_ylabel("Energy − start (meV/atom)")
        axes.margins(x=0.01)

    return plots.picture(draw, "Drift of the conserved energy")


def _drift_caption(run: Dynamics, conserved: Array) -> str:
    time = np.asarray(run.times_fs)
    line = np.polyval(np.polyfit(time, conserved, 1), time)
    rest = 1000 * float(np.std(conserved - line)) / run.n_atoms
    return (
        f"The scale is that of the drift, not of the motion. The energy scatters about the line by "
        f"{number(rest, 2)} meV/atom (root mean square)."
    )


def _temperature(run: Dynamics, time: Array) -> Markup:
    values = np.asarray(run.temperature, dtype=np.float64)
    mean = np.cumsum(values) / np.arange(1, len(values) + 1)

    def draw(axes: Axes) -> None:
        axes.plot(*plots.thinned(time, values, 800), color=plots.BLUE, linewidth=0.6, alpha=0.55, label="instantaneous")
        axes.plot(*plots.thinned(time, mean), color=plots.BLUE, linewidth=2, label="mean so far")
        if run.target_temperature is not None:
            target = run.target_temperature
            axes.axhline(target, color=plots.ORANGE, linestyle="--", linewidth=1.4, label=f"target, {number(target)} K")
        axes.set_ylim(min(0.0, float(values.min())), 1.25 * float(values.max()) or 1.0)
        axes.set_xlabel("Time (ps)")
        axes.set_ylabel("Temperature (K)")
        axes.margins(x=0.01)
        axes.legend(loc="upper left", ncols=3, columnspacing=1.2)

    return plots.picture(draw, "Temperature")


def _temperature_caption(run: Dynamics) -> str:
    values = np.asarray(run.temperature)
    return (
        f"Mean {number(float(values.mean()))} K, standard deviation {number(float(values.std()))} K over the whole run."
    )


def _spread(run: Dynamics, target: float) -> Markup:
    values, freedom = np.asarray(run.temperature, dtype=np.float64), 3 * run.n_atoms

    def draw(axes: Axes) -> None:
        edges = np.linspace(0, max(float(values.max()), target * (1 + 4 * np.sqrt(2 / freedom))), 46)
        axes.hist(
            values, edges.tolist(), density=True, histtype="stepfilled", color=plots.BLUE, alpha=0.35, label="run"
        )
        fine = np.linspace(0, edges[-1], 300)
        expected = stats.gamma.pdf(fine, freedom / 2, scale=2 * target / freedom)
        axes.plot(fine, expected, color=plots.ORANGE, linestyle="--", label=f"canonical, {number(target)} K")
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.grid(visible=False, axis="y")
        axes.set_ylim(0, 1.22 * axes.get_ylim()[1])
        axes.set_xlabel("Temperature (K)")
        axes.margins(x=0)
        axes.legend(loc="upper left", ncols=2)

    return plots.picture(draw, "Distribution of the temperature")


def _spread_caption(run: Dynamics, target: float) -> str:
    width = target * float(np.sqrt(2 / (3 * run.n_atoms)))
    return (
        f"The dashed line is what a canonical ensemble of {number(run.n_atoms)} free atoms has: "
        f"a standard deviation of {number(width)} K."
    )


def bonds_section(page: Page, runs: list[Dynamics], reference: Reference) -> None:
    """Add a section that compares the bond lengths of the runs with those of the labelled trajectory."""
    reference_cell = None if reference.cell is None else np.asarray(reference.cell, dtype=np.float64)
    first = None if reference_cell is None else (reference_cell if reference_cell.ndim == 2 else reference_cell[0])
    index = bonds(reference.numbers, np.asarray(reference.positions[0], dtype=np.float64), first, reference.pbc)
    shown = [
        run
        for run in runs
        if run.positions is not None and len(run.positions) and np.array_equal(run.numbers, reference.numbers)
    ]
    if not shown or not len(index):
        return
    names = [reference.name, *(run.name for run in shown)]
    lengths = [bond_lengths(reference.numbers, np.asarray(reference.positions), index, reference_cell, reference.pbc)]
    for run in shown:
        cell = None if run.cell is None else np.asarray(run.cell, dtype=np.float64)
        lengths.append(bond_lengths(run.numbers, np.asarray(run.positions), index, cell, run.pbc))
    pairs = list(lengths[0])[:MOST_PAIRS]
    pictures = [
        figure(
            plots.distributions(pair, list(zip(names, [each[pair] for each in lengths], strict=True)), "Å", (3.0, 2.15))
        )
        for pair in pairs
    ]
    page.section(
        "Bond lengths",
        join([_bonds_text(), plots.key(names), grid(pictures, small=True), _bonds_table(names, lengths, pairs)]),
    )


def _bonds_text() -> Markup:
    return paragraph(
        "Lengths of all bonds over all frames, gathered by the elements that they join. Where run and labels are at "
        "the same temperature the curves should lie on one another; another ensemble or temperature differs in width."
    )


def _bonds_table(names: list[str], lengths: list[dict[str, Array]], pairs: list[str]) -> Markup:
    header = ["Bond (Å)", *names, *(f"Overlap, {name}" for name in names[1:])]
    rows = []
    for pair in pairs:
        cells = [f"{each[pair].mean():.3f} ± {each[pair].std():.3f}" for each in lengths]
        shared = [f"{100 * overlap(lengths[0][pair], each[pair]):.0f} %" for each in lengths[1:]]
        rows.append([pair, *cells, *shared])
    caption = "Mean ± standard deviation, and the area shared with the labels' distribution"
    return table(header, rows, caption)


def overlap(a: Array, b: Array, bins: int = 40) -> float:
    """The common area of two normalised histograms: 1 for the same distribution, 0 for nothing in common."""
    span = (float(min(a.min(), b.min())), float(max(a.max(), b.max())) + 1e-9)
    shares = [np.histogram(values, bins, span)[0] / len(values) for values in (a, b)]
    return float(np.minimum(*shares).sum())
