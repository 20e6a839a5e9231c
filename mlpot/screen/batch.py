"""Batches of molecules as graphs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from mlpot.bonds import BondTable
from mlpot.graph import AtomsGraph, collate
from mlpot.structure import Bonds, Structure


def graph_of(structures: Sequence[Structure], cutoff: float) -> AtomsGraph:
    """The graph of all of them; molecules known by their bonds alone are joined before they become tensors."""
    if any(one.has_positions for one in structures):
        return collate([AtomsGraph.from_structure(one, cutoff) for one in structures])
    counts = [len(one) for one in structures]
    bonds = [one.bonds for one in structures if one.bonds is not None]
    first = np.cumsum([0, *counts[:-1]])
    joined = Bonds(
        np.concatenate([one.index + start for one, start in zip(bonds, first, strict=True)], axis=1),
        np.concatenate([one.features for one in bonds]),
        np.concatenate([one.atom_features for one in bonds]),
    )
    n = len(structures)
    return AtomsGraph(
        torch.from_numpy(np.concatenate([one.numbers for one in structures])),
        torch.full((sum(counts), 3), torch.nan, dtype=torch.float64),
        torch.zeros(n, 3, 3, dtype=torch.float64),
        torch.zeros(n, 3, dtype=torch.bool),
        torch.zeros(2, 0, dtype=torch.int64),
        torch.zeros(0, 3, dtype=torch.int64),
        torch.repeat_interleave(torch.tensor(counts)),
        float(cutoff),
        torch.tensor([one.charge or 0.0 for one in structures], dtype=torch.float64),
        None,
        BondTable.of(joined),
    )
