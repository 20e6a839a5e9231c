"""What graph networks can tell apart, and what they cannot."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mlpot.convert.smiles import ATOM_FEATURES, columns, from_smiles, parsed
from mlpot.nn.edges import N_BOND
from mlpot.structure import Bonds, Structure
from tests.core.graph_networks import (
    NAMES,
    build,
    features,
    graph_of,
)


def embedded(smiles: str, seed: int = 7) -> Structure:
    """With hydrogens, in 3D, and bonds."""
    from rdkit import Chem
    from rdkit.Chem import AllChem

    mol = Chem.AddHs(parsed(smiles))
    assert AllChem.EmbedMolecule(mol, randomSeed=seed) == 0
    from mlpot.convert.rdkit import structure

    return structure(mol)


def without_features(one: Structure) -> Structure:
    """Bonds that are all alike."""
    assert one.bonds is not None
    bonds = Bonds(one.bonds.index, np.zeros_like(one.bonds.features), np.zeros_like(one.bonds.atom_features))
    return Structure.of(one.numbers, one.positions, bonds=bonds)


def rings(*sizes: int) -> Structure:
    """Regular rings of carbon, far from each other."""
    ends, positions = [], []
    for place, n in enumerate(sizes):
        first = len(positions)
        ends += [(first + k, first + (k + 1) % n) for k in range(n)]
        angles, radius = 2 * np.pi * np.arange(n) / n, 0.75 / np.sin(np.pi / n)
        positions += [(radius * np.cos(a) + 50.0 * place, radius * np.sin(a), 0.0) for a in angles]
    zeros = np.zeros((sum(sizes), len(columns(ATOM_FEATURES))))
    return Structure.of(
        [6] * sum(sizes), positions, bonds=Bonds(np.array(ends).T, np.zeros((len(ends), N_BOND)), zeros)
    )


# Where all atoms are alike, a mean of neighbours' features, however weighed, is that feature: weights tell nothing.
AVERAGES = {"gat", "gcn"}
DECALIN, BICYCLOPENTYL = "C1CCC2CCCCC2C1", "C1CCCC1C1CCCC1"
# Neither of a pair's colours, refined from neighbours' colours alone (Weisfeiler, Leman), tells it from the other.
ALIKE = {
    "two triangles and a hexagon": lambda: (rings(3, 3), rings(6)),
    "decalin and bicyclopentyl": lambda: tuple(without_features(embedded(s)) for s in (DECALIN, BICYCLOPENTYL)),
}


@pytest.mark.parametrize("pair", ALIKE)
@pytest.mark.parametrize("name", NAMES)
def test_bonds_alone_tell_no_more_than_weisfeiler_and_leman(name: str, pair: str) -> None:
    first, second = ALIKE[pair]()
    sums = {}
    for edges in ("bonds", "radius"):
        model = build(name, edges=edges, n_layers=4)
        sums[edges] = [features(model, graph_of(one)).sum(0) for one in (first, second)]
    torch.testing.assert_close(*sums["bonds"], rtol=1e-10, atol=1e-10)
    difference = float((sums["radius"][0] - sums["radius"][1]).abs().max())
    if pair == "two triangles and a hexagon" and name in AVERAGES:
        assert difference < 1e-10
    else:
        assert difference > 1e-3  # distances tell them apart


@pytest.mark.parametrize("edges", ["radius", "both"])
@pytest.mark.parametrize("name", NAMES)
def test_mirror_images_have_the_same_distances(name: str, edges: str) -> None:
    """Chirality is in the atoms' features; without these columns no network of distances can tell."""
    one = embedded("C[C@H](O)C(=O)N")
    assert one.bonds is not None
    chiral = [k for k, column in enumerate(columns(ATOM_FEATURES)) if column.startswith("chirality")]
    assert one.bonds.atom_features[:, chiral].any()
    blind = one.bonds.atom_features.copy()
    blind[:, chiral] = 0.0
    bonds = Bonds(one.bonds.index, one.bonds.features, blind)
    left, right = (Structure.of(one.numbers, one.positions * sign, bonds=bonds) for sign in ([1, 1, 1], [1, 1, -1]))
    model = build(name, edges=edges)
    torch.testing.assert_close(features(model, graph_of(left)), features(model, graph_of(right)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_the_columns_of_chirality_tell_mirror_images_of_bonds(name: str) -> None:
    left, right = (graph_of(from_smiles(smiles)) for smiles in ("C[C@H](O)C(=O)N", "C[C@@H](O)C(=O)N"))
    model = build(name, edges="bonds")
    assert float((features(model, left) - features(model, right)).abs().max()) > 1e-4
