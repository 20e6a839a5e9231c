"""Activation functions."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

LOG_2 = math.log(2.0)


class _ShiftedSoftplus(torch.autograd.Function):
    """ln(½ eˣ + ½) as max(x, 0) - ln σ(|x|) - ln 2, exact for any x; its derivative is the logistic function."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.relu(x).sub_(torch.sigmoid(x.abs()).log_()).sub_(LOG_2)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * torch.sigmoid(x)


def shifted_softplus(x: Tensor) -> Tensor:
    """ssp(x) = ln(½ eˣ + ½), zero at the origin and smooth everywhere (SchNet, arXiv:1706.08566, section 4)."""
    return _ShiftedSoftplus.apply(x)


class ShiftedSoftplus(nn.Module):
    """`shifted_softplus` as a module."""

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise, any shape."""
        return shifted_softplus(x)


class SmoothLeakyReLU(nn.Module):
    """s x + (1 - s) silu(x): a leaky ReLU of slope s without its kink, where forces would jump; rising for s > 0.1."""

    def __init__(self, slope: float = 0.2) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise, any shape."""
        return torch.add(self.slope * x, F.silu(x), alpha=1.0 - self.slope)
