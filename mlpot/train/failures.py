"""What to say when a run cannot go on."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from mlpot.data.dataset import Dataset, Subset
from mlpot.data.loader import Batch


def rows(dataset: Dataset, indices: NDArray[np.int64]) -> list[int]:
    """Rows in the original file of frames of a data set, in order."""
    found = dataset.indices[indices] if isinstance(dataset, Subset) else indices
    return sorted(int(row) for row in found)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or on the CPU."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "memory" in str(error).lower()


def out_of_memory(batch: Batch, device: torch.device, dtype: str) -> str:
    """The size of the batch, and the levers."""
    graph = batch.graph
    return (
        f"out of memory on {device} with a batch of {graph.n_structures} frames, {graph.n_atoms} atoms and "
        f"{graph.n_edges} edges in {dtype}. Use a smaller batch (training.batch_size, or "
        f"training.batch_edges={max(1, graph.n_edges // 2)}), dtype=float32, a shorter model.cutoff or fewer "
        f"model.channels."
    )


def not_finite(
    dataset: Dataset,
    indices: NDArray[np.int64],
    suspects: NDArray[np.int64] | None,
    loss: float,
    norm: float,
) -> str:
    """The frames of a batch whose loss or gradient is not finite, and those to look at first (`suspects`)."""
    first = [] if suspects is None else rows(dataset, suspects)
    named = f" Look first at frames {first[:10]}." if first else ""
    return (
        f"the loss is {loss} and the norm of its gradient {norm}. The batch holds frames {rows(dataset, indices)[:50]} "
        f"of {dataset.path}.{named} The last checkpoint is from before this step. Inspect these frames "
        f"(mlpot data inspect), or lower training.learning_rate."
    )
