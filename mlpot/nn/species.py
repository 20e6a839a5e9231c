"""Atoms grouped by species, for what has weights of its own for each."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mlpot.graph import AtomsGraph
from mlpot.nn.segment import Ends, gather


class Species:
    """of_atom (N,): each atom's species, `index` of its atomic number; groups: each species present and its atoms."""

    def __init__(self, graph: AtomsGraph, index: Tensor) -> None:
        self.of_atom = index[graph.numbers]
        order = torch.argsort(self.of_atom, stable=True)
        present, counts = torch.unique_consecutive(self.of_atom[order], return_counts=True)
        self.groups = list(zip(present.tolist(), order.split(counts.tolist()), strict=True))
        place, rows = torch.empty_like(order), torch.arange(len(order), device=order.device)
        place[order] = rows
        self._unsort = Ends(place, order, rows)

    def restored(self, groups: Sequence[Tensor]) -> Tensor:
        """What was worked out for each group (n, ...) in the atoms' own order, (N, ...)."""
        if len(groups) == 1:
            return groups[0]  # one species: the order was kept
        together = torch.cat(list(groups))
        return gather(together.flatten(1), self._unsort).view_as(together)

    @classmethod
    def of(cls, graph: AtomsGraph, index: Tensor, key: str) -> Species:
        """Those of a graph under the name `key`, made once for it and its moved copies."""
        return graph.derived(f"species {key}", lambda graph: cls(graph, index))
