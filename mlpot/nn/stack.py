"""What graph networks of the classic kind share: their settings, and the pass through their layers.

x⁰_i = a_{Z_i} (+ W f_i, features of the atom that its bonds tell);  x^{l+1} = residual(x^l, drop(σ(norm(layer(x^l))))).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from torch import Tensor, nn
from torch.nn import functional as F

from mlpot.graph import AtomsGraph
from mlpot.nn.depth import JUMPS, NORMS, RESIDUALS, VirtualNode
from mlpot.nn.edges import EDGES, N_ATOM, MessageEdges, bonds_of, fully_adjacent
from mlpot.nn.linear import linear
from mlpot.structure import MAX_NUMBER

Edges = TypeVar("Edges")


class StackConfig(BaseModel):
    """Settings that all of these networks have."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    edges: Literal["radius", "bonds", "both"] = Field("radius", description="what messages run along")
    cutoff: float = Field(5.0, gt=0, description="radius of the neighbourhood, Å")
    channels: int = Field(64, ge=1, description="features of an atom")
    n_layers: int = Field(3, ge=1, description="message-passing layers")
    n_basis: int = Field(20, ge=1, description="radial functions that expand the distance, of radius edges")
    residual: Literal["none", "plain", "gated"] = Field("plain", description="how a layer's update joins its input")
    jumping_knowledge: Literal["none", "concat", "max", "lstm"] = Field(
        "none", description="what becomes of the features after each layer: the last are taken, or all are joined"
    )
    virtual_node: bool = Field(False, description="a node that every atom of a structure exchanges messages with")
    fully_adjacent_last_layer: bool = Field(False, description="the last layer joins all atoms of a structure")
    normalisation: Literal["none", "layer", "graph"] = Field(
        "none", description="of a layer's update: over an atom's channels, or over the atoms of a structure"
    )
    dropout: float = Field(0.0, ge=0, lt=1, description="part of a layer's update left out, in training")

    @field_validator("jumping_knowledge")
    @classmethod
    def _readable(cls, value: str, info: ValidationInfo) -> str:
        if value == "lstm" and info.data.get("channels", 2) * info.data.get("n_layers", 1) < 2:
            raise ValueError("an LSTM over the layers needs two channels or two layers at least")
        return value

    @property
    def n_radial(self) -> int:
        """Radial functions that the layers read."""
        return self.n_basis

    def lawless(self) -> list[str]:
        """What forbids these settings for energies, by setting: each breaks a law that energies and forces keep."""
        coupled = "couples atoms at any distance, so that two far molecules would not add"
        reasons = {
            f"normalisation = graph {coupled}": self.normalisation == "graph",
            f"virtual_node {coupled}": self.virtual_node,
            f"fully_adjacent_last_layer {coupled}": self.fully_adjacent_last_layer,
            "dropout makes energies random in training, and forces no slope of them": self.dropout > 0,
            "jumping_knowledge = max has a kink where two layers change places, and forces jump": (
                self.jumping_knowledge == "max" and self.n_layers > 1
            ),
        }
        return [reason for reason, holds in reasons.items() if holds]


def divides(heads: int, info: ValidationInfo) -> int:
    """A validator of `heads`: they share the channels."""
    channels = info.data.get("channels")
    if channels and channels % heads:
        nearest = min((n for n in range(1, channels + 1) if channels % n == 0), key=lambda n: abs(n - heads))
        raise ValueError(f"heads must divide channels, {channels}; the nearest number that does is {nearest}")
    return heads


class GraphStack(nn.Module):
    """All of a network but its layers: the input, the edges, and what happens between the layers.

    out_channels: of the features it gives.
    """

    def __init__(self, config: StackConfig, activation: nn.Module, n_input: int | None = None) -> None:
        """`activation` follows every layer but the last; `n_input` channels are embedded, the others start at zero."""
        super().__init__()
        channels, n_layers = config.channels, config.n_layers
        n_input = n_input or channels
        self.padding = channels - n_input
        self.edges = EDGES[config.edges](config.cutoff, config.n_radial)
        self.embedding = nn.Embedding(MAX_NUMBER + 1, n_input)
        self.atom_features = linear(N_ATOM, n_input, bias=False) if "bonds" in self.edges.needs else None
        self.activation, self.dropout = activation, nn.Dropout(config.dropout)
        self.norms = nn.ModuleList(NORMS[config.normalisation](channels) for _ in range(n_layers))
        self.residuals = nn.ModuleList(RESIDUALS[config.residual](channels) for _ in range(n_layers))
        self.virtual = VirtualNode(channels, n_layers) if config.virtual_node else None
        self.jump = JUMPS[config.jumping_knowledge](channels, n_layers)
        self.out_channels = self.jump.out_channels
        self.is_last = [False] * (n_layers - 1) + [True]
        self.fully_adjacent = config.fully_adjacent_last_layer

    def start(self, graph: AtomsGraph) -> Tensor:
        """x⁰, (N, C)."""
        x = self.embedding(graph.numbers)
        if self.atom_features is not None:
            x = x + self.atom_features(bonds_of(graph).atom_features.to(x.dtype))
        return F.pad(x, (0, self.padding)) if self.padding else x

    def forward(
        self, graph: AtomsGraph, step: Callable[[int, Tensor, Edges], Tensor], prepare: Callable[[MessageEdges], Edges]
    ) -> Tensor:
        """(N, out_channels). `prepare` works out what a layer reads of edges; `step` is a layer's update of x."""
        x = self.start(graph)
        near = self.edges(graph, x.dtype)
        edges = [prepare(near)] * len(self.is_last)
        if self.fully_adjacent:
            edges[-1] = prepare(fully_adjacent(near, graph.batch))
        node = None if self.virtual is None else self.virtual.first(graph.n_structures)
        layers: list[Tensor] = []
        for k, last in enumerate(self.is_last):
            if self.virtual is not None and node is not None:
                x = x + node[graph.batch]
            update = self.norms[k](step(k, x, edges[k]), graph.batch, graph.n_structures)
            x = self.residuals[k](x, self.dropout(update if last else self.activation(update)))
            if self.virtual is not None and node is not None and not last:
                node = self.virtual.heard(k, node, x, graph.batch)
            layers.append(x)
        return self.jump(layers)
