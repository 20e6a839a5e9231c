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

# Floating-point numbers in the products of pairs that are worked on at once.
CHUNK = {"cpu": 1 << 20}


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
    """S sectors of a contraction side by side, padded to the same number of rows and columns.

    A sector is what changes sign in one way under the reflections of x, y and z. Row (M, i) and column (j, l) meet only
    in one sector, so that eight small blocks stand for a large matrix of zeros. Index n is the constant 1, n + 1 is 0.

    rows (2, S R): component M of the result and feature i. columns (2, S Q): features j and l, or one and 1, or 1 and 1.
    degrees (S, 1, Q): how often the gradient counts a column: ∂(A·A·A)/∂A = 3 A·A.
    coefficients (η, S R Q): of V_{M,i} = Σ columns, where Σ_i A_i V_{M,i} is the polynomial.
    """

    rows: Array
    columns: Array
    degrees: Array
    coefficients: Array


def _table(sectors: Sequence[int], l_max: int, l_out: int, bases: Sequence[Array]) -> _Table | None:
    sign = (_reflections(max(l_max, l_out)) @ [1, 2, 4]).astype(int)
    n, result = (l_max + 1) ** 2, sign[l_out**2 : (l_out + 1) ** 2]
    order, one = len(bases), (l_max + 1) ** 2
    rows, columns = [], []
    for sector in sectors:
        rows.append([(m, i) for m, own in enumerate(result) for i in range(n) if sign[i] ^ own == sector])
        pairs = [(j, k) for j in range(n) for k in range(j, n) if sign[j] ^ sign[k] == sector and order > 2]
        singles = [(j, one) for j in range(n) if sign[j] == sector and order > 1]
        columns.append([*pairs, *singles, *([(one, one)] if sector == 0 else [])])
    n_rows, n_columns = max(map(len, rows)), max(map(len, columns))
    if not n_rows or not n_columns:
        return None
    degrees = np.zeros((len(sectors), 1, n_columns))
    coefficients = np.zeros((sum(map(len, bases)), len(sectors), n_rows, n_columns))
    first = np.cumsum([0, *map(len, bases)])
    for s, (own_rows, own_columns) in enumerate(zip(rows, columns, strict=True)):
        for q, column in enumerate(own_columns):
            features = [j for j in column if j != one]
            nu = len(features) + 1
            degrees[s, 0, q] = nu
            for r, (m, i) in enumerate(own_rows):
                twice = 2.0 if len(features) == 2 and features[0] != features[1] else 1.0
                block = bases[nu - 1][(slice(None), m, i, *features)]
                coefficients[first[nu - 1] : first[nu], s, r, q] = twice * block
    padded_rows = [[*own, *[(0, one + 1)] * (n_rows - len(own))] for own in rows]
    padded_columns = [[*own, *[(one + 1, one + 1)] * (n_columns - len(own))] for own in columns]
    return _Table(
        np.array(padded_rows).reshape(-1, 2).T,
        np.array(padded_columns).reshape(-1, 2).T,
        degrees,
        coefficients.reshape(len(coefficients), -1),
    )


class _Sectors(NamedTuple):
    """A `_Table` as tensors; `to_result` (2 L + 1, S R) and `to_feature` (n, S R) add rows up."""

    row_feature: Tensor
    row_result: Tensor
    column_a: Tensor
    column_b: Tensor
    degrees: Tensor
    to_result: Tensor
    to_feature: Tensor

    def columns(self, padded: Tensor) -> Tensor:
        """(K, n + 2, m) -> (K S, Q, m)."""
        product = padded.index_select(1, self.column_a) * padded.index_select(1, self.column_b)
        return product.view(padded.shape[0] * len(self.degrees), -1, padded.shape[2])

    def graded(self, coefficients: Tensor) -> Tensor:
        """The gradient's coefficients, (K S, R, Q) like the value's."""
        return (coefficients.view(-1, len(self.degrees), *coefficients.shape[1:]) * self.degrees).view_as(coefficients)

    def slopes(self, padded: Tensor, coefficients: Tensor) -> Tensor:
        """The gradient's rows, (K, S R, m)."""
        product = torch.bmm(self.graded(coefficients), self.columns(padded))
        return product.view(padded.shape[0], -1, padded.shape[2])


def _tensors(table: _Table, n: int, n_out: int) -> tuple[Tensor, ...]:
    """The fields of `_Sectors`, and the coefficients."""
    result, feature = (torch.from_numpy(row.copy()) for row in table.rows)
    column_a, column_b = (torch.from_numpy(row.copy()) for row in table.columns)
    to_result = F.one_hot(result, n_out).T * (feature < n)
    to_feature = F.one_hot(feature, n + 2).T[:n]
    degrees, coefficients = torch.from_numpy(table.degrees), torch.from_numpy(table.coefficients)
    return feature, result, column_a, column_b, degrees, to_result.double(), to_feature.double(), coefficients


def _padded(features: Tensor) -> Tensor:
    one = torch.ones_like(features[:, :1])
    return torch.cat([features, one, torch.zeros_like(one)], 1)


class _Contract(torch.autograd.Function):
    """The polynomials' values, and with them, from the same products, their gradients."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, tables: Sequence[_Sectors], *coefficients: Tensor) -> Tensor:
        ctx.tables, padded = tables, _padded(features)
        result, slopes = features.new_zeros(()), []
        for table, own in zip(tables, coefficients, strict=True):
            n_rows = own.shape[1]
            both = torch.cat([own, table.graded(own)], 1) if ctx.needs_input_grad[0] else own
            rows = torch.bmm(both, table.columns(padded)).view(len(features), -1, both.shape[1], padded.shape[2])
            value = rows[:, :, :n_rows].flatten(1, 2) * padded.index_select(1, table.row_feature)
            result = result + table.to_result @ value
            slopes.append(rows[:, :, n_rows:].flatten(1, 2))
        ctx.save_for_backward(features, *coefficients, *(slopes if ctx.needs_input_grad[0] else ()))
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        features, *rest = ctx.saved_tensors
        n = len(ctx.tables)
        coefficients, slopes = rest[:n], rest[n:]
        padded, again = _padded(features), torch.is_grad_enabled()
        to_features: Tensor | None = None
        to_coefficients: list[Tensor | None] = []
        for k, (table, own) in enumerate(zip(ctx.tables, coefficients, strict=True)):
            spread = grad.index_select(1, table.row_result)
            if ctx.needs_input_grad[0]:
                slope = table.slopes(padded, own) if again else slopes[k]
                term = table.to_feature @ (spread * slope)
                to_features = term if to_features is None else to_features + term
            if ctx.needs_input_grad[2 + k]:
                left = spread * padded.index_select(1, table.row_feature)
                to_coefficients.append(torch.bmm(left.view(len(own), -1, padded.shape[2]), table.columns(padded).mT))
            else:
                to_coefficients.append(None)
        return to_features, None, *to_coefficients


class SymmetricContraction(nn.Module):
    """Polynomials of degree up to `correlation` in features of degrees 0 .. l_max, with weights for each species.

    weight (species, η, C), of unit variance after division by the number of η.
    """

    def __init__(self, l_max: int, l_out: int, correlation: int, n_species: int, channels: int) -> None:
        super().__init__()
        bases = [symmetric_basis(l_max, l_out, order) for order in range(1, correlation + 1)]
        parts = [torch.randn(n_species, len(basis), channels) / max(1, len(basis)) for basis in bases]
        self.weight = nn.Parameter(torch.cat(parts, 1))
        found = [_table(sectors, l_max, l_out, bases) for sectors in ((0, 1, 2, 4), (3, 5, 6, 7))]
        self._tables = [
            tuple(Constant(value) for value in _tensors(table, (l_max + 1) ** 2, 2 * l_out + 1))
            for table in found
            if table is not None
        ]

    def forward(
        self,
        features: Tensor,  # (N, n, C)
        species: Species,
    ) -> Tensor:  # (N, 2 l_out + 1, C)
        """The contraction of each atom's features with the weights of its species."""
        channels = self.weight.shape[2]
        constants = [[constant.like(self.weight) for constant in table] for table in self._tables]
        tables = [_Sectors(*values[:-1]) for values in constants]
        present = self.weight[species.present].mT  # (S, C, η)
        tensors = [present @ values[-1] for values in constants]
        results = []
        for group, own in zip(species.groups, species.split(features), strict=True):
            n, width, n_features, _ = own.shape
            rows = own.permute(0, 3, 2, 1).reshape(n * channels, n_features, width)
            blocks = [
                tensor[group.species].reshape(len(rows) * len(table.degrees), -1, table.degrees.shape[2])
                for tensor, table in zip(tensors, tables, strict=True)
            ]
            # A few channels at a time, whose pairs of features stay in the cache.
            step = max(1, CHUNK.get(own.device.type, 1 << 30) // (width * n_features**2))
            pieces = [b.split(step * len(table.degrees)) for b, table in zip(blocks, tables, strict=True)]
            parts = [
                _Contract.apply(first, tables, *rest) for first, *rest in zip(rows.split(step), *pieces, strict=True)
            ]
            together = parts[0] if len(parts) == 1 else torch.cat(parts)
            results.append(together.view(n, channels, -1, width).permute(0, 3, 2, 1))
        return species.restored(results)
