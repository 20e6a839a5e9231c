"""Linear maps in stacks: several at once, their results one after the other along the first axis; gated networks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Stack(nn.Module):
    """y_k = x_k W_k + b_k for k = 1 .. K in one batched product.

    With the blocks along the first axis each y_k is contiguous, and factors that all share broadcast over whole blocks;
    slices of one wide product would be strided, which is several times slower on a CPU.
    """

    def __init__(self, n_blocks: int, n_in: int, n_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_blocks, n_in, n_out))
        self.bias = nn.Parameter(torch.zeros(n_blocks, 1, n_out))
        for block in self.weight:
            nn.init.xavier_uniform_(block)

    def forward(self, x: Tensor) -> Tensor:
        """x (N, n_in), the same for all blocks, or (K, N, n_in) -> (K, N, n_out)."""
        if x.dim() == 2:
            x = x.expand(self.weight.shape[0], -1, -1)
        return torch.baddbmm(self.bias, x, self.weight)


def network(sizes: Sequence[int]) -> nn.Sequential:
    """Linear layers of these sizes with SiLU between them."""
    first, *others = (nn.Linear(n_in, n_out) for n_in, n_out in itertools.pairwise(sizes))
    return nn.Sequential(first, *(module for layer in others for module in (nn.SiLU(), layer)))


class Gated(nn.Module):
    """y = f(x) σ(g(x)) with two networks f and g of the same sizes, SiLU between their layers."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.value, self.gate = network(sizes), network(sizes)

    def forward(self, x: Tensor) -> Tensor:
        """(N, n_in) -> (N, n_out)."""
        return self.value(x) * torch.sigmoid(self.gate(x))


def glorot(n_out: int, n_in: int) -> Tensor:
    """A matrix with Glorot's uniform numbers (AISTATS 2010)."""
    return nn.init.xavier_uniform_(torch.empty(n_out, n_in))


def linear(n_in: int, n_out: int, bias: bool = True) -> nn.Linear:
    """A linear layer with Glorot's weights and a bias that starts at zero."""
    layer = nn.Linear(n_in, n_out, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer


def orthogonal(n_in: int, n_out: int, bias: bool = True) -> nn.Linear:
    """A linear layer with an orthogonal matrix of Glorot's variance 2 / (n_in + n_out), and a bias that starts at 0."""
    layer = nn.Linear(n_in, n_out, bias=bias)
    nn.init.orthogonal_(layer.weight, math.sqrt(2.0 * max(n_in, n_out) / (n_in + n_out)))
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
