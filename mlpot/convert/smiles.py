"""SMILES and bonds: what rdkit says of the atoms and bonds of a molecule, as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
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


class _OneHot:
    """A one for each value of a row, in the column that stands for it."""

    def __init__(self, features: Sequence[tuple[str, Sequence[Any]]]) -> None:
        self._features, self._width = features, width(features)
        self._row = lru_cache(maxsize=4096)(self._numbers)  # most rows are like one that came before

    def __call__(self, rows: Sequence[tuple[Any, ...]]) -> NDArray[np.float64]:
        """(rows, width)."""
        return np.frombuffer(b"".join([self._row(row) for row in rows])).reshape(-1, self._width).copy()

    def _numbers(self, values: tuple[Any, ...]) -> bytes:
        found: list[bool] = []
        for (_, known), value in zip(self._features, values, strict=True):
            found += [value == one for one in known]
            if len(known) > 2:
                found.append(value not in known)
        return np.array(found, dtype=np.float64).tobytes()


_ATOMS, _BONDS = _OneHot(ATOM_FEATURES), _OneHot(BOND_FEATURES)


def bonds_of(mol: Any) -> Bonds:
    """Bonds of an rdkit ``Mol`` with the features ATOM_FEATURES and BOND_FEATURES; hydrogens count as they stand.

    "hydrogens" of an atom are its explicit and implicit ones together, "neighbours" its bonded atoms that are no
    hydrogens, so that both are the same whether hydrogens are atoms of the graph or not.
    """
    # Far quicker than iterating over GetAtoms(), which is Python code.
    atoms = [mol.GetAtomWithIdx(place) for place in range(mol.GetNumAtoms())]
    bonds = [mol.GetBondWithIdx(place) for place in range(mol.GetNumBonds())]
    kinds = [bond.GetBondType().name for bond in bonds]
    ends = np.array([(bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()) for bond in bonds], dtype=np.int64).reshape(-1, 2)
    heavy = np.array([atom.GetAtomicNum() != 1 for atom in atoms])
    neighbours = np.bincount(ends.ravel(), heavy[ends[:, ::-1]].ravel(), minlength=len(atoms)).tolist()
    return Bonds(
        ends.T.copy(),
        _BONDS(
            [
                (
                    kind,
                    bond.GetStereo().name.removeprefix("STEREO") if kind == "DOUBLE" else "NONE",
                    bond.GetIsConjugated(),
                    bond.IsInRing(),
                )
                for bond, kind in zip(bonds, kinds, strict=True)
            ]
        ),
        _ATOMS(
            [
                (
                    near,
                    atom.GetFormalCharge(),
                    atom.GetHybridization().name,
                    atom.GetTotalNumHs(includeNeighbors=True),
                    atom.GetProp("_CIPCode") if atom.HasProp("_CIPCode") else "",
                    atom.GetIsAromatic(),
                    atom.IsInRing(),
                )
                for atom, near in zip(atoms, neighbours, strict=True)
            ]
        ),
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
    from rdkit import Chem

    n = mol.GetNumAtoms()
    numbers = [mol.GetAtomWithIdx(place).GetAtomicNum() for place in range(n)]
    if 0 in numbers:
        raise UserError(f"atom {numbers.index(0)} of the molecule is a dummy atom (*); expected a chemical element.")
    return Structure(
        np.array(numbers, dtype=np.int64),
        np.full((n, 3), np.nan),
        np.zeros((3, 3)),
        np.zeros(3, dtype=bool),
        charge=float(Chem.GetFormalCharge(mol)),
        bonds=bonds_of(mol),
    )


def from_smiles(smiles: str) -> Structure:
    """The molecule of a SMILES by its bonds alone, without its hydrogens (they are counted in the features).

    Raises UserError for a SMILES that rdkit refuses, an empty one, or a dummy atom.
    """
    return from_mol(parsed(smiles))
