"""rdkit: Mol with a conformer to and from Structure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mlpot.convert.smiles import bonds_of
from mlpot.errors import UserError
from mlpot.structure import Structure


def structure(mol: Any, conformer: int = -1) -> Structure:
    """Structure of an rdkit ``Mol``: positions of its conformer in Å, the formal charge as total charge, its bonds.

    The molecule needs three-dimensional coordinates and explicit hydrogens; both are errors when missing, since a
    potential cannot guess them.
    """
    if not hasattr(mol, "GetAtoms"):
        raise UserError(f"expected an rdkit Mol, got {type(mol).__name__}.")
    if mol.GetNumConformers() == 0:
        raise UserError("the rdkit Mol has no conformer. Make one: rdkit.Chem.AllChem.EmbedMolecule(Chem.AddHs(mol)).")
    hidden = sum(atom.GetTotalNumHs() for atom in mol.GetAtoms())
    if hidden:
        raise UserError(f"the rdkit Mol has {hidden} implicit hydrogen(s). Add them with Chem.AddHs before embedding.")
    coordinates = mol.GetConformer(conformer)
    if not coordinates.Is3D():
        raise UserError("the rdkit Mol's conformer is a flat drawing. Embed it in 3D: AllChem.EmbedMolecule(mol).")
    numbers = [atom.GetAtomicNum() for atom in mol.GetAtoms()]
    if 0 in numbers:
        raise UserError(f"atom {numbers.index(0)} of the rdkit Mol is a dummy atom (*); expected a chemical element.")
    charge = float(sum(atom.GetFormalCharge() for atom in mol.GetAtoms()))
    return Structure.of(numbers, coordinates.GetPositions(), charge=charge, bonds=bonds_of(mol))


def to_rdkit(source: Structure) -> Any:
    """An rdkit ``Mol`` with bonds found from distances (rdkit's DetermineBonds) and one conformer."""
    from rdkit import Chem
    from rdkit.Chem import rdDetermineBonds

    if source.pbc.any():
        raise UserError("an rdkit Mol is a free molecule; this structure is periodic.")
    mol = Chem.RWMol()
    coordinates = Chem.Conformer(len(source))
    for index, (number, position) in enumerate(zip(source.numbers, source.positions, strict=True)):
        mol.AddAtom(Chem.Atom(int(number)))
        coordinates.SetAtomPosition(index, position.tolist())
    mol.AddConformer(coordinates)
    try:
        rdDetermineBonds.DetermineBonds(mol, charge=round(source.charge or 0))
    except ValueError as error:
        raise UserError(
            f"rdkit finds no valid bonds for these atoms and charge {source.charge or 0}: {error}"
        ) from None
    return mol.GetMol()


def with_bonds(source: Structure) -> Structure:
    """The same structure with its bonds, found from distances by rdkit; UserError where it finds no valid ones."""
    return replace(source, bonds=bonds_of(to_rdkit(source)))
