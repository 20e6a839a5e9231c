"""The report of the demonstration: a training run and the dynamics done with what it made."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mlpot.report.html import Card, Page, cards
from mlpot.report.inputs import Dynamics, Reference, TrainingResult
from mlpot.report.motion import bonds_section, drift_card, dynamics_section
from mlpot.report.run import key_figures, remarks, training_sections

DRIFT_GOAL = 1.0  # meV/atom/ps


def write_demo_report(
    path: str | Path,
    *,
    title: str,
    training: TrainingResult,
    dynamics: Sequence[Dynamics],
    reference: Reference | None = None,
    subtitle: str = "",
    extra_cards: Sequence[Card] = (),
) -> None:
    """Write the report of training and dynamics to `path`: one HTML file that needs nothing else.

    reference: a labelled trajectory of the same atoms, for the comparison of bond lengths.
    The energy drift is judged by training.goals["nve_drift_meV_per_atom_per_ps"], else by 1 meV/atom/ps.
    UserError where the file cannot be written.
    """
    page = Page(title, subtitle)
    goal = training.goals.get("nve_drift_meV_per_atom_per_ps", DRIFT_GOAL)
    drifts = [card for run in dynamics if (card := drift_card(run, goal))]
    page.add(cards([*key_figures(training), *drifts, *extra_cards]), *remarks(training))
    for run in dynamics:
        dynamics_section(page, run)
    if reference is not None:
        bonds_section(page, list(dynamics), reference)
    training_sections(page, training)
    page.write(path)
