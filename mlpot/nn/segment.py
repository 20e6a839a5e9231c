"""Gathering from atoms to edges and summing back, in forms that are quick and can be differentiated any number of times.

`torch.nn.functional.embedding` and `embedding_bag` are several times quicker on a CPU than indexing and `index_add`
(benchmarks/segment.py), but their gradients take the slow way; here each one's gradient is the other.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from mlpot.graph import AtomsGraph


def segment_sum(values: Tensor, index: Tensor, n: int) -> Tensor:
    """Sum of the rows of `values` (E, ...) that share an index, (n, ...). `index` (E,) int64 in any order."""
    return values.new_zeros((n, *values.shape[1:])).index_add(0, index, values)


class _PairConvolution(torch.autograd.Function):
    """m_i = sum over the edges (j -> i) of W_pair ∘ h_j. Symmetric in i and j, so its own transpose in h."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, h: Tensor, edges: PairEdges) -> Tensor:
        ctx.save_for_backward(weights, h)
        ctx.edges = edges
        # Gradients arrive transposed or expanded at times, where gathering is several times slower.
        weights, h = weights.contiguous(), h.contiguous()
        product = F.embedding(edges.pair, weights).mul_(F.embedding(edges.source, h))
        return F.embedding_bag(edges.every_edge, product, edges.first_edge, mode="sum")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        weights, h = ctx.saved_tensors
        need_weights, need_h, _ = ctx.needs_input_grad
        return (
            _PairProduct.apply(grad, h, ctx.edges) if need_weights else None,
            _PairConvolution.apply(weights, grad, ctx.edges) if need_h else None,
            None,
        )


class _PairProduct(torch.autograd.Function):
    """w_pair = a_i ∘ b_j + a_j ∘ b_i: the gradient of the pair convolution in its weights."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, edges: PairEdges) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.edges = edges
        i, j = edges.pair_target, edges.pair_source
        a, b = a.contiguous(), b.contiguous()
        product = F.embedding(i, a).mul_(F.embedding(j, b))
        return product.addcmul_(F.embedding(j, a), F.embedding(i, b))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        a, b = ctx.saved_tensors
        need_a, need_b, _ = ctx.needs_input_grad
        return (
            _PairConvolution.apply(grad, b, ctx.edges) if need_a else None,
            _PairConvolution.apply(grad, a, ctx.edges) if need_b else None,
            None,
        )


class PairEdges:
    """The index tensors of a graph's edges and pairs, in the form that the convolution needs."""

    def __init__(self, graph: AtomsGraph) -> None:
        self.pair_edge, self.pair = graph.pairs
        self.source, target = (row.contiguous() for row in graph.edge_index)
        self.pair_source, self.pair_target = self.source[self.pair_edge], target[self.pair_edge]
        self.every_edge = torch.arange(target.numel(), device=target.device)
        # Position of each atom's first edge; an atom without edges gets an empty bag, whose sum is zero.
        self.first_edge = torch.searchsorted(target, torch.arange(graph.n_atoms, device=target.device))

    @classmethod
    def of(cls, graph: AtomsGraph) -> PairEdges:
        """Those of a graph, made once for it and its moved copies."""
        return graph.derived("pair_edges", cls)


def pair_convolution(weights: Tensor, h: Tensor, edges: PairEdges) -> Tensor:
    """m_i = sum_j W_ij ∘ h_j with one weight row a pair: weights (P, C), h (N, C) -> (N, C).

    Differentiable to any order in weights and h.
    """
    return _PairConvolution.apply(weights, h, edges)
