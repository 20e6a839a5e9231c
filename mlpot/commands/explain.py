"""mlpot explain."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mlpot.commands.terminal import AsJson, Model
from mlpot.errors import UserError, unknown

if TYPE_CHECKING:
    from mlpot.structure import Structure


def explain(
    model: Model,
    molecule: Annotated[str, typer.Argument(metavar="MOLECULE", help="a SMILES, or a file of structures")],
    output: Annotated[Path, typer.Option("--output", "-o", help="HTML file to write")],
    target: Annotated[
        str | None, typer.Option("--target", help="property to explain; default: the model's first")
    ] = None,
    one_class: Annotated[int | None, typer.Option("--class", help="of several classes; default: the likeliest")] = None,
    method: Annotated[list[str] | None, typer.Option("--method", help="one or more; default: all that apply")] = None,
    index: Annotated[int, typer.Option("--index", help="which structure of a file")] = 0,
    as_json: AsJson = False,
) -> None:
    """What each atom contributes to a prediction, by several methods, and whether these can be trusted.

    Example:  mlpot explain runs/esol "CC(=O)Oc1ccccc1C(=O)O" -o aspirin.html

    Methods: occlusion, gradient, integrated, energies (of potentials), attention and weighted-attention (of gat and
    transformer). The page draws them on the molecule and checks each: does taking away the atoms that it names change
    the answer more than taking away others?
    """
    import numpy as np

    from mlpot.commands import terminal
    from mlpot.explain.attributions import METHODS, matrices, traced
    from mlpot.explain.faithful import deletion
    from mlpot.explain.subject import Subject
    from mlpot.models._graph_network import AttentionNetwork
    from mlpot.report.explain import Explained, write_explanation
    from mlpot.structure import SYMBOLS

    for name in method or []:
        if name not in METHODS:
            raise unknown("method", name, METHODS)
    screen = terminal.console(as_json)
    found = terminal.load_model(model, "cpu", None)
    structure, mol, notes = _molecule(molecule, index, "positions" in found.needs)
    subject = Subject(found, structure, target, one_class)
    value = float(subject.values([structure])[0])
    explained, left_out = {}, []
    for name, work in METHODS.items():
        if method and name not in method:
            continue
        try:
            attribution = work(subject)
        except UserError as error:
            if method:
                raise
            left_out.append(f"{name}: {error}")
            continue
        explained[name] = Explained(attribution, deletion(subject, attribution))
    if not explained:
        raise UserError(f"no method applies: {' '.join(left_out)}")
    attention = matrices(traced(subject)) if isinstance(subject.network, AttentionNetwork) else None
    what = f"{subject.name} = {value:.5g} {subject.unit}".strip()
    if subject.target is not None and subject.target.is_class:
        of_class = f", class {subject.class_number}" if subject.target.classes else ""
        what = f"logit of {subject.name}{of_class} = {value:.5g}"
    write_explanation(
        output,
        title=f"{Path(model).name} on {molecule}",
        what=what,
        unit=subject.unit,
        mol=mol,
        symbols=[SYMBOLS[int(z)] for z in structure.numbers],
        methods=explained,
        attention=attention,
        settings={"model": model, "molecule": molecule, "target": subject.name, "methods": list(explained)},
        notes=[*notes, *(f"Left out, {text}" for text in left_out)],
    )
    for name, one in explained.items():
        order = np.argsort(-np.abs(one.attribution), kind="stable")[:3]
        most = ", ".join(f"{SYMBOLS[int(structure.numbers[k])]}{k} {one.attribution[k]:+.3g}" for k in order)
        screen.print(f"{name:18s} {most}   better than {100 * one.deletion.score:.0f} % of random orders")
    screen.print(f"{what}   {output}: page")
    if as_json:
        terminal.print_json(
            {
                "value": value,
                "unit": subject.unit,
                "target": subject.name,
                "attributions": {name: one.attribution.tolist() for name, one in explained.items()},
                "better_than_random": {name: one.deletion.score for name, one in explained.items()},
            }
        )


def _molecule(text: str, index: int, coordinates: bool) -> tuple[Structure, Any, list[str]]:
    """The structure, an rdkit Mol with the same atoms to draw, or None, and what was done."""
    path = Path(text)
    if path.is_file():
        from mlpot.convert import ase as convert
        from mlpot.convert.rdkit import to_rdkit, with_bonds
        from mlpot.data.opening import read_structures

        frames = read_structures(path, ":")
        if not -len(frames) <= index < len(frames):
            raise UserError(f"{path}: it holds {len(frames)} structures; there is no number {index}.")
        structure = convert.structure(frames[index])
        try:
            return (structure if coordinates else with_bonds(structure)), to_rdkit(structure), []
        except UserError as error:
            if not coordinates:
                raise
            return structure, None, [f"Not drawn in two dimensions: {error}"]
    from mlpot.convert.conformers import conformer_of
    from mlpot.convert.rdkit import structure as structure_of
    from mlpot.convert.smiles import from_mol, parsed

    if path.suffix in (".xyz", ".sdf", ".cif", ".traj", ".extxyz"):
        raise UserError(f"{path}: there is no such file.")
    mol = parsed(text)
    if not coordinates:
        return from_mol(mol), mol, []
    full = conformer_of(mol, text)
    return structure_of(full), full, ["Coordinates: one conformer (rdkit ETKDGv3, MMFF94), hydrogens added."]
