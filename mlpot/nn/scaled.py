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
TANH_SCALE = 1.5937334472592695  # the same for tanh
ROWS = 1 << 14  # rows that go through a network at once: more would leave the cache between two layers


class Mix(nn.Module):
    """gain · x W / √(inputs) along the last axis: over channels, whatever the other axes."""

    def __init__(self, n_in: int, n_out: int, gain: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_in, n_out))
        self.scale = gain * n_in**-0.5

    @property
    def matrix(self) -> Tensor:
        """What x is multiplied by, (inputs, outputs)."""
        return self.weight * self.scale

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs)."""
        return x @ self.matrix


class ScaledNetwork(nn.Module):
    """Mixes with silu between them, scaled so that unit variance stays unit variance; widths from inputs to outputs.

    `gain` makes up for what silu takes away.
    """

    def __init__(self, widths: Sequence[int], gain: float = SILU_SCALE) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            Mix(a, b, gain if layer else 1.0) for layer, (a, b) in enumerate(itertools.pairwise(widths))
        )

    def hidden(self, x: Tensor) -> Tensor:
        """What the last layer works on, (rows, inputs) -> (rows, last width but one)."""
        parts = []
        for part in x.split(ROWS):
            for layer in self.layers[:-1]:
                part = F.silu(layer(part))
            parts.append(part)
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    @property
    def matrix(self) -> Tensor:
        """The last layer's, (last width but one, outputs)."""
        return self.layers[-1].matrix  # type: ignore[return-value]

    def forward(self, x: Tensor) -> Tensor:
        """(..., inputs) -> (..., outputs)."""
        return self.hidden(x) @ self.matrix


class SpeciesMix(nn.Module):
    """x W_z / √(inputs · species), with weights for each species z."""

    def __init__(self, n_species: int, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_species, channels, channels))
        self.scale = (n_species * channels) ** -0.5

    def forward(self, x: Tensor, species: Species) -> Tensor:
        """(N, m, C) -> (N, m, C)."""
        return _by_species(x, self.weight[species.present] * self.scale, species)


class EmbeddedMix(nn.Module):
    """x W_z / √(inputs · features), the weights W_z = Σ_a e_za W_a following from an embedding e_z of the species."""

    def __init__(self, n_features: int, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(n_features, n_in, n_out))
        self.scale = (n_features * n_in) ** -0.5

    def forward(
        self,
        x: Tensor,  # (N, m, inputs)
        embedding: Tensor,  # (present species, features)
        species: Species,
    ) -> Tensor:  # (N, m, outputs)
        """With the weights of each atom's species."""
        weight = (embedding * self.scale) @ self.weight.flatten(1)
        return _by_species(x, weight.view(-1, *self.weight.shape[1:]), species)


def _by_species(x: Tensor, weight: Tensor, species: Species) -> Tensor:
    """x (N, m, inputs) times the weight (Z, inputs, outputs) of each atom's species."""
    return species.restored(
        [
            torch.bmm(rows.flatten(1, 2), weight[group.species]).view(*rows.shape[:-1], -1)
            for group, rows in zip(species.groups, species.split(x), strict=True)
        ]
    )
