"""Readouts: from features of atoms to features of a structure, whatever the number and the order of its atoms."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Readout(nn.Module):
    """(N, C) -> (S, `out_channels`); `batch` (N,) says which of S structures an atom belongs to."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.out_channels = channels

    def forward(self, x: Tensor, batch: Tensor, n_structures: int) -> Tensor:
        """The features of each structure; zero for one without atoms."""
        raise NotImplementedError


class Sum(Readout):
    """Σ_i x_i."""

    def forward(self, x: Tensor, batch: Tensor, n_structures: int) -> Tensor:
        """(N, C) -> (S, C)."""
        return x.new_zeros(n_structures, x.shape[1]).index_add(0, batch, x)


class Mean(Sum):
    """Σ_i x_i / N."""

    def forward(self, x: Tensor, batch: Tensor, n_structures: int) -> Tensor:
        """(N, C) -> (S, C)."""
        counts = torch.bincount(batch, minlength=n_structures).clamp(min=1)
        return super().forward(x, batch, n_structures) / counts[:, None]


class Max(Readout):
    """max_i x_i, feature by feature."""

    def forward(self, x: Tensor, batch: Tensor, n_structures: int) -> Tensor:
        """(N, C) -> (S, C)."""
        empty = x.new_zeros(n_structures, x.shape[1])
        return empty.scatter_reduce(0, batch[:, None].expand_as(x), x, "amax", include_self=False)


def softmax(logits: Tensor, batch: Tensor, n_structures: int) -> Tensor:
    """exp(l_i) / Σ_j exp(l_j) over the atoms of each structure, (N,) -> (N,); the largest is taken off first."""
    lowest = logits.new_full((n_structures,), -torch.inf)
    largest = lowest.scatter_reduce(0, batch, logits.detach(), "amax")
    exponentials = torch.exp(logits - largest[batch])
    totals = exponentials.new_zeros(n_structures).index_add(0, batch, exponentials)
    return exponentials / totals[batch]


class Attention(Sum):
    """Σ_i softmax(g(x))_i x_i, with a network g of one hidden layer (Li et al., arXiv:1511.05493, equation 7)."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        half = max(1, channels // 2)
        self.gate = nn.Sequential(nn.Linear(channels, half), nn.SiLU(), nn.Linear(half, 1))

    def weights(self, x: Tensor, batch: Tensor, n_structures: int) -> Tensor:
        """What each atom counts, (N,); they add up to 1 in a structure."""
        return softmax(self.gate(x)[:, 0], batch, n_structures)

    def forward(self, x: Tensor, batch: Tensor, n_structures: int) -> Tensor:
        """(N, C) -> (S, C)."""
        return super().forward(self.weights(x, batch, n_structures)[:, None] * x, batch, n_structures)


class Set2Set(Sum):
    """A query that looks at the atoms again and again (Vinyals et al., arXiv:1511.06391; Gilmer et al., 1704.01212).

    q_t = LSTM(q*_{t-1});  a_i = softmax(x_i · q_t);  r_t = Σ_i a_i x_i;  q*_t = (q_t, r_t).
    """

    STEPS = 3

    def __init__(self, channels: int) -> None:
        super().__init__(channels)
        self.out_channels = 2 * channels
        self.lstm = nn.LSTM(2 * channels, channels)

    def forward(self, x: Tensor, batch: Tensor, n_structures: int) -> Tensor:
        """(N, C) -> (S, 2 C)."""
        channels = x.shape[1]
        answer = x.new_zeros(n_structures, 2 * channels)
        state = (x.new_zeros(1, n_structures, channels), x.new_zeros(1, n_structures, channels))
        for _ in range(self.STEPS):
            found, state = self.lstm(answer[None], state)
            query = found[0]
            weights = softmax((x * query[batch]).sum(1), batch, n_structures)
            answer = torch.cat([query, super().forward(weights[:, None] * x, batch, n_structures)], 1)
        return answer


READOUTS: dict[str, type[Readout]] = {
    "sum": Sum,
    "mean": Mean,
    "max": Max,
    "attention": Attention,
    "set2set": Set2Set,
}
