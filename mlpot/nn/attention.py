"""Attention: weighted means of values, weighted by how well their keys fit a query; and over the edges of a graph.

All forms share one layout: queries (..., Q, C), keys and values (..., K, C), weights (..., H, Q, K) of H heads, which
add up to 1 over the keys. A mask is boolean, (..., Q, K) or what broadcasts to it, and True where a query may look; a
query that may look nowhere gets zeros.
"""

from __future__ import annotations

import math
from typing import NamedTuple, overload

import torch
from torch import Tensor, nn

from mlpot.errors import UserError


class Attended(NamedTuple):
    """What attention gives, and the weights it came by."""

    output: Tensor  # (..., Q, C)
    weights: Tensor  # (..., H, Q, K)


def head_channels(channels: int, heads: int) -> int:
    """Channels of a head. UserError where heads do not divide the channels."""
    if heads < 1 or channels % heads:
        divisors = [n for n in range(1, channels + 1) if channels % n == 0]
        nearest = min(divisors, key=lambda n: abs(n - heads))
        raise UserError(f"heads = {heads} does not divide channels = {channels}; the nearest that does is {nearest}.")
    return channels // heads


def split_heads(x: Tensor, heads: int) -> Tensor:
    """(..., L, C) -> (..., H, L, C / H)."""
    return x.unflatten(-1, (heads, -1)).transpose(-3, -2)


def join_heads(x: Tensor) -> Tensor:
    """(..., H, L, D) -> (..., L, H D)."""
    return x.transpose(-3, -2).flatten(-2)


def masked_softmax(scores: Tensor, mask: Tensor | None = None) -> Tensor:
    """exp(s_qk) / Σ_k' exp(s_qk') over the keys that the mask allows, (..., Q, K); zeros where it allows none."""
    if mask is None:
        return torch.softmax(scores, -1)
    # The lowest finite number instead of -∞, which would make a row without keys NaN, and its gradients.
    lowest = torch.finfo(scores.dtype).min
    return torch.softmax(scores.masked_fill(~mask, lowest), -1).masked_fill(~mask, 0.0)


def dot_scores(query: Tensor, key: Tensor) -> Tensor:
    """q · k / √D, (..., Q, D), (..., K, D) -> (..., Q, K) (Vaswani et al., arXiv:1706.03762, equation 1)."""
    return query @ key.mT / math.sqrt(query.shape[-1])


def scaled_dot_product(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Attended:
    """softmax(Q Kᵀ / √D) V (arXiv:1706.03762, equation 1).

    Queries (..., Q, D), keys (..., K, D), values (..., K, V) -> (..., Q, V), and weights (..., Q, K). Heads are an axis
    like any other here, e.g. (..., H, Q, D) as `split_heads` gives it; the mask then needs an axis for them, too.
    """
    weights = masked_softmax(dot_scores(query, key), mask)
    return Attended(weights @ value, weights)


class Attention(nn.Module):
    """The frame of the forms below: scores of each head, a softmax of them, and each head's share of the values.

    Raises UserError where heads do not divide the channels.
    """

    def __init__(self, channels: int, heads: int = 1) -> None:
        super().__init__()
        self.channels, self.heads, self.width = channels, heads, head_channels(channels, heads)

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """How well keys fit queries, (..., Q, C), (..., K, C) -> (..., H, Q, K)."""
        raise NotImplementedError

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Attended:
        """Queries (..., Q, C), keys and values (..., K, C), mask (..., Q, K) -> (..., Q, C) and (..., H, Q, K)."""
        weights = masked_softmax(self.scores(query, key), None if mask is None else mask.unsqueeze(-3))
        return Attended(join_heads(weights @ split_heads(value, self.heads)), weights)


class MultiHead(Attention):
    """W_o [head_1, ..., head_H], head_h = softmax(W_q q · W_k k / √D) W_v v (arXiv:1706.03762, section 3.2.2)."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__(channels, heads)
        self.query, self.key, self.value, self.out = (nn.Linear(channels, channels) for _ in range(4))
        for layer in (self.query, self.key, self.value, self.out):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """W_q q · W_k k / √D in each head."""
        return dot_scores(split_heads(self.query(query), self.heads), split_heads(self.key(key), self.heads))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Attended:
        """Queries (..., Q, C), keys and values (..., K, C), mask (..., Q, K) -> (..., Q, C) and (..., H, Q, K).

        A query that may look nowhere gets the bias of W_o.
        """
        output, weights = super().forward(query, key, self.value(value), mask)
        return Attended(self.out(output), weights)


class Additive(Attention):
    """s_qk = vᵀ tanh(W q + U k), a v for each head on its share of the hidden channels (arXiv:1409.0473, A.1.2)."""

    def __init__(self, channels: int, heads: int = 1) -> None:
        super().__init__(channels, heads)
        self.query = nn.Linear(channels, channels)
        self.key = nn.Linear(channels, channels, bias=False)
        self.v = nn.Parameter(torch.randn(heads, self.width) / math.sqrt(self.width))

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """vᵀ tanh(W q + U k) in each head."""
        q, k = split_heads(self.query(query), self.heads), split_heads(self.key(key), self.heads)
        hidden = torch.tanh(q[..., :, None, :] + k[..., None, :, :])  # (..., H, Q, K, D)
        return (hidden @ self.v[:, None, :, None])[..., 0]


class Multiplicative(Attention):
    """s_qk = qᵀ W k, a W for each head: the form "general" of Luong et al., arXiv:1508.04025, equation 8."""

    def __init__(self, channels: int, heads: int = 1) -> None:
        super().__init__(channels, heads)
        # So that scores of features of unit variance have unit variance.
        self.weight = nn.Parameter(torch.randn(heads, channels, channels) / channels)

    def scores(self, query: Tensor, key: Tensor) -> Tensor:
        """qᵀ W k in each head."""
        return query[..., None, :, :] @ self.weight @ key[..., None, :, :].mT


class EdgeWeights(NamedTuple):
    """Weights of neighbours and of the atom itself; they add up to 1 over an atom and the edges that end in it."""

    weights: Tensor  # (E, H)
    own: Tensor  # (N, H)


@overload
def edge_softmax(logits: Tensor, envelope: Tensor | None, target: Tensor, n_atoms: int) -> Tensor: ...


@overload
def edge_softmax(logits: Tensor, envelope: Tensor | None, target: Tensor, n_atoms: int, own: Tensor) -> EdgeWeights: ...


def edge_softmax(
    logits: Tensor,  # (E, H)
    envelope: Tensor | None,  # (E, 1), from 1 to 0 at the cutoff; None for 1 everywhere
    target: Tensor,  # (E,)
    n_atoms: int,
    own: Tensor | None = None,  # (N, H)
) -> Tensor | EdgeWeights:  # (E, H), with (N, H) where `own` is given
    """α_ij = f_ij exp(s_ij) / (exp(s_ii) + Σ_k f_ik exp(s_ik)), s_ii the atom's `own` logit, or 0 without one.

    Smooth where a neighbour crosses the cutoff: its weight goes to zero with f, as do the changes that it makes to all
    others. A plain softmax jumps there, since an edge counts in full until it is gone. With f in it but no term of the
    atom itself (s_ii = -∞) it still jumps for the last neighbour, whose f cancels: its weight is 1 until it is gone.

    Any logits are safe from overflow, those of edges with f = 0 do not matter, and it can be differentiated twice.
    """
    f = torch.ones_like(logits[:, :1]) if envelope is None else envelope
    alone = logits.new_zeros(n_atoms, logits.shape[1]) if own is None else own
    inside = torch.where(f > 0, logits, -torch.inf)
    index = target[:, None].expand_as(logits)
    # The result does not depend on what is taken off, so neither do its derivatives.
    largest = alone.detach().scatter_reduce(0, index, inside.detach(), "amax")
    near = f * torch.exp(inside - largest.index_select(0, target))
    rest = torch.exp(alone - largest)
    total = rest.index_add(0, target, near)
    weights = near / total.index_select(0, target)
    return weights if own is None else EdgeWeights(weights, rest / total)
