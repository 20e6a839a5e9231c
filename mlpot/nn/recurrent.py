"""Gated updates of a state."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class GRU(nn.GRUCell):
    """x' = n + z (x - n);  r, z = s(W m + U x + b),  n = tanh(W' m + b' + r (U' x + c))  (Cho et al., arXiv:1406.1078).

    torch's cell, parameter by parameter, in operations of which none writes to part of a tensor (`mlpot.recording`).
    """

    def forward(self, message: Tensor, x: Tensor) -> Tensor:  # type: ignore[override]
        """(N, C), (N, C) -> (N, C)."""
        channels = self.hidden_size
        parts = [2 * channels, channels]
        from_message, new = F.linear(message, self.weight_ih, self.bias_ih).split(parts, 1)
        from_state, old = F.linear(x, self.weight_hh, self.bias_hh).split(parts, 1)
        reset, keep = torch.sigmoid(from_message + from_state).split(channels, 1)
        proposed = torch.tanh(torch.addcmul(new, reset, old))
        return torch.addcmul(proposed, keep, x - proposed)
