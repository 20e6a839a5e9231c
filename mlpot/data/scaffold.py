"""Groups of molecules that belong together in a split: those of one scaffold (Bemis and Murcko, J. Med. Chem. 1996)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mlpot.convert.smiles import parsed
from mlpot.data.dataset import Dataset
from mlpot.errors import UserError


def scaffold(smiles: str) -> str:
    """The rings of a molecule and what joins them, as a canonical SMILES; "" for a molecule without rings."""
    from rdkit.Chem.Scaffolds import MurckoScaffold

    return str(MurckoScaffold.MurckoScaffoldSmiles(mol=parsed(smiles), includeChirality=False))


def smiles_of(dataset: Dataset) -> list[str]:
    """The SMILES of every frame, from its info; UserError for a frame without one."""
    found = []
    for row in range(len(dataset)):
        text = dataset[row].info.get("smiles")
        if not text:
            raise UserError(f"{dataset.path}: frame {row} has no SMILES, which a split by scaffold needs.")
        found.append(str(text))
    return found


def by_scaffold(smiles: Sequence[str], sizes: tuple[int, int, int], seed: int) -> list[NDArray[np.int64]]:
    """Rows for training, validation and test, of about the `sizes`: no scaffold is in two of them.

    Scaffolds of many molecules (more than half of the smaller held-out part) go to training, the others are dealt in
    an order that depends on the seed; molecules without rings are each a group of their own.
    """
    groups: dict[str, list[int]] = {}
    for row, text in enumerate(smiles):
        name = scaffold(text)
        groups.setdefault(name or f"acyclic {row}", []).append(row)
    held_out = [size for size in sizes[1:] if size]
    most = min(held_out) / 2 if held_out else 0
    large = [rows for rows in groups.values() if len(rows) > most]
    small = [rows for rows in groups.values() if len(rows) <= most]
    order = np.random.default_rng(seed).permutation(len(small))
    parts: list[list[int]] = [[], [], []]
    for rows in [*large, *(small[k] for k in order)]:
        room = [size - len(part) for size, part in zip(sizes, parts, strict=True)]
        fits = [k for k in (0, 1, 2) if room[k] >= len(rows)]
        parts[fits[0] if fits else int(np.argmax(room))] += rows
    return [np.array(sorted(part), dtype=np.int64) for part in parts]
