"""Readouts: from features of atoms to features of a structure."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Sum(nn.Module):
    """Σ_i x_i."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.out_channels = channels

    def forward(self, x: Tensor, batch: Tensor, n_structures: int) -> Tensor:
        """(N, C) -> (S, C)."""
        return x.new_zeros(n_structures, x.shape[1]).index_add(0, batch, x)


class Mean(Sum):
    """Σ_i x_i / N."""

    def forward(self, x: Tensor, batch: Tensor, n_structures: int) -> Tensor:
        """(N, C) -> (S, C)."""
        counts = torch.bincount(batch, minlength=n_structures).clamp(min=1)
        return super().forward(x, batch, n_structures) / counts[:, None]


READOUTS: dict[str, type[Sum]] = {"sum": Sum, "mean": Mean}
