"""What keeps deep graph networks apart from flat ones: residuals, norms, jumping knowledge, a virtual node."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mlpot.nn.linear import linear, network
from mlpot.nn.segment import segment_sum


class NoResidual(nn.Module):
    """u: the update takes the place of the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, update: Tensor) -> Tensor:
        """(N, C), (N, C) -> (N, C)."""
        return update


class PlainResidual(NoResidual):
    """x + u (He et al., arXiv:1512.03385)."""

    def forward(self, x: Tensor, update: Tensor) -> Tensor:
        """(N, C), (N, C) -> (N, C)."""
        return x + update


class GatedResidual(NoResidual):
    """β x + (1 - β) u,  β = s(wᵀ [u, x, u - x]), s the logistic function (arXiv:2009.03509, equations 4 and 5)."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.gate = linear(3 * channels, 1, bias=False)

    def forward(self, x: Tensor, update: Tensor) -> Tensor:
        """(N, C), (N, C) -> (N, C)."""
        beta = torch.sigmoid(self.gate(torch.cat([update, x, update - x], 1)))
        return beta * x + (1.0 - beta) * update


RESIDUALS: dict[str, type[NoResidual]] = {"none": NoResidual, "plain": PlainResidual, "gated": GatedResidual}


class NoNorm(nn.Module):
    """x."""

    def __init__(self, channels: int) -> None:
        super().__init__()

    def forward(self, x: Tensor, batch: Tensor, n_structures: int) -> Tensor:
        """(N, C) -> (N, C)."""
        return x


class LayerNorm(NoNorm):
    """Over the channels of each atom (Ba et al., arXiv:1607.06450)."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.norm = nn.LayerNorm(channels)

    def forward(self, x: Tensor, batch: Tensor, n_structures: int) -> Tensor:
        """(N, C) -> (N, C)."""
        return self.norm(x)


class GraphNorm(NoNorm):
    """γ (x - α μ) / √(⟨(x - α μ)²⟩ + ε) + β over the atoms of each structure (Cai et al., arXiv:2009.03294)."""

    def __init__(self, channels: int, epsilon: float = 1e-5) -> None:
        super().__init__(channels)
        self.epsilon = epsilon
        self.weight, self.mean_scale = (nn.Parameter(torch.ones(channels)) for _ in range(2))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor, batch: Tensor, n_structures: int) -> Tensor:
        """(N, C) -> (N, C)."""
        counts = torch.bincount(batch, minlength=n_structures)[:, None]
        mean = segment_sum(x, batch, n_structures) / counts
        apart = x - (self.mean_scale * mean)[batch]
        variance = segment_sum(apart.square(), batch, n_structures) / counts
        return apart * (self.weight * (variance + self.epsilon).rsqrt())[batch] + self.bias


NORMS: dict[str, type[NoNorm]] = {"none": NoNorm, "layer": LayerNorm, "graph": GraphNorm}


class VirtualNode(nn.Module):
    """A node of each structure that hears all atoms and tells them all (arXiv:1704.01212, section 5.2).

    v⁰ learns; before layer l, x_i + v^l; after it v^{l+1} = v^l + MLP_l(v^l + Σ_i x_i).
    """

    def __init__(self, channels: int, n_layers: int) -> None:
        super().__init__()
        self.start = nn.Parameter(0.1 * torch.randn(channels))
        self.updates = nn.ModuleList(network([channels, channels, channels]) for _ in range(n_layers - 1))

    def first(self, n_structures: int) -> Tensor:
        """v⁰, (S, C)."""
        return self.start.expand(n_structures, -1)

    def heard(self, layer: int, node: Tensor, x: Tensor, batch: Tensor) -> Tensor:
        """After a layer that is not the last: v (S, C), x (N, C) -> (S, C)."""
        return node + self.updates[layer](node + segment_sum(x, batch, len(node)))


class Last(nn.Module):
    """The features after the last layer."""

    def __init__(self, channels: int, n_layers: int) -> None:
        super().__init__()
        self.out_channels = channels

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """L of (N, C) -> (N, out_channels)."""
        return layers[-1]


class Concatenated(Last):
    """Jumping knowledge: the features after all layers, one beside the other (Xu et al., arXiv:1806.03536)."""

    def __init__(self, channels: int, n_layers: int) -> None:
        super().__init__(channels, n_layers)
        self.out_channels = n_layers * channels

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """L of (N, C) -> (N, L C)."""
        return torch.cat(list(layers), 1)


class Maximum(Last):
    """Jumping knowledge: the largest over the layers, channel by channel."""

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """L of (N, C) -> (N, C)."""
        return torch.stack(list(layers)).amax(0)


class Weighed(Last):
    """Jumping knowledge: Σ_l α_il x^l_i, α_i a softmax of what an LSTM that reads the layers both ways says of each.

    Of single cells, since torch's fused LSTM has no second derivatives, which training on forces needs.
    """

    def __init__(self, channels: int, n_layers: int) -> None:
        super().__init__(channels, n_layers)
        self.width = n_layers * channels // 2
        self.ahead, self.back = (nn.LSTMCell(channels, self.width) for _ in range(2))
        self.score = linear(2 * self.width, 1, bias=False)  # softmax over the layers would not see a bias

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """L of (N, C) -> (N, C)."""
        ahead, back = self._read(self.ahead, layers), self._read(self.back, layers[::-1])[::-1]
        scores = torch.stack([self.score(torch.cat(both, 1)) for both in zip(ahead, back, strict=True)])  # (L, N, 1)
        return (torch.stack(list(layers)) * F.softmax(scores, 0)).sum(0)

    def _read(self, cell: nn.LSTMCell, layers: Sequence[Tensor]) -> list[Tensor]:
        state = (layers[0].new_zeros(len(layers[0]), self.width),) * 2
        hidden = []
        for x in layers:
            state = cell(x, state)
            hidden.append(state[0])
        return hidden


JUMPS: dict[str, type[Last]] = {"none": Last, "concat": Concatenated, "max": Maximum, "lstm": Weighed}
