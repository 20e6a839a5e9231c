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
        of_atom = index[graph.numbers]
        order = torch.argsort(of_atom, stable=True)
        present, self.place, counts = torch.unique(of_atom, return_inverse=True, return_counts=True)
        self.present: list[int] = present.tolist()
        self._counts: list[int] = counts.tolist()
        place, rows = torch.empty_like(order), torch.arange(len(order), device=order.device)
        place[order] = rows
        self._sort, self._unsort = Ends(order, place, rows), Ends(place, order, rows)

    def split(self, values: Tensor) -> Sequence[Tensor]:
        """The rows (N, ...) of each species present."""
        if len(self.present) == 1:
            return [values]
        return gather(values.flatten(1), self._sort).view_as(values).split(self._counts)

    def restored(self, groups: Sequence[Tensor]) -> Tensor:
        """What was worked out for each species (n, ...) in the atoms' own order, (N, ...)."""
        if len(groups) == 1:
            return groups[0]
        together = torch.cat(list(groups))
        return gather(together.flatten(1), self._unsort).view_as(together)

    @classmethod
    def of(cls, graph: AtomsGraph, index: Tensor, key: str) -> Species:
        """Those of a graph under the name `key`, made once for it and its moved copies."""
        return graph.derived(f"species {key}", lambda graph: cls(graph, index))
