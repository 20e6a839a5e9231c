"""Weighted sums along links between rows, and their transpose: no row of a link is ever kept.

y_t = Σ_e w_e x_s(e) over the links e that end in t, and p_e = ⟨a_t(e), b_s(e)⟩. The gradients of each are the other, so
that both are differentiable to any order.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from mlpot.nn.segment import Ends


class Way(NamedTuple):
    """Links in order of the rows they lead to: the row each comes from (M,), the order (M,), each row's first place."""

    start: Tensor
    order: Tensor
    first: Tensor


class Links(NamedTuple):
    """M links, each from a row of one table to a row of another."""

    sources: Tensor  # (M,)
    targets: Tensor  # (M,)
    there: Way
    back: Way

    @classmethod
    def of(cls, sources: Ends, targets: Ends) -> Links:
        """From both ends of the same links."""
        there = Way(sources.atom[targets.order], targets.order, targets.first)
        back = Way(targets.atom[sources.order], sources.order, sources.first)
        return cls(sources.atom, targets.atom, there, back)

    @property
    def reversed(self) -> Links:
        """The same links, the other way."""
        return Links(self.targets, self.sources, self.back, self.there)


class _Weighed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, x: Tensor, links: Links) -> Tensor:
        ctx.save_for_backward(weights, x)
        ctx.links = links
        way = links.there
        ordered = weights.index_select(0, way.order)
        return F.embedding_bag(way.start, x.contiguous(), way.first, mode="sum", per_sample_weights=ordered)

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
        return rows.mul_(F.embedding(links.sources, b.contiguous())).sum(1)

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
    """y_t = Σ_e w_e x_s(e): weights (M,), x (S, C) -> (T, C)."""
    return _Weighed.apply(weights, x, links)


def products(a: Tensor, b: Tensor, links: Links) -> Tensor:
    """p_e = ⟨a_t(e), b_s(e)⟩: a (T, C), b (S, C) -> (M,)."""
    return _Products.apply(a, b, links)
