"""The loss: weighted errors of energies per atom, forces and stress, each over the labels that are present."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from mlpot.data.loader import Batch, Labels
from mlpot.potential import Prediction

TERMS = ("energy", "forces", "stress")


def mse(error: Tensor, delta: float) -> Tensor:
    """error²."""
    return error * error


def mae(error: Tensor, delta: float) -> Tensor:
    """|error|."""
    return error.abs()


def huber(error: Tensor, delta: float) -> Tensor:
    """error² / 2δ up to δ, |error| - δ/2 beyond: a mean absolute error with a round tip."""
    size = error.abs()
    return torch.where(size < delta, 0.5 * error * error / delta, size - 0.5 * delta)


KINDS: dict[str, Callable[[Tensor, float], Tensor]] = {"mse": mse, "mae": mae, "huber": huber}


class Term(NamedTuple):
    """One term of the loss. The error is in eV (per atom or per structure), eV/Å or eV/Å³."""

    kind: str
    delta: float
    per_atom: bool = True


def denominators(labels: Labels, batch: Tensor) -> Tensor:
    """Sum of the weights that each term is averaged over, (3,): frames, force components, stress components.

    Frames of weight zero, and labels that are missing, do not count, so the loss is as if they were not there.
    """
    weight = labels.weight
    energy = (weight * labels.has_energy).sum()
    forces = 3.0 * (weight * labels.has_forces)[batch].sum()
    stress = 9.0 * (weight * labels.has_stress).sum()
    return torch.stack([energy, forces, stress])


def loss(
    prediction: Prediction,
    batch: Batch,
    terms: Mapping[str, Term],
    weights: Mapping[str, float],
    denominator: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The total (scalar) and the terms before their weights, (3,), 0 where a term has nothing to compare.

    Each term is Σ w l(error) / Σ w over the labels present, w the weight of the frame. `denominator` (3,) overrides
    the sums of weights of this batch, so that parts of a larger batch add up to its loss.
    """
    graph, labels = batch.graph, batch.labels
    if denominator is None:
        denominator = denominators(labels, graph.batch)
    n_atoms = torch.bincount(graph.batch, minlength=graph.n_structures)
    total = prediction.energy.new_zeros(())
    values = []
    for position, name in enumerate(TERMS):
        term, predicted = terms.get(name), getattr(prediction, name)
        if term is None or predicted is None or not float(denominator[position]):
            values.append(total.new_zeros(()))
            continue
        present = getattr(labels, f"has_{name}")
        present = present[graph.batch] if name == "forces" else present
        weight = labels.weight[graph.batch] if name == "forces" else labels.weight
        # Masked before the loss function, so that a stress of NaN (no volume) leaves no NaN in the gradient.
        mask = present.reshape(-1, *[1] * (predicted.dim() - 1))
        error = torch.where(mask, predicted - getattr(labels, name), 0.0)
        if name == "energy" and term.per_atom:
            error = error / n_atoms
        each = KINDS[term.kind](error, term.delta).reshape(len(error), -1).sum(1)
        value = (each * weight * present).sum() / denominator[position]
        values.append(value.detach())
        total = total + weights[name] * value
    return total, torch.stack(values)
