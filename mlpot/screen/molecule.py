"""From a molecule as it was written to the one that is predicted: the largest fragment, neutral, in one spelling.

Standardisation is rdkit's MolStandardize: metals bound as in salts are cut off, functional groups are normalised, acids
lose their protons strongest first, the largest fragment is kept (salts and solvents go), and charges are neutralised
where protons can do it, unless they are to be kept. Tautomers stay as they are drawn, unless the canonical one is asked
for.
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
SALTS = frozenset([3, 11, 19, 37, 55, 87, 4, 12, 20, 38, 56, 88])  # metals whose bonds are ionic, whatever is drawn
METALS = SALTS | frozenset([13, *range(21, 32), *range(39, 51), *range(57, 84), *range(89, 119)])
OTHERS = (6, 7, 8, 16, 9, 17, *sorted(set(range(119)) - METALS - {6, 7, 8, 16, 9, 17}))  # common ones first


class Refused(Exception):  # noqa: N818 (what becomes of a row, not an error of the program)
    """Why a line gives no prediction: a code for tables, a reason for people."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code, self.reason = code, reason


class Treatment(NamedTuple):
    """What standardisation does beyond normalising groups and keeping the largest fragment."""

    neutralise: bool = True
    tautomers: bool = False  # choose rdkit's canonical tautomer


class Molecule(NamedTuple):
    """A standardised molecule; or a structure that came without bonds, which has no SMILES and no Mol."""

    smiles: str  # canonical
    mol: Any
    changes: str  # what standardisation did, "" for nothing
    written: str | None = None  # the SMILES before standardisation, where the entry is no SMILES itself
    own: Structure | None = None  # with the coordinates that it came with


class Standardiser:
    """rdkit's standardisation with its tables read once. Called with a sanitised ``Mol``."""

    def __init__(self, treatment: Treatment | None = None) -> None:
        from rdkit import Chem
        from rdkit.Chem.MolStandardize import rdMolStandardize

        self.treatment = treatment or Treatment()
        self._normaliser, self._reioniser = rdMolStandardize.Normalizer(), rdMolStandardize.Reionizer()
        self._metals, self._uncharger = rdMolStandardize.MetalDisconnector(), rdMolStandardize.Uncharger()
        self._largest = rdMolStandardize.LargestFragmentChooser()
        self._tautomers = rdMolStandardize.TautomerEnumerator()
        # Patterns are matched in C++, and much quicker than Python looks at each atom.
        self._charged, self._hydrogen, self._dummy, self._metal = (
            Chem.MolFromSmarts(pattern)
            for pattern in ("[!+0]", "[#1]", "[#0]", "[" + ";".join(f"!#{number}" for number in OTHERS) + "]")
        )

    def __call__(self, mol: Any) -> Molecule:
        """The molecule that is meant. Refused for metals, dummy atoms, and molecules too large."""
        from rdkit import Chem, rdBase

        try:
            with rdBase.BlockLogs():
                changed, changes = self._changed(mol)
                text = Chem.MolToSmiles(changed)
                # Atoms in the order of the canonical SMILES, so that conformers do not depend on the spelling.
                ordered = Chem.MolFromSmiles(text) or changed
        except Refused:
            raise
        except Exception as error:  # rdkit raises whatever its C++ raises
            raise Refused("not standardised", f"rdkit: {str(error).strip().splitlines()[0][:200]}") from None
        self._refuse_strange(ordered)
        if charge := Chem.GetFormalCharge(ordered):
            changes.append(f"a charge of {charge:+d} stays")
        return Molecule(text, ordered, "; ".join(changes))

    def _changed(self, mol: Any) -> tuple[Any, list[str]]:
        """The steps of rdMolStandardize.Cleanup and after; those that cannot change the molecule are left out."""
        from rdkit import Chem

        changes = []
        if mol.HasSubstructMatch(self._hydrogen):
            mol = Chem.RemoveHs(mol)
        metal = mol.HasSubstructMatch(self._metal)
        if metal:
            _refuse_complexes(mol)
            mol = self._metals.Disconnect(mol)
        mol = self._normaliser.normalize(mol)
        if metal or mol.HasSubstructMatch(self._charged):
            mol = self._reioniser.reionize(mol)
        if len(Chem.GetMolFrags(mol)) > 1:
            mol = self._largest.choose(mol)
            changes.append("largest fragment kept")
        if self.treatment.neutralise and mol.HasSubstructMatch(self._charged):
            before = _charges(mol)
            mol = self._uncharger.uncharge(mol)
            if _charges(mol) != before:
                changes.append("neutralised")
        if metal or changes:
            Chem.SanitizeMol(mol)
        Chem.AssignStereochemistry(mol, cleanIt=True, force=True)
        if self.treatment.tautomers:
            drawn = Chem.MolToSmiles(mol)
            mol = self._tautomers.Canonicalize(mol)
            if Chem.MolToSmiles(mol) != drawn:
                changes.append("canonical tautomer")
        return mol, changes

    def _refuse_strange(self, mol: Any) -> None:
        if mol.GetNumHeavyAtoms() > MOST_ATOMS:
            raise Refused("too large", f"{mol.GetNumHeavyAtoms()} heavy atoms; at most {MOST_ATOMS} are predicted")
        if place := mol.GetSubstructMatch(self._dummy):
            raise Refused("dummy atom", f"atom {place[0]} is a dummy atom (*)")
        if place := mol.GetSubstructMatch(self._metal):
            raise Refused("metal", f"it holds {mol.GetAtomWithIdx(place[0]).GetSymbol()}")


def _charges(mol: Any) -> int:
    return sum(abs(atom.GetFormalCharge()) for atom in mol.GetAtoms())


def _refuse_complexes(mol: Any) -> None:
    """Refused where a metal is bound other than in a salt: its ligand alone would be another molecule."""
    for atom in mol.GetAtoms():
        if atom.GetAtomicNum() in METALS - SALTS and atom.GetDegree():
            raise Refused("metal", f"it holds {atom.GetSymbol()}, bound to other atoms")


def from_smiles(smiles: str, standardise: Standardiser) -> Molecule:
    """The molecule that is meant by a SMILES. Refused for what cannot be read, metals, and molecules too large."""
    if not smiles.strip():
        raise Refused("empty", "the SMILES is empty")
    if len(smiles) > LONGEST:
        raise Refused("too long", f"{len(smiles)} characters or more; at most {LONGEST} are read")
    if "\n" in smiles:
        raise Refused("not a molecule", "it holds a line break: a quote before it is perhaps not closed")
    try:
        mol = parsed(smiles)
    except UserError as error:
        raise Refused("not a molecule", str(error)) from None
    return standardise(mol)


def structure(molecule: Molecule, coordinates: bool, seed: int) -> tuple[Structure, str]:
    """What a model reads, and where its coordinates come from: "own", "MMFF94", "ETKDG", or "" by bonds alone.

    Without coordinates of its own, a molecule gets its hydrogens and a conformer (ETKDGv3, then MMFF94 where that has
    parameters); Refused where none is found.
    """
    from rdkit.Chem import rdForceFieldHelpers

    if molecule.own is not None:
        return molecule.own, "own"
    if not coordinates:
        return from_mol(molecule.mol), ""
    try:
        full = conformer_of(molecule.mol, molecule.smiles, seed)
    except UserError as error:
        raise Refused("no conformer", str(error)) from None
    return structure_of(full), "MMFF94" if rdForceFieldHelpers.MMFFHasAllMoleculeParams(full) else "ETKDG"
