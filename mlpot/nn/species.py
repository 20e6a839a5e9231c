"""Atoms grouped by species, for what has weights of its own for each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mlpot.graph import AtomsGraph
from mlpot.nn.segment import Ends, gather


class Species:
    """present: the species there are (`index` of atomic numbers), ascending; place (N,): where in it each atom's is."""

    def __init__(self, graph: AtomsGraph, index: Tensor) -> None:
        present, self.place, counts = torch.unique(index[graph.numbers], return_inverse=True, return_counts=True)
        self.present: list[int] = present.tolist()
        self._counts: list[int] = counts.tolist()
        order = torch.argsort(self.place, stable=True)
        rank, rows = torch.empty_like(order), torch.arange(len(order), device=order.device)
        rank[order] = rows
        self._sorted, self._unsorted = Ends(order, rank, rows), Ends(rank, order, rows)

    def split(self, values: Tensor) -> Sequence[Tensor]:
        """The rows (N, ...) of each species present."""
        if len(self.present) == 1:
            return [values]
        return gather(values.flatten(1), self._sorted).view_as(values).split(self._counts)

    def restored(self, groups: Sequence[Tensor]) -> Tensor:
        """What was worked out for each species (n, ...) in the atoms' own order, (N, ...)."""
        if len(groups) == 1:
            return groups[0]
        together = torch.cat(list(groups))
        return gather(together.flatten(1), self._unsorted).view_as(together)

    @classmethod
    def of(cls, graph: AtomsGraph, index: Tensor, key: str) -> Species:
        """Those of a graph under the name `key`, made once for it and its moved copies."""
        return graph.derived(f"species {key}", lambda graph: cls(graph, index))
