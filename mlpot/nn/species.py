"""Atoms grouped by species, for what has weights of its own for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mlpot.graph import AtomsGraph
from mlpot.nn.segment import Ends, gather

# Species are worked on together, padded to the most numerous, while that makes no more rows than this.
SMALL = 256


class Group(NamedTuple):
    """Species first .. first + n of those present, each with `width` rows, the last of which may be padding."""

    first: int
    n: int
    width: int

    @property
    def species(self) -> slice:
        """Their places among the species present."""
        return slice(self.first, self.first + self.n)


class Species:
    """present (Z,): the species there are (`index` of atomic numbers), ascending; place (N,): where each atom's is.

    Few atoms make one group of all species, so that there are few calls; many atoms a group for each, unpadded.
    """

    def __init__(self, graph: AtomsGraph, index: Tensor) -> None:
        present, self.place, counts = torch.unique(index[graph.numbers], return_inverse=True, return_counts=True)
        self.present: Tensor = present
        n, device, widths = graph.n_atoms, graph.device, counts.tolist()
        if len(widths) * max(widths) <= max(SMALL, n):
            self.groups = [Group(0, len(widths), max(widths))]
        else:
            self.groups = [Group(species, 1, width) for species, width in enumerate(widths)]
        rows = [group.width for group in self.groups for _ in range(group.n)]
        starts, self._sizes = torch.tensor([0, *rows], device=device).cumsum(0), [g.n * g.width for g in self.groups]
        order = torch.argsort(self.place, stable=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(n, device=device) - (counts.cumsum(0) - counts)[self.place[order]]
        slot = starts[self.place] + rank
        atom = torch.zeros(sum(self._sizes), dtype=torch.int64, device=device)
        atom[slot] = torch.arange(n, device=device)
        self._slots = Ends(atom, slot, torch.arange(n, device=device))
        first = torch.searchsorted(slot[order], torch.arange(len(atom), device=device))
        self._atoms = Ends(slot, order, first)

    def split(self, values: Tensor) -> Sequence[Tensor]:
        """The rows (N, ...) of each group, (n, width, ...). Padding holds the first atom's; nothing comes of it."""
        rows = gather(values.flatten(1), self._slots).split(self._sizes)
        return [row.view(g.n, g.width, *values.shape[1:]) for row, g in zip(rows, self.groups, strict=True)]

    def restored(self, groups: Sequence[Tensor]) -> Tensor:
        """What was worked out for each group, (n, width, ...), in the atoms' own order, (N, ...)."""
        rows = [group.flatten(0, 1) for group in groups]
        together = rows[0] if len(rows) == 1 else torch.cat(rows)
        return gather(together.flatten(1), self._atoms).view(-1, *together.shape[1:])

    @classmethod
    def of(cls, graph: AtomsGraph, index: Tensor, key: str) -> Species:
        """Those of a graph under the name `key`, made once for it and its moved copies."""
        return graph.derived(f"species {key}", lambda graph: cls(graph, index))
