"""Gathering from atoms to edges and summing back, in forms that are quick and differentiable to any order.

`torch.nn.functional.embedding` and `embedding_bag` are several times quicker on a CPU than indexing and `index_add`
(benchmarks/segment.py), but their gradients take the slow way; here each one's gradient is the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from mlpot.graph import AtomsGraph


def segment_sum(values: Tensor, index: Tensor, n: int) -> Tensor:
    """Sum of the rows of `values` (E, ...) that share an index, (n, ...). `index` (E,) int64 in any order."""
    return values.new_zeros((n, *values.shape[1:])).index_add(0, index, values)


class _Gather(torch.autograd.Function):
    """The rows of atoms at the ends of edges; its transpose is `_Bag` over the same ends."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, ends: Ends) -> Tensor:
        ctx.ends = ends
        return F.embedding(ends.atom, h.contiguous())

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Bag.apply(grad, ctx.ends), None


class _Bag(torch.autograd.Function):
    """The sum, for each atom, of the rows of the edges that end in it; its transpose is `_Gather`."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, ends: Ends) -> Tensor:
        ctx.ends = ends
        return F.embedding_bag(ends.order, rows.contiguous(), ends.first, mode="sum")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return _Gather.apply(grad, ctx.ends), None


class Ends(NamedTuple):
    """One end of every edge: its atom (E,), the edges in order of these atoms (E,), each atom's first place (N,)."""

    atom: Tensor
    order: Tensor
    first: Tensor

    @classmethod
    def of(cls, atom: Tensor, n_atoms: int) -> Ends:
        """From the atom at that end of every edge, (E,) int64 in any order."""
        order = torch.argsort(atom, stable=True)
        first = torch.searchsorted(atom[order], torch.arange(n_atoms, device=atom.device))
        return cls(atom.contiguous(), order, first)

    @classmethod
    def ascending(cls, atom: Tensor, n_atoms: int) -> Ends:
        """The same where atoms are in ascending order."""
        numbers = torch.arange(max(n_atoms, len(atom)), device=atom.device)
        atom = atom.contiguous()
        return cls(atom, numbers[: len(atom)], torch.searchsorted(atom, numbers[:n_atoms]))

    @classmethod
    def single(cls, n: int, device: torch.device) -> Ends:
        """Of n edges, each at an atom of its own."""
        every = torch.arange(n, device=device)
        return cls(every, every, every)

    def split(self, n: int) -> Ends:
        """Of n links in place of every edge, side by side, between the n parts that every atom's row is split into."""
        if n == 1:
            return self
        part = torch.arange(n, device=self.atom.device)
        degree = torch.diff(self.first, append=self.first.new_tensor([len(self.order)]))
        first = n * self.first[:, None] + part * degree[:, None]  # (N, n)
        atom = self.atom[self.order]
        rank = torch.arange(len(self.order), device=part.device) - self.first[atom]
        order = torch.empty_like(self.order).repeat(n)
        order[(first[atom] + rank[:, None]).flatten()] = (n * self.order[:, None] + part).flatten()
        return Ends((n * self.atom[:, None] + part).flatten(), order, first.flatten())

    def repeated(self, n_blocks: int) -> Ends:
        """The same ends in `n_blocks` copies of the graph, one after the other."""
        block = torch.arange(n_blocks, device=self.atom.device)[:, None]
        n_edges, n_summed, n_atoms = len(self.atom), len(self.order), len(self.first)
        return Ends(
            (self.atom + block * n_atoms).reshape(-1),
            (self.order + block * n_edges).reshape(-1),
            (self.first + block * n_summed).reshape(-1),
        )


def gather(h: Tensor, ends: Ends) -> Tensor:
    """h (N, C) -> (E, C): the row of the atom at that end of each edge. Differentiable to any order.

    With ends repeated K times also (K, N, C) -> (K, E, C).
    """
    return _Gather.apply(h.flatten(0, -2), ends).view(*h.shape[:-2], -1, h.shape[-1])


def bag(rows: Tensor, ends: Ends) -> Tensor:
    """rows (E, C) -> (N, C): the sum over the edges that end in each atom. Differentiable to any order.

    With ends repeated K times also (K, E, C) -> (K, N, C).
    """
    return _Bag.apply(rows.flatten(0, -2), ends).view(*rows.shape[:-2], -1, rows.shape[-1])


class _PairConvolution(torch.autograd.Function):
    """m_i = sum over the edges (j -> i) of W_pair ∘ h_j. Symmetric in i and j, so its own transpose in h."""

    @staticmethod
    def forward(ctx: Any, weights: Tensor, h: Tensor, edges: PairEdges) -> Tensor:
        ctx.save_for_backward(weights, h)
        ctx.edges = edges
        kernels = F.embedding(edges.pair, weights.contiguous())
        sums = [
            F.embedding_bag(
                edges.every_edge, F.embedding(edges.source, block).mul_(kernels), edges.first_edge, mode="sum"
            )
            for block in _blocks(h)
        ]
        return torch.stack(sums) if h.dim() > 2 else sums[0]

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
    """w_pair = a_i ∘ b_j + a_j ∘ b_i, summed over blocks: the gradient of the pair convolution in its weights."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, edges: PairEdges) -> Tensor:
        ctx.save_for_backward(a, b)
        ctx.edges = edges
        i, j = edges.pair_target, edges.pair_source
        product: Tensor | None = None
        for x, y in zip(_blocks(a), _blocks(b), strict=True):
            ahead, back = F.embedding(i, x), F.embedding(j, x)
            product = ahead.mul_(F.embedding(j, y)) if product is None else product.addcmul_(ahead, F.embedding(j, y))
            product.addcmul_(back, F.embedding(i, y))
        assert product is not None
        return product

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        a, b = ctx.saved_tensors
        need_a, need_b, _ = ctx.needs_input_grad
        return (
            _PairConvolution.apply(grad, b, ctx.edges) if need_a else None,
            _PairConvolution.apply(grad, a, ctx.edges) if need_b else None,
            None,
        )


def _blocks(h: Tensor) -> Sequence[Tensor]:
    """(K, N, C) as K of (N, C); one that is (N, C) already stays so."""
    # Gradients arrive transposed or expanded at times, where gathering is several times slower.
    return h.contiguous().unbind() if h.dim() > 2 else (h.contiguous(),)


class PairEdges:
    """The index tensors of a graph's edges and pairs, in the form that the convolution needs."""

    def __init__(self, graph: AtomsGraph) -> None:
        self.pair_edge, self.pair = graph.pairs
        self.source, self.target = (row.contiguous() for row in graph.edge_index)
        target = self.target
        self.pair_source, self.pair_target = self.source[self.pair_edge], target[self.pair_edge]
        # The two edges of each pair stand side by side once sorted by pair.
        self.twins = torch.argsort(self.pair, stable=True).view(-1, 2)
        self.first_twin = torch.arange(0, len(self.pair), 2, device=target.device)
        self.reverse = torch.empty_like(self.pair)
        self.reverse[self.twins] = self.twins.flip(1)
        self.every_edge = torch.arange(target.numel(), device=target.device)
        # Position of each atom's first edge; an atom without edges gets an empty bag, whose sum is zero.
        self.first_edge = torch.searchsorted(target, torch.arange(graph.n_atoms, device=target.device))

    def targets(self, n_blocks: int = 1) -> Ends:
        """The ends that receive."""
        return Ends(self.target, self.every_edge, self.first_edge).repeated(n_blocks)

    def sources(self, n_blocks: int = 1) -> Ends:
        """The ends that send. An atom sends along the reverses of the edges that it receives by."""
        return Ends(self.source, self.reverse, self.first_edge).repeated(n_blocks)

    def pairs(self, n_blocks: int = 1) -> Ends:
        """The pairs as if they were atoms, each with two edges: to gather what is worked out once a pair."""
        return Ends(self.pair, self.twins.reshape(-1), self.first_twin).repeated(n_blocks)

    def sign(self, dtype: torch.dtype) -> Tensor:
        """(E, 1): 1 where an edge points as its pair's vector does, -1 for its reverse."""
        sign = -torch.ones(len(self.pair), 1, dtype=dtype, device=self.pair.device)
        sign[self.pair_edge] = 1.0
        return sign

    @classmethod
    def of(cls, graph: AtomsGraph) -> PairEdges:
        """Those of a graph, made once for it and its moved copies."""
        return graph.derived("pair_edges", cls)


def pair_convolution(weights: Tensor, h: Tensor, edges: PairEdges) -> Tensor:
    """m_i = sum_j W_ij ∘ h_j with one weight row a pair: weights (P, C), h (N, C) -> (N, C).

    Also h (K, N, C) -> (K, N, C), with the same weights for each of the K blocks.
    Differentiable to any order in weights and h.
    """
    return _PairConvolution.apply(weights, h, edges)
