"""Attention of an atom over its neighbours and itself with H heads, smooth at the cutoff.

Features of H heads stand side by side, (N, H D).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from mlpot.nn.edges import MessageEdges
from mlpot.nn.links import Links, weighed_sum
from mlpot.nn.segment import Ends


class EdgeAttention(NamedTuple):
    """Weights of H heads, which add up to one over the edges that end in an atom and the atom itself."""

    weights: Tensor  # (E, H)
    own: Tensor  # (N, H)


class HeadEdges(NamedTuple):
    """The edges of a graph for H heads."""

    edges: MessageEdges
    links: Links  # along the edges, between atoms
    targets: Ends  # split into heads: (E H,) in order of the edges

    @property
    def edge_index(self) -> Tensor:
        """(2, E)."""
        return self.edges.edge_index

    @classmethod
    def of(cls, edges: MessageEdges, heads: int) -> HeadEdges:
        """The same for each head."""
        start, end = edges.sources.split(heads), edges.targets.split(heads)
        return cls(edges, Links.between(edges.sources, edges.targets, start, end, heads), end)


class _Shares(torch.autograd.Function):
    """u_e = exp(l_e) / Z_t and u_t = exp(l_t) / Z_t with Z_t = exp(l_t) + Σ_e f_e exp(l_e).

    The gradients are written with u itself, so that they can be differentiated in turn:
    with S_t = u_t g_t + Σ_e u_e g_e those in l_e, l_t and f_e are u_e (g_e - f_e S_t), u_t (g_t - S_t) and -u_e S_t.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, own: Tensor, envelope: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        inside = envelope > 0
        flat = torch.where(inside, logits, -torch.inf).flatten()
        largest = own.flatten().scatter_reduce(0, target, flat, "amax")
        # Nothing overflows: the largest exponential of each atom and head is 1, or f for an edge.
        near = flat.sub_(largest.index_select(0, target)).exp_().view_as(logits)
        alone = (own.flatten() - largest).exp_()
        share = alone.index_add(0, target, (near * envelope).flatten()).reciprocal_()
        shares, rest = near.mul_(share.index_select(0, target).view_as(near)), alone.mul_(share).view_as(own)
        ctx.save_for_backward(shares, rest, envelope, target)
        return shares, rest

    @staticmethod
    def backward(ctx: Any, to_shares: Tensor, to_rest: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        shares, rest, envelope, target = ctx.saved_tensors
        near, own = shares * to_shares, rest * to_rest
        total = own.flatten().index_add(0, target, near.flatten())
        lost = shares * total.index_select(0, target).view_as(shares)
        to_envelope = -lost.sum(1, keepdim=True) if ctx.needs_input_grad[2] else None
        return near - envelope * lost, own - rest * total.view_as(rest), to_envelope, None


def edge_softmax(logits: Tensor, own: Tensor, edges: HeadEdges) -> EdgeAttention:
    """α_ij = f_ij exp(l_ij) / (exp(l_ii) + Σ_k f_ik exp(l_ik)), f the envelope: logits (E, H) and own (N, H).

    The atom's own exponential has no envelope. An edge whose envelope goes to zero therefore leaves the sum smoothly,
    and the last one of an atom, too; without the own term its weight would be 1 until it has gone.
    """
    envelope = edges.edges.envelope
    shares, rest = _Shares.apply(logits, own, envelope, edges.targets.atom)
    return EdgeAttention(envelope * shares, rest)


def attended(value: Tensor, attention: EdgeAttention, edges: HeadEdges) -> Tensor:
    """Σ_j α_ij v_j + α_ii v_i of each head, (N, H D) -> (N, H D)."""
    near = weighed_sum(attention.weights, value, edges.links)
    own = attention.own[:, :, None]
    return torch.addcmul(near.view(*own.shape[:2], -1), value.view(*own.shape[:2], -1), own).flatten(1)


def joined(heads: Tensor, n_heads: int, last: bool) -> Tensor:
    """Heads as they are, (N, H D) -> (N, H D), or in a last layer their mean, (N, D)."""
    return heads.unflatten(1, (n_heads, -1)).mean(1) if last else heads


def in_blocks(matrices: Tensor) -> Tensor:
    """H matrices (H, D, F) along the diagonal of one (H D, H F), which acts on features of H heads side by side."""
    n_heads, n_in, n_out = matrices.shape
    heads = torch.eye(n_heads, dtype=matrices.dtype, device=matrices.device)
    return (matrices[:, :, None] * heads[:, None, :, None]).reshape(n_heads * n_in, n_heads * n_out)
