"""From settings and data to an untrained model of properties: which targets, and where their labels lie."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import ValidationError

from mlpot import models
from mlpot.data.dataset import Dataset
from mlpot.data.frame import Frame
from mlpot.data.references import compositions
from mlpot.errors import UserError, unknown
from mlpot.property_model import PropertyConfig, PropertyModel, Scale
from mlpot.structure import SYMBOLS
from mlpot.target import Target
from mlpot.train.config import Config
from mlpot.train.start import backbone


def targets_of(config: Config, train: Dataset) -> tuple[Target, ...]:
    """What is asked for, as the data describes it; nothing where a potential is wanted.

    Where no targets are named, a set without energies is taken for one of properties, all of them.
    Raises UserError for a target that the data lacks, naming the nearest one it has.
    """
    wanted = config.properties.targets
    known = {target.name: target for target in train.targets}
    if wanted is None:
        counts = train.counts()
        return () if counts["energy"] or counts["forces"] else train.targets
    found = []
    for entry in wanted:
        own = {"name": entry} if isinstance(entry, str) else dict(entry)
        name = own.get("name")
        if name not in known:
            if not known:
                raise UserError(
                    f"{train.path}: it states no properties; expected {name}. In a table, name its column: "
                    f"data.keys.{name}=COLUMN."
                )
            raise unknown("target", str(name), known, f"{train.path}: properties.targets")
        try:
            found.append(Target(**{**known[name].model_dump(), **own}))
        except ValidationError as error:
            raise UserError(models.explain(error, Target, f"properties.targets: {name}")) from None
    return tuple(found)


def property_model(
    config: Config, targets: tuple[Target, ...], train: Dataset, frames: Sequence[Frame]
) -> tuple[PropertyModel, list[str]]:
    """The untrained model, its scales taken from a sample of the training frames, and a line for each target."""
    section = config.properties
    for name in section.weights:
        if name not in [target.name for target in targets]:
            raise unknown("target", name, [target.name for target in targets], "properties.weights")
    scales, notes = {}, []
    for target in targets:
        rows = [k for k, frame in enumerate(frames) if target.name in frame.properties]
        if not rows:
            raise UserError(
                f"target {target.name}: no training frame carries it, so there is nothing to learn it from."
            )
        labels = np.array([frames[k].properties[target.name] for k in rows], dtype=np.float64)
        if labels.shape[1:] != target.shape:
            raise UserError(
                f"target {target.name}: labels have shape {labels.shape[1:]}, but kind {target.kind} needs "
                f"{target.shape}. State the kind: properties.targets=[{{name: {target.name}, kind: ...}}]."
            )
        scale, text = _scale(target, labels, [frames[k] for k in rows], train.elements)
        scales[target.name] = scale
        notes.append(f"target {target.name} ({target.kind}): {len(rows)} of {len(frames)} frames; {text}")
    try:
        settings = PropertyConfig(targets=targets, readout=section.readout, dropout=section.dropout, scales=scales)
    except ValidationError as error:
        raise UserError(models.explain(error, PropertyConfig, "properties")) from None
    torch.manual_seed(config.seed)
    if config.model.start is not None:
        notes.append(f"features: those of {config.model.start}{', which stay as they are' if section.freeze else ''}")
        network = backbone(config, train).requires_grad_(not section.freeze)
    elif section.freeze:
        raise UserError("properties.freeze=true needs model.start: untrained features are no good as they are.")
    else:
        network = models.build(config.model.name, **config.model.settings)
    model = PropertyModel(network, settings)
    model.restrict_to(train.elements)
    return model.to(torch.float64 if config.dtype == "float64" else torch.float32), notes


def _scale(
    target: Target, labels: NDArray[np.float64], frames: Sequence[Frame], elements: tuple[int, ...]
) -> tuple[Scale, str]:
    if target.is_class:
        return Scale(), _classes(target, labels)
    if target.kind == "extensive":
        counts = compositions(frames, elements)
        fit = np.linalg.lstsq(counts, labels, rcond=None)[0]
        spread = _spread(labels - counts @ fit)
        shown = ", ".join(f"{SYMBOLS[z]} {value:.5g}" for z, value in zip(elements, fit, strict=True))
        references = {int(z): float(value) for z, value in zip(elements, fit, strict=True)}
        return Scale(scale=spread, references=references), f"{shown} fitted, ± {spread:.4g} {target.unit}".rstrip()
    if target.kind == "intensive":
        mean, spread = float(labels.mean()), _spread(labels)
        return Scale(scale=spread, shift=mean), f"{mean:.4g} ± {spread:.4g} {target.unit}".rstrip()
    size = math.sqrt(float(np.square(labels).mean()))
    return Scale(scale=size if size > 0 else 1.0), f"root mean square {size:.4g} {target.unit}".rstrip()


def _spread(values: NDArray[np.float64]) -> float:
    spread = float(np.std(values)) if len(values) > 1 else 0.0
    return spread if spread > 1e-12 else 1.0


def _classes(target: Target, labels: NDArray[np.float64]) -> str:
    last = target.classes - 1 if target.kind == "classes" else 1
    wrong = (labels != np.round(labels)) | (labels < 0) | (labels > last)
    if wrong.any():
        raise UserError(
            f"target {target.name} of kind {target.kind}: labels must be whole numbers from 0 to {last}; "
            f"found {labels[wrong][0]:g}."
        )
    counts = np.bincount(labels.astype(np.int64), minlength=last + 1)
    if np.count_nonzero(counts) < 2:
        raise UserError(f"target {target.name}: all labels are {int(labels[0])}; there is nothing to tell apart.")
    return ", ".join(f"{count} of class {number}" for number, count in enumerate(counts))
