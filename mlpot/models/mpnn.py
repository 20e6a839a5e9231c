"""Message passing with an edge network: MPNN (Gilmer et al., arXiv:1704.01212)."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from mlpot.models._graph_network import GraphNetwork
from mlpot.nn.edges import MessageEdges, Slots
from mlpot.nn.linear import glorot, linear
from mlpot.nn.segment import Ends, gather
from mlpot.nn.stack import StackConfig


class Config(StackConfig):
    """Settings of MPNN. Its update has gates of its own, so that no residual is added unless asked for."""

    residual: Literal["none", "plain", "gated"] = Field("none", description="how a layer's update joins its input")
    edge_channels: int = Field(32, ge=1, description="hidden layer of the network that turns an edge into a matrix")


class Kernels(NamedTuple):
    """Edges as padded lists of each atom's neighbours, D slots an atom."""

    hidden: Tensor  # (N, K + 1, D): f (h, 1), zero in padding
    sources: Ends  # of the N D slots


class MPNN(GraphNetwork[Kernels]):
    """m_i = Σ_j f_ij A(e_ij) x_j,   A(e) = B + Σ_k h_k(e) W_k,   h = silu(U e + u);   x'_i = GRU(m_i, x_i).

    The edge network A and the GRU are the same in all layers (section 5). No edge's matrix is ever formed: a sum
    Σ_j f_ij h_k(e_ij) x_j for each k comes first, and W_k is applied to it once an atom. Set2Set, which reads out the
    molecule in the paper, is a readout of models of properties.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config, nn.Identity())
        channels, hidden = config.channels, config.edge_channels
        self.hidden = nn.Sequential(linear(self.stack.edges.width, hidden), nn.SiLU())
        # B follows the W_k. Their sum over k has the variance of a single Glorot matrix.
        matrices = torch.stack([glorot(channels, channels) for _ in range(hidden + 1)])
        self.matrices = nn.Parameter(matrices * (hidden + 1) ** -0.5)  # (K + 1, C, C), from source to message
        self.gru = nn.GRUCell(channels, channels)

    def prepared(self, edges: MessageEdges) -> Kernels:
        """What all layers read of the edges."""
        slots = Slots.of(edges)
        hidden = self.hidden(edges.attributes)
        kernels = slots.filled(torch.cat([hidden * edges.envelope, edges.envelope], 1))  # (N, D, K + 1)
        return Kernels(kernels.mT, slots.sources)

    def update(self, layer: int, x: Tensor, edges: Kernels) -> Tensor:
        """The state after a message, (N, C) -> (N, C)."""
        sent = gather(x, edges.sources).view(len(x), -1, x.shape[1])  # (N, D, C)
        sums = torch.bmm(edges.hidden, sent)  # (N, K + 1, C)
        return self.gru(sums.flatten(1) @ self.matrices.flatten(0, 1), x)
