"""Weighted sums along links between rows, and their transpose: no row of a link is ever kept.

y_t = Σ_e w_e x_s(e) over the links e that end in t, and p_e = ⟨a_t(e), b_s(e)⟩. The gradients of each are the other, so
that both are differentiable to any order. Rows of H heads side by side have a weight, or a product, for each head.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from mlpot.nn.segment import Ends


class Way(NamedTuple):
    """Links head by head, in order of the heads of rows they lead to.

    start (M H,): the head of a row that each comes from; order (M H,): the place of its weight; first (T H,): where
    those begin that lead to each head of a row.
    """

    start: Tensor
    order: Tensor
    first: Tensor


class Links(NamedTuple):
    """M links, each from a row of one table to a row of another; the rows are of H heads."""

    sources: Tensor  # (M,)
    targets: Tensor  # (M,)
    heads: int
    there: Way
    back: Way

    @classmethod
    def of(cls, sources: Ends, targets: Ends, heads: int = 1) -> Links:
        """From both ends of the same links."""
        return cls.between(sources, targets, sources.split(heads), targets.split(heads), heads)

    @classmethod
    def between(cls, sources: Ends, targets: Ends, start: Ends, end: Ends, heads: int) -> Links:
        """From both ends, and the same split into heads."""
        there = Way(start.atom[end.order], end.order, end.first)
        back = Way(end.atom[start.order], start.order, start.first)
        return cls(sources.atom, targets.atom, heads, there, back)

    @property
    def reversed(self) -> Links:
        """The same links, the other way."""
        return Links(self.targets, self.sources, self.heads, self.back, self.there)


class _Weighed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, x: Tensor, links: Links) -> Tensor:
        ctx.save_for_backward(weights, x)
        ctx.links = links
        start, order, first = links.there
        rows = x.reshape(len(x) * links.heads, x.shape[1] // links.heads)
        ordered = weights.flatten().index_select(0, order)
        sums = F.embedding_bag(start, rows, first, mode="sum", per_sample_weights=ordered)
        return sums.view(len(first) // links.heads, x.shape[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        weights, x = ctx.saved_tensors
        need_weights, need_x, _ = ctx.needs_input_grad
        return (
            _Products.apply(grad, x, ctx.links) if need_weights else None,
            _Weighed.apply(weights, grad, ctx.links.reversed) if need_x else None,
            None,
        )


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, links: Links) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.links = links
        rows = F.embedding(links.targets, a.contiguous())
        rows.mul_(F.embedding(links.sources, b.contiguous()))
        return rows.view(len(rows), links.heads, a.shape[1] // links.heads).sum(2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        a, b = ctx.saved_tensors
        need_a, need_b, _ = ctx.needs_input_grad
        return (
            _Weighed.apply(grad, b, ctx.links) if need_a else None,
            _Weighed.apply(grad, a, ctx.links.reversed) if need_b else None,
            None,
        )


def weighed_sum(weights: Tensor, x: Tensor, links: Links) -> Tensor:
    """y_t = Σ_e w_e x_s(e) of each head: weights (M, H), x (S, H D) -> (T, H D)."""
    return _Weighed.apply(weights, x, links)


def products(a: Tensor, b: Tensor, links: Links) -> Tensor:
    """p_e = ⟨a_t(e), b_s(e)⟩ of each head: a (T, H D), b (S, H D) -> (M, H)."""
    return _Products.apply(a, b, links)
