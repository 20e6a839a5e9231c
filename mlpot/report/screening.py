"""The report of a screening: the best molecules drawn, distributions, and what became of every line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mlpot.report import plots
from mlpot.report.html import Card, Markup, Page, cards, details, escape, figure, grid, mapping, note, table
from mlpot.screen.chunk import Row
from mlpot.screen.result import Summary, number

SIZE = (240, 180)


def write_screening_report(
    path: Path,
    *,
    title: str,
    summary: Summary,
    picked: Sequence[Row],
    values: Sequence[str],
    units: Mapping[str, str],
    settings: Mapping[str, Any],
    domain: str,
) -> None:
    """Write one offline HTML file. `picked` are the rows that are drawn."""
    page = Page(title, f"{summary.n_lines} lines")
    page.add(
        cards(
            [
                Card("Lines", str(summary.n_lines)),
                Card("Predicted", str(summary.status["ok"])),
                Card("Duplicates", str(summary.duplicates)),
                Card("Meet the filter", str(summary.passed)),
            ]
        ),
        note(domain),
    )
    if picked:
        page.section("The best", grid([_card(place, row, values, units) for place, row in enumerate(picked, 1)], True))
    pictures = [
        figure(plots.distributions(name, [("all", np.array(column))], _labelled(name, units), (4.9, 2.6)))
        for name, column in summary.columns.items()
        if len(column) > 4 and np.ptp(column) > 0
    ]
    if pictures:
        page.section("Distributions", grid(pictures))
    counts = [[status, count] for status, count in summary.status.most_common()]
    page.section("What became of the lines", table(["Status", "Lines"], counts))
    page.section("How to do it again", details("Settings", mapping(settings)))
    page.write(path)


def _labelled(name: str, units: Mapping[str, str]) -> str:
    return f"{name} ({units[name]})" if units.get(name) else name


def _card(place: int, row: Row, values: Sequence[str], units: Mapping[str, str]) -> Markup:
    lines = [f"{_labelled(name, units)}: {number(row[name])}" for name in values if name in row]
    name = row["id"] or f"line {row['line']}"
    caption = "; ".join([f"{place}. {name}", *lines])
    return figure(drawing(row["standardised"]), caption)


def drawing(smiles: str) -> Markup:
    """A molecule as inline SVG, drawn by rdkit."""
    from rdkit import Chem
    from rdkit.Chem.Draw import rdMolDraw2D

    drawer: Any = rdMolDraw2D.MolDraw2DSVG(*SIZE)
    drawer.drawOptions().clearBackground = False
    drawer.DrawMolecule(Chem.MolFromSmiles(smiles))
    drawer.FinishDrawing()
    svg = drawer.GetDrawingText()
    svg = svg[svg.index("<svg") :]
    opening = f'<svg viewBox="0 0 {SIZE[0]} {SIZE[1]}" role="img" aria-label="{escape(smiles)}">'
    return Markup(re.sub(r"<svg[^>]*>", lambda _: opening, svg, count=1, flags=re.DOTALL))
