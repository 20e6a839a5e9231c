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


class _Hyperbola(torch.autograd.Function):
    """½ ((1 + s) x + (1 - s) (√(x² + 1) - 1))."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.slope = slope
        root = torch.addcmul(x.new_ones(()), x, x).sqrt_().sub_(1.0)
        return root.mul_(0.5 * (1.0 - slope)).add_(x, alpha=0.5 * (1.0 + slope))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        return grad * _HyperbolaSlope.apply(x, ctx.slope), None


class _HyperbolaSlope(torch.autograd.Function):
    """Its derivative ½ ((1 + s) + (1 - s) x / √(x² + 1))."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.slope = slope
        inverse = torch.addcmul(x.new_ones(()), x, x).rsqrt_()
        return inverse.mul_(x).mul_(0.5 * (1.0 - slope)).add_(0.5 * (1.0 + slope))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (x,) = ctx.saved_tensors
        inverse = (x * x + 1.0).rsqrt()
        return grad * (0.5 * (1.0 - ctx.slope)) * (inverse * inverse * inverse), None


class SmoothLeakyReLU(nn.Module):
    """½ ((1 + s) x + (1 - s) (√(x² + 1) - 1)): a leaky ReLU of slope s far below zero, without its kink.

    At a kink forces would jump. It is zero at the origin.
    """

    def __init__(self, slope: float = 0.2) -> None:
        super().__init__()
        self.slope = slope

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise, any shape."""
        return _Hyperbola.apply(x, self.slope)
