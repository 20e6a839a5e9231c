"""Families of polynomials on [-1, 1] whose derivatives are sums of their own members: differentiable to any order."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.polynomial import chebyshev, legendre
from torch import Tensor

from mlpot.nn.constant import Constant


class _Members(torch.autograd.Function):
    """p_k(x), and as its gradient p'_k = Σ_j D_kj p_j of what is known already."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, family: Legendre | Chebyshev) -> Tensor:
        members = family.values(x)
        ctx.save_for_backward(members)
        ctx.family = family
        return members

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (members,) = ctx.saved_tensors
        return (grad * (ctx.family.derivative.like(members) @ members)).sum(0), None


class Legendre:
    """P_k for k = 0 .. n - 1. Polynomials of a cosine need no angle, and are smooth at 0 and 180 degrees."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.derivative = Constant(_derivative(legendre.legder, n))

    def __call__(self, x: Tensor) -> Tensor:
        """(M,) -> (n, M)."""
        return _Members.apply(x, self)

    def values(self, x: Tensor) -> Tensor:
        """The same, not to be differentiated: k P_k = (2 k - 1) x P_{k-1} - (k - 1) P_{k-2}."""
        members = [torch.ones_like(x), x]
        for k in range(2, self.n):
            members.append(torch.addcmul(members[-2] * ((1 - k) / k), x, members[-1], value=(2 * k - 1) / k))
        return torch.stack(members[: self.n])


class Chebyshev:
    """T_k(x) = cos(k arccos x) for k = 0 .. n - 1."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.derivative = Constant(_derivative(chebyshev.chebder, n))

    def __call__(self, x: Tensor) -> Tensor:
        """(M,) -> (n, M)."""
        return _Members.apply(x, self)

    def values(self, x: Tensor) -> Tensor:
        """The same, not to be differentiated."""
        return torch.cos(torch.arange(self.n, dtype=x.dtype, device=x.device)[:, None] * torch.arccos(x))


def _derivative(of_series: Any, n: int) -> Tensor:
    """(n, n): row k holds the coefficients of the derivative of member k."""
    matrix = np.zeros((n, n))
    for k in range(1, n):
        matrix[k, :k] = of_series(np.eye(n)[k])[:k]
    return torch.from_numpy(matrix)
