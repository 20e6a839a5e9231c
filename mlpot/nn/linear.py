"""Linear maps in stacks: several at once, their results one after the other along the first axis."""

from __future__ import annotations

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
