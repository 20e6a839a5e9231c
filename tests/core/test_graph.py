"""AtomsGraph: batches, edge vectors, pairs, and what it refuses."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule

from mlpot import AtomsGraph
from mlpot.errors import UserError
from mlpot.graph import collate
from mlpot.structure import Structure, number_of, symbols_of

CUTOFF = 4.0


def mixed():
    slab = Atoms("Cu2", [[0, 0, -0.5], [0, 0, 1.5]], cell=[3, 3, 10], pbc=[1, 1, 0])
    return [bulk("Cu", a=3.6), molecule("H2O"), Atoms("H"), slab, molecule("CH3CH2OH"), Atoms("O")]


def same(a, b):
    assert a.cutoff == b.cutoff
    for name in ("numbers", "positions", "cell", "pbc", "edge_index", "edge_shift", "batch", "charge", "spin"):
        x, y = getattr(a, name), getattr(b, name)
        assert (x is None) == (y is None), name
        assert x is None or torch.equal(x, y), name


def test_one_structure_is_a_batch_of_one():
    graph = AtomsGraph.from_ase(Atoms("H"), CUTOFF)
    graph.validate()
    assert (graph.n_structures, graph.n_atoms, graph.n_edges) == (1, 1, 0)
    assert graph.edge_vectors().shape == (0, 3)
    assert graph.pbc.tolist() == [[False] * 3]
    assert graph.cell.abs().max() == 0


def test_a_list_is_its_singles_and_back():
    frames = mixed()
    graph = AtomsGraph.from_ase(frames, CUTOFF)
    graph.validate()
    singles = [AtomsGraph.from_ase(atoms, CUTOFF) for atoms in frames]
    assert graph.n_structures == len(frames)
    same(graph, collate(singles))
    same(graph, collate([collate(singles[:2]), singles[2], collate(singles[3:])]))
    for one, single in zip(graph.split(), singles, strict=True):
        same(one, single)
    vectors = torch.cat([single.edge_vectors() for single in singles])
    assert torch.allclose(graph.edge_vectors(), vectors, rtol=0, atol=1e-14)


def test_it_is_frozen_and_does_not_share_memory_with_its_source():
    atoms = molecule("H2O")
    graph = AtomsGraph.from_ase(atoms, CUTOFF)
    with pytest.raises(FrozenInstanceError):
        graph.cutoff = 3.0
    before = graph.positions.clone()
    atoms.positions += 1.0
    atoms.numbers[:] = 3
    assert torch.equal(graph.positions, before)
    assert graph.numbers.tolist() == [8, 1, 1]


def test_edge_vectors_have_slopes_in_positions_and_cell():
    graph = AtomsGraph.from_ase([bulk("Cu", a=3.6), molecule("H2O"), bulk("Al", a=4.0)], CUTOFF)
    positions, cell = graph.positions.clone().requires_grad_(), graph.cell.clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda p, c: graph.moved(p, c).edge_vectors(), (positions, cell))


def test_chosen_edge_vectors():
    graph = AtomsGraph.from_ase(mixed(), CUTOFF)
    which = torch.tensor([5, 0, 3])
    assert torch.equal(graph.edge_vectors(which), graph.edge_vectors()[which])


def test_pairs_join_an_edge_with_its_reverse():
    for graph in (AtomsGraph.from_ase(mixed(), CUTOFF), collate([AtomsGraph.from_ase(a, CUTOFF) for a in mixed()])):
        pair_edge, edge_pair = graph.pairs
        assert 2 * len(pair_edge) == graph.n_edges
        assert torch.bincount(edge_pair).tolist() == [2] * len(pair_edge)
        vectors = graph.edge_vectors()
        mine, of_pair = vectors, vectors[pair_edge][edge_pair]
        signs = (mine * of_pair).sum(1).sign()
        assert torch.equal(mine, of_pair * signs[:, None])
        assert int((signs < 0).sum()) == len(pair_edge)


def test_pairs_of_a_batch_are_taken_over_from_its_parts():
    graphs = [AtomsGraph.from_ase(atoms, CUTOFF) for atoms in mixed()]
    for graph in graphs:
        assert graph.pairs
    joined = collate(graphs)
    pair_edge, edge_pair = joined.pairs
    assert torch.bincount(edge_pair).tolist() == [2] * len(pair_edge)
    assert torch.allclose(
        joined.edge_vectors()[pair_edge][edge_pair].abs(), joined.edge_vectors().abs(), rtol=0, atol=1e-14
    )


def test_one_sided_edges_have_no_pairs():
    graph = AtomsGraph.from_ase(molecule("H2O"), CUTOFF)
    one_sided = replace(graph, edge_index=graph.edge_index[:, :3], edge_shift=graph.edge_shift[:3])
    with pytest.raises(ValueError, match="reverse"):
        assert one_sided.pairs


def test_charge_and_spin_are_joined_with_defaults():
    ion = molecule("OH")
    ion.info = {"charge": -1, "spin": 1}
    graph = AtomsGraph.from_ase([molecule("H2O"), ion], CUTOFF)
    assert graph.charge.tolist() == [0.0, -1.0]
    assert graph.spin.tolist() == [1.0, 1.0]
    assert AtomsGraph.from_ase([molecule("H2O")], CUTOFF).charge is None
    assert [a.info for a in graph.to_ase()][1] == {"charge": -1.0, "spin": 1.0}


def test_validate_names_what_is_wrong():
    graph = AtomsGraph.from_ase(mixed(), CUTOFF)
    wrong = {
        "positions": graph.positions.float(),
        "edge_index": graph.edge_index.flip(1),
        "batch": graph.batch.flip(0),
        "cell": graph.cell[0],
    }
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=name):
            replace(graph, **{name: value}).validate()


def test_empty_batches_are_refused():
    with pytest.raises(UserError, match="at least one structure"):
        AtomsGraph.from_ase([], CUTOFF)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"numbers": []}, "no atoms"),
        ({"numbers": [1, 0]}, "atom 1 has atomic number 0"),
        ({"numbers": [1, 119]}, "119"),
        ({"positions": [[0, 0, 0], [np.nan, 0, 0]]}, "atom 1"),
        ({"positions": [[0, 0, 0]]}, r"expected \(2, 3\)"),
        ({"cell": np.full((3, 3), np.inf)}, "not finite"),
        ({"cell": np.diag([3.0, 0.0, 3.0]), "pbc": True}, "vector b"),
        ({"cell": [[1, 0, 0], [2, 0, 0], [0, 0, 1]], "pbc": True}, "zero volume"),
    ],
)
def test_structures_no_model_can_take(change, message):
    good = {"numbers": [1, 1], "positions": [[0, 0, 0], [0, 0, 1]]}
    if change.get("numbers") == []:
        change = {**change, "positions": np.zeros((0, 3))}
    with pytest.raises(UserError, match=message):
        Structure.of(**{**good, **change})


def test_symbols_and_numbers():
    assert symbols_of([8, 1, 1]) == ["H", "O"]
    assert number_of("Og") == 118
    with pytest.raises(UserError, match='Did you mean "Cu"'):
        number_of("cu")
