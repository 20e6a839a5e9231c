"""A data set: frames by number, and what can be said of all of them without reading each."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mlpot.data.frame import LABELS, Frame
from mlpot.target import Target


class Dataset(Protocol):
    """n labelled structures.

    path: where they came from; sha: hash of the content (hex); source: name of the format; notes: what was assumed
    and converted; theory: level of theory, where stated; elements: atomic numbers present; targets: the properties
    that frames may carry, with their units.
    """

    path: str
    sha: str
    source: str
    notes: tuple[str, ...]
    theory: str
    elements: tuple[int, ...]
    targets: tuple[Target, ...]

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Frame: ...

    def n_atoms(self) -> NDArray[np.int64]:
        """Atoms of every frame, (n,)."""
        ...

    def counts(self) -> dict[str, int]:
        """How many frames carry each label."""
        ...

    def carries(self) -> NDArray[np.bool_]:
        """Which frame carries which of LABELS, (n, 3)."""
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
        targets: tuple[Target, ...] = (),
    ) -> None:
        self.frames, self.targets = list(frames), targets
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

    def carries(self) -> NDArray[np.bool_]:
        """Which frame carries which of LABELS, (n, 3)."""
        return np.array([[frame.has(label) for label in LABELS] for frame in self.frames], dtype=bool).reshape(
            -1, len(LABELS)
        )

    def config_types(self) -> list[str]:
        """Config type of every frame."""
        return [frame.config_type for frame in self.frames]


class Subset:
    """Some frames of a data set, in a given order. `indices` (m,) are rows of the data set."""

    def __init__(self, dataset: Dataset, indices: Sequence[int] | NDArray[np.int64]) -> None:
        self.dataset, self.indices = dataset, np.asarray(indices, dtype=np.int64)
        self.path, self.sha, self.source = dataset.path, dataset.sha, dataset.source
        self.notes, self.theory, self.elements = dataset.notes, dataset.theory, dataset.elements
        self.targets = dataset.targets

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Frame:
        return self.dataset[int(self.indices[index])]

    def n_atoms(self) -> NDArray[np.int64]:
        """Atoms of every frame, (m,)."""
        return self.dataset.n_atoms()[self.indices]

    def counts(self) -> dict[str, int]:
        """How many of the frames carry each label."""
        return {label: int(n) for label, n in zip(LABELS, self.carries().sum(axis=0), strict=True)}

    def carries(self) -> NDArray[np.bool_]:
        """Which frame carries which of LABELS, (m, 3)."""
        return self.dataset.carries()[self.indices]

    def config_types(self) -> list[str]:
        """Config type of every frame."""
        types = self.dataset.config_types()
        return [types[index] for index in self.indices]


class Concatenated:
    """Several data sets one after the other."""

    def __init__(self, parts: Sequence[Dataset]) -> None:
        self.parts = list(parts)
        self._ends = np.cumsum([len(part) for part in self.parts])
        self.path = ", ".join(part.path for part in self.parts)
        self.sha = hashlib.sha256("".join(part.sha for part in self.parts).encode()).hexdigest()
        self.source = ", ".join(dict.fromkeys(part.source for part in self.parts))
        self.notes = tuple(dict.fromkeys(note for part in self.parts for note in part.notes))
        self.theory = ", ".join(dict.fromkeys(part.theory for part in self.parts if part.theory))
        self.elements = tuple(sorted({z for part in self.parts for z in part.elements}))
        self.targets = tuple({target.name: target for part in self.parts for target in part.targets}.values())

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> Frame:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        part = int(np.searchsorted(self._ends, index, side="right"))
        return self.parts[part][index - (int(self._ends[part - 1]) if part else 0)]

    def n_atoms(self) -> NDArray[np.int64]:
        """Atoms of every frame, (n,)."""
        return np.concatenate([part.n_atoms() for part in self.parts])

    def counts(self) -> dict[str, int]:
        """How many frames carry each label."""
        counts = [part.counts() for part in self.parts]
        return {label: sum(count[label] for count in counts) for label in LABELS}

    def carries(self) -> NDArray[np.bool_]:
        """Which frame carries which of LABELS, (n, 3)."""
        return np.concatenate([part.carries() for part in self.parts])

    def config_types(self) -> list[str]:
        """Config type of every frame."""
        return [name for part in self.parts for name in part.config_types()]
