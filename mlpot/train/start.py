"""Starting from a trained model: fine-tuning a potential on new data, or reading properties out of its features."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from mlpot.compose import ReferenceEnergies, Sum
from mlpot.data.dataset import Dataset
from mlpot.data.frame import Frame
from mlpot.data.references import compositions
from mlpot.errors import UserError
from mlpot.graph import AtomsGraph
from mlpot.model import Model
from mlpot.potential import Potential, as_potential, predict
from mlpot.pretrained import load
from mlpot.property_model import PropertyModel
from mlpot.structure import SYMBOLS
from mlpot.train.config import Config, ModelConfig

MOST_FRAMES = 200  # that the shift of the reference energies is fitted to


def fine_tuned(config: Config, train: Dataset, frames: Sequence[Frame]) -> tuple[Potential, list[str]]:
    """The potential in `model.start`, its energies shifted by element to those of the new data, ready to train on.

    The shift is the least-squares fit of what the potential misses, so that another code or level of theory, whose
    totals lie elsewhere, does not have to be learnt by the network. Raises UserError for a model of properties and for
    elements that the potential does not know.
    """
    path = _path(config)
    start = as_potential(load(path), path)
    _same_elements(start, train, path)
    start = start.to(torch.float64 if config.dtype == "float64" else torch.float32).requires_grad_(True)
    notes = [f"start: {path}"]
    some = [frame for frame in frames if frame.energy is not None]
    some = some[:: max(1, len(some) // MOST_FRAMES)]
    parts: list[Potential] = [start]
    if some:
        missing = np.array([frame.energy for frame in some]) - np.array([_energy(start, frame) for frame in some])
        shift = np.linalg.lstsq(compositions(some, train.elements), missing, rcond=None)[0]
        energies = {z: float(e) for z, e in zip(train.elements, shift, strict=True)}
        parts.append(ReferenceEnergies(energies=energies))
        shown = ", ".join(f"{SYMBOLS[z]} {e:.4f}" for z, e in energies.items())
        notes.append(f"its energies are shifted to the data's (least squares), eV: {shown}")
    potential = Sum(parts)
    potential.restrict_to(train.elements)
    return potential, notes


def _energy(potential: Potential, frame: Frame) -> float:
    graph = AtomsGraph.from_structure(frame.structure, potential.cutoff)
    return float(predict(potential, graph, forces=False).energy)


def backbone(config: Config, train: Dataset) -> Potential:
    """The network inside the model in `model.start` that features are read out of; UserError where there is none."""
    path = _path(config)
    start = load(path)
    _same_elements(start, train, path)
    if isinstance(start, PropertyModel):
        return start.backbone
    for module in start.modules():
        if isinstance(module, Potential) and module.channels:
            return module
    raise UserError(f"{path}: the model has no features that properties could be read out of.")


def _path(config: Config) -> str:
    assert config.model.start is not None
    # A resolved configuration states the default name.
    given = [*(["name"] if config.model.name != ModelConfig().name else []), *config.model.settings]
    if given:
        raise UserError(
            f"model.start={config.model.start} brings its own settings; leave out model.{', model.'.join(given)}."
        )
    return config.model.start


def _same_elements(start: Model, train: Dataset, path: str) -> None:
    new = set(train.elements) - set(start.elements) if start.elements is not None else set()
    if new:
        raise UserError(
            f"{path}: the model does not know {', '.join(SYMBOLS[z] for z in sorted(new))}, which the training frames "
            f"hold; it knows {', '.join(SYMBOLS[z] for z in start.elements or ())}."
        )
