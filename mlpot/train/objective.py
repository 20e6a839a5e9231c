"""What a run minimises and measures: energies and forces (`energies`), or molecular properties (`properties`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from mlpot.data.loader import Batch
from mlpot.model import Model


class Table(Protocol):
    """Errors gathered batch by batch."""

    def add(self, batch: Batch, prediction: Any) -> None:
        """Take in one batch."""
        ...

    def merge(self, other: Any) -> None:
        """Add what another table has gathered (in another process, say)."""
        ...

    def summary(self) -> dict[str, Any]:
        """Plain numbers."""
        ...


class Objective(Protocol):
    """A loss of T terms, each a mean over the labels that are present.

    `names` (T) are the terms'. The loop asks for the sums of weights first, so that the shares of several processes
    add up to the loss of the whole batch.
    """

    names: tuple[str, ...]

    def totals(self, batch: Batch) -> Tensor:
        """Sum of the weights that each term is averaged over, (T,) float64."""
        ...

    def predict(self, model: Model, batch: Batch, create_graph: bool) -> Any:
        """What the loss compares; differentiable in the parameters with `create_graph`."""
        ...

    def loss(self, prediction: Any, batch: Batch, progress: float, totals: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted sum (scalar) at a progress of the run from 0 to 1, and the terms before their weights, (T,)."""
        ...

    def total(self, means: Tensor) -> float:
        """The loss of terms (T,) with the weights of the end of the run."""
        ...

    def table(self) -> Table:
        """An empty table of errors."""
        ...

    def row(self, summary: dict[str, Any]) -> dict[str, float]:
        """The figures of a validation that go to the log."""
        ...

    def told(self, row: Mapping[str, Any]) -> str:
        """The main figures of a row of the log, for the terminal."""
        ...

    def wrong(self, prediction: Any, batch: Batch) -> Tensor:
        """Structures whose prediction, or whose squared error, is not finite: (S,) bool."""
        ...
