"""The part of a store that molecules need besides: properties with their units, and bonds.

Written only where frames have any. A property is one dataset (n, ...) named property_0, property_1, ..., NaN where a
frame lacks it, with its target as an attribute. Bonds of all frames lie one after the other; `bond_offset` says where
each frame's begin, and is -1 where a frame has none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import h5py
import numpy as np

from mlpot.data.frame import Frame
from mlpot.errors import UserError
from mlpot.structure import Bonds
from mlpot.target import Target

CHUNK = 512  # rows
BONDS = ("bond_offset", "bond_index", "bond_features", "bond_atoms")


class MoleculeWriter:
    """Appends properties and bonds of frames, block by block, in the order of the frames."""

    def __init__(self, file: h5py.File, targets: Sequence[Target], digest: Any) -> None:
        self.file, self.targets, self.digest = file, tuple(targets), digest
        self.n_bonds = 0
        for place, target in enumerate(self.targets):
            data = self._made(f"property_{place}", target.shape, np.float64)
            data.attrs["target"] = json.dumps(target.model_dump(mode="json"), ensure_ascii=False)
            data.attrs["units"] = target.unit
            digest.update(data.attrs["target"].encode())

    def _made(self, name: str, shape: tuple[int, ...], kind: Any) -> h5py.Dataset:
        return self.file.create_dataset(name, (0, *shape), kind, maxshape=(None, *shape), chunks=(CHUNK, *shape))

    def add(self, frames: Sequence[Frame], first_frame: int) -> None:
        """Write a block of frames; `first_frame` is the number of those that went before."""
        known = {target.name for target in self.targets}
        for frame in frames:
            strange = set(frame.properties) - known
            if strange:
                listed = ", ".join(known) or "none"
                raise UserError(f"property {sorted(strange)[0]} is none of the data set's: {listed}.")
        for place, target in enumerate(self.targets):
            missing = np.full(target.shape, np.nan)
            values = [frame.properties.get(target.name, missing) for frame in frames]
            self._append(f"property_{place}", np.array(values, dtype=np.float64).reshape(-1, *target.shape))
        if "bond_offset" in self.file or any(frame.structure.bonds is not None for frame in frames):
            self._bonds(frames, first_frame)

    def _bonds(self, frames: Sequence[Frame], first_frame: int) -> None:
        tables = [frame.structure.bonds for frame in frames]
        there = [table for table in tables if table is not None]
        if "bond_offset" not in self.file:
            widths = there[0].features.shape[1], there[0].atom_features.shape[1]
            for name, shape, kind in zip(BONDS, ((), (2,), *((w,) for w in widths)), "iiff", strict=True):
                self._made(name, shape, np.int64 if kind == "i" else np.float32)
            self._append("bond_offset", np.full(first_frame, -1))
        offsets = []
        for frame, table in zip(frames, tables, strict=True):
            offsets.append(-1 if table is None else self.n_bonds)
            self.n_bonds += 0 if table is None else table.index.shape[1]
            if table is None:
                continue
            if len(table.atom_features) != len(frame.structure):
                raise UserError(f"bonds of {len(table.atom_features)} atoms for a structure of {len(frame.structure)}.")
        self._append("bond_offset", np.array(offsets))
        if there:
            self._append("bond_index", np.concatenate([table.index.T for table in there]))
            self._append("bond_features", np.concatenate([table.features for table in there]))
            self._append("bond_atoms", np.concatenate([table.atom_features for table in there]))

    def _append(self, name: str, block: Any) -> None:
        data = self.file[name]
        start = data.shape[0]
        data.resize(start + len(block), axis=0)
        data[start:] = block
        self.digest.update(np.ascontiguousarray(block, dtype=data.dtype).tobytes())


class MoleculeReader:
    """Properties and bonds of an open store."""

    def __init__(self, file: h5py.File) -> None:
        names = sorted((n for n in file if n.startswith("property_")), key=lambda n: int(n.rpartition("_")[2]))
        self.targets = tuple(Target(**json.loads(file[name].attrs["target"])) for name in names)
        for target, name in zip(self.targets, names, strict=True):
            if file[name].attrs["units"] != target.unit:
                raise ValueError(f"{target.name} is in {file[name].attrs['units']} and in {target.unit}")
        self._data = [file[name] for name in names]
        self._bonds = {name: file[name] for name in BONDS} if BONDS[0] in file else None
        self._offsets: Any = None
        self._atoms: Any = None
        self._ends: Any = None

    def properties(self, index: int) -> dict[str, Any]:
        """Those that a frame carries."""
        found = {}
        for target, data in zip(self.targets, self._data, strict=True):
            value = data[index]
            if np.isfinite(value).all():
                found[target.name] = value if target.shape else float(value)
        return found

    def bonds(self, index: int, n_atoms: Callable[[], Any]) -> Bonds | None:
        """Those of a frame; `n_atoms()` (n,) are the atoms of all frames."""
        if self._bonds is None:
            return None
        if self._offsets is None:
            self._offsets = self._bonds["bond_offset"][()]
            ends = np.append(self._offsets, self._bonds["bond_index"].shape[0])
            ends[ends < 0] = np.iinfo(np.int64).max
            self._ends = np.minimum.accumulate(ends[::-1])[::-1][1:]  # where the next frame with bonds begins
            self._atoms = np.append(0, np.cumsum(np.where(self._offsets >= 0, n_atoms(), 0)))
        first = int(self._offsets[index])
        if first < 0:
            return None
        last = int(self._ends[index])
        atoms = slice(int(self._atoms[index]), int(self._atoms[index + 1]))
        return Bonds(
            self._bonds["bond_index"][first:last].T.astype(np.int64),
            self._bonds["bond_features"][first:last].astype(np.float64),
            self._bonds["bond_atoms"][atoms].astype(np.float64),
        )
