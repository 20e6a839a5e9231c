"""Attention of an atom over its neighbours and itself, smooth at the cutoff."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mlpot.nn.edges import MessageEdges
from mlpot.nn.segment import bag, gather


class EdgeAttention(NamedTuple):
    """Weights of H heads, which add up to one over the edges that end in an atom and the atom itself."""

    weights: Tensor  # (E, H)
    own: Tensor  # (N, H)


def edge_softmax(logits: Tensor, own: Tensor, edges: MessageEdges) -> EdgeAttention:
    """α_ij = f_ij exp(l_ij) / (exp(l_ii) + Σ_k f_ik exp(l_ik)), f the envelope: logits (E, H) and own (N, H).

    The atom's own exponential has no envelope. An edge whose envelope goes to zero therefore leaves the sum smoothly,
    and the last one of an atom, too; without the own term its weight would be 1 until it has gone.
    """
    inside = edges.envelope > 0
    present = torch.where(inside, logits.detach(), -torch.inf)
    target = edges.edge_index[1][:, None].expand_as(present)
    largest = own.detach().scatter_reduce(0, target, present, "amax")
    # Nothing overflows: the largest exponential of each atom and head is 1, or f for an edge.
    near = edges.envelope * torch.exp(torch.where(inside, logits - gather(largest, edges.targets), 0.0))
    self_ = torch.exp(own - largest)
    total = self_ + bag(near, edges.targets)
    return EdgeAttention(near / gather(total, edges.targets), self_ / total)


def attended(rows: Tensor, own: Tensor, attention: EdgeAttention, edges: MessageEdges) -> Tensor:
    """Σ_j α_ij v_ij + α_ii v_i of each head: v (E, H, D) of edges and (N, H, D) of atoms -> (N, H, D)."""
    weighed = (rows * attention.weights[:, :, None]).flatten(1)
    return bag(weighed, edges.targets).view_as(own) + own * attention.own[:, :, None]


def joined(heads: Tensor, last: bool) -> Tensor:
    """Heads one beside the other, (N, H, D) -> (N, H D), or in a last layer their mean, (N, D)."""
    return heads.mean(1) if last else heads.flatten(1)
