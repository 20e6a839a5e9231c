"""From a SMILES as it was written to the molecule that is predicted: the largest fragment, neutral, in one spelling.

Standardisation is rdkit's MolStandardize: functional groups are normalised, the largest fragment is kept (salts and
solvents go), and charges are neutralised where protons can do it. Tautomers stay as they are drawn.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from mlpot.convert.conformers import conformer_of
from mlpot.convert.rdkit import structure as structure_of
from mlpot.convert.smiles import from_mol, parsed
from mlpot.errors import UserError
from mlpot.screen.lines import LONGEST
from mlpot.structure import Structure

MOST_ATOMS = 200  # heavy atoms; rdkit takes minutes to embed larger ones
METALS = frozenset([3, 4, *range(11, 14), *range(19, 32), *range(37, 51), *range(55, 84), *range(87, 119)])


class Refused(Exception):  # noqa: N818 (what becomes of a row, not an error of the program)
    """Why a line gives no prediction: a code for tables, a reason for people."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class Molecule(NamedTuple):
    """A standardised molecule."""

    smiles: str  # canonical
    mol: Any
    changes: str  # what standardisation did, "" for nothing


def standardised(smiles: str) -> Molecule:
    """The molecule that is meant by a SMILES. Refused for what cannot be read, metals, and molecules too large."""
    from rdkit import Chem, rdBase
    from rdkit.Chem.MolStandardize import rdMolStandardize

    if not smiles.strip():
        raise Refused("empty", "the SMILES is empty")
    if len(smiles) > LONGEST:
        raise Refused("too long", f"{len(smiles)} characters or more; at most {LONGEST} are read")
    try:
        mol = parsed(smiles)
    except UserError as error:
        raise Refused("not a molecule", str(error)) from None
    changes = []
    with rdBase.BlockLogs():
        try:
            whole = rdMolStandardize.Cleanup(mol)
            kept = rdMolStandardize.FragmentParent(whole, skipStandardize=True)
            if kept.GetNumAtoms() < whole.GetNumAtoms():
                changes.append("largest fragment kept")
            neutral = rdMolStandardize.Uncharger().uncharge(kept)
            if Chem.GetFormalCharge(neutral) != Chem.GetFormalCharge(kept) or _charges(neutral) != _charges(kept):
                changes.append("neutralised")
            Chem.SanitizeMol(neutral)
            Chem.AssignStereochemistry(neutral, cleanIt=True, force=True)
            text = Chem.MolToSmiles(neutral)
            # Atoms in the order of the canonical SMILES, so that conformers do not depend on the spelling.
            neutral = Chem.MolFromSmiles(text) or neutral
        except Exception as error:  # rdkit raises whatever its C++ raises
            raise Refused("not standardised", f"rdkit: {str(error).strip().splitlines()[0][:200]}") from None
    _refuse_strange(neutral)
    return Molecule(text, neutral, "; ".join(changes))


def _charges(mol: Any) -> int:
    return sum(abs(atom.GetFormalCharge()) for atom in mol.GetAtoms())


def _refuse_strange(mol: Any) -> None:
    if mol.GetNumHeavyAtoms() > MOST_ATOMS:
        raise Refused("too large", f"{mol.GetNumHeavyAtoms()} heavy atoms; at most {MOST_ATOMS} are predicted")
    for atom in mol.GetAtoms():
        if atom.GetAtomicNum() == 0:
            raise Refused("dummy atom", f"atom {atom.GetIdx()} is a dummy atom (*)")
        if atom.GetAtomicNum() in METALS:
            raise Refused("metal", f"it holds {atom.GetSymbol()}")


def structure(molecule: Molecule, coordinates: bool, seed: int) -> Structure:
    """By its bonds alone, or with hydrogens and a conformer (ETKDGv3, MMFF94); Refused where none is found."""
    if not coordinates:
        return from_mol(molecule.mol)
    try:
        return structure_of(conformer_of(molecule.mol, molecule.smiles, seed))
    except UserError as error:
        raise Refused("no conformer", str(error)) from None
