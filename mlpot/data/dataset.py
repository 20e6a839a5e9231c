"""A data set: frames by number, and what can be said of all of them without reading each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mlpot.data.frame import LABELS, Frame


class Dataset(Protocol):
    """n labelled structures.

    path: where they came from; sha: hash of the content (hex); source: name of the format; notes: what was assumed
    and converted; theory: level of theory, where stated; elements: atomic numbers present.
    """

    path: str
    sha: str
    source: str
    notes: tuple[str, ...]
    theory: str
    elements: tuple[int, ...]

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Frame: ...

    def n_atoms(self) -> NDArray[np.int64]:
        """Atoms of every frame, (n,)."""
        ...

    def counts(self) -> dict[str, int]:
        """How many frames carry each label."""
        ...

    def config_types(self) -> list[str]:
        """Config type of every frame, "" where it has none."""
        ...


class MemoryDataset:
    """Frames held in memory."""

    def __init__(
        self,
        frames: Sequence[Frame],
        path: str = "",
        sha: str = "",
        source: str = "memory",
        notes: tuple[str, ...] = (),
        theory: str = "",
    ) -> None:
        self.frames = list(frames)
        self.path, self.sha, self.source, self.notes, self.theory = path, sha, source, notes, theory
        numbers = [np.unique(frame.structure.numbers) for frame in self.frames]
        self.elements = tuple(int(z) for z in np.unique(np.concatenate(numbers))) if numbers else ()

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: int) -> Frame:
        return self.frames[index]

    def n_atoms(self) -> NDArray[np.int64]:
        """Atoms of every frame, (n,)."""
        return np.array([len(frame.structure) for frame in self.frames], dtype=np.int64)

    def counts(self) -> dict[str, int]:
        """How many frames carry each label."""
        return {label: sum(frame.has(label) for frame in self.frames) for label in LABELS}

    def config_types(self) -> list[str]:
        """Config type of every frame."""
        return [frame.config_type for frame in self.frames]


class Subset:
    """Some frames of a data set, in a given order. `indices` (m,) are rows of the data set."""

    def __init__(self, dataset: Dataset, indices: Sequence[int] | NDArray[np.int64]) -> None:
        self.dataset, self.indices = dataset, np.asarray(indices, dtype=np.int64)
        self.path, self.sha, self.source = dataset.path, dataset.sha, dataset.source
        self.notes, self.theory, self.elements = dataset.notes, dataset.theory, dataset.elements

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Frame:
        return self.dataset[int(self.indices[index])]

    def n_atoms(self) -> NDArray[np.int64]:
        """Atoms of every frame, (m,)."""
        return self.dataset.n_atoms()[self.indices]

    def counts(self) -> dict[str, int]:
        """How many of the frames carry each label; where all of the data set's do, none is read."""
        whole = self.dataset.counts()
        partial = [label for label, count in whole.items() if 0 < count < len(self.dataset)]
        counts = {label: len(self) if count else 0 for label, count in whole.items()}
        if partial:
            held = [[frame.has(label) for label in partial] for frame in (self[i] for i in range(len(self)))]
            counts.update({label: sum(row[k] for row in held) for k, label in enumerate(partial)})
        return counts

    def config_types(self) -> list[str]:
        """Config type of every frame."""
        types = self.dataset.config_types()
        return [types[index] for index in self.indices]
