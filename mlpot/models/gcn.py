"""Graph convolution: GCN (Kipf, Welling, arXiv:1609.02907)."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional as F

from mlpot.models._graph_network import GraphNetwork
from mlpot.nn.edge_weights import WEIGHTS, WeightedConfig
from mlpot.nn.edges import MessageEdges
from mlpot.nn.linear import linear
from mlpot.nn.links import Links, weighed_sum
from mlpot.nn.segment import segment_sum


class Config(WeightedConfig):
    """Settings of GCN."""


class Normalised(NamedTuple):
    """The adjacency matrix with the atoms themselves, over the roots of both ends' degrees."""

    weights: Tensor  # (E, 1): w_ij / √(d_i d_j)
    own: Tensor  # (N, 1): 1 / d_i
    links: Links


class GCN(GraphNetwork[Normalised]):
    """x'_i = W_l (x_i / d_i + Σ_j w_ij x_j / √(d_i d_j)) + b_l,   d_i = 1 + Σ_j w_ij  (equation 2, weighted edges).

    The atom's own edge has weight 1. Degrees are smooth, since weights go to zero at the cutoff. SiLU is between the
    layers; the energy of an atom is read out of its features.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.weights = WEIGHTS[config.edge_weights](self.stack.edges.width)
        self.layers = nn.ModuleList(linear(config.channels, config.channels) for _ in range(config.n_layers))

    def prepared(self, edges: MessageEdges) -> Normalised:
        """The same in all layers."""
        weights = self.weights(edges)[:, 0]
        source, target = edges.edge_index
        scale = (1.0 + segment_sum(weights, target, edges.n_atoms)).rsqrt()  # (N,)
        between = scale.index_select(0, source) * scale.index_select(0, target)
        links = Links.of(edges.sources, edges.targets)
        return Normalised((weights * between)[:, None], (scale * scale)[:, None], links)

    def update(self, layer: int, x: Tensor, edges: Normalised) -> Tensor:
        """A layer's convolution, (N, C) -> (N, C)."""
        own = self.layers[layer]
        assert isinstance(own, nn.Linear)
        sent = F.linear(x, own.weight)
        return weighed_sum(edges.weights, sent, edges.links) + edges.own * sent + own.bias
