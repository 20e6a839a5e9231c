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
    """(1 - b) x + b √(x² + 1)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, b: float) -> Tensor:
        root = _root(x)
        ctx.save_for_backward(x, root)
        ctx.b = b
        return torch.lerp(x, root, b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        x, root = ctx.saved_tensors
        return grad * _HyperbolaSlope.apply(x, root, ctx.b), None


class _HyperbolaSlope(torch.autograd.Function):
    """Its derivative (1 - b) + b x / √(x² + 1); the root is given, as it is known already."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, root: Tensor, b: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.b = b
        return torch.addcdiv(x.new_full((), 1.0 - b), x, root, value=b)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (x,) = ctx.saved_tensors
        root = _root(x)
        return ctx.b * grad / (root * root * root), None, None


def _root(x: Tensor) -> Tensor:
    return torch.addcmul(x.new_ones(()), x, x).sqrt()


class SmoothLeakyReLU(nn.Module):
    """½ (1 + s) x + ½ (1 - s) √(x² + 1): a leaky ReLU, of slope s far below zero, without its kink.

    At a kink forces would jump. At zero it is ½ (1 - s).
    """

    def __init__(self, slope: float = 0.2) -> None:
        super().__init__()
        self.b = 0.5 * (1.0 - slope)

    def forward(self, x: Tensor) -> Tensor:
        """Elementwise, any shape."""
        return _Hyperbola.apply(x, self.b)


class _SiLU(torch.autograd.Function):
    """x σ(x)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.silu(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return _SiLUSlope.apply(grad, x)


class _SiLUSlope(torch.autograd.Function):
    """Its derivative times what arrives; torch's own one takes a dozen passes to differentiate once more."""

    @staticmethod
    def forward(ctx: Any, grad: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(grad, x)
        return torch.ops.aten.silu_backward(grad, x)

    @staticmethod
    def backward(ctx: Any, onward: Tensor) -> tuple[Tensor | None, Tensor | None]:
        grad, x = ctx.saved_tensors
        need_grad, need_x = ctx.needs_input_grad
        curved = None
        if need_x:
            s = torch.sigmoid(x)
            y = x * s
            curved = torch.addcmul(y, s, 1.0 - y, value=2.0) * (1.0 - s) * (grad * onward)
        return _SiLUSlope.apply(onward, x) if need_grad else None, curved


def silu(x: Tensor) -> Tensor:
    """x σ(x), elementwise; as torch's, and quicker where forces are trained on."""
    return _SiLU.apply(x)
