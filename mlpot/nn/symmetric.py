"""Symmetric contraction: polynomials of an atom's own features that transform as one degree (MACE, arXiv:2206.07697).

B_{k,LM} = Σ_ν Σ_η w_{z,η,k} Σ_m U^{η}_{LM; m₁..m_ν} A_{k,m₁} ... A_{k,m_ν}, ν = 1 .. correlation (equations 10, 11).
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from mlpot.nn.angular import SphericalHarmonics, coupling
from mlpot.nn.constant import Constant
from mlpot.nn.species import Species

Array = NDArray[np.float64]
ATOMS = 64  # of one species that are worked on at once, so that memory does not grow with their pairs of features


@functools.cache
def symmetric_basis(l_max: int, l_out: int, order: int) -> Array:
    """All maps of the product of `order` equal features of degrees 0 .. l_max to degree l_out, natural parity.

    (η, 2 l_out + 1, n, ..., n) with n = (l_max + 1)²: each η is symmetric under exchange of the n-axes, and they are
    orthonormal. Couplings are taken in a fixed order, and those that depend on earlier ones are left out, so that the
    same η means the same polynomial everywhere.
    """
    n, found, flat = (l_max + 1) ** 2, [], np.zeros((0, (2 * l_out + 1) * (l_max + 1) ** (2 * order)))
    for candidate in _products(l_max, order).get((l_out, l_out % 2), []):
        axes = range(1, order + 1)
        symmetric = sum(candidate.transpose(0, *permuted) for permuted in itertools.permutations(axes))
        rest = np.asarray(symmetric).reshape(-1) / math.factorial(order)
        size = float(np.linalg.norm(rest))
        for _ in range(2):  # twice, for orthogonality to the last bit
            rest = rest - (flat @ rest) @ flat
        if np.linalg.norm(rest) > 1e-6 * max(size, 1e-3):
            found.append(rest / np.linalg.norm(rest))
            flat = np.stack(found)
    return flat.reshape(-1, 2 * l_out + 1, *(n,) * order)


def _products(l_max: int, order: int) -> dict[tuple[int, int], list[Array]]:
    """(degree, parity) -> couplings (2 l + 1, n, ..., n) of `order` features with degrees in ascending order."""
    n = (l_max + 1) ** 2
    single = {}
    for degree in range(l_max + 1):
        one = np.zeros((2 * degree + 1, n))
        one[:, degree**2 : (degree + 1) ** 2] = np.eye(2 * degree + 1)
        single[degree] = one
    # last degree -> (degree, parity, tensor)
    chains: list[tuple[int, int, int, Array]] = [(d, d, d % 2, one) for d, one in single.items()]
    for _ in range(order - 1):
        chains = [
            (last, c, (parity + last) % 2, np.einsum("a...,bj,abc->c...j", tensor, single[last], coupling(a, last, c)))
            for before, a, parity, tensor in chains
            for last in range(before, l_max + 1)
            for c in range(abs(a - last), a + last + 1)
        ]
    result: dict[tuple[int, int], list[Array]] = {}
    for _, degree, parity, tensor in chains:
        result.setdefault((degree, parity), []).append(tensor)
    return result


@functools.cache
def _reflections(l_max: int) -> Array:
    """(n, 3): 1 where a component changes its sign as x, y or z does, else 0. Each real harmonic has definite signs."""
    random = torch.Generator().manual_seed(0)
    point = F.normalize(torch.randn(1, 3, generator=random, dtype=torch.float64))
    harmonics = SphericalHarmonics(l_max)
    flips = 1 - 2 * torch.eye(3, dtype=torch.float64)
    odd = [harmonics(point * flip)[0] * harmonics(point)[0] < 0 for flip in flips]
    return torch.stack(odd, 1).numpy().astype(np.float64)


class _Sector(NamedTuple):
    """What changes sign in one way under the reflections of x, y and z: R rows and Q columns that meet nowhere else.

    A row is (M, i), a column (j, l), or (j, n) for a single feature and (n, n) for none; n is the constant 1.
    """

    rows: list[tuple[int, int]]
    columns: list[tuple[int, int]]
    coefficients: Array  # (2 R, Q, η) of V_{M,i} = Σ columns, where Σ_i A_i V_{M,i} is the polynomial, then of ∂/∂A_i


def _sectors(l_max: int, l_out: int, bases: Sequence[Array]) -> list[_Sector]:
    sign = (_reflections(max(l_max, l_out)) @ [1, 2, 4]).astype(int)
    n, order, result = (l_max + 1) ** 2, len(bases), sign[l_out**2 : (l_out + 1) ** 2]
    first, found = np.cumsum([0, *map(len, bases)]), []
    for sector in range(8):
        rows = [(m, i) for m, own in enumerate(result) for i in range(n) if sign[i] ^ own == sector]
        pairs = [(j, k) for j in range(n) for k in range(j, n) if sign[j] ^ sign[k] == sector]
        singles = [(j, n) for j in range(n) if sign[j] == sector]
        kinds = [[(n, n)] if sector == 0 else [], singles, pairs][:order]  # of degree 0, 1, 2
        columns = [(degree, column) for degree, kind in enumerate(kinds) for column in kind]
        if not rows or not columns:
            continue
        value = np.zeros((len(rows), len(columns), first[-1]))
        for (r, (m, i)), (q, (degree, column)) in itertools.product(enumerate(rows), enumerate(columns)):
            times = 2.0 if degree == 2 and column[0] != column[1] else 1.0
            inside: Any = (slice(None), m, i, *column[:degree])
            own = bases[degree][inside]
            value[r, q, first[degree] : first[degree + 1]] = times * own
        # ∂(A·A·A)/∂A = 3 A·A, and so on.
        slope = value * np.array([degree + 1.0 for degree, _ in columns])[None, :, None]
        found.append(_Sector(rows, [column for _, column in columns], np.concatenate([value, slope])))
    return found


class _Tables(NamedTuple):
    """The rows and columns of all sectors, one sector after the other."""

    row_result: Tensor  # (rows,), M
    row_feature: Tensor  # (rows,), i
    column_a: Tensor  # (columns,), j
    column_b: Tensor  # (columns,), l
    to_result: Tensor  # (2 l_out + 1, rows), adds up the rows of each M
    to_feature: Tensor  # (n, rows), adds up the rows of each i
    shapes: list[tuple[int, int]]  # R, Q

    def columns(self, padded: Tensor) -> list[Tensor]:
        """Products of two features, (n + 1, B, m) -> (B, Q, m) for each sector."""
        product = padded.index_select(0, self.column_a) * padded.index_select(0, self.column_b)
        return [part.transpose(0, 1) for part in product.split([q for _, q in self.shapes])]

    def contracted(self, padded: Tensor, coefficients: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """V_{M,i} and ∂/∂A_i, each (rows, B, m); coefficients (B, 2 R, Q) for each sector."""
        products = [torch.bmm(own, part) for own, part in zip(coefficients, self.columns(padded), strict=True)]
        halves = [product.chunk(2, 1) for product in products]
        value, slope = (torch.cat([half[k] for half in halves], 1).transpose(0, 1) for k in (0, 1))
        return value, slope


def _padded(features: Tensor) -> Tensor:
    return torch.cat([features, torch.ones_like(features[:1])])


class _Contract(torch.autograd.Function):
    """The polynomials' values, and with them, from the same products, their gradients."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, tables: _Tables, *coefficients: Tensor) -> Tensor:
        padded = _padded(features)
        value, slope = tables.contracted(padded, coefficients)
        ctx.tables = tables
        ctx.save_for_backward(features, slope, *coefficients)
        rows = value * padded.index_select(0, tables.row_feature)
        return (tables.to_result @ rows.flatten(1)).view(-1, *features.shape[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        tables, (features, slope, *coefficients) = ctx.tables, ctx.saved_tensors
        padded = _padded(features)
        spread = grad.index_select(0, tables.row_result)  # (rows, B, m)
        to_features: Tensor | None = None
        to_coefficients: list[Tensor | None] = [None] * len(coefficients)
        if ctx.needs_input_grad[0]:
            if torch.is_grad_enabled():  # to be differentiated again
                slope = tables.contracted(padded, coefficients)[1]
            to_features = (tables.to_feature @ (spread * slope).flatten(1)).view_as(features)
        if any(ctx.needs_input_grad[2:]):
            rows = (spread * padded.index_select(0, tables.row_feature)).split([r for r, _ in tables.shapes])
            products = [torch.bmm(a.transpose(0, 1), b.mT) for a, b in zip(rows, tables.columns(padded), strict=True)]
            to_coefficients = [torch.cat([product, torch.zeros_like(product)], 1) for product in products]
        return to_features, None, *to_coefficients


class SymmetricContraction(nn.Module):
    """Polynomials of degree up to `correlation` in features of degrees 0 .. l_max, with weights for each species.

    weight (species, η, C), of unit variance after multiplication by the number of η.
    """

    def __init__(self, l_max: int, l_out: int, correlation: int, n_species: int, channels: int) -> None:
        super().__init__()
        bases = [symmetric_basis(l_max, l_out, order) for order in range(1, correlation + 1)]
        parts = [torch.randn(n_species, len(basis), channels) / max(1, len(basis)) for basis in bases]
        self.weight = nn.Parameter(torch.cat(parts, 1))
        sectors = _sectors(l_max, l_out, bases)
        rows, columns = (torch.tensor([x for s in sectors for x in s[k]]).T.contiguous() for k in (0, 1))
        to_result, to_feature = F.one_hot(rows[0], 2 * l_out + 1).T, F.one_hot(rows[1], (l_max + 1) ** 2).T
        self._shapes = [(len(sector.rows), len(sector.columns)) for sector in sectors]
        self._fixed = [Constant(x) for x in (*rows, *columns, to_result.double(), to_feature.double())]
        coefficients = np.concatenate([sector.coefficients.reshape(-1, sum(map(len, bases))) for sector in sectors])
        self._coefficients = Constant(torch.from_numpy(coefficients))  # (Σ 2 R Q, η)

    def forward(
        self,
        features: Tensor,  # (N, n, C)
        species: Species,
    ) -> Tensor:  # (N, 2 l_out + 1, C)
        """The contraction of each atom's features with the weights of its species."""
        weight = self.weight[species.present].mT  # (Z, C, η)
        fixed = [constant.like(weight) for constant in self._fixed]
        tables = _Tables._make([*fixed, self._shapes])
        flat = (weight @ self._coefficients.like(weight).T).split([2 * r * q for r, q in self._shapes], 2)
        results = []
        for group, rows in zip(species.groups, species.split(features), strict=True):
            n, _, n_features, channels = rows.shape
            own = [
                c[group.species].reshape(n * channels, 2 * r, q) for c, (r, q) in zip(flat, self._shapes, strict=True)
            ]
            parts = []
            for part in rows.split(ATOMS, 1):
                across = part.permute(2, 0, 3, 1).reshape(n_features, n * channels, -1)
                result = _Contract.apply(across, tables, *own).view(-1, n, channels, part.shape[1])
                parts.append(result.permute(1, 3, 0, 2))
            results.append(parts[0] if len(parts) == 1 else torch.cat(parts, 1))
        return species.restored(results)
