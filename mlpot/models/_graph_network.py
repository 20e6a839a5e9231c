"""What graph networks of the classic kind are as potentials; a model's own file has its layers."""

from __future__ import annotations

from typing import Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from mlpot.errors import UserError
from mlpot.graph import AtomsGraph
from mlpot.model import Features
from mlpot.nn.edge_attention import EdgeAttention
from mlpot.nn.edges import MessageEdges
from mlpot.nn.linear import network
from mlpot.nn.stack import GraphStack, StackConfig
from mlpot.potential import Potential

Edges = TypeVar("Edges")


class GraphNetwork(Potential, Generic[Edges]):
    """A subclass defines `update`, and `prepared` where its layers read more of the edges than `MessageEdges` tells.

    E_i = W silu(W x_i), or whatever a model of properties reads out of x.
    """

    config: StackConfig
    layers: nn.ModuleList

    def __init__(self, config: StackConfig, activation: nn.Module | None = None, n_input: int | None = None) -> None:
        super().__init__()
        self.config, self.cutoff = config, config.cutoff
        self.stack = GraphStack(config, activation or nn.SiLU(), n_input)
        self.needs, self.channels = self.stack.edges.needs, self.stack.out_channels
        self.readout = network([self.channels, max(1, self.channels // 2), 1])

    def prepared(self, edges: MessageEdges) -> Edges:
        """What all layers read of the edges, worked out once."""
        raise NotImplementedError(f"{type(self).__name__} must define prepared(edges)")

    def update(self, layer: int, x: Tensor, edges: Edges) -> Tensor:
        """What a layer makes of the features, (N, C) -> (N, C)."""
        raise NotImplementedError(f"{type(self).__name__} must define update(layer, x, edges)")

    def atom_energies(self, graph: AtomsGraph) -> Tensor:
        """(N,) eV. UserError for settings that serve properties alone."""
        if lawless := self.config.lawless():
            raise UserError(
                f"{type(self).__name__} with these settings is for properties, not for energies: {'; '.join(lawless)}."
            )
        return self.readout(self.features(graph).scalars)[:, 0]

    def features(self, graph: AtomsGraph) -> Features:
        """x after the last layer, or of all layers joined."""
        return Features(self.stack(graph, self.update, self.prepared))


class Attention(NamedTuple):
    """Of one layer: its edges (2, E) int64, the weights of H heads on them (E, H), and on each atom itself (N, H)."""

    edge_index: Tensor
    weights: Tensor
    own: Tensor


class Directed(Protocol):
    """Whatever the layers read of edges, it tells which these are."""

    @property
    def edge_index(self) -> Tensor:
        """(2, E)."""


Heads = TypeVar("Heads", bound=Directed)


class AttentionNetwork(GraphNetwork[Heads]):
    """A network whose layers have `attend(x, edges) -> (update, EdgeAttention)`."""

    def __init__(self, config: StackConfig, heads: int) -> None:
        super().__init__(config)
        self.heads = heads

    def update(self, layer: int, x: Tensor, edges: Heads) -> Tensor:
        """The layer's update alone."""
        return self.layers[layer].attend(x, edges)[0]  # type: ignore[operator]

    def traced(self, graph: AtomsGraph) -> tuple[Features, list[Attention]]:
        """`features`, and the very weights that they were worked out with, layer by layer, to take gradients in."""
        found: list[Attention] = []

        def recorded(layer: int, x: Tensor, edges: Heads) -> Tensor:
            attention: EdgeAttention
            update, attention = self.layers[layer].attend(x, edges)  # type: ignore[operator]
            found.append(Attention(edges.edge_index, *attention))
            return update

        return Features(self.stack(graph, recorded, self.prepared)), found

    def attention(self, graph: AtomsGraph) -> list[tuple[Tensor, Tensor]]:
        """For each layer (edge_index (2, E'), weights (E', H)), with every atom as an edge i -> i at the end.

        The weights of each head add up to one over the edges that end in an atom.
        """
        atoms = torch.arange(graph.n_atoms, device=graph.device).expand(2, -1)
        return [
            (torch.cat([edge_index, atoms], 1), torch.cat([weights, own]))
            for edge_index, weights, own in self.traced(graph)[1]
        ]
