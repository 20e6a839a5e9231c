"""Messages of scalars and vectors between neighbours, PaiNN's (arXiv:2102.03150, eqs. 7 and 8).

    Δs_i = Σ_j W₀ ∘ x⁰_j;   Δv_i = Σ_j r̂_ij (W₁ ∘ x¹_j) + W₂ ∘ y_j,   W_k(r_ij) = u(r_ij) F_k

Neighbours lie in chunks of padded lists (`mlpot.nn.convolution.Neighborhoods`). Where weights do not learn, filters and
messages exist for one chunk at a time, in the cache, and are worked out anew on the way back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from mlpot.graph import AtomsGraph
from mlpot.nn.convolution import Chunk, Neighborhoods, slot_sum
from mlpot.nn.segment import Ends, bag, gather


class Surroundings:
    """A graph's neighbourhoods, and their ends for features that come in blocks."""

    def __init__(self, graph: AtomsGraph, width: int) -> None:
        self.around = Neighborhoods.of(graph, width)
        self._sources: dict[int, Ends] = {}
        self.targets = self.around.targets.repeated(3)
        self.own = [self.around.order[chunk.atoms] for chunk in self.around.chunks]

    def sources(self, n_blocks: int) -> Ends:
        """The ends that send, for so many blocks."""
        if n_blocks not in self._sources:
            self._sources[n_blocks] = self.around.sources.repeated(n_blocks)
        return self._sources[n_blocks]

    @classmethod
    def of(cls, graph: AtomsGraph, width: int) -> Surroundings:
        """Those of a graph for filters of `width` numbers an edge, made once for it and its moved copies."""
        return graph.derived(f"surroundings_{width}", lambda graph: cls(graph, width))


def messages(
    u: Tensor,  # (T, Q), of each slot, zero in padding
    unit: Tensor,  # (T, 3), r̂_ij from target i to source j, zero in padding
    filters: Tensor,  # (3, Q, C): F
    features: Tensor,  # (5, N, C): x⁰, x¹ and the three components of y; (2, N, C) where y is zero
    surroundings: Surroundings,
) -> tuple[Tensor, Tensor]:  # (N, C), (3, N, C)
    """Δs and Δv, differentiable to any order."""
    if torch.is_grad_enabled() and filters.requires_grad:
        return _as_a_whole(u, unit, filters, features, surroundings)
    sums = _Messages.apply(u, unit, filters, features.contiguous(), surroundings)
    return sums[0], sums[1:]


def _as_a_whole(
    u: Tensor, unit: Tensor, filters: Tensor, features: Tensor, surroundings: Surroundings
) -> tuple[Tensor, Tensor]:
    """The equations as they stand, over all edges at once: for the gradients of gradients that training needs."""
    around, n_blocks = surroundings.around, len(features)
    sent = gather(features, surroundings.sources(n_blocks))  # (blocks, T, C)
    scalar, along, *mixed = sent.split([1, 1, n_blocks - 2] if n_blocks > 2 else [1, 1])
    ds = bag((u @ filters[0]) * scalar[0], around.targets)
    dv = slot_sum(unit, (u @ filters[1]) * along[0], around).transpose(0, 1)
    for y in mixed:
        dv = dv + bag((u @ filters[2]) * y, surroundings.targets)
    return ds, dv


class _Part(NamedTuple):
    """What a chunk's messages are made of: n atoms, `width` slots each, t in all."""

    chunk: Chunk
    own: Tensor  # (n,): the atoms
    source: Tensor  # (t,): their neighbours
    u: Tensor  # (t, Q)
    unit: Tensor  # (n, width, 3)

    def sent(self, rows: Tensor) -> Tensor:
        """(N, C) -> (n, width, C): the neighbours' rows."""
        return self.listed(F.embedding(self.source, rows))

    def listed(self, rows: Tensor) -> Tensor:
        """(t, C) -> (n, width, C)."""
        return rows.view(self.chunk.n, self.chunk.width, -1)


def _parts(u: Tensor, unit: Tensor, surroundings: Surroundings) -> Iterator[_Part]:
    source = surroundings.around.sources.atom
    for chunk, own in zip(surroundings.around.chunks, surroundings.own, strict=True):
        slots = chunk.slots
        yield _Part(chunk, own, source[slots], u[slots], unit[slots].view(chunk.n, chunk.width, 3))


class _Messages(torch.autograd.Function):
    """(u, r̂, F, features) -> (4, N, C): Δs, then Δv. Its gradients are sums over the same neighbours, since each edge
    has its reverse: what atom i sent to j comes back to it from j."""

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, unit: Tensor, filters: Tensor, features: Tensor, surroundings: Surroundings
    ) -> Tensor:
        ctx.save_for_backward(u, unit, filters, features)
        ctx.surroundings = surroundings
        sums = features.new_zeros(4, *features.shape[1:])
        for part in _parts(u, unit, surroundings):
            kernels = [part.listed(part.u @ own) for own in filters]
            sums[0, part.own] = part.sent(features[0]).mul_(kernels[0]).sum(1)
            dv = torch.bmm(part.unit.mT, part.sent(features[1]).mul_(kernels[1]))  # (n, 3, C)
            for m, y in enumerate(features[2:]):
                dv[:, m] += part.sent(y).mul_(kernels[2]).sum(1)
            sums[1:, part.own] = dv.transpose(0, 1)
        return sums

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        u, unit, filters, features = ctx.saved_tensors
        if torch.is_grad_enabled() or ctx.needs_input_grad[2]:
            return *_differentiable(ctx.saved_tensors, ctx.needs_input_grad, grad, ctx.surroundings), None
        to_u, to_unit = torch.zeros_like(u), torch.zeros_like(unit)
        to_features = torch.zeros_like(features)
        to_sent = features.new_zeros(len(u), features.shape[2])  # of x¹
        grad = grad.contiguous()
        for part in _parts(u, unit, ctx.surroundings):
            slots, own = part.chunk.slots, part.own
            scalar, along, mixed = (part.listed(part.u @ kernel) for kernel in filters)
            # Along the edges: from the targets, to be summed by source at the end.
            dv = grad[1:, own].transpose(0, 1)  # (n, 3, C)
            projected = torch.bmm(part.unit, dv)  # (n, width, C)
            sent = part.sent(features[1])
            torch.mul(along, projected, out=part.listed(to_sent[slots]))
            to_along = projected.mul_(sent)
            to_unit[slots] = torch.bmm(sent.mul_(along), dv.mT).flatten(0, 1)
            # Of what is the same both ways: from the sources.
            back = part.sent(grad[0])
            to_scalar = back * features[0, own][:, None]
            to_features[0, own] = back.mul_(scalar).sum(1)
            to_u[slots] = to_scalar.flatten(0, 1) @ filters[0].mT + to_along.flatten(0, 1) @ filters[1].mT
            if len(features) > 2:
                to_mixed = torch.zeros_like(mixed)
                for m in range(3):
                    back = part.sent(grad[1 + m])
                    to_mixed.addcmul_(back, features[2 + m, own][:, None])
                    to_features[2 + m, own] = back.mul_(mixed).sum(1)
                to_u[slots] += to_mixed.flatten(0, 1) @ filters[2].mT
        to_features[1] = bag(to_sent, ctx.surroundings.around.sources)
        return to_u, to_unit, None, to_features, None


def _differentiable(
    inputs: tuple[Tensor, ...], wanted: tuple[bool, ...], grad: Tensor, surroundings: Surroundings
) -> list[Tensor | None]:
    """The gradients of the equations as they stand, for gradients of them in turn."""
    create_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        ds, dv = _as_a_whole(*inputs, surroundings)
        chosen = [x for x, want in zip(inputs, wanted, strict=False) if want]
        found = iter(torch.autograd.grad((ds, dv), chosen, (grad[0], grad[1:]), create_graph=create_graph))
    return [next(found) if want else None for want in wanted[: len(inputs)]]
