"""The frames that an inspection looks at, each reduced to what its checks need of the geometry."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from ase.data import covalent_radii
from numpy.typing import NDArray

from mlpot.data.dataset import Dataset
from mlpot.data.frame import Frame
from mlpot.neighbors import edge_vectors, neighbor_list
from mlpot.structure import Structure

CUTOFF = 5.0  # Å, neighbours that describe an environment
FULL = 32  # free molecules up to this size are described by all their distances
MOST_FRAMES, MOST_ATOMS, STRETCH = 4_000, 120_000, 20
BOND = 1.35  # Å, longer than a bond of hydrogen to C, N or O, shorter than a hydrogen bond


@dataclass(frozen=True)
class Check:
    """The outcome of one test: status "ok", "suspicious" or "not testable", and a sentence with the numbers."""

    name: str
    status: str
    message: str


@dataclass(frozen=True)
class Geometry:
    """What the checks need of one structure of n atoms.

    group: composition, periodicity, charge and spin: only frames of one group can be the same.
    environments: (n, m) float32, distances (Å) of each atom to its neighbours, element by element, sorted; atoms
    ordered by element. They do not change by rotation, reflection, translation or the choice of periodic images.
    closest: the pair (i, j, distance, distance over the sum of covalent radii) that is nearest to overlapping.
    hydrogens: (h, 6), for each H bonded to C, N or O: partner's atomic number, H's index, bond length, unit vector
    from the partner to H.
    """

    group: tuple[bytes, bytes, float | None, float | None]
    environments: NDArray[np.float32]
    closest: tuple[int, int, float, float] | None
    hydrogens: NDArray[np.float64]


@dataclass(frozen=True)
class Sample:
    """Frames of a data set with their row numbers; all of them where the set is not too large."""

    rows: NDArray[np.int64]
    frames: list[Frame]
    geometries: list[Geometry]
    total: int


def sample_rows(
    n_atoms: NDArray[np.int64], most_frames: int = MOST_FRAMES, most_atoms: int = MOST_ATOMS
) -> NDArray[np.int64]:
    """Rows to look at: all, or stretches of consecutive ones, evenly over the set; neighbours in time tell most."""
    n = len(n_atoms)
    wanted = min(n, most_frames, max(STRETCH, int(most_atoms / max(1.0, float(n_atoms.mean())))))
    if wanted == n:
        return np.arange(n)
    starts = np.linspace(0, n - STRETCH, max(1, wanted // STRETCH)).astype(np.int64)
    return np.unique(starts[:, None] + np.arange(STRETCH))


def draw(dataset: Dataset) -> Sample:
    """The sample of a data set, with the geometry of each frame."""
    rows = sample_rows(dataset.n_atoms())
    frames = [dataset[int(row)] for row in rows]
    return Sample(rows, frames, [geometry(frame.structure) for frame in frames], len(dataset))


def geometry(structure: Structure) -> Geometry:
    """Environments, the closest pair and the bonds of hydrogen of one structure."""
    numbers = structure.numbers
    order = np.argsort(numbers, kind="stable")
    group = (numbers[order].tobytes(), structure.pbc.tobytes(), structure.charge, structure.spin)
    full = len(numbers) <= FULL and not structure.pbc.any()
    if not structure.has_positions:  # known by its bonds alone
        source = target = np.zeros(0, dtype=np.int64)
        vectors = np.zeros((0, 3))
    elif full:
        target, source = np.nonzero(~np.eye(len(numbers), dtype=bool))
        vectors = structure.positions[source] - structure.positions[target]
    else:
        edges, shift = neighbor_list(structure, CUTOFF)
        (source, target), vectors = edges, edge_vectors(structure, edges, shift)
    distances = np.linalg.norm(vectors, axis=1)
    environments = _environments(numbers, target, source, distances, None if full else CUTOFF)
    if structure.pbc.all():  # layers and pores differ in what near neighbours do not show
        length = (abs(np.linalg.det(structure.cell)) / len(numbers)) ** (1 / 3)
        environments = np.column_stack([environments, np.full(len(numbers), length, dtype=np.float32)])
    closest = _closest(numbers, target, source, distances)
    return Geometry(group, environments[order], closest, _hydrogens(numbers, target, source, distances, vectors))


def _environments(
    numbers: NDArray[np.int64],
    target: NDArray[np.int64],
    source: NDArray[np.int64],
    distances: NDArray[np.float64],
    cutoff: float | None,
) -> NDArray[np.float32]:
    """Sorted distances of each atom to its neighbours of each element, (n, m); the cutoff where there is none."""
    elements, counts = np.unique(numbers, return_counts=True)
    tables = []
    for element, count in zip(elements, counts, strict=True):
        width = int(count) if cutoff is None else max(2, (48 if len(numbers) <= FULL else 12) // len(elements))
        chosen = numbers[source] == element
        atoms, lengths = target[chosen], distances[chosen]
        order = np.lexsort((lengths, atoms))
        atoms, lengths = atoms[order], lengths[order]
        rank = np.arange(len(atoms)) - np.searchsorted(atoms, atoms)
        table = np.full((len(numbers), width), cutoff or 0.0, dtype=np.float32)
        kept = rank < width
        table[atoms[kept], rank[kept]] = lengths[kept]
        tables.append(table)
    return np.concatenate(tables, axis=1)


def _closest(
    numbers: NDArray[np.int64], target: NDArray[np.int64], source: NDArray[np.int64], distances: NDArray[np.float64]
) -> tuple[int, int, float, float] | None:
    if not len(distances):
        return None
    ratio = distances / (covalent_radii[numbers[target]] + covalent_radii[numbers[source]])
    k = int(ratio.argmin())
    return int(target[k]), int(source[k]), float(distances[k]), float(ratio[k])


def _hydrogens(
    numbers: NDArray[np.int64],
    target: NDArray[np.int64],
    source: NDArray[np.int64],
    distances: NDArray[np.float64],
    vectors: NDArray[np.float64],
) -> NDArray[np.float64]:
    near = (numbers[target] == 1) & (distances < BOND) & (distances > 1e-3)
    atoms, partners = target[near], numbers[source[near]]
    # An H with two near neighbours is shared or squeezed; its force is not that of one bond.
    alone = np.bincount(atoms, minlength=len(numbers))[atoms] == 1
    kept = alone & np.isin(partners, (6, 7, 8))
    lengths = distances[near][kept]
    units = -vectors[near][kept] / lengths[:, None]
    return np.column_stack([partners[kept], atoms[kept], lengths, units])
