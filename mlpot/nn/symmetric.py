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

from mlpot.nn.angular import coupling
from mlpot.nn.constant import Constant
from mlpot.nn.species import Species

Array = NDArray[np.float64]

CHUNK = {"cpu": 1 << 13}  # numbers of one feature that are worked on at once, atoms times channels
SMALL = 1 << 18  # products of fewer numbers are written out
FEW = 64  # atoms that are worked on without being sorted by species


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
    from e3nn.o3 import spherical_harmonics

    torch_random = torch.Generator().manual_seed(0)
    point = torch.randn(3, generator=torch_random, dtype=torch.float64)
    degrees = list(range(l_max + 1))
    here = spherical_harmonics(degrees, point, normalize=True)
    odd = [spherical_harmonics(degrees, point * flip, normalize=True) / here < 0 for flip in 1 - 2 * torch.eye(3)]
    return torch.stack(odd, 1).numpy().astype(np.float64)


class _Table(NamedTuple):
    """S sectors of a contraction side by side, padded to the same R rows and Q columns.

    A sector is what changes sign in one way under the reflections of x, y and z. Row (M, i) and column (j, l) meet only
    in one sector, so that eight small blocks stand for a large matrix of zeros. Index n is the constant 1, n + 1 is 0.
    """

    shape: tuple[int, int, int]  # S, R, Q
    row_result: Tensor  # (S R,), M
    row_feature: Tensor  # (S R,), i
    column_a: Tensor  # (S Q,), j
    column_b: Tensor  # (S Q,), l; for single features the constant
    orders: list[int]  # columns that are pairs, single features, and the constant
    coefficients: Tensor  # (S R Q, η), of V_{M,i} = Σ columns; the polynomial is Σ_i A_i V_{M,i}
    to_result: Tensor  # (2 l_out + 1, S R), adds up the rows of each M
    to_feature: Tensor  # (n, S R), adds up the rows of each i


def _table(sectors: Sequence[int], l_max: int, l_out: int, bases: Sequence[Array]) -> _Table | None:
    sign = (_reflections(max(l_max, l_out)) @ [1, 2, 4]).astype(int)
    n, order, result = (l_max + 1) ** 2, len(bases), sign[l_out**2 : (l_out + 1) ** 2]
    pairs = [
        [(j, k) for j in range(n) for k in range(j, n) if sign[j] ^ sign[k] == s and order > 2] for s in sectors
    ]
    singles = [[(j, n) for j in range(n) if sign[j] == s and order > 1] for s in sectors]
    constants = [[(n, n)] if s == 0 else [] for s in sectors]
    rows = [[(m, i) for m, own in enumerate(result) for i in range(n) if sign[i] ^ own == s] for s in sectors]
    orders = [max(map(len, part)) for part in (pairs, singles, constants)]
    shape = (len(sectors), max(map(len, rows)), sum(orders))
    if not all(shape):
        return None
    columns = np.full((*shape[::2], 2), n + 1)
    coefficients = np.zeros((*shape, sum(map(len, bases))))
    first = np.cumsum([0, *map(len, bases)])
    for s in range(len(sectors)):
        starts = np.cumsum([0, *orders])
        for nu, (start, part) in enumerate(zip(starts, (pairs[s], singles[s], constants[s]), strict=False)):
            nu = 3 - nu
            for q, (j, k) in enumerate(part, start):
                columns[s, q] = j, k
                features = [feature for feature in (j, k) if feature != n]
                twice = 2.0 if nu == 3 and j != k else 1.0
                for r, (m, i) in enumerate(rows[s]):
                    coefficients[s, r, q, first[nu - 1] : first[nu]] = twice * bases[nu - 1][(slice(None), m, i, *features)]
    padded = torch.tensor([[*own, *[(0, n + 1)] * (shape[1] - len(own))] for own in rows]).view(-1, 2)
    row_result, row_feature = padded.unbind(1)
    column_a, column_b = torch.from_numpy(columns).view(-1, 2).unbind(1)
    return _Table(
        shape,
        row_result,
        row_feature,
        column_a,
        column_b,
        orders,
        torch.from_numpy(coefficients).flatten(0, 2),
        (F.one_hot(row_result, len(result)) * (row_feature < n)[:, None]).T.double(),
        F.one_hot(row_feature, n + 2).T[:n].double(),
    )


def _padded(features: Tensor) -> Tensor:
    one = torch.ones_like(features[:1])
    return torch.cat([features, one, torch.zeros_like(one)])


def _columns(table: _Table, padded: Tensor) -> Tensor:
    """Products of two features, (n + 2, m, C) -> (S, Q, m, C)."""
    product = padded.index_select(0, table.column_a) * padded.index_select(0, table.column_b)
    return product.view(table.shape[0], table.shape[2], *padded.shape[1:])


def _by_order(table: _Table, padded: Tensor, coefficients: Tensor) -> list[Tensor]:
    """V_{M,i} of pairs, of single features and of the constant, each (S R, m, C); coefficients (S, R, Q, m or 1, C)."""
    columns = _columns(table, padded)[:, None]  # (S, 1, Q, m, C)
    n_sectors, n_rows, n_columns = table.shape
    if torch.is_grad_enabled() or n_rows * columns.numel() < SMALL:
        product = coefficients * columns
        return [part.sum(2).flatten(0, 1) for part in product.split(table.orders, 2)]
    # Larger products are not written out: one column after the other is added to a result that stays in the cache.
    result = columns.new_zeros(3, n_sectors, n_rows, *padded.shape[1:])
    order = [nu for nu, n in enumerate(table.orders) for _ in range(n)]
    for q in range(n_columns):
        result[order[q]].addcmul_(coefficients[:, :, q], columns[:, :, q])
    return list(result.flatten(1, 2).unbind())


class _Contract(torch.autograd.Function):
    """The polynomials' values, and with them, from the same products, their gradients: ∂(A·A·A)/∂A = 3 A·A."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, tables: Sequence[_Table], *coefficients: Tensor) -> Tensor:
        ctx.tables, padded = tables, _padded(features)
        results, slopes = [], []
        for table, own in zip(tables, coefficients, strict=True):
            cubic, square, linear = _by_order(table, padded, own)
            value = cubic + square + linear
            if ctx.needs_input_grad[0]:
                slopes.append(value + 2.0 * cubic + square)
            value *= padded.index_select(0, table.row_feature)
            results.append(table.to_result @ value.flatten(1))
        ctx.save_for_backward(features, *coefficients, *slopes)
        result = results[0] if len(results) == 1 else torch.stack(results).sum(0)
        return result.view(-1, *features.shape[1:])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        features, *rest = ctx.saved_tensors
        n = len(ctx.tables)
        coefficients, slopes = rest[:n], rest[n:]
        padded, again = _padded(features), torch.is_grad_enabled()
        to_features: list[Tensor] = []
        to_coefficients: list[Tensor | None] = []
        for k, (table, own) in enumerate(zip(ctx.tables, coefficients, strict=True)):
            spread = grad.index_select(0, table.row_result)
            if ctx.needs_input_grad[0]:
                if again:
                    cubic, square, linear = _by_order(table, padded, own)
                    slope = 3.0 * cubic + 2.0 * square + linear
                else:
                    slope = slopes[k]
                to_features.append(table.to_feature @ (spread * slope).flatten(1))
            if ctx.needs_input_grad[2 + k]:
                left = (spread * padded.index_select(0, table.row_feature)).view(*table.shape[:2], 1, *grad.shape[1:])
                product = left * _columns(table, padded)[:, None]  # (S, R, Q, m, C)
                to_coefficients.append(product if own.shape[3] > 1 else product.sum(3, keepdim=True))
            else:
                to_coefficients.append(None)
        if not to_features:
            return None, None, *to_coefficients
        total = to_features[0] if n == 1 else torch.stack(to_features).sum(0)
        return total.view_as(features), None, *to_coefficients


class SymmetricContraction(nn.Module):
    """Polynomials of degree up to `correlation` in features of degrees 0 .. l_max, with weights for each species.

    weight (species, η, C), of unit variance after multiplication by the number of η.
    """

    def __init__(self, l_max: int, l_out: int, correlation: int, n_species: int, channels: int) -> None:
        super().__init__()
        bases = [symmetric_basis(l_max, l_out, order) for order in range(1, correlation + 1)]
        parts = [torch.randn(n_species, len(basis), channels) / max(1, len(basis)) for basis in bases]
        self.weight = nn.Parameter(torch.cat(parts, 1))
        found = [_table(sectors, l_max, l_out, bases) for sectors in ((0,), (1, 2, 4), (3, 5, 6), (7,))]
        self._tables = [
            _Table(*(Constant(value) if isinstance(value, Tensor) else value for value in table))  # type: ignore[arg-type]
            for table in found
            if table is not None
        ]

    def forward(
        self,
        features: Tensor,  # (N, n, C)
        species: Species,
    ) -> Tensor:  # (N, 2 l_out + 1, C)
        """The contraction of each atom's features with the weights of its species."""
        weight = self.weight[species.present].transpose(0, 1)  # (η, Z, C)
        tables = [
            _Table(*(value.like(weight) if isinstance(value, Constant) else value for value in table))
            for table in self._tables
        ]
        coefficients = [
            (table.coefficients @ weight.flatten(1)).view(*table.shape, *weight.shape[1:]) for table in tables
        ]
        if len(features) <= FEW:  # each atom with its own coefficients, and no calls for each species
            own = [block.index_select(3, species.place) for block in coefficients]
            return _Contract.apply(features.transpose(0, 1), tables, *own).transpose(0, 1)
        step = max(1, CHUNK.get(weight.device.type, 1 << 28) // weight.shape[2])
        results = []
        for z, group in enumerate(species.split(features.transpose(0, 1).contiguous().transpose(0, 1))):
            own = [block[:, :, :, z : z + 1] for block in coefficients]
            parts = [_Contract.apply(part, tables, *own) for part in group.transpose(0, 1).split(step, 1)]
            results.append(torch.cat(parts, 1).transpose(0, 1))
        return species.restored(results)
