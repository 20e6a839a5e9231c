"""Bonds of a batch of molecules as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mlpot.errors import UserError
from mlpot.structure import Bonds


@dataclass(frozen=True)
class BondTable:
    """Bonds of N atoms; B counts every bond twice, once a direction.

    | field         | shape, dtype     | meaning                                       |
    |---------------|------------------|-----------------------------------------------|
    | index         | (2, B) int64     | [source j, target i], sorted by target        |
    | features      | (B, F_b) float64 | of the bond, equal in both directions         |
    | atom_features | (N, F_a) float64 | of the atom, as its bonds tell                |

    The columns of the features are those of `mlpot.convert.smiles`.
    """

    index: Tensor
    features: Tensor
    atom_features: Tensor

    @classmethod
    def of(cls, bonds: Bonds) -> BondTable:
        """Of one structure."""
        index = torch.from_numpy(np.array(bonds.index))
        both = torch.cat([index, index.flip(0)], dim=1)
        order = torch.argsort(both[1] * len(bonds.atom_features) + both[0], stable=True)
        features = torch.from_numpy(np.array(bonds.features)).repeat(2, 1)
        return cls(both[:, order], features[order], torch.from_numpy(np.array(bonds.atom_features)))

    @classmethod
    def joined(cls, tables: Sequence[BondTable]) -> BondTable:
        """Of several structures, one after the other."""
        widths = {(table.features.shape[1], table.atom_features.shape[1]) for table in tables}
        if len(widths) > 1:
            raise UserError(
                f"the structures' bond and atom features have different numbers of columns: {sorted(widths)}."
            )
        first = np.cumsum([0, *(len(table.atom_features) for table in tables[:-1])]).tolist()
        return cls(
            torch.cat([table.index + start for table, start in zip(tables, first, strict=True)], dim=1),
            torch.cat([table.features for table in tables]),
            torch.cat([table.atom_features for table in tables]),
        )

    def of_atoms(self, first: int, last: int) -> BondTable:
        """Of the atoms from `first` to before `last`, a structure of the batch."""
        target = self.index[1]
        within = (target >= first) & (target < last)
        return BondTable(self.index[:, within] - first, self.features[within], self.atom_features[first:last])

    def plain(self) -> Bonds:
        """As numpy arrays, each bond once."""
        once = self.index[0] < self.index[1]
        index, features, atoms = self.index[:, once], self.features[once], self.atom_features
        return Bonds(index.cpu().numpy(), features.cpu().numpy(), atoms.cpu().numpy())

    def to(self, device: str | torch.device) -> BondTable:
        """The same table on another device."""
        return BondTable(self.index.to(device), self.features.to(device), self.atom_features.to(device))
