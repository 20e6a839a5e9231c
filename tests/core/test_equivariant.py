"""Equivariant parts against e3nn, brute force and differences; their blocks and shortcuts against doing without."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from e3nn import o3
from hypothesis import given, settings
from hypothesis import strategies as st

import mlpot
from mlpot.errors import UserError
from mlpot.graph import AtomsGraph
from mlpot.models import mace
from mlpot.nn import convolution, scaled, species, symmetric
from mlpot.nn.angular import SphericalHarmonics, coupling, paths
from mlpot.nn.constant import Constant
from mlpot.nn.convolution import Convolution, Neighborhoods, neighbor_sum
from mlpot.nn.segment import gather
from mlpot.nn.species import Species
from mlpot.nn.symmetric import SymmetricContraction, symmetric_basis
from mlpot.structure import Structure

F64 = torch.float64


@pytest.fixture
def exact_e3nn():
    """e3nn makes its tables in the default dtype, whatever it is cast to later."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(F64)
    yield
    torch.set_default_dtype(before)


def representation(degree, rotation):
    """D of a rotation or reflection (3, 3), from the harmonics of turned points: Y(R r) = D Y(r)."""
    points = torch.nn.functional.normalize(torch.randn(60, 3, dtype=F64), dim=1)
    harmonics, part = SphericalHarmonics(degree), slice(degree**2, (degree + 1) ** 2)
    here, there = (harmonics(x)[:, part] for x in (points, points @ rotation.T))
    return torch.linalg.lstsq(here, there).solution.T


def random_turn():
    """A rotation and an inversion."""
    q, r = torch.linalg.qr(torch.randn(3, 3, dtype=F64))
    q = q * torch.sign(torch.diagonal(r))
    return q if torch.det(q) < 0 else -q


def graph_of(seed=0, n=(7, 1, 4), cutoff=2.5):
    """A molecule, a lone atom and a crystal whose atoms see their images: lists of very different lengths."""
    random = np.random.default_rng(seed)
    molecule = Structure.of(random.choice([1, 6, 8], n[0]), random.uniform(0, 3.5, (n[0], 3)))
    alone = Structure.of([8] * n[1], np.arange(3 * n[1]).reshape(-1, 3) * 50.0)
    cell = np.diag([2.2, 2.4, 2.6]) + 0.3 * random.normal(size=(3, 3))
    crystal = Structure.of(random.choice([1, 6], n[2]), random.uniform(0, 2.2, (n[2], 3)), cell, [True] * 3)
    return AtomsGraph.from_structure([molecule, alone, crystal], cutoff)


@pytest.mark.parametrize("l_max", range(6))
def test_spherical_harmonics_are_those_of_e3nn(l_max):
    unit = torch.nn.functional.normalize(torch.randn(40, 3, dtype=F64), dim=1)
    expected = o3.spherical_harmonics(list(range(l_max + 1)), unit, normalize=True, normalization="component")
    ours = SphericalHarmonics(l_max)
    assert torch.allclose(ours(unit), expected, rtol=0, atol=1e-12)
    assert torch.allclose(ours(unit.float()), expected.float(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("l_in", [0, 1, 2])
def test_convolution_is_e3nns_tensor_product_added_up(exact_e3nn, l_in):
    torch.manual_seed(1)
    graph, channels, hidden, l_max = graph_of(), 3, 5, 3
    layer = Convolution(paths(l_in, l_max, l_max))
    around = Neighborhoods.of(graph, channels)
    n_pairs = len(graph.pairs[0])
    basis = torch.randn(n_pairs, hidden, dtype=F64)
    weight = torch.randn(len(layer.paths), hidden, channels, dtype=F64)
    features = [torch.randn(graph.n_atoms, 2 * degree + 1, channels, dtype=F64) for degree in range(l_in + 1)]
    vectors = graph.edge_vectors()
    of_edge = SphericalHarmonics(l_max)(torch.nn.functional.normalize(vectors, dim=1))
    slots = torch.zeros(len(around.pairs.atom), of_edge.shape[1], dtype=F64)
    slots[around.sources.order] = of_edge[torch.argsort(graph.edge_index[0], stable=True)]
    ours = layer(slots, basis, weight, features, around)
    source, target = graph.edge_index
    pair = graph.pairs[1]
    for p, (path, got) in enumerate(zip(layer.paths, ours, strict=True)):
        a, b, c = (o3.Irrep(degree, (-1) ** degree) for degree in path)
        product = o3.TensorProduct(
            [(channels, a)], [(1, b)], [(channels, c)], [(0, 0, 0, "uvu", True)], shared_weights=False
        ).double()
        sent = features[path.l_in][source].mT.flatten(1)
        harmonics = of_edge[:, path.l_edge**2 : (path.l_edge + 1) ** 2]
        message = product(sent, harmonics, basis[pair] @ weight[p])
        expected = torch.zeros(graph.n_atoms, message.shape[1], dtype=F64).index_add(0, target, message)
        assert torch.allclose(got, expected.view(graph.n_atoms, channels, -1).mT, rtol=0, atol=1e-12)


def conv_inputs(graph, layer, around, channels=2, hidden=2):
    torch.manual_seed(2)
    l_in = max(path.l_in for path in layer.paths)
    l_edge = max(path.l_edge for path in layer.paths)
    mask = around.sign(F64).abs()
    basis = torch.randn(len(graph.pairs[0]), hidden, dtype=F64)
    weight = torch.randn(len(layer.paths), hidden, channels, dtype=F64)
    features = [torch.randn(graph.n_atoms, 2 * degree + 1, channels, dtype=F64) for degree in range(l_in + 1)]
    harmonics = torch.randn(len(mask), (l_edge + 1) ** 2, dtype=F64)
    inputs = [t.requires_grad_() for t in (harmonics, basis, weight, *features)]

    def run(harmonics, basis, weight, *features):
        return torch.cat([a.flatten() for a in layer(harmonics * mask, basis, weight, features, around)])

    return run, inputs


@pytest.mark.parametrize("keep", [0, 1 << 26])
@pytest.mark.parametrize("chunk", [4, 1 << 20])
def test_convolution_derivatives_first_and_second(monkeypatch, chunk, keep):
    monkeypatch.setattr(convolution, "CHUNK", {"cpu": chunk})
    monkeypatch.setattr(convolution, "KEEP", keep)
    graph = graph_of(n=(4, 1, 1), cutoff=2.6)
    around, layer = Neighborhoods(graph, 2), Convolution(paths(1, 1, 1))
    assert (len(around.chunks) > 1) == (chunk == 4)
    run, inputs = conv_inputs(graph, layer, around)
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


@pytest.mark.parametrize("keep", [0, 1 << 26])
def test_chunks_change_nothing(monkeypatch, keep):
    monkeypatch.setattr(convolution, "KEEP", keep)
    graph, layer = graph_of(n=(20, 2, 5)), Convolution(paths(2, 3, 3))
    results = []
    for chunk in (8, 100, 1 << 20):
        monkeypatch.setattr(convolution, "CHUNK", {"cpu": chunk})
        around = Neighborhoods(graph, 2)
        # Random harmonics belong to slots, which differ: take those of the edges.
        unit = torch.nn.functional.normalize(graph.edge_vectors(graph.pairs[0]), dim=1)
        parity = torch.cat([around.sign(F64) ** (2 - d % 2) for d in range(4) for _ in range(2 * d + 1)], 1)
        harmonics = gather(SphericalHarmonics(3)(unit), around.pairs) * parity
        _, (_, basis, weight, *features) = conv_inputs(graph, layer, around)
        out = layer(harmonics, basis, weight, features, around)
        loss = sum((a * a).sum() for a in out)
        results.append([*out, *torch.autograd.grad(loss, [basis, weight, *features])])
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            assert torch.allclose(a, b, rtol=1e-12, atol=1e-10)


def test_neighbor_sum_by_hand():
    graph = graph_of()
    around = Neighborhoods(graph, 4)
    basis = torch.randn(len(graph.pairs[0]), 3, dtype=F64)
    harmonics = around.sign(F64)  # +1 along the pair's own edge, -1 against it
    expected = torch.zeros(graph.n_atoms, 1, 3, dtype=F64)
    own = set(graph.pairs[0].tolist())
    for edge, (target, pair) in enumerate(zip(graph.edge_index[1], graph.pairs[1], strict=True)):
        expected[target, 0] += basis[pair] * (1 if edge in own else -1)
    assert torch.allclose(neighbor_sum(harmonics, basis, around), expected, rtol=0, atol=1e-13)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 200))
def test_every_edge_has_one_slot_and_padding_is_little(seed, most):
    graph = graph_of(seed, (1 + seed % 9, seed % 3 + 1, 1 + seed % 4))
    around = Neighborhoods(graph, max(1, convolution.CHUNK["cpu"] // most))
    used = around.sign(F64)[:, 0] != 0
    assert int(used.sum()) == graph.n_edges
    place = {int(atom): k for k, atom in enumerate(around.order)}
    counts = {}
    for chunk in around.chunks:
        for k in range(chunk.n):
            slots = range(chunk.slot + k * chunk.width, chunk.slot + (k + 1) * chunk.width)
            counts[chunk.first + k] = int(used[list(slots)].sum())
    degree = torch.bincount(graph.edge_index[1], minlength=graph.n_atoms)
    for atom, n in enumerate(degree.tolist()):
        assert counts.get(place[atom], 0) == n


def contraction_inputs(l_out, correlation=3):
    torch.manual_seed(4)
    graph = graph_of(3)
    index = torch.full((120,), -1)
    index[[1, 6, 7, 8]] = torch.arange(4)
    layer = SymmetricContraction(2, l_out, correlation, 4, 2).double()
    return layer, torch.randn(graph.n_atoms, 9, 2, dtype=F64, requires_grad=True), Species(graph, index), graph, index


@pytest.mark.parametrize("most", [1, 256])
@pytest.mark.parametrize("l_out", [0, 1, 2])
def test_contraction_is_the_polynomial_written_out(monkeypatch, l_out, most):
    monkeypatch.setattr(species, "SMALL", most)
    monkeypatch.setattr(symmetric, "ATOMS", most)
    layer, a, groups, graph, index = contraction_inputs(l_out)
    bases = [torch.from_numpy(symmetric_basis(2, l_out, order)) for order in (1, 2, 3)]
    w1, w2, w3 = layer.weight.split([len(basis) for basis in bases], 1)
    z = index[graph.numbers]
    expected = torch.einsum("emi,aic,aec->amc", bases[0], a, w1[z])
    expected = expected + torch.einsum("emij,aic,ajc,aec->amc", bases[1], a, a, w2[z])
    expected = expected + torch.einsum("emijk,aic,ajc,akc,aec->amc", bases[2], a, a, a, w3[z])
    assert torch.allclose(layer(a, groups), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("correlation", [1, 2, 3])
def test_contraction_derivatives_first_and_second(correlation):
    layer, a, groups, *_ = contraction_inputs(1, correlation)

    def run(a, weight):
        return torch.func.functional_call(layer, {"weight": weight}, (a, groups))

    inputs = (a, layer.weight.detach().requires_grad_())
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)


def test_the_basis_is_orthonormal_symmetric_equivariant_and_complete():
    matrix = random_turn()
    turn = torch.block_diag(*(representation(degree, matrix) for degree in range(3))).numpy()
    for l_out in range(3):
        out = representation(l_out, matrix).numpy()
        basis = symmetric_basis(2, l_out, 3)
        flat = basis.reshape(len(basis), -1)
        assert np.allclose(flat @ flat.T, np.eye(len(basis)), atol=1e-12)
        assert np.allclose(basis, basis.transpose(0, 1, 3, 2, 4), atol=1e-13)
        turned = np.einsum("emijk,mn,ia,jb,kc->enabc", basis, out, turn, turn, turn, optimize=True)
        assert np.allclose(turned, basis, atol=1e-12)
    # Molien's count of cubic invariants of 0e + 1o + 2e, by averaging characters over rotations and inversion.
    angles = (np.arange(4000) + 0.5) * np.pi / 4000
    density = (1 - np.cos(angles)) / np.pi * (np.pi / 4000)

    def character(angle, sign):
        return sum(sign**d * np.sin((d + 0.5) * angle) / np.sin(angle / 2) for d in range(3))

    def cubic(sign):
        once, twice, thrice = (character(k * angles, sign**k) for k in (1, 2, 3))
        return (once**3 + 3 * once * twice + 2 * thrice) / 6

    n = 0.5 * float(((cubic(1) + cubic(-1)) * density).sum())
    assert round(n, 6) == len(symmetric_basis(2, 0, 3))


def test_couplings_are_rotated_into_each_other():
    matrix = random_turn()
    a, b, c = (representation(degree, matrix) for degree in (1, 2, 3))
    turned = torch.einsum("ijk,ia,jb,kc->abc", coupling(1, 2, 3), a, b, c)
    assert torch.allclose(turned, coupling(1, 2, 3), atol=1e-12)


def test_many_species_take_the_general_way_to_the_same_numbers(monkeypatch):
    torch.manual_seed(0)
    model = mlpot.models.build("mace", channels=4, l_hidden=1, elements=(1, 6, 8)).double()
    graph = graph_of(5, cutoff=model.cutoff)
    before = mlpot.predict(model, graph)
    monkeypatch.setattr(mace, "MANY", 1)
    after = mlpot.predict(model, graph)
    assert torch.allclose(before.forces, after.forces, rtol=1e-10, atol=1e-12)
    assert torch.allclose(before.energy, after.energy, rtol=1e-12, atol=1e-12)


def test_a_network_in_blocks_of_rows_is_the_network(monkeypatch):
    network, x = scaled.ScaledNetwork([3, 4, 2]).double(), torch.randn(7, 3, dtype=F64)
    whole = network(x)
    monkeypatch.setattr(scaled, "ROWS", 2)
    assert torch.allclose(network(x), whole, rtol=1e-14, atol=1e-14)


def test_a_cast_to_float32_and_back_leaves_the_tables_whole():
    torch.manual_seed(0)
    model = mlpot.models.build("mace", channels=4, elements=(1, 6, 8)).float()
    graph = graph_of(6, cutoff=model.cutoff)
    direct, turned = copy.deepcopy(model).double(), copy.deepcopy(model)
    mlpot.predict(turned, graph)
    turned = turned.double().float().double()
    assert torch.equal(mlpot.predict(direct, graph).forces, mlpot.predict(turned, graph).forces)
    third = Constant(torch.tensor([1.0 / 3.0], dtype=F64))
    third.like(torch.zeros(1))
    assert float(third.like(torch.zeros(1, dtype=F64))) == 1.0 / 3.0


def test_the_basis_of_high_order_needs_no_redundant_terms():
    assert [len(symmetric_basis(3, 0, order)) for order in (1, 2, 3)] == [1, 4, 8]


@pytest.mark.parametrize(
    ("elements", "message"),
    [
        ([1, 1], "each atomic number once"),
        ([0], "greater than or equal to 1"),
        ([200], "less than or equal"),
        ([], "1"),
    ],
)
def test_elements_that_do_not_fit_are_refused(elements, message):
    with pytest.raises(UserError, match=message):
        mlpot.models.build("mace", elements=elements)
