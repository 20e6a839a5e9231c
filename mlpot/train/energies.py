"""The objective of a potential: energies, forces and stress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mlpot.data.dataset import Dataset
from mlpot.data.loader import Batch
from mlpot.errors import UserError
from mlpot.model import Model
from mlpot.potential import Prediction, predict
from mlpot.train.config import Config
from mlpot.train.loss import TERMS, Term, denominators, loss
from mlpot.train.metrics import ErrorTable
from mlpot.train.schedule import weights

# Figures of a validation: name in the log -> how the terminal says it, unit.
ROW = {
    "energy_mae_meV_per_atom": ("E", "meV/atom"),
    "forces_mae_meV_per_A": ("F", "meV/Å"),
    "stress_mae_meV_per_A3": ("S", "meV/Å³"),
}


class EnergyObjective:
    """Weighted errors of energies, forces and stress, of those that the training frames carry."""

    names: tuple[str, ...] = TERMS

    def __init__(self, config: Config, train: Dataset) -> None:
        self.config = config
        self.terms = self._terms(train)

    def _terms(self, train: Dataset) -> dict[str, Term]:
        counts = train.counts()
        final = weights(self.config, 1.0)
        terms = {}
        for name in TERMS:
            term = getattr(self.config.loss, name)
            if counts[name] and (final[name] or not isinstance(term.weight, float)):
                terms[name] = Term(term.kind, term.delta, getattr(term, "per_atom", True))
        if not terms:
            raise UserError(
                "no label that the loss has a weight for is in the training frames: there is nothing to fit."
            )
        return terms

    def totals(self, batch: Batch) -> Tensor:
        """(3,): frames, force components, stress components."""
        return denominators(batch.labels, batch.graph.batch)

    def predict(self, model: Model, batch: Batch, create_graph: bool) -> Prediction:
        """Energies, and what of forces and stress there is a term for."""
        return predict(
            model,
            batch.graph,
            forces="forces" in self.terms,
            stress="stress" in self.terms,
            create_graph=create_graph,
        )

    def loss(self, prediction: Prediction, batch: Batch, progress: float, totals: Tensor) -> tuple[Tensor, Tensor]:
        """See `mlpot.train.loss`."""
        return loss(prediction, batch, self.terms, weights(self.config, progress), totals)

    def total(self, means: Tensor) -> float:
        """With the final weights."""
        final = weights(self.config, 1.0)
        return sum(final[name] * float(mean) for name, mean in zip(TERMS, means, strict=True))

    def table(self) -> ErrorTable:
        """An empty table."""
        return ErrorTable()

    def row(self, summary: dict[str, Any]) -> dict[str, float]:
        """Mean absolute errors, as far as there are."""
        return {key: summary[key] for key in ROW if key in summary}

    def told(self, row: Mapping[str, Any]) -> str:
        """The errors in a row of the log, for the terminal."""
        return "  ".join(
            f"{short} {row[f'valid_{key}']:.3g} {unit}" for key, (short, unit) in ROW.items() if f"valid_{key}" in row
        )

    def wrong(self, prediction: Prediction, batch: Batch) -> Tensor:
        """(S,) bool. A label so large that its square overflows is as bad as a prediction that does."""
        wrong = ~torch.isfinite(prediction.energy)
        wrong |= ~torch.isfinite((prediction.energy - batch.labels.energy) ** 2)
        if prediction.forces is not None:
            errors = (prediction.forces - batch.labels.forces) ** 2
            atoms = ~torch.isfinite(errors).all(dim=1)
            wrong[batch.graph.batch[atoms]] = True
        return wrong
