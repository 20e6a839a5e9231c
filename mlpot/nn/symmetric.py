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


class _Block(NamedTuple):
    """S sectors of a contraction side by side, padded to the same R rows and Q columns.

    A sector is what changes sign in one way under the reflections of x, y and z. Row (M, i) and column (j, l) meet only
    in one sector, so that small blocks stand for a large matrix of zeros. Index n is the constant 1, n + 1 is 0.
    """

    shape: tuple[int, int, int]  # S, R, Q
    rows: Tensor  # (S R, 2): M and i
    columns: Tensor  # (S Q, 2): j and l; for a single feature j and the constant
    coefficients: Tensor  # (S R Q, η), of V_{M,i} = Σ columns; the polynomial is Σ_i A_i V_{M,i}
    weights: Tensor  # (2, Q): how often a column counts for the value, 1, and for the gradient: ∂(A·A·A)/∂A = 3 A·A


def _block(sectors: Sequence[int], l_max: int, l_out: int, bases: Sequence[Array]) -> _Block | None:
    sign = (_reflections(max(l_max, l_out)) @ [1, 2, 4]).astype(int)
    n, order, result = (l_max + 1) ** 2, len(bases), sign[l_out**2 : (l_out + 1) ** 2]
    rows = [[(m, i) for m, own in enumerate(result) for i in range(n) if sign[i] ^ own == s] for s in sectors]
    pairs = [[(j, k) for j in range(n) for k in range(j, n) if sign[j] ^ sign[k] == s] for s in sectors]
    singles = [[(j, n) for j in range(n) if sign[j] == s] for s in sectors]
    kinds = [([[(n, n)] if s == 0 else [] for s in sectors]), singles, pairs][:order]  # of degree 0, 1, 2
    widths = [max(map(len, kind)) for kind in kinds]
    shape = (len(sectors), max(map(len, rows)), sum(widths))
    if not all(shape):
        return None
    columns, first = np.full((shape[0], shape[2], 2), n + 1), np.cumsum([0, *map(len, bases)])
    coefficients = np.zeros((*shape, first[-1]))
    for s, degree in itertools.product(range(len(sectors)), range(order)):
        for q, column in enumerate(kinds[degree][s], sum(widths[:degree])):
            columns[s, q] = column
            times = 2.0 if degree == 2 and column[0] != column[1] else 1.0
            for r, (m, i) in enumerate(rows[s]):
                own = bases[degree][(slice(None), m, i, *column[:degree])]
                coefficients[s, r, q, first[degree] : first[degree + 1]] = times * own
    padded = [[*own, *[(0, n + 1)] * (shape[1] - len(own))] for own in rows]
    counts = [degree + 1.0 for degree, width in enumerate(widths) for _ in range(width)]
    return _Block(
        shape,
        torch.tensor(padded).view(-1, 2),
        torch.from_numpy(columns).view(-1, 2),
        torch.from_numpy(coefficients).flatten(0, 2),
        torch.tensor([[1.0] * len(counts), counts], dtype=torch.float64),
    )


class _Tables(NamedTuple):
    """What the blocks of a contraction have in common, and their shapes and weights."""

    row_result: Tensor  # (rows,), M
    row_feature: Tensor  # (rows,), i
    column_a: Tensor  # (columns,), j
    column_b: Tensor  # (columns,), l
    to_result: Tensor  # (2 l_out + 1, rows), adds up the rows of each M
    to_feature: Tensor  # (n, rows), adds up the rows of each i
    shapes: list[tuple[int, int, int]]
    weights: list[Tensor]

    def columns(self, padded: Tensor) -> list[Tensor]:
        """Products of two features, (m, n + 2, C) -> (m, S, 1, Q, C) of each block."""
        product = padded.index_select(1, self.column_a) * padded.index_select(1, self.column_b)
        parts = product.split([shape[0] * shape[2] for shape in self.shapes], 1)
        return [part.unflatten(1, (shape[0], 1, shape[2])) for part, shape in zip(parts, self.shapes, strict=True)]

    def contracted(self, padded: Tensor, coefficients: Sequence[Tensor]) -> Tensor:
        """V_{M,i} for the value and for the gradient, (m, rows, 2, C); coefficients (m or 1, S, R, Q, C) of each block."""
        results = []
        for columns, own, weights in zip(self.columns(padded), coefficients, self.weights, strict=True):
            if torch.is_grad_enabled() or own.shape[2] * columns.numel() < SMALL:
                results.append((weights @ (own * columns)).flatten(1, 2))
            else:
                results.append(_added_up(own, columns, weights).flatten(1, 2))
        return torch.cat(results, 1)


def _added_up(coefficients: Tensor, columns: Tensor, weights: Tensor) -> Tensor:
    """The same as weights @ (coefficients * columns), column by column into a result that stays in the cache."""
    counts = [round(count) for count in weights[1].tolist()]
    shape = (len(columns), *coefficients.shape[1:3], columns.shape[-1])
    by_count = columns.new_zeros(max(counts), *shape)
    for q, count in enumerate(counts):
        by_count[count - 1].addcmul_(coefficients[:, :, :, q], columns[:, :, :, q])
    value = by_count.sum(0)
    slope = sum(count * part for count, part in enumerate(by_count, 1))
    return torch.stack([value, slope], 3)  # type: ignore[list-item]


def _padded(features: Tensor) -> Tensor:
    one = torch.ones_like(features[:, :1])
    return torch.cat([features, one, torch.zeros_like(one)], 1)


class _Contract(torch.autograd.Function):
    """The polynomials' values, and with them, from the same products, their gradients."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, tables: _Tables, *coefficients: Tensor) -> Tensor:
        padded = _padded(features)
        both = tables.contracted(padded, coefficients)
        ctx.tables = tables
        ctx.save_for_backward(features, both[:, :, 1], *coefficients)
        return tables.to_result @ (both[:, :, 0] * padded.index_select(1, tables.row_feature))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        tables, (features, slope, *coefficients) = ctx.tables, ctx.saved_tensors
        padded = _padded(features)
        spread = grad.index_select(1, tables.row_result)  # (m, rows, C)
        to_features, to_coefficients = None, [None] * len(coefficients)
        if ctx.needs_input_grad[0]:
            if torch.is_grad_enabled():  # to be differentiated again
                slope = tables.contracted(padded, coefficients)[:, :, 1]
            to_features = tables.to_feature @ (spread * slope)
        if any(ctx.needs_input_grad[2:]):
            rows = (spread * padded.index_select(1, tables.row_feature)).split([s * r for s, r, _ in tables.shapes], 1)
            parts = zip(rows, tables.columns(padded), tables.shapes, strict=True)
            products = [row.unflatten(1, (s, r, 1)) * columns for row, columns, (s, r, _) in parts]
            pairs = zip(products, coefficients, strict=True)
            to_coefficients = [p if len(own) > 1 else p.sum(0, keepdim=True) for p, own in pairs]
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
        found = [_block(sectors, l_max, l_out, bases) for sectors in ((0,), (1, 2, 4), (3, 5, 6), (7,))]
        blocks = [block for block in found if block is not None]
        rows, columns = (torch.cat([getattr(b, name) for b in blocks]) for name in ("rows", "columns"))
        n = (l_max + 1) ** 2
        to_result = F.one_hot(rows[:, 0], 2 * l_out + 1) * (rows[:, 1:] < n)
        to_feature = F.one_hot(rows[:, 1], n + 2)[:, :n]
        fixed = (rows[:, 0], rows[:, 1], columns[:, 0], columns[:, 1], to_result.T.double(), to_feature.T.double())
        self._fixed = [Constant(value.contiguous()) for value in fixed]
        self._shapes = [block.shape for block in blocks]
        self._weights = [Constant(block.weights) for block in blocks]
        self._coefficients = [Constant(block.coefficients) for block in blocks]

    def forward(
        self,
        features: Tensor,  # (N, n, C)
        species: Species,
    ) -> Tensor:  # (N, 2 l_out + 1, C)
        """The contraction of each atom's features with the weights of its species."""
        weight = self.weight[species.present]  # (Z, η, C)
        fixed, weights = ([c.like(weight) for c in constants] for constants in (self._fixed, self._weights))
        tables = _Tables(*fixed, self._shapes, weights)
        coefficients = [constant.like(weight) @ weight for constant in self._coefficients]  # (Z, S R Q, C)
        if len(features) <= FEW:  # each atom with its own coefficients: no calls for each species
            own = [F.embedding(species.place, c.flatten(1)).view(-1, *c.shape[1:]) for c in coefficients]
            return _Contract.apply(features, tables, *self._shaped(own))
        step = max(1, CHUNK.get(weight.device.type, 1 << 28) // weight.shape[2])
        results = []
        for z, group in enumerate(species.split(features)):
            own = self._shaped([c[z : z + 1] for c in coefficients])
            results.append(torch.cat([_Contract.apply(part, tables, *own) for part in group.split(step)]))
        return species.restored(results)

    def _shaped(self, coefficients: Sequence[Tensor]) -> list[Tensor]:
        return [c.unflatten(1, shape) for c, shape in zip(coefficients, self._shapes, strict=True)]
