"""Linear maps whose weights are of unit variance and scaled by 1/√(inputs) when used, as e3nn's (arXiv:2207.09453).

Adam then changes every layer at the same relative rate, whatever its width. None has a bias: what is zero stays zero.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mlpot.nn.species import Species

# 1/√⟨silu(z)²⟩ over a normal z, as e3nn estimates it from samples; to its digits, so that weights carry over.
SILU_SCALE = 1.6791767923989418


class Mix(nn.Module):
    """gain · x W / √(inputs) along the last axis: over channels, whatever the other axes."""

    def __init__(self, n_in: int, n_out: int, gain: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_in, n_out))
        self.scale = gain * n_in**-0.5

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs)."""
        return x @ (self.weight * self.scale)


class ScaledNetwork(nn.Module):
    """Mixes with silu between them, scaled so that unit variance stays unit variance; widths from inputs to outputs."""

    def __init__(self, widths: Sequence[int]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            Mix(a, b, SILU_SCALE if layer else 1.0) for layer, (a, b) in enumerate(itertools.pairwise(widths))
        )

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs)."""
        *hidden, last = self.layers
        for layer in hidden:
            x = F.silu(layer(x))
        return last(x)


class SpeciesMix(nn.Module):
    """x W_z / √(inputs · species), with weights for each species z."""

    def __init__(self, n_species: int, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_species, channels, channels))
        self.scale = (n_species * channels) ** -0.5

    def forward(self, x: Tensor, species: Species) -> Tensor:
        """(N, m, C) -> (N, m, C)."""
        return species.restored([x[atoms] @ (self.weight[z] * self.scale) for z, atoms in species.groups])
