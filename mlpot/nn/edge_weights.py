"""One number for each edge, for layers that can weigh a message and no more."""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from mlpot.nn.edges import MessageEdges
from mlpot.nn.linear import linear
from mlpot.nn.stack import StackConfig


class WeightedConfig(StackConfig):
    """Settings of networks whose edges have a weight and nothing else."""

    edge_weights: Literal["envelope", "learned"] = Field(
        "envelope", description="what a message is weighed by: the envelope alone (1 for bonds), or besides by a gate"
    )

    n_basis: int = Field(20, ge=1, description="radial functions that expand the distance, of learned weights")

    @property
    def n_radial(self) -> int:
        """None where the envelope is all that is read."""
        return self.n_basis if self.edge_weights == "learned" else 0


class Envelope(nn.Module):
    """w_ij = f_ij: 1 for a bond; the envelope of the cutoff for a pair of atoms near each other."""

    def __init__(self, n_edge: int) -> None:
        super().__init__()

    def forward(self, edges: MessageEdges) -> Tensor:
        """(E, 1)."""
        return edges.envelope


class Learned(nn.Module):
    """w_ij = f_ij s(aᵀ e_ij + b), s the logistic function: what the distance and the bond tell, in one number."""

    def __init__(self, n_edge: int) -> None:
        super().__init__()
        self.gate = linear(n_edge, 1)

    def forward(self, edges: MessageEdges) -> Tensor:
        """(E, 1)."""
        return edges.envelope * torch.sigmoid(self.gate(edges.attributes))


WEIGHTS: dict[str, type[Envelope | Learned]] = {"envelope": Envelope, "learned": Learned}
