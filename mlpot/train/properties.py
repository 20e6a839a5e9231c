"""The objective of a model of properties: errors in units of each target's spread, cross-entropies of classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from mlpot.data.loader import Batch
from mlpot.errors import UserError
from mlpot.model import Model
from mlpot.nn.coarsening import COARSENINGS
from mlpot.property_model import PropertyModel
from mlpot.target import Target
from mlpot.train.config import PropertiesConfig
from mlpot.train.loss import KINDS
from mlpot.train.scores import ScoreTable, scores_of


class Answer(NamedTuple):
    """What a model of properties gives for a batch."""

    raw: Mapping[str, Tensor]  # the heads' own numbers and logits
    expected: Mapping[str, Tensor]  # the labels on the same scale; NaN where missing
    values: Mapping[str, Tensor]  # in the targets' units
    losses: Tensor | None = None  # of the heads themselves, (); beside those of the targets


class PropertyObjective:
    """Σ_t w_t mean over the labels present of l((y - ŷ) / spread_t), or of the cross-entropy for classes.

    A coarsening with losses of its own adds their mean over the structures, in training; they choose no checkpoint.
    """

    def __init__(self, config: PropertiesConfig, targets: tuple[Target, ...]) -> None:
        self.config, self.targets = config, targets
        pool = COARSENINGS.get(config.readout)
        self.own = ("coarsening",) if pool is not None and pool.has_losses else ()
        self.names = (*(target.name for target in targets), *self.own)
        self.weights = torch.tensor([config.weights.get(name, 1.0) for name in self.names], dtype=torch.float64)

    def totals(self, batch: Batch) -> Tensor:
        """(T,): weights of the frames that carry each target; of all frames for the coarsening's own losses."""
        weight = batch.labels.weight
        carried = [(weight * present(batch, target)).sum() for target in self.targets]
        return torch.stack([*carried, *(weight.sum() for _ in self.own)])

    def predict(self, model: Model, batch: Batch, create_graph: bool) -> Answer:
        """The heads' answers, and the labels scaled to them."""
        if not isinstance(model, PropertyModel):
            raise UserError(f"{type(model).__name__} predicts no properties.")
        model.check(batch.graph)
        with torch.set_grad_enabled(create_graph):
            raw, losses = model.with_losses(batch.graph)
        expected = {}
        for target in self.targets:
            label = batch.labels.properties[target.name]
            if not target.is_class:
                label = label - (model.offset(target, batch.graph) if not target.shape else 0.0)
                label = label / model.scale(target).scale
            expected[target.name] = label
        values = model.values({name: value.detach() for name, value in raw.items()}, batch.graph)
        return Answer(raw, expected, values, losses)

    def loss(self, prediction: Answer, batch: Batch, progress: float, totals: Tensor) -> tuple[Tensor, Tensor]:
        """The sum over the targets, and each target's mean."""
        values = []
        for place, target in enumerate(self.targets):
            there = present(batch, target)
            if not float(totals[place]):
                values.append(totals.new_zeros(()))
                continue
            each = self._each(target, prediction.raw[target.name][there], prediction.expected[target.name][there])
            values.append((each * batch.labels.weight[there]).sum() / totals[place])
        if self.own and prediction.losses is not None:
            values.append(prediction.losses.to(torch.float64) * batch.labels.weight.sum() / totals[-1])
        terms = torch.stack(values)
        return (terms * self.weights.to(terms.device)).sum(), terms.detach()

    def _each(self, target: Target, raw: Tensor, expected: Tensor) -> Tensor:
        """(n,) float64."""
        raw = raw.to(torch.float64)
        if target.kind == "binary":
            return F.binary_cross_entropy_with_logits(raw, expected, reduction="none")
        if target.kind == "classes":
            return F.cross_entropy(raw, expected.long(), reduction="none")
        return KINDS[self.config.loss](raw - expected, self.config.delta).reshape(len(raw), -1).mean(1)

    def total(self, means: Tensor) -> float:
        """The weighted sum."""
        n = len(self.targets)
        return float((means[:n] * self.weights[:n].to(means.device)).sum())

    def table(self) -> ScoreTable:
        """An empty table."""
        return ScoreTable(self.targets)

    def row(self, summary: dict[str, Any]) -> dict[str, float]:
        """The main figure of each target."""
        return {f"{name}_{entry['figure']}": entry[entry["figure"]] for name, entry in summary["targets"].items()}

    def told(self, row: Mapping[str, Any]) -> str:
        """The main figures of a row of the log, for the terminal."""
        found = []
        for target in self.targets:
            figure = next(iter(scores_of(target)))
            value = row.get(f"valid_{target.name}_{figure}")
            if value is not None:
                found.append(f"{target.name} {figure.upper().replace('_', ' ')} {value:.3g} {target.unit}".rstrip())
        return "  ".join(found)

    def wrong(self, prediction: Answer, batch: Batch) -> Tensor:
        """(S,) bool."""
        wrong = torch.zeros_like(batch.labels.has_energy)
        for target in self.targets:
            difference = prediction.raw[target.name].reshape(len(wrong), -1)
            wrong |= ~torch.isfinite(difference).all(1)
        return wrong


def present(batch: Batch, target: Target) -> Tensor:
    """Structures that carry a target, (S,) bool."""
    label = batch.labels.properties[target.name]
    return torch.isfinite(label.reshape(len(label), -1)).all(1)
