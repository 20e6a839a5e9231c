"""Coordinates for molecules that are known by their bonds: rdkit's ETKDG, then the MMFF94 force field."""

from __future__ import annotations

from typing import Any

from mlpot.convert import rdkit as _rdkit
from mlpot.convert.smiles import parsed
from mlpot.errors import UserError
from mlpot.structure import Structure

GAP = 4.0  # Å between fragments
ATTEMPTS = 3  # the second and third start from random coordinates


def embedded(smiles: str, seed: int = 0, optimise: bool = True) -> Structure:
    """A conformer of a SMILES with its hydrogens and bonds; the same for the same seed.

    Raises UserError for a SMILES that rdkit refuses, and where no conformer is found.
    """
    return _rdkit.structure(conformer_of(parsed(smiles), smiles, seed, optimise))


def conformer_of(mol: Any, name: str, seed: int = 0, optimise: bool = True) -> Any:
    """The ``Mol`` with hydrogens and one conformer (ETKDGv3; MMFF94 where it has parameters and `optimise`).

    Fragments of a salt lie side by side, since their places are not known.
    """
    from rdkit import Chem, rdBase
    from rdkit.Chem import rdDistGeom, rdForceFieldHelpers

    full = Chem.AddHs(mol)
    settings: Any = rdDistGeom.ETKDGv3()
    with rdBase.BlockLogs():
        for attempt in range(ATTEMPTS):
            settings.randomSeed = seed * ATTEMPTS + attempt
            settings.useRandomCoords = attempt > 0
            if rdDistGeom.EmbedMolecule(full, settings) == 0:
                break
        else:
            raise UserError(f'"{name}": rdkit finds no conformer in {ATTEMPTS} attempts.')
        if optimise and rdForceFieldHelpers.MMFFHasAllMoleculeParams(full):
            rdForceFieldHelpers.MMFFOptimizeMolecule(full, maxIters=500)
    _part(full)
    return full


def _part(mol: Any) -> None:
    """Set the fragments of a salt side by side, `GAP` apart: rdkit embeds each around the origin."""
    from rdkit import Chem

    fragments = Chem.GetMolFrags(mol)
    conformer = mol.GetConformer()
    places = conformer.GetPositions()
    edge = 0.0
    for number, atoms in enumerate(fragments if len(fragments) > 1 else ()):
        own = places[list(atoms)]
        if number:
            own[:, 0] += edge + GAP - own[:, 0].min()
        edge = float(own[:, 0].max())
        for atom, place in zip(atoms, own, strict=True):
            conformer.SetAtomPosition(atom, place.tolist())
