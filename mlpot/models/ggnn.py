"""Gated graph network: GGNN (Li et al., arXiv:1511.05493), with torch_geometric's scalar weights of edges."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor, nn

from mlpot.models._graph_network import GraphNetwork
from mlpot.nn.edge_weights import WEIGHTS, WeightedConfig
from mlpot.nn.edges import MessageEdges
from mlpot.nn.linear import linear
from mlpot.nn.links import Links, weighed_sum


class Config(WeightedConfig):
    """Settings of GGNN. Its update has gates of its own, so that no residual is added unless asked for."""

    residual: Literal["none", "plain", "gated"] = Field("none", description="how a layer's update joins its input")
    input_channels: int | None = Field(
        None, ge=1, description="width of the input, which zeros fill up to the channels; half of them if not given"
    )

    @field_validator("input_channels")
    @classmethod
    def _fits(cls, value: int | None, info: ValidationInfo) -> int | None:
        channels = info.data.get("channels")
        if value is not None and channels is not None and value > channels:
            raise ValueError(f"at most as many as channels, {channels}")
        return value


class Weighted(NamedTuple):
    """The adjacency matrix."""

    weights: Tensor  # (E, 1): w_ij
    links: Links


class GGNN(GraphNetwork[Weighted]):
    """x⁰ = [a_Z, 0];   m_i = Σ_j w_ij W_l x_j;   x'_i = GRU(m_i, x_i), one GRU for all layers (section 3.2)."""

    def __init__(self, config: Config) -> None:
        channels = config.channels
        super().__init__(config, nn.Identity(), config.input_channels or max(1, channels // 2))
        self.weights = WEIGHTS[config.edge_weights](self.stack.edges.width)
        self.layers = nn.ModuleList(linear(channels, channels, bias=False) for _ in range(config.n_layers))
        self.gru = nn.GRUCell(channels, channels)

    def prepared(self, edges: MessageEdges) -> Weighted:
        """The same in all layers."""
        return Weighted(self.weights(edges), Links.of(edges.sources, edges.targets))

    def update(self, layer: int, x: Tensor, edges: Weighted) -> Tensor:
        """The state after a message, (N, C) -> (N, C)."""
        return self.gru(weighed_sum(edges.weights, self.layers[layer](x), edges.links), x)
