"""Sums over triplets k -> j -> i: what an edge j -> i hears from the edges k -> j, weighed by their angle.

For the neighbours a, b of an atom j the weights are matrices over (a, b), one for each function of the angle, so that
sums are batched matrix products and nothing of the size of triplets times channels is ever stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from mlpot.graph import AtomsGraph
from mlpot.nn.convolution import Chunk, Neighborhoods
from mlpot.nn.segment import Ends, PairEdges, gather


class Triplets:
    """The neighbours of each atom j in padded lists, and all pairs of them.

    | name     | meaning                                                                              |
    |----------|--------------------------------------------------------------------------------------|
    | around   | the lists, in chunks of n atoms with `width` neighbours each; T slots                |
    | incoming | the edge k -> j of each slot, to gather by from edges to slots                       |
    | outgoing | the slot whose edge is the reverse of an edge, to gather by from slots to edges      |
    | distinct | (M,) False where a slot is paired with itself: k -> j -> k by the same image of k    |

    The M pairs of slots are those of one chunk after the other, n · width² of each.
    """

    def __init__(self, graph: AtomsGraph, width: int) -> None:
        edges, device = PairEdges.of(graph), graph.device
        self.around = Neighborhoods.of(graph, width)
        slot, n_slots = self.around.slot, len(self.around.pairs.atom)
        every = edges.every_edge
        edge = torch.zeros(n_slots, dtype=torch.int64, device=device)
        edge[slot] = every
        self.incoming = Ends(edge, slot, every)
        self.outgoing = Ends.of(slot[edges.reverse], n_slots)
        self._views = _views(self.around.chunks)
        apart = [~torch.eye(c.width, dtype=torch.bool, device=device).expand(c.n, -1, -1) for c in self.around.chunks]
        self.distinct = torch.cat([torch.ones(0, dtype=torch.bool, device=device), *(a.reshape(-1) for a in apart)])

    @classmethod
    def of(cls, graph: AtomsGraph, width: int) -> Triplets:
        """Those of a graph for chunks of `width` numbers an edge, made once for it and its moved copies."""
        return graph.derived(f"triplets_{width}", lambda graph: cls(graph, width))

    def cosines(self, unit: Tensor) -> Tensor:
        """cos of the angle between r_j - r_k and r_i - r_j, (M,): 1 where k -> j -> i is straight on.

        unit (P, 3) along the vectors of the pairs (`AtomsGraph.edge_vectors`).
        """
        vectors = gather(unit, self.around.pairs) * self.around.sign(unit.dtype)  # (T, 3), from j to its neighbours
        parts = vectors.split([chunk.n * chunk.width for chunk in self.around.chunks])
        found = [unit.new_zeros(0)]
        for chunk, part in zip(self.around.chunks, parts, strict=True):
            x = part.view(chunk.n, chunk.width, 3)
            found.append(-torch.bmm(x, x.mT).flatten())
        return torch.cat(found)

    def slots(self, values: Tensor) -> Tensor:
        """What is said of edges (E, C), for the slots (T, C). Padding holds the first edge's."""
        return gather(values, self.incoming)

    def blocks(self, angular: Tensor, ends: Tensor, starts: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Views for each function of the angle and each chunk: A_l (n, width, width), m (n, width, C) and s_l the same.

        angular (L, M), ends (T, C) of the edges j -> i, starts (L, T, C) of the edges k -> j.
        """
        for weights, sent in zip(angular, starts, strict=True):
            for (n, width), slots, pairs in self._views:
                yield (
                    weights[pairs].view(n, width, width),
                    ends[slots].view(n, width, -1),
                    sent[slots].view(n, width, -1),
                )

    def sum(self, angular: Tensor, sent: Tensor) -> Tensor:
        """m_ji = Σ_k Σ_l angular_l(i, k) sent_l(kj), differentiable to any order.

        angular (L, M), zero where not distinct; sent (L, T, C), zero in padding -> (E, C).
        """
        return gather(_Sum.apply(angular, sent, self), self.outgoing)


def _views(chunks: Sequence[Chunk]) -> list[tuple[tuple[int, int], slice, slice]]:
    """((n, width), slots, pairs) of each chunk."""
    found, first = [], 0
    for chunk in chunks:
        last = first + chunk.n * chunk.width**2
        found.append(((chunk.n, chunk.width), chunk.slots, slice(first, last)))
        first = last
    return found


class _Sum(torch.autograd.Function):
    """m_a = Σ_l Σ_b A_l(a, b) s_l(b), for the slots a and b of each atom. These three are each other's gradients."""

    @staticmethod
    def forward(ctx: Any, angular: Tensor, sent: Tensor, triplets: Triplets) -> Tensor:
        ctx.save_for_backward(angular, sent)
        ctx.triplets = triplets
        received = sent.new_zeros(sent.shape[1:])
        for a, m, s in triplets.blocks(angular, received, sent):
            m.baddbmm_(a, s)
        return received

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        angular, sent = ctx.saved_tensors
        need_angular, need_sent, _ = ctx.needs_input_grad
        grad = grad.contiguous()
        return (
            _Product.apply(grad, sent, angular.shape[1], ctx.triplets) if need_angular else None,
            _Spread.apply(angular, grad, ctx.triplets) if need_sent else None,
            None,
        )


class _Spread(torch.autograd.Function):
    """s_l(b) = Σ_a A_l(a, b) m_a."""

    @staticmethod
    def forward(ctx: Any, angular: Tensor, received: Tensor, triplets: Triplets) -> Tensor:
        ctx.save_for_backward(angular, received)
        ctx.triplets = triplets
        sent = received.new_empty(len(angular), *received.shape)
        for a, m, s in triplets.blocks(angular, received, sent):
            torch.bmm(a.mT, m, out=s)
        return sent

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        angular, received = ctx.saved_tensors
        need_angular, need_received, _ = ctx.needs_input_grad
        grad = grad.contiguous()
        return (
            _Product.apply(received, grad, angular.shape[1], ctx.triplets) if need_angular else None,
            _Sum.apply(angular, grad, ctx.triplets) if need_received else None,
            None,
        )


class _Product(torch.autograd.Function):
    """A_l(a, b) = m_a · s_l(b)."""

    @staticmethod
    def forward(ctx: Any, received: Tensor, sent: Tensor, n_pairs: int, triplets: Triplets) -> Tensor:
        ctx.save_for_backward(received, sent)
        ctx.triplets = triplets
        angular = sent.new_empty(len(sent), n_pairs)
        for a, m, s in triplets.blocks(angular, received, sent):
            torch.bmm(m, s.mT, out=a)
        return angular

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        received, sent = ctx.saved_tensors
        need_received, need_sent, *_ = ctx.needs_input_grad
        grad = grad.contiguous()
        return (
            _Sum.apply(grad, sent, ctx.triplets) if need_received else None,
            _Spread.apply(grad, received, ctx.triplets) if need_sent else None,
            None,
            None,
        )
