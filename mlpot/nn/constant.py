"""Fixed tables that keep full precision whatever dtype a model is cast to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Constant:
    """A tensor that follows the tensors it is used with, always cast from its float64 (or integer) original.

    A registered buffer would be rounded by ``model.float()`` and stay so after ``model.double()``.
    """

    def __init__(self, value: Tensor) -> None:
        self._value = value.detach().double() if value.is_floating_point() else value.detach()
        self._cast: dict[tuple[torch.dtype, torch.device], Tensor] = {}

    def like(self, other: Tensor) -> Tensor:
        """On the other's device and, for floating-point numbers, in its dtype."""
        key = (other.dtype, other.device)
        if key not in self._cast:
            dtype = other.dtype if self._value.is_floating_point() else self._value.dtype
            self._cast[key] = self._value.to(other.device, dtype)
        return self._cast[key]

    def __getstate__(self) -> dict[str, Any]:
        return {"_value": self._value, "_cast": {}}
