"""Edges of radius graphs and bonds, sums along them, and smoothness where atoms cross the cutoff."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from torch import Tensor

import mlpot
from mlpot import models
from mlpot.convert.ase import structure as from_ase
from mlpot.convert.rdkit import with_bonds
from mlpot.errors import UserError
from mlpot.graph import AtomsGraph
from mlpot.models import gat
from mlpot.models._graph_network import AttentionNetwork, GraphNetwork
from mlpot.nn.edge_attention import EdgeAttention, HeadEdges, edge_softmax
from mlpot.nn.edges import N_BOND, MessageEdges, fully_adjacent
from mlpot.nn.links import Links, products, weighed_sum
from mlpot.nn.segment import Ends
from mlpot.structure import Structure
from mlpot.testing import check_potential
from tests.core.graph_networks import (
    ATTENTION,
    CUTOFF,
    NAMES,
    SMALL,
    build,
    graph_of,
    molecules,
)


def test_both_kinds_of_edges_are_each_pair_once() -> None:
    """Against a loop over all pairs, with a bond that is longer than the cutoff."""
    stretched = with_bonds(from_ase(molecule("CH3CH2OH")))
    positions = stretched.positions.copy()
    positions[2] += [0.0, 0.0, 6.0]  # the oxygen leaves; its bonds stay
    graph = graph_of(Structure.of(stretched.numbers, positions, bonds=stretched.bonds), stretched)
    model = build("gat", edges="both")
    edges = model.stack.edges(graph, torch.float64)
    assert graph.bonds is not None
    bonds = {(int(j), int(i)): row for (j, i), row in zip(graph.bonds.index.T, graph.bonds.features, strict=True)}
    width = SMALL["n_basis"]
    expected = {}
    for i, j in itertools.permutations(range(graph.n_atoms), 2):
        distance = float((graph.positions[i] - graph.positions[j]).norm())
        near = graph.batch[i] == graph.batch[j] and distance < CUTOFF
        if not near and (j, i) not in bonds:
            continue
        x = min(1.0, distance / CUTOFF)
        envelope = 1 - 28 * x**6 + 48 * x**7 - 21 * x**8
        radial = envelope * np.sin(np.arange(1, width + 1) * np.pi * distance / CUTOFF) / distance
        bond = bonds.get((j, i), torch.zeros(N_BOND)).numpy()
        expected[j, i] = (1.0 if (j, i) in bonds else envelope, np.concatenate([radial, bond]))
    found = [tuple(pair) for pair in edges.edge_index.T.tolist()]
    assert sorted(found) == sorted(expected)
    assert [i for _, i in found] == sorted(i for _, i in found)
    for pair, envelope, attributes in zip(found, edges.envelope[:, 0], edges.attributes, strict=True):
        assert float(envelope) == pytest.approx(expected[pair][0], abs=1e-12)
        np.testing.assert_allclose(attributes.numpy(), expected[pair][1], atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_a_bond_drawn_beyond_the_cutoff_leaves_no_jump(name: str) -> None:
    ethanol = with_bonds(from_ase(molecule("CH3CH2OH")))
    model = build(name, edges="both")

    def answer(distance: float) -> mlpot.Prediction:
        positions = ethanol.positions.copy()
        direction = positions[2] - positions[0]
        positions[2] = positions[0] + distance * direction / np.linalg.norm(direction)
        return mlpot.predict(model, graph_of(Structure.of(ethanol.numbers, positions, bonds=ethanol.bonds)))

    inside, outside = answer(CUTOFF - 1e-6), answer(CUTOFF + 1e-6)
    assert float((inside.energy - outside.energy).abs()) < 1e-5
    assert inside.forces is not None
    assert outside.forces is not None
    torch.testing.assert_close(inside.forces, outside.forces, rtol=0, atol=1e-4)
    # And forces are slopes.
    h, middle = 1e-4, answer(3.0)
    direction = torch.tensor(ethanol.positions[2] - ethanol.positions[0])
    slope = (answer(3.0 + h).energy - answer(3.0 - h).energy) / (2 * h)
    assert middle.forces is not None
    assert float(middle.forces[2] @ direction / direction.norm()) == pytest.approx(-float(slope), abs=1e-6)


@pytest.mark.parametrize("periodic", [False, True])
def test_fully_adjacent_edges_are_all_pairs(periodic: bool) -> None:
    graph = AtomsGraph.from_ase([bulk("NaCl", "rocksalt", 5.6, cubic=True)] * 2, CUTOFF) if periodic else molecules()
    edges = build("gat").stack.edges(graph, torch.float64)
    found = fully_adjacent(edges, graph.batch)
    expected = torch.zeros(graph.n_atoms, graph.n_atoms, SMALL["n_basis"], dtype=torch.float64)
    for (j, i), row in zip(edges.edge_index.T.tolist(), edges.attributes, strict=True):
        expected[i, j] += row
    pairs = [tuple(pair) for pair in found.edge_index.T.tolist()]
    same = graph.batch[:, None] == graph.batch
    assert pairs == [(j, i) for i in range(len(same)) for j in range(len(same)) if i != j and same[i, j]]
    source, target = found.edge_index
    torch.testing.assert_close(found.attributes, expected[target, source])
    assert bool((found.envelope == 1).all())


def random_links(heads: int) -> tuple[Links, int, int]:
    torch.manual_seed(6)
    target = torch.sort(torch.randint(0, 5, (12,)))[0]
    return Links.of(Ends.of(torch.randint(0, 7, (12,)), 7), Ends.ascending(target, 6), heads), 7, 6  # atom 5 has none


@pytest.mark.parametrize("heads", [1, 3])
def test_sums_along_links_are_those_of_dense_matrices(heads: int) -> None:
    links, n_sources, n_targets = random_links(heads)
    weights = torch.randn(12, heads, dtype=torch.float64, requires_grad=True)
    x = torch.randn(n_sources, heads * 2, dtype=torch.float64, requires_grad=True)
    a = torch.randn(n_targets, heads * 2, dtype=torch.float64, requires_grad=True)
    dense = torch.zeros(n_targets, n_sources, heads, dtype=torch.float64)
    dense = dense.index_put((links.targets, links.sources), weights, accumulate=True)
    expected = torch.einsum("tsh,shd->thd", dense, x.view(n_sources, heads, 2)).flatten(1)
    torch.testing.assert_close(weighed_sum(weights, x, links), expected)
    rows = (a[links.targets] * x[links.sources]).view(12, heads, 2).sum(2)
    torch.testing.assert_close(products(a, x, links), rows)
    torch.testing.assert_close(products(x, a, links.reversed), rows)
    for call, arguments in ((weighed_sum, (weights, x)), (products, (a, x))):
        assert torch.autograd.gradcheck(lambda *given, call=call: call(*given, links), arguments)
        assert torch.autograd.gradgradcheck(lambda *given, call=call: call(*given, links), arguments)


def some_edges(heads: int) -> HeadEdges:
    links, _, _ = random_links(1)
    index = torch.stack([links.sources.clamp(max=5), links.targets])
    envelope = torch.rand(12, 1, dtype=torch.float64)
    envelope[[0, 7]] = 0.0
    return HeadEdges.of(MessageEdges.of(index, torch.zeros(12, 2, dtype=torch.float64), envelope, 6), heads)


def test_the_softmax_is_its_formula_and_so_are_its_derivatives() -> None:
    edges = some_edges(2)
    target, envelope = edges.edge_index[1], edges.edges.envelope
    logits = torch.randn(12, 2, dtype=torch.float64, requires_grad=True)
    own = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    found = edge_softmax(logits, own, edges)
    total = own.exp().index_add(0, target, envelope * logits.exp())
    torch.testing.assert_close(found.weights, envelope * logits.exp() / total[target])
    torch.testing.assert_close(found.own, own.exp() / total)
    torch.testing.assert_close(found.own.index_add(0, target, found.weights), torch.ones_like(own))
    far = torch.zeros_like(logits)
    far[[0, 7]], far[1] = 1e4, 900.0  # what has no envelope does not count, however large; nor does exp overflow
    assert bool(torch.isfinite(torch.cat([*edge_softmax(logits + far, own, edges)])).all())

    def weights(logits: Tensor, own: Tensor, envelope: Tensor) -> EdgeAttention:
        return edge_softmax(logits, own, edges._replace(edges=edges.edges._replace(envelope=envelope)))

    inside = (envelope + 0.1).requires_grad_()
    assert torch.autograd.gradcheck(weights, (logits, own, inside))
    assert torch.autograd.gradgradcheck(weights, (logits, own, inside))


def plain_softmax(logits: Tensor, own: Tensor, edges: HeadEdges) -> EdgeAttention:
    """As in the papers: an edge counts in full, or is not there."""
    there = (edges.edges.envelope > 0).to(logits)
    return edge_softmax(logits, own, edges._replace(edges=edges.edges._replace(envelope=there)))


def without_own(logits: Tensor, own: Tensor, edges: HeadEdges) -> EdgeAttention:
    """With the envelope, but without the atom itself: a last neighbour has weight 1 until it has gone."""
    return edge_softmax(logits, torch.full_like(own, -60.0), edges)


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("softmax", [plain_softmax, without_own], ids=lambda softmax: softmax.__name__)
def test_other_softmaxes_jump_at_the_cutoff(name: str, softmax: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours passes the same suite: see test_conformance."""
    monkeypatch.setattr(models.find(name).__module__ + ".edge_softmax", softmax)
    with pytest.raises(AssertionError, match="smooth at cutoff"):
        check_potential(build(name), dtype="float64")


def crossing(model: GraphNetwork) -> float:
    """The jump in energy (eV) where a third atom crosses the cutoff of a pair."""

    def energy(distance: float) -> float:
        atoms = Atoms("HOC", [[0.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0 + distance]])
        return float(mlpot.predict(model, AtomsGraph.from_ase(atoms, CUTOFF)).energy)

    return abs(energy(CUTOFF - 1e-3) - energy(CUTOFF + 1e-3))


@pytest.mark.parametrize("name", ATTENTION)
def test_the_size_of_the_jump(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(name)
    assert crossing(model) < 1e-8
    monkeypatch.setattr(models.find(name).__module__ + ".edge_softmax", plain_softmax)
    assert crossing(model) > 1e-4


def test_a_kink_in_the_logits_is_refused_for_energies() -> None:
    with pytest.raises(UserError, match="leaky_relu has a kink"):
        mlpot.predict(build("gat", slope="leaky_relu"), molecules())


def test_the_smooth_slope_is_a_leaky_relu_far_from_zero() -> None:
    x = torch.tensor([-1e4, 0.0, 1e4], dtype=torch.float64, requires_grad=True)
    slope = gat.SLOPES["smooth"](0.2)
    y = slope(x)
    (dy,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(dy, torch.tensor([0.2, 0.6, 1.0], dtype=torch.float64), rtol=0, atol=1e-8)
    assert y.detach().tolist() == pytest.approx([-2e3, 0.4, 1e4], rel=1e-6)
    near = torch.linspace(-3, 3, 13, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(slope, (near,))
    assert torch.autograd.gradgradcheck(slope, (near,))


@pytest.mark.parametrize("settings", [{}, {"fully_adjacent_last_layer": True}], ids=str)
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_that_of_the_forward_pass(name: str, settings: dict[str, Any]) -> None:
    model, graph = build(name, edges="both", **settings), molecules()
    assert isinstance(model, AttentionNetwork)
    found = model.attention(graph)
    assert len(found) == SMALL["n_layers"]
    for index, weights in found:
        assert weights.shape == (index.shape[1], 4)
        sums = torch.zeros(graph.n_atoms, 4, dtype=torch.float64).index_add(0, index[1], weights)
        torch.testing.assert_close(sums, torch.ones_like(sums))
        assert bool((weights >= 0).all())
        loops = index[:, index[0] == index[1]]
        assert torch.equal(loops[0], torch.arange(graph.n_atoms))
    # The answer depends on these very tensors.
    known, passes = model.traced(graph)
    torch.testing.assert_close(known.scalars, model.features(graph).scalars, rtol=0, atol=0)
    gradients = torch.autograd.grad(known.scalars.square().sum(), [one.weights for one in passes])
    assert all(bool((g != 0).any()) for g in gradients)
