"""Graph transformer: dot-product attention over neighbours (Shi et al., UniMP, arXiv:2009.03509)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from mlpot.models._graph_network import AttentionNetwork
from mlpot.nn.edge_attention import EdgeAttention, HeadEdges, attended, edge_softmax, in_blocks, joined
from mlpot.nn.edges import MessageEdges
from mlpot.nn.linear import linear
from mlpot.nn.links import Links, products, weighed_sum
from mlpot.nn.segment import Ends
from mlpot.nn.stack import StackConfig, divides


class Config(StackConfig):
    """Settings of the graph transformer."""

    heads: int = Field(4, ge=1, description="attention heads; they divide the channels")

    _heads = field_validator("heads")(divides)


class TellingEdges(NamedTuple):
    """The edges of a graph for H heads, and their attributes as rows that are sent to atoms."""

    heads: HeadEdges
    attributes: Tensor  # (E, H F): the same for each head
    told: Links  # from these rows to the atoms

    @property
    def edge_index(self) -> Tensor:
        """(2, E)."""
        return self.heads.edge_index


class TransformerLayer(nn.Module):
    """x'_i = W x_i + b + Σ_j α_ij (v_j + E e_ij),   α_ij = softmax_j q_iᵀ (k_j + E e_ij) / √D  (equations 1 to 3)

    over neighbours and the atom itself (e_ii = 0), with every neighbour's exponential multiplied by its envelope.
    Heads are concatenated; the last layer averages them. Keys have no bias: it would add the same to all logits of an
    atom, and softmax does not see that.
    """

    def __init__(self, channels: int, n_edge: int, heads: int, last: bool) -> None:
        super().__init__()
        self.heads, self.last = heads, last
        each = channels if last else channels // heads
        width, self.scale = heads * each, each**-0.5
        self.query, self.value = linear(channels, width), linear(channels, width)
        self.key = linear(channels, width, bias=False)
        self.edge = linear(n_edge, width, bias=False)
        self.skip = linear(channels, channels)

    def attend(self, x: Tensor, edges: TellingEdges) -> tuple[Tensor, EdgeAttention]:
        """The update of the atoms' features (N, C), and the weights.

        qᵀ E e and Σ_j α E e_ij are worked out as (Eᵀ q)ᵀ e and E Σ_j α e_ij: E acts on atoms, not on edges.
        """
        query, key, value = self.query(x), self.key(x), self.value(x)  # (N, H D)
        edge = in_blocks(self.edge.weight.unflatten(0, (self.heads, -1)))  # (H D, H F)
        logits = products(query, key, edges.heads.links) + products(query @ edge, edges.attributes, edges.told)
        own = (query * key).unflatten(1, (self.heads, -1)).sum(2)
        attention = edge_softmax(self.scale * logits, self.scale * own, edges.heads)
        told = weighed_sum(attention.weights, edges.attributes, edges.told)  # (N, H F)
        heads = torch.addmm(attended(value, attention, edges.heads), told, edge.T)
        return joined(heads, self.heads, self.last) + self.skip(x), attention


class Transformer(AttentionNetwork[TellingEdges]):
    """Layers of attention with SiLU between them; the energy of an atom is read out of its features."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, config.heads)
        self.layers = nn.ModuleList(
            TransformerLayer(config.channels, self.stack.edges.width, config.heads, last) for last in self.stack.is_last
        )

    def prepared(self, edges: MessageEdges) -> TellingEdges:
        """What all layers read of the edges."""
        heads = HeadEdges.of(edges, self.heads)
        rows, parts = (Ends.single(len(ends.atom), ends.atom.device) for ends in (edges.targets, heads.targets))
        told = Links.between(rows, edges.targets, parts, heads.targets, self.heads)
        return TellingEdges(heads, edges.attributes.repeat(1, self.heads), told)
