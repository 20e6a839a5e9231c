"""Parts of models: their values, first and second derivatives."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from torch.autograd import gradcheck, gradgradcheck

from mlpot import AtomsGraph
from mlpot.nn.activation import ShiftedSoftplus, shifted_softplus
from mlpot.nn.linear import Gated, Stack
from mlpot.nn.radial import (
    ExpNormalBasis,
    GaussianBasis,
    SincBasis,
    SmoothSincBasis,
    cosine_cutoff,
    norm,
    polynomial_cutoff,
)
from mlpot.nn.segment import PairEdges, bag, gather, pair_convolution, segment_sum


def random(*shape):
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


def twice(function, *inputs):
    return gradcheck(function, inputs) and gradgradcheck(function, inputs)


def test_shifted_softplus():
    x = torch.tensor([-800.0, -30.0, -1.0, 0.0, 1.0, 30.0, 800.0], dtype=torch.float64)
    expected = [math.log(0.5 * math.exp(v) + 0.5) if v < 700 else v - math.log(2.0) for v in x.tolist()]
    assert torch.allclose(shifted_softplus(x), torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=1e-15)
    assert float(shifted_softplus(torch.zeros(1))) == 0.0
    assert torch.equal(ShiftedSoftplus()(x), shifted_softplus(x))
    assert twice(shifted_softplus, random(5, 3))


def test_norm_and_its_gradient_at_zero():
    assert twice(norm, random(6, 3))
    vectors = torch.zeros(2, 3, dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(norm(vectors).sum(), vectors, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), vectors)
    assert first.abs().max() == 0
    assert second.abs().max() == 0
    assert norm(torch.tensor([[3.0, 4.0, 12.0]])).tolist() == [13.0]
    assert norm(torch.zeros(0, 3)).shape == (0,)


@pytest.mark.parametrize(
    ("envelope", "half"), [(cosine_cutoff, 0.5), (polynomial_cutoff, 1 - 28 / 64 + 48 / 128 - 21 / 256)]
)
def test_envelopes(envelope, half):
    d = torch.tensor([0.0, 2.5, 5.0, 5.1, 9.0], dtype=torch.float64)
    assert envelope(d, 5.0).tolist() == pytest.approx([1.0, half, 0.0, 0.0, 0.0], abs=1e-15)
    near = torch.tensor([5.0 - 1e-5], dtype=torch.float64, requires_grad=True)
    value = envelope(near, 5.0)
    (slope,) = torch.autograd.grad(value.sum(), near)
    assert abs(value.item()) < 1e-10
    assert abs(slope.item()) < 1e-5
    inside = torch.linspace(0.1, 4.9, 7, dtype=torch.float64, requires_grad=True)
    assert twice(lambda x: envelope(x, 5.0), inside)


def test_gaussian_basis_is_that_of_the_paper():
    basis = GaussianBasis(6, 5.0)
    d = torch.tensor([0.3, 2.0, 4.9], dtype=torch.float64)
    expected = np.exp(-0.5 * (d.numpy()[:, None] - np.arange(6.0)) ** 2)  # centres 1 Å apart
    assert np.allclose(basis(d), expected, rtol=1e-14)
    assert basis(d.float()).dtype == torch.float32
    assert twice(basis, torch.linspace(0.1, 4.9, 4, dtype=torch.float64, requires_grad=True))


def test_sinc_basis():
    basis = SincBasis(4, 5.0)
    d = torch.tensor([1e-9, 0.7, 3.0], dtype=torch.float64)
    n = np.arange(1, 5)
    assert np.allclose(basis(d), np.sin(n * np.pi * d.numpy()[:, None] / 5.0) / d.numpy()[:, None], rtol=1e-9)
    at_zero = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    assert torch.allclose(basis(at_zero)[0], torch.from_numpy(n * np.pi / 5.0))
    (slope,) = torch.autograd.grad(basis(at_zero).sum(), at_zero)
    assert float(slope) == 0.0
    assert twice(basis, torch.linspace(0.1, 4.9, 4, dtype=torch.float64, requires_grad=True))


def test_exp_normal_basis():
    d = torch.tensor([0.0, 1.3, 5.0, 5.1], dtype=torch.float64, requires_grad=True)
    basis = ExpNormalBasis(4, 5.0)
    values = basis(d)
    centers = np.linspace(math.exp(-5.0), 1.0, 4)
    width = 0.5 * (1.0 - math.exp(-5.0))  # 2 / n of the span of the centres
    expected = np.exp(-(((math.exp(-1.3) - centers) / width) ** 2)) * 0.5 * (math.cos(1.3 * math.pi / 5.0) + 1.0)
    assert values[1].tolist() == pytest.approx(expected, abs=1e-15)
    assert values[0, 3] == 1.0
    assert values[2:].abs().max() < 1e-30
    assert twice(basis, d[:2])


def test_smooth_sinc_basis():
    """Orthonormal on the sphere within the cutoff, where value and two derivatives vanish."""
    basis, cutoff = SmoothSincBasis(4, 3.0), 3.0
    nodes, weights = np.polynomial.legendre.leggauss(60)
    d = torch.from_numpy(0.5 * cutoff * (nodes + 1.0))
    measure = torch.from_numpy(0.5 * cutoff * weights) * d**2
    values = basis(d)
    assert torch.allclose((values * measure[:, None]).T @ values, torch.eye(4, dtype=torch.float64), atol=1e-12)
    for n in range(4):
        end = torch.tensor([cutoff], dtype=torch.float64, requires_grad=True)
        value = basis(end)[0, n]
        (first,) = torch.autograd.grad(value, end, create_graph=True)
        (second,) = torch.autograd.grad(first, end)
        assert max(abs(float(x.detach())) for x in (value, first, second)) < 1e-12


def test_gated():
    layer, x = Gated([3, 4, 2]).double(), random(5, 3)
    value, gate = (n[2](torch.nn.functional.silu(n[0](x))) for n in (layer.value, layer.gate))
    assert torch.allclose(layer(x), value / (1.0 + torch.exp(-gate)))


def graph():
    frames = [molecule("H2O"), Atoms("H"), bulk("Cu"), molecule("CH3OH"), Atoms("O2", [[0, 0, 0], [9, 9, 9]])]
    return AtomsGraph.from_ase(frames, 2.7)


def test_segment_sum():
    values, index = random(6, 2), torch.tensor([2, 0, 2, 2, 4, 0])
    expected = torch.stack([values[index == k].sum(0) for k in range(6)])
    assert torch.allclose(segment_sum(values, index, 6), expected)
    assert segment_sum(values[:0], index[:0], 3).tolist() == [[0.0, 0.0]] * 3
    assert twice(lambda v: segment_sum(v, index, 6), values)


def test_gather_and_bag_are_each_others_transpose():
    edges = PairEdges.of(graph())
    n = graph().n_atoms
    h, rows = random(n, 3), random(len(edges.pair), 3)
    for ends, atom in ((edges.sources(), edges.source), (edges.targets(), edges.target)):
        assert torch.equal(gather(h, ends), h[atom])
        assert torch.allclose(bag(rows, ends), segment_sum(rows, atom, n))
        assert torch.allclose((gather(h, ends) * rows).sum(), (h * bag(rows, ends)).sum())
        assert twice(lambda x, ends=ends: gather(x, ends).sin(), h)
        assert twice(lambda x, ends=ends: bag(x, ends).sin(), rows)
    per_pair = random(len(edges.pair_edge), 2)
    assert torch.equal(gather(per_pair, edges.pairs()), per_pair[edges.pair])
    assert twice(lambda x: gather(x, edges.pairs()).sin(), per_pair)


def test_ends_repeated_for_blocks():
    edges = PairEdges.of(graph())
    n = graph().n_atoms
    h, rows = random(3, n, 2), random(3, len(edges.pair), 2)
    for ends, plain in ((edges.sources(3), edges.sources()), (edges.targets(3), edges.targets())):
        assert torch.equal(gather(h, ends), torch.stack([gather(block, plain) for block in h]))
        assert torch.equal(bag(rows, ends), torch.stack([bag(block, plain) for block in rows]))
        assert twice(lambda x, ends=ends: gather(x, ends).sin(), h)
        assert twice(lambda x, ends=ends: bag(x, ends).sin(), rows)
    per_pair = random(3, len(edges.pair_edge), 2)
    assert torch.equal(gather(per_pair, edges.pairs(3)), per_pair[:, edges.pair])


def test_stack_is_so_many_linear_maps():
    torch.manual_seed(0)
    stack = Stack(3, 4, 2).double()
    with torch.no_grad():
        stack.bias.normal_()
    shared, own = random(5, 4), random(3, 5, 4)
    for k in range(3):
        assert torch.allclose(stack(shared)[k], shared @ stack.weight[k] + stack.bias[k])
        assert torch.allclose(stack(own)[k], own[k] @ stack.weight[k] + stack.bias[k])
    assert twice(stack, shared)


def test_signs_turn_pair_vectors_into_edge_vectors():
    one = graph()
    edges = PairEdges.of(one)
    vectors = one.edge_vectors()
    assert torch.equal(vectors[edges.pair_edge][edges.pair] * edges.sign(torch.float64), vectors)


def test_pair_convolution():
    edges = PairEdges.of(graph())
    weights, h = random(len(edges.pair_edge), 2), random(graph().n_atoms, 2)
    expected = segment_sum(weights[edges.pair] * h[edges.source], edges.target, graph().n_atoms)
    assert torch.allclose(pair_convolution(weights, h, edges), expected)
    assert twice(lambda w, x: pair_convolution(w, x, edges).sin(), weights, h)


def test_pair_convolution_of_blocks():
    edges = PairEdges.of(graph())
    weights, h = random(len(edges.pair_edge), 2), random(3, graph().n_atoms, 2)
    expected = torch.stack([pair_convolution(weights, block, edges) for block in h])
    assert torch.equal(pair_convolution(weights, h, edges), expected)
    assert twice(lambda w, x: pair_convolution(w, x, edges).sin(), weights, h)


def test_no_edges_at_all():
    one = AtomsGraph.from_ase([Atoms("H"), Atoms("H")], 5.0)
    edges = PairEdges.of(one)
    assert pair_convolution(torch.zeros(0, 4), torch.ones(2, 4), edges).tolist() == [[0.0] * 4] * 2
    assert gather(torch.ones(2, 4), edges.sources()).shape == (0, 4)
    assert bag(torch.zeros(0, 4), edges.targets()).tolist() == [[0.0] * 4] * 2
