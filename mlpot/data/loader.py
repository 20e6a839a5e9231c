"""From frames to batches: graphs with labels beside them, and the plan of an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mlpot.data.dataset import Dataset
from mlpot.data.frame import Frame
from mlpot.errors import UserError
from mlpot.graph import AtomsGraph, collate
from mlpot.target import Target


@dataclass(frozen=True)
class Labels:
    """What a batch of S structures and N atoms should give; a model never sees it.

    | field       | shape             | unit  |                                                  |
    |-------------|-------------------|-------|--------------------------------------------------|
    | energy      | (S,) float64      | eV    | 0 where masked out                               |
    | forces      | (N, 3) float64    | eV/Å  | 0 where masked out                               |
    | stress      | (S, 3, 3) float64 | eV/Å³ | 0 where masked out                               |
    | has_*       | (S,) bool         |       | which structures carry the label                 |
    | weight      | (S,) float64      |       | weight of each structure in the loss             |
    | index       | (S,) int64        |       | number of the frame in its data set              |
    | config_type | S strings         |       | group of the frame                               |
    | properties  | name -> (S, ...)  |       | float64, in the targets' units; NaN where missing |
    """

    energy: Tensor
    forces: Tensor
    stress: Tensor
    has_energy: Tensor
    has_forces: Tensor
    has_stress: Tensor
    weight: Tensor
    index: Tensor
    config_type: tuple[str, ...]
    properties: dict[str, Tensor]

    def to(self, device: str | torch.device) -> Labels:
        """The same labels on another device."""
        moved: dict[str, Any] = {
            f.name: v.to(device) for f in fields(self) if isinstance(v := getattr(self, f.name), Tensor)
        }
        return replace(self, **moved, properties={name: v.to(device) for name, v in self.properties.items()})


@dataclass(frozen=True)
class Batch:
    """A graph of S structures and the labels of the same structures."""

    graph: AtomsGraph
    labels: Labels

    def to(self, device: str | torch.device) -> Batch:
        """The same batch on another device."""
        return Batch(self.graph.to(device), self.labels.to(device))


def labels_of(frame: Frame, index: int, weight: float = 1.0, targets: Sequence[Target] = ()) -> Labels:
    """The labels of one frame; `weight` multiplies the frame's own. `targets` are the properties it may carry."""
    n = len(frame.structure)
    # A stress needs a volume: one stored for a molecule or a slab (often as zeros) is no label.
    has_stress = frame.stress is not None and bool(frame.structure.pbc.all())
    return Labels(
        torch.tensor([frame.energy or 0.0], dtype=torch.float64),
        torch.zeros(n, 3, dtype=torch.float64) if frame.forces is None else torch.from_numpy(np.array(frame.forces)),
        torch.from_numpy(np.array(frame.stress if has_stress else np.zeros((3, 3))))[None],
        torch.tensor([frame.energy is not None]),
        torch.tensor([frame.forces is not None]),
        torch.tensor([has_stress]),
        torch.tensor([frame.weight * weight], dtype=torch.float64),
        torch.tensor([index]),
        (frame.config_type,),
        {target.name: _property(frame, target) for target in targets},
    )


def _property(frame: Frame, target: Target) -> Tensor:
    value = frame.properties.get(target.name)
    if value is None:
        return torch.full((1, *target.shape), torch.nan, dtype=torch.float64)
    array = np.array(value, dtype=np.float64)
    if array.shape != target.shape:
        raise UserError(
            f"property {target.name} of kind {target.kind} has shape {array.shape}; expected {target.shape}."
        )
    return torch.from_numpy(array)[None]


def collate_labels(labels: Sequence[Labels]) -> Labels:
    """The labels of several structures as one."""
    joined: dict[str, Any] = {
        f.name: torch.cat([getattr(one, f.name) for one in labels])
        for f in fields(Labels)
        if f.name not in ("config_type", "properties")
    }
    return Labels(
        config_type=tuple(name for one in labels for name in one.config_type),
        properties={name: torch.cat([one.properties[name] for one in labels]) for name in labels[0].properties},
        **joined,
    )


class Loader:
    """Frames of a data set as batches of graphs with a given cutoff (Å).

    Graphs are kept in memory up to `cache_bytes`, so that small sets search their neighbours once; a set that is
    larger streams the rest. `config_weights` multiplies the weight of each frame of a config type.
    """

    def __init__(
        self,
        dataset: Dataset,
        cutoff: float,
        config_weights: dict[str, float] | None = None,
        cache_bytes: int = 2 * 1024**3,
    ) -> None:
        self.dataset, self.cutoff = dataset, cutoff
        self.config_weights = config_weights or {}
        self._free = cache_bytes
        self._cache: dict[int, tuple[AtomsGraph, Labels]] = {}

    def __len__(self) -> int:
        return len(self.dataset)

    def item(self, index: int) -> tuple[AtomsGraph, Labels]:
        """The graph and labels of one frame."""
        found = self._cache.get(index)
        if found is not None:
            return found
        frame = self.dataset[index]
        graph = AtomsGraph.from_structure(frame.structure, self.cutoff)
        _ = graph.pairs  # found once a frame here rather than once a batch
        weight = self.config_weights.get(frame.config_type, 1.0)
        made = graph, labels_of(frame, index, weight, self.dataset.targets)
        size = 56 * graph.n_edges + 100 * graph.n_atoms + 2000
        if size <= self._free:
            self._free -= size
            self._cache[index] = made
        return made

    def batch(self, indices: Sequence[int] | NDArray[np.int64]) -> Batch:
        """The frames `indices` as one batch."""
        items = [self.item(int(index)) for index in indices]
        return Batch(collate([graph for graph, _ in items]), collate_labels([labels for _, labels in items]))

    def batches(self, plan: Sequence[NDArray[np.int64]]) -> Iterator[Batch]:
        """One batch for each entry of a plan (see `plan_batches`)."""
        for indices in plan:
            yield self.batch(indices)

    def n_edges(self) -> NDArray[np.int64]:
        """Directed edges of every frame, (n,); searches the neighbours of the whole set once."""
        return np.array([self.item(index)[0].n_edges for index in range(len(self))], dtype=np.int64)


def plan_batches(
    order: NDArray[np.int64], batch_size: int | None, sizes: NDArray[np.int64] | None = None, limit: int | None = None
) -> list[NDArray[np.int64]]:
    """Cut an order of frames into batches; every frame is in exactly one.

    Either of `batch_size` frames, or filled up to `limit` of `sizes` (atoms or edges of each frame, (n,)). A single
    frame larger than the limit gets a batch of its own.
    """
    if sizes is None or limit is None:
        if not batch_size or batch_size < 1:
            raise UserError(f"batch_size is {batch_size}; expected a whole number above zero.")
        return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
    batches: list[NDArray[np.int64]] = []
    current: list[int] = []
    filled = 0
    for index in order:
        size = int(sizes[index])
        if current and filled + size > limit:
            batches.append(np.array(current))
            current, filled = [], 0
        current.append(int(index))
        filled += size
    if current:
        batches.append(np.array(current))
    return batches
