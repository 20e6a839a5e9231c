"""torch_geometric: Data and Batch to Structure."""

from __future__ import annotations

from typing import Any

import torch

from mlpot.errors import UserError
from mlpot.structure import Structure


def structures(data: Any) -> list[Structure]:
    """The structures of a torch_geometric ``Data`` or ``Batch`` with ``z`` and ``pos`` (and ``cell``, ``pbc``).

    Where ``pbc`` is missing, lattice vectors that are not zero are taken as periodic.
    """
    for name in ("z", "pos"):
        if getattr(data, name, None) is None:
            raise UserError(
                f"expected a torch_geometric Data or Batch with z (atomic numbers) and pos (positions in Å); "
                f"this {type(data).__name__} has no {name}."
            )
    numbers, positions = data.z.cpu(), data.pos.detach().cpu().double()
    batch = getattr(data, "batch", None)
    batch = torch.zeros(len(numbers), dtype=torch.int64) if batch is None else batch.cpu()
    n = int(batch.max()) + 1 if batch.numel() else 0
    cell = getattr(data, "cell", None)
    cell = torch.zeros(n, 3, 3) if cell is None else cell.detach().cpu().reshape(n, 3, 3)
    pbc = getattr(data, "pbc", None)
    pbc = (cell != 0).any(-1) if pbc is None else torch.as_tensor(pbc).cpu().reshape(n, 3)
    return [Structure.of(numbers[batch == s].numpy(), positions[batch == s].numpy(), cell[s], pbc[s]) for s in range(n)]
