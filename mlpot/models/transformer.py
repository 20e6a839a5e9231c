"""Graph transformer: dot-product attention over neighbours (Shi et al., UniMP, arXiv:2009.03509)."""

from __future__ import annotations

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from mlpot.models._graph_network import AttentionNetwork
from mlpot.nn.edge_attention import EdgeAttention, HeadEdges, attended, each_with, edge_softmax, joined
from mlpot.nn.linear import linear
from mlpot.nn.links import weighed_sum
from mlpot.nn.segment import gather
from mlpot.nn.stack import StackConfig, divides


class Config(StackConfig):
    """Settings of the graph transformer."""

    heads: int = Field(4, ge=1, description="attention heads; they divide the channels")

    _heads = field_validator("heads")(divides)


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

    def attend(self, x: Tensor, edges: HeadEdges) -> tuple[Tensor, EdgeAttention]:
        """The update of the atoms' features (N, C), and the weights."""
        query, key, value = self.query(x) * self.scale, self.key(x), self.value(x)  # (N, H D)
        near = edges.edges
        told = torch.addmm(gather(key, near.sources), near.attributes, self.edge.weight.T)  # (E, H D)
        logits = self._sums(told * gather(query, near.targets))
        attention = edge_softmax(logits, self._sums(query * key), edges)
        # Σ_j α E e_ij is worked out as E Σ_j α e_ij, once an atom.
        sums = weighed_sum(attention.weights.flatten(), near.attributes, edges.told)  # (N H, F)
        edge = self.edge.weight.view(self.heads, -1, near.attributes.shape[1])  # (H, D, F)
        heads = attended(value, attention, edges) + torch.einsum("nhf,hdf->nhd", sums.unflatten(0, (len(x), -1)), edge)
        return joined(heads, self.last) + self.skip(x), attention

    def _sums(self, products: Tensor) -> Tensor:
        """Over the channels of each head, (..., H D) -> (..., H)."""
        return products @ each_with(products.new_ones(self.heads, products.shape[1] // self.heads))


class Transformer(AttentionNetwork):
    """Layers of attention with SiLU between them; the energy of an atom is read out of its features."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, config.heads)
        self.layers = nn.ModuleList(
            TransformerLayer(config.channels, self.stack.edges.width, config.heads, last) for last in self.stack.is_last
        )
