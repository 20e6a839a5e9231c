"""Where tensors live, and how many threads work on them."""

from __future__ import annotations

import torch

from mlpot.errors import UserError

# With fewer atoms a step, threads wait for each other longer than they work, and very long on a busy machine.
ATOMS_A_THREAD = 100


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


def threads_for(n_atoms: float) -> int:
    """CPU threads for steps on that many atoms: one for each hundred, and no more than torch has now."""
    return min(torch.get_num_threads(), max(1, round(n_atoms / ATOMS_A_THREAD)))
