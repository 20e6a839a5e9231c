"""Several processes, one a device, as torchrun starts them: sums over all of them and nothing else.

Each process works on its share of a global batch. Losses are divided by the sums of weights over the whole global
batch, and gradients are added, so any number of processes takes the step that one process would take. (Wrappers that
average gradients give every process the same say, whatever the number of labels in its share.)
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, distributed, nn


class World:
    """The processes of a run: this one's rank and their number. A run without torchrun is a world of one."""

    def __init__(self, device: torch.device) -> None:
        self.size = int(os.environ.get("WORLD_SIZE", "1"))
        self.rank = int(os.environ.get("RANK", "0"))
        self._device = device
        if self.size > 1 and not distributed.is_initialized():
            distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")

    @property
    def first(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over the processes, in place."""
        if self.size > 1:
            distributed.all_reduce(tensor)
        return tensor

    def add_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Replace each gradient by the sum over the processes, in one exchange."""
        if self.size == 1:
            return
        wanted = [p for p in parameters if p.requires_grad]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in wanted]
        flat = self.total(torch.cat([gradient.reshape(-1) for gradient in gradients]))
        for parameter, piece in zip(wanted, flat.split([p.numel() for p in wanted]), strict=True):
            parameter.grad = piece.view_as(parameter)

    def gather(self, value: Any) -> list[Any]:
        """The plain values of all processes."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value)
        return values

    def close(self) -> None:
        """Leave the process group."""
        if self.size > 1 and distributed.is_initialized():
            distributed.destroy_process_group()
