"""Where tensors live."""

from __future__ import annotations

import torch

from mlpot.errors import UserError


def device_of(name: str | torch.device) -> torch.device:
    """A torch device; UserError where there is none of that kind. "auto" takes a GPU where there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f'device "{name}" is not known; write cpu, cuda, cuda:0 or auto.') from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device {name} was asked for, but torch finds no CUDA device here. Use cpu or auto.")
    if device.type == "cuda" and device.index is not None and device.index >= torch.cuda.device_count():
        raise UserError(f"device {name}: there are {torch.cuda.device_count()} CUDA devices here, counted from 0.")
    return device
