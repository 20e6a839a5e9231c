"""SMILES and bonds: what rdkit says of the atoms and bonds of a molecule, as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlpot.errors import UserError
from mlpot.structure import Bonds, Structure

# Columns of the features: a name and the values that are told apart (one column each, "other" where there is none).
ATOM_FEATURES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("neighbours", (0, 1, 2, 3, 4, 5, 6)),
    ("formal charge", (-2, -1, 0, 1, 2)),
    ("hybridisation", ("SP", "SP2", "SP3", "SP3D", "SP3D2")),
    ("hydrogens", (0, 1, 2, 3, 4)),
    ("chirality", ("R", "S")),
    ("aromatic", (True,)),
    ("in a ring", (True,)),
)
BOND_FEATURES: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("order", ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")),
    ("stereo", ("E", "Z")),
    ("conjugated", (True,)),
    ("in a ring", (True,)),
)


def width(features: Sequence[tuple[str, Sequence[Any]]]) -> int:
    """Number of columns."""
    return sum(len(values) + (len(values) > 2) for _, values in features)


def columns(features: Sequence[tuple[str, Sequence[Any]]]) -> list[str]:
    """What each column says, e.g. "hydrogens 2" or "order other"."""
    return [
        name if values == (True,) else f"{name} {value}"
        for name, values in features
        for value in (*values, *(("other",) if len(values) > 2 else ()))
    ]


def _one_hot(features: Sequence[tuple[str, Sequence[Any]]], rows: Sequence[Sequence[Any]]) -> NDArray[np.float64]:
    """(rows, width): a one for each value, in the column that stands for it."""
    table = np.zeros((len(rows), width(features)))
    start = 0
    for place, (_, known) in enumerate(features):
        other = len(known) > 2
        for row, values in enumerate(rows):
            value = values[place]
            if value in known:
                table[row, start + known.index(value)] = 1.0
            elif other:
                table[row, start + len(known)] = 1.0
        start += len(known) + other
    return table


def bonds_of(mol: Any) -> Bonds:
    """Bonds of an rdkit ``Mol`` with the features ATOM_FEATURES and BOND_FEATURES; hydrogens count as they stand.

    "hydrogens" of an atom are its explicit and implicit ones together, "neighbours" its bonded atoms that are no
    hydrogens, so that both are the same whether hydrogens are atoms of the graph or not.
    """
    atoms = [
        (
            sum(near.GetAtomicNum() != 1 for near in atom.GetNeighbors()),
            atom.GetFormalCharge(),
            str(atom.GetHybridization()),
            atom.GetTotalNumHs(includeNeighbors=True),
            atom.GetProp("_CIPCode") if atom.HasProp("_CIPCode") else "",
            atom.GetIsAromatic(),
            atom.IsInRing(),
        )
        for atom in mol.GetAtoms()
    ]
    bonds = [
        (
            str(bond.GetBondType()),
            str(bond.GetStereo()).removeprefix("STEREO"),
            bond.GetIsConjugated(),
            bond.IsInRing(),
        )
        for bond in mol.GetBonds()
    ]
    ends = [(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in mol.GetBonds()]
    return Bonds(
        np.array(ends, dtype=np.int64).reshape(-1, 2).T.copy(),
        _one_hot(BOND_FEATURES, bonds),
        _one_hot(ATOM_FEATURES, atoms),
    )


def parsed(smiles: str) -> Any:
    """The rdkit ``Mol`` of a SMILES; UserError with rdkit's own reason where it is refused."""
    from rdkit import Chem, rdBase

    if not smiles.strip():
        raise UserError("the SMILES is empty.")
    shown = smiles if len(smiles) <= 80 else f"{smiles[:77]}..."
    with rdBase.BlockLogs():
        mol = Chem.MolFromSmiles(smiles, sanitize=False)
        if mol is None:
            raise UserError(f'"{shown}" is not a SMILES that rdkit can read.')
        try:
            Chem.SanitizeMol(mol)
            Chem.AssignStereochemistry(mol, cleanIt=True)
        except Chem.MolSanitizeException as error:
            raise UserError(f'"{shown}": rdkit refuses the molecule: {str(error).strip()}.') from None
    if mol.GetNumAtoms() == 0:
        raise UserError(f'"{shown}" has no atoms.')
    return mol


def from_mol(mol: Any) -> Structure:
    """Structure of an rdkit ``Mol`` known by its bonds alone: positions are NaN, hydrogens as they stand in the Mol."""
    numbers = [atom.GetAtomicNum() for atom in mol.GetAtoms()]
    if 0 in numbers:
        raise UserError(f"atom {numbers.index(0)} of the molecule is a dummy atom (*); expected a chemical element.")
    charge = float(sum(atom.GetFormalCharge() for atom in mol.GetAtoms()))
    return Structure.of(numbers, np.full((len(numbers), 3), np.nan), charge=charge, bonds=bonds_of(mol))


def from_smiles(smiles: str) -> Structure:
    """The molecule of a SMILES by its bonds alone, without its hydrogens (they are counted in the features).

    Raises UserError for a SMILES that rdkit refuses, an empty one, or a dummy atom.
    """
    return from_mol(parsed(smiles))
