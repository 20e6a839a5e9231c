"""Graph transformer: dot-product attention over neighbours (Shi et al., UniMP, arXiv:2009.03509)."""

from __future__ import annotations

from pydantic import Field, field_validator
from torch import Tensor, nn

from mlpot.models._graph_network import AttentionNetwork
from mlpot.nn.edge_attention import EdgeAttention, attended, edge_softmax, joined
from mlpot.nn.edges import MessageEdges
from mlpot.nn.linear import linear
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
        width = heads * (channels if last else channels // heads)
        self.query, self.value = linear(channels, width), linear(channels, width)
        self.key = linear(channels, width, bias=False)
        self.edge = linear(n_edge, width, bias=False)
        self.skip = linear(channels, channels)

    def attend(self, x: Tensor, edges: MessageEdges) -> tuple[Tensor, EdgeAttention]:
        """The update of the atoms' features (N, C), and the weights."""
        query, key, value = self.query(x), self.key(x), self.value(x)  # (N, H D)
        edge = self.edge(edges.attributes)
        logits = self._logits(gather(query, edges.targets), gather(key, edges.sources) + edge)
        attention = edge_softmax(logits, self._logits(query, key), edges)
        rows = self._heads(gather(value, edges.sources) + edge)
        return joined(attended(rows, self._heads(value), attention, edges), self.last) + self.skip(x), attention

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(1, (self.heads, -1))

    def _logits(self, query: Tensor, key: Tensor) -> Tensor:
        product = self._heads(query * key)
        return product.sum(2) * product.shape[2] ** -0.5


class Transformer(AttentionNetwork):
    """Layers of attention with SiLU between them; the energy of an atom is read out of its features."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.layers = nn.ModuleList(
            TransformerLayer(config.channels, self.stack.edges.width, config.heads, last) for last in self.stack.is_last
        )
