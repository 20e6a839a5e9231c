"""The basis of distance and angle against scipy's functions, and sums over triplets against a loop."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from scipy.special import sph_harm_y, spherical_jn
from torch import Tensor

from mlpot.graph import AtomsGraph
from mlpot.nn.activation import silu
from mlpot.nn.polynomials import Chebyshev, Legendre
from mlpot.nn.spherical_bessel import SphericalBessel, ZonalHarmonics, envelope, zeros_of_bessel
from mlpot.nn.triplets import Triplets
from tests.core.pyg_dimenet import exact_zeros

SIZES = [(7, 6), (1, 1), (2, 5), (12, 3)]


def derivatives(values: Tensor, x: Tensor, order: int) -> Tensor:
    """d^order/dx^order of every column (P, K), each row of which depends on its own x."""
    columns = []
    for column in values.unbind(1):
        for _ in range(order):
            (column,) = torch.autograd.grad(column.sum(), x, create_graph=True)
        columns.append(column.detach())
    return torch.stack(columns, 1)


@pytest.mark.parametrize("size", SIZES)
def test_zeros(size: tuple[int, int]) -> None:
    np.testing.assert_allclose(zeros_of_bessel(*size), exact_zeros(*size), rtol=1e-13)


@pytest.mark.parametrize("size", SIZES)
def test_bessel_functions_and_their_derivatives_are_scipys(size: tuple[int, int]) -> None:
    n_spherical, n_radial = size
    x = torch.cat([torch.tensor([0.0, 1e-12, 1e-6, 1e-3]), torch.linspace(0.01, 1.0, 50)]).double().requires_grad_()
    got = SphericalBessel(n_spherical, n_radial)(x)
    r, zeros = x.detach().numpy()[:, None], exact_zeros(*size)
    for order in range(n_spherical):
        z = zeros[order]
        scale = np.sqrt(2.0) / np.abs(spherical_jn(order + 1, z))
        j, slope = spherical_jn(order, z * r), spherical_jn(order, z * r, derivative=True)
        with np.errstate(divide="ignore", invalid="ignore"):  # Bessel's differential equation
            curve = -2.0 / (z * r) * slope - (1.0 - order * (order + 1) / (z * r) ** 2) * j
        columns = got[:, order * n_radial : (order + 1) * n_radial]
        np.testing.assert_allclose(columns.detach().numpy(), scale * j, atol=1e-12 * scale.max())
        np.testing.assert_allclose(derivatives(columns, x, 1).numpy(), scale * z * slope, atol=1e-10)
        away = r[:, 0] > 0.05  # where the equation does not cancel
        second = derivatives(columns, x, 2).numpy()
        np.testing.assert_allclose(second[away], (scale * z * z * curve)[away], atol=1e-7)
        assert np.isfinite(second).all()


def test_bessel_functions_are_orthonormal() -> None:
    nodes, weights = np.polynomial.legendre.leggauss(80)
    x = torch.from_numpy(0.5 * (nodes + 1.0))
    values = SphericalBessel(7, 6)(x).view(-1, 7, 6)
    weight = torch.from_numpy(0.5 * weights) * x**2
    products = torch.einsum("p,pln,plm->lnm", weight, values, values)
    torch.testing.assert_close(products, torch.eye(6).double().expand(7, 6, 6), rtol=0, atol=1e-12)


def test_zonal_harmonics_are_scipys() -> None:
    angles = np.linspace(0.0, np.pi, 31)
    got = ZonalHarmonics(9)(torch.from_numpy(np.cos(angles)))
    expected = np.stack([sph_harm_y(degree, 0, angles, 0.0).real for degree in range(9)])
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-13)


@pytest.mark.parametrize("family", [Legendre, Chebyshev])
def test_polynomials_are_numpys_to_the_third_derivative(family: type[Legendre | Chebyshev]) -> None:
    series = {Legendre: np.polynomial.Legendre, Chebyshev: np.polynomial.Chebyshev}[family]
    x = torch.tensor([-1.0, -0.3, 0.0, 0.6, 1.0], dtype=torch.float64, requires_grad=True)
    values = family(6)(x).T
    for order in range(4):
        expected = np.stack([series.basis(k).deriv(order)(x.detach().numpy()) for k in range(6)], 1)
        np.testing.assert_allclose(derivatives(values, x, order).numpy(), expected, rtol=1e-12, atol=1e-12)


def test_the_envelope_is_the_papers_and_vanishes_with_two_derivatives() -> None:
    distances = torch.tensor([0.5, 2.0, 4.9, 5.0, 5.1], dtype=torch.float64)
    x = distances / 5.0
    a, b, c, p = -28.0, 48.0, -21.0, 6  # arXiv:2003.03123, equation 8
    expected = (1 / x + a * x ** (p - 1) + b * x**p + c * x ** (p + 1)) * (x < 1)
    torch.testing.assert_close(envelope(distances, 5.0, 5), expected, rtol=1e-12, atol=1e-14)
    edge = torch.tensor([5.0 - 1e-9], dtype=torch.float64, requires_grad=True)
    for order in range(3):
        assert float(derivatives(envelope(edge, 5.0, 5)[:, None], edge, order).abs().max()) < 1e-6
    assert math.isfinite(float(envelope(torch.zeros(1).double(), 5.0, 5)))


def crystal() -> Atoms:
    return Atoms("CO", [[0, 0, 0], [1.1, 0.9, 1.2]], cell=[[2.4, 0, 0], [0.3, 2.6, 0], [0.1, 0.2, 2.8]], pbc=True)


def random(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def test_sums_over_triplets_are_those_of_a_loop() -> None:
    torch.manual_seed(0)
    graph = AtomsGraph.from_ase([crystal(), molecule("H2O"), molecule("O"), molecule("C2H2")], 2.7)
    triplets = Triplets.of(graph, 1 << 14)  # several chunks
    assert len(triplets.around.chunks) > 1
    vectors = graph.edge_vectors()
    unit = vectors / vectors.norm(dim=1, keepdim=True)
    cosines = triplets.cosines(unit[graph.pairs[0]])
    angular = torch.stack([cosines, cosines**2]) * triplets.distinct
    sent = random(2, graph.n_edges, 3)
    padding = triplets.around.sign(torch.float64).abs()
    got = triplets.sum(angular, torch.stack([triplets.slots(one) * padding for one in sent]))
    expected, (source, target), shift = torch.zeros_like(got), graph.edge_index.tolist(), graph.edge_shift
    for ji in range(graph.n_edges):
        for kj in range(graph.n_edges):
            back = source[kj] == target[ji] and bool((shift[kj] == -shift[ji]).all())
            if target[kj] == source[ji] and not back:
                cosine = unit[ji] @ unit[kj]  # of r_j - r_i and r_k - r_j
                expected[ji] += cosine * sent[0, kj] + cosine**2 * sent[1, kj]
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_sums_over_triplets_can_be_differentiated_twice() -> None:
    torch.manual_seed(0)
    graph = AtomsGraph.from_ase([molecule("H2O"), molecule("CO")], 2.0)
    triplets = Triplets.of(graph, 4)
    n_slots, n_pairs = len(triplets.around.pairs.atom), len(triplets.distinct)
    inputs = [random(2, n_pairs).requires_grad_(), random(2, n_slots, 2).requires_grad_()]
    assert torch.autograd.gradcheck(triplets.sum, inputs)
    assert torch.autograd.gradgradcheck(triplets.sum, inputs)


def test_silu_is_torchs_to_the_third_derivative() -> None:
    x = torch.linspace(-40.0, 40.0, 41, dtype=torch.float64).requires_grad_()
    for order in range(4):
        got, expected = (derivatives(f(x)[:, None], x, order) for f in (silu, torch.nn.functional.silu))
        torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-14)
