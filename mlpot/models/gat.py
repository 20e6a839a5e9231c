"""Graph attention: GAT (Veličković et al., arXiv:1710.10903) and GATv2 (Brody et al., arXiv:2105.14491)."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from mlpot.models._graph_network import AttentionNetwork
from mlpot.nn.activation import SmoothLeakyReLU
from mlpot.nn.edge_attention import EdgeAttention, HeadEdges, attended, edge_softmax, in_blocks, joined
from mlpot.nn.edges import MessageEdges
from mlpot.nn.linear import glorot, linear
from mlpot.nn.segment import gather
from mlpot.nn.stack import StackConfig, divides


class Config(StackConfig):
    """Settings of GAT and GATv2."""

    variant: Literal["gat", "gatv2"] = Field("gatv2", description="attention that is static, or dynamic (version 2)")
    heads: int = Field(4, ge=1, description="attention heads; they divide the channels")
    slope: Literal["smooth", "leaky_relu"] = Field(
        "smooth", description="activation of the logits: without its kink, or as in the papers"
    )
    negative_slope: float = Field(0.2, ge=0, le=1, description="slope of this activation far below zero")

    _heads = field_validator("heads")(divides)

    def lawless(self) -> list[str]:
        """Also the kink of the leaky ReLU."""
        kink = ["slope = leaky_relu has a kink at zero, where forces jump"] if self.slope == "leaky_relu" else []
        return super().lawless() + kink


SLOPES: dict[str, type[nn.Module]] = {"smooth": SmoothLeakyReLU, "leaky_relu": nn.LeakyReLU}


class GATLayer(nn.Module):
    """x'_i = Σ_j α_ij W x_j + b over neighbours and the atom itself,

        α_ij = softmax_j σ(aᵀ W x_j + cᵀ W x_i + dᵀ e_ij),   σ a leaky ReLU, e_ii = 0  (equations 3 to 6),

    with every neighbour's exponential multiplied by its envelope. Heads are concatenated; the last layer averages them.
    d is one vector of a head, where torch_geometric has the product of a vector and a matrix.
    """

    def __init__(self, channels: int, n_edge: int, heads: int, last: bool, slope: nn.Module) -> None:
        super().__init__()
        self.heads, self.last, self.slope = heads, last, slope
        width = channels if last else channels // heads
        self.value = linear(channels, heads * width, bias=False)
        self.sends, self.receives = (nn.Parameter(glorot(heads, width)) for _ in range(2))
        self.edge = linear(n_edge, heads, bias=False)
        self.bias = nn.Parameter(torch.zeros(channels))

    def attend(self, x: Tensor, edges: HeadEdges) -> tuple[Tensor, EdgeAttention]:
        """The update of the atoms' features (N, C), and the weights."""
        value = self.value(x)  # (N, H D)
        both = in_blocks(torch.stack([self.sends, self.receives], 2))  # (H D, 2 H)
        sent, received = (value @ both).view(len(x), self.heads, 2).unbind(2)  # (N, H)
        source, target = edges.edges.edge_index
        logits = self.edge(edges.edges.attributes) + sent.index_select(0, source) + received.index_select(0, target)
        attention = edge_softmax(self.slope(logits), self.slope(sent + received), edges)
        return joined(attended(value, attention, edges), self.heads, self.last) + self.bias, attention


class GATv2Layer(nn.Module):
    """The same with α_ij = softmax_j aᵀ σ(W x_j + U x_i + V e_ij): neighbours are ranked differently by each atom."""

    def __init__(self, channels: int, n_edge: int, heads: int, last: bool, slope: nn.Module) -> None:
        super().__init__()
        self.heads, self.last, self.slope = heads, last, slope
        width = channels if last else channels // heads
        self.value, self.receives = (linear(channels, heads * width) for _ in range(2))
        self.edge = linear(n_edge, heads * width, bias=False)
        self.logit = nn.Parameter(glorot(heads, width))
        self.bias = nn.Parameter(torch.zeros(channels))

    def attend(self, x: Tensor, edges: HeadEdges) -> tuple[Tensor, EdgeAttention]:
        """The update of the atoms' features (N, C), and the weights."""
        value, received, near = self.value(x), self.receives(x), edges.edges  # (N, H D)
        joint = gather(value, near.sources) + gather(received, near.targets)  # (E, H D)
        joint = torch.addmm(joint, near.attributes, self.edge.weight.T)
        logit = in_blocks(self.logit[:, :, None])  # (H D, H)
        attention = edge_softmax(self.slope(joint) @ logit, self.slope(value + received) @ logit, edges)
        return joined(attended(value, attention, edges), self.heads, self.last) + self.bias, attention


LAYERS: dict[str, type[GATLayer | GATv2Layer]] = {"gat": GATLayer, "gatv2": GATv2Layer}


class GAT(AttentionNetwork[HeadEdges]):
    """Layers of attention with SiLU between them; the energy of an atom is read out of its features."""

    def __init__(self, config: Config) -> None:
        super().__init__(config, config.heads)
        slope = SLOPES[config.slope](config.negative_slope)
        self.layers = nn.ModuleList(
            LAYERS[config.variant](config.channels, self.stack.edges.width, config.heads, last, slope)
            for last in self.stack.is_last
        )

    def prepared(self, edges: MessageEdges) -> HeadEdges:
        """What all layers read of the edges."""
        return HeadEdges.of(edges, self.heads)
