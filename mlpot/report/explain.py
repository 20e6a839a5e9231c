"""The page of an explanation: contributions drawn on the molecule, attention as heat maps, and checks of both."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from numpy.typing import NDArray

from mlpot.explain.faithful import Deletion
from mlpot.report import plots
from mlpot.report.html import Markup, Page, details, escape, figure, grid, mapping, note, number, paragraph, table

Array = NDArray[np.float64]
SIZE = (420, 300)
COLOURS = "PuOr"  # orange for more, purple for less; told apart by colour-blind readers, too
FEW = 40  # atoms, up to which heat maps are drawn

WORDS = {
    "occlusion": (
        "The answer less that for the molecule without the atom. It asks the model itself, but about fragments unlike "
        "anything it was trained on."
    ),
    "gradient": (
        "Gradient times input: what the answer would change by, were it a straight line in the atom's first features. "
        "Saturated answers have small gradients although the atom matters."
    ),
    "integrated": (
        "Integrated gradients: the same along the way from a molecule of nothing; the contributions add up to the "
        "answer less that of the start, which is no real molecule."
    ),
    "energies": (
        "The energy of each atom, above the free atom, as the potential adds them up. Only the sum was trained; how it "
        "is shared out is the model's own choice."
    ),
    "attention": (
        "Attention rollout: where information could have come from. It does not depend on what is asked, and a large "
        "weight on an atom does not mean that the answer would change without it."
    ),
    "weighted-attention": (
        "Attention times the positive part of its gradient, rolled out: the attention that this answer uses. Effects "
        "that lower the answer are left out."
    ),
}
CAUTION = (
    "Attention weights are not explanations by themselves: other weights can give the same answer (Jain and Wallace, "
    "arXiv:1902.10186), though they are not arbitrary either (Wiegreffe and Pinter, arXiv:1908.04626). What counts is "
    "whether taking away the atoms that a method names changes the answer more than taking away others: see the "
    "deletion curves."
)


class Explained(NamedTuple):
    """One method's answer."""

    attribution: Array  # (n,)
    deletion: Deletion


def write_explanation(
    path: Path,
    *,
    title: str,
    what: str,
    unit: str,
    mol: Any,
    symbols: list[str],
    methods: Mapping[str, Explained],
    attention: Array | None,
    settings: Mapping[str, Any],
    notes: list[str],
) -> None:
    """Write one offline HTML file. `mol` is an rdkit Mol with the atoms in order, or None where none can be drawn."""
    page = Page(title, what)
    page.add(*(note(text) for text in notes), note(CAUTION))
    for name, found in methods.items():
        parts: list[Markup] = []
        if mol is not None:
            largest = number(float(np.abs(found.attribution).max()))
            caption = f"Orange raises the answer, purple lowers it; the strongest is {largest} {unit}.".replace(
                " .", "."
            )
            parts.append(figure(drawn(mol, found.attribution), caption))
        parts.append(figure(deletion_curve(found.deletion), verdict(found.deletion)))
        order = np.argsort(-np.abs(found.attribution), kind="stable")
        rows = [[int(k), symbols[k], float(found.attribution[k])] for k in order]
        listed = table(["Atom", "Element", f"Contribution ({unit})" if unit else "Contribution"], rows, words=2)
        page.section(name, paragraph(WORDS[name]), grid(parts), details("All atoms", listed))
    if attention is not None and attention.shape[-1] <= FEW:
        maps = [
            figure(heat_map(attention[layer, head], f"Layer {layer + 1}, head {head + 1}"))
            for layer in range(attention.shape[0])
            for head in range(attention.shape[1])
        ]
        page.section(
            "Attention, layer by layer",
            paragraph("Row: the atom that listens; column: the one it hears."),
            grid(maps, True),
        )
    page.section("How to do it again", details("Settings", mapping(settings)))
    page.write(path)


def verdict(deletion: Deletion) -> str:
    """How an attribution compares with random orders, in words."""
    share, n = round(100 * deletion.score), len(deletion.random)
    return (
        f"Change of the answer as atoms are taken away, the strongest first; grey: {n} random orders. This order "
        f"changes it more than {share} % of them (50 % is chance)."
    )


def drawn(mol: Any, attribution: Array) -> Markup:
    """The molecule as inline SVG, each atom on a disc coloured by its contribution."""
    from rdkit.Chem.Draw import rdMolDraw2D

    largest = float(np.abs(attribution).max()) or 1.0
    shades = colormaps[COLOURS](0.5 - 0.5 * attribution / largest)
    colours = {atom: tuple(float(x) for x in shades[atom][:3]) for atom in range(len(attribution))}
    drawer: Any = rdMolDraw2D.MolDraw2DSVG(*SIZE)
    drawer.drawOptions().useBWAtomPalette()
    rdMolDraw2D.PrepareAndDrawMolecule(
        drawer, mol, highlightAtoms=list(colours), highlightBonds=[], highlightAtomColors=colours
    )
    drawer.FinishDrawing()
    svg = drawer.GetDrawingText()
    svg = svg[svg.index("<svg") :]
    opening = f'<svg viewBox="0 0 {SIZE[0]} {SIZE[1]}" role="img" aria-label="{escape("contributions of atoms")}">'
    return Markup(re.sub(r"<svg[^>]*>", lambda _: opening, svg, count=1, flags=re.DOTALL))


def deletion_curve(deletion: Deletion) -> Markup:
    """The curve over the number of atoms taken away, and the spread of random orders."""

    def draw(axes: Axes) -> None:
        taken = np.arange(len(deletion.curve))
        low, high = np.quantile(deletion.random, [0.05, 0.95], axis=0)
        axes.fill_between(taken, low, high, color=plots.SOFT, alpha=0.3, linewidth=0, label="random, 90 %")
        axes.plot(taken, deletion.random.mean(axis=0), color=plots.SOFT, label="random, mean")
        axes.plot(taken, deletion.curve, color=plots.ORANGE, label="strongest first")
        axes.set_xlabel("Atoms taken away")
        axes.set_ylabel("Change of the answer")
        axes.legend(loc="best")

    return plots.picture(draw, "Deletion")


def heat_map(matrix: Array, title: str) -> Markup:
    """A matrix (n, n) of weights."""

    def draw(axes: Axes) -> None:
        axes.imshow(matrix, cmap="Blues", vmin=0.0, vmax=max(1e-9, float(matrix.max())), interpolation="nearest")
        axes.set_xlabel("heard")
        axes.set_ylabel("listens")
        axes.grid(visible=False)

    return plots.picture(draw, title, (3.0, 3.0))
