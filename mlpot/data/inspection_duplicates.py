"""Frames that are the same structure, or nearly: within a set, and across two sets (leakage)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

from mlpot.data.dataset import Dataset
from mlpot.data.inspection_sample import Check, Geometry, Sample, draw

EXACT, NEAR = 1e-3, 0.02  # Å, root mean square difference of the distances between atoms
SHARE = 0.05  # nearly the same: within this part of the difference of two frames picked at random
FOLLOWING = 0.3  # a trajectory: frames differ from the one before by less than this part of it
BLOCKS, NEIGHBOURS = 24, 4
MATCHED = 24  # atoms; smaller structures are always matched atom by atom
SHOWN = 5


@dataclass(frozen=True)
class Pair:
    """Frames `first` and `second` (rows of their sets) and how far their interatomic distances differ, rms in Å."""

    first: int
    second: int
    difference: float


def _sorted_columns(entry: Geometry) -> NDArray[np.float32]:
    """Environments with the atoms of one element interchangeable: each column sorted within each element."""
    numbers = np.frombuffer(entry.group[0], dtype=np.int64)
    cuts = np.flatnonzero(np.diff(numbers)) + 1
    parts = [np.sort(part, axis=0) for part in np.split(entry.environments, cuts)]
    return np.concatenate(parts, axis=0).T.ravel()


def _summary(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """Means of blocks, scaled so that the distance of two summaries is at most the rms difference of the values."""
    starts = np.linspace(0, len(values), min(BLOCKS, max(1, len(values))), endpoint=False).astype(int)
    if not len(values):
        return np.zeros(1)
    sizes = np.diff(np.append(starts, len(values)))
    sums: NDArray[np.float64] = np.add.reduceat(values.astype(np.float64), starts)
    return sums / np.sqrt(sizes * len(values))


def difference(a: Geometry, b: Geometry) -> float:
    """Rms difference of the interatomic distances in Å, atoms of one element matched as well as can be.

    Large structures are matched only where a lower bound says that they could be nearly the same; the order of the
    file is taken otherwise.
    """
    size = a.environments.size
    if size == 0:
        return 0.0
    plain = float(np.sqrt(np.mean((a.environments - b.environments) ** 2)))
    if plain < EXACT:
        return plain
    if len(a.environments) > MATCHED:
        bound = float(np.sqrt(np.mean((_sorted_columns(a) - _sorted_columns(b)) ** 2)))
        if bound >= NEAR:
            return plain
    numbers = np.frombuffer(a.group[0], dtype=np.int64)
    total = 0.0
    for element in np.unique(numbers):
        mine = numbers == element
        cost = cdist(a.environments[mine], b.environments[mine], "sqeuclidean")
        total += float(cost[linear_sum_assignment(cost)].sum())
    return min(plain, float(np.sqrt(total / size)))


def _groups(geometries: list[Geometry]) -> dict[tuple, list[int]]:
    groups: dict[tuple, list[int]] = defaultdict(list)
    for index, entry in enumerate(geometries):
        groups[entry.group].append(index)
    return groups


def spread(geometries: list[Geometry]) -> float | None:
    """How much frames of one group differ, Å, in the median of some pairs; None for fewer than five frames."""
    half = len(geometries) // 2
    if len(geometries) < 5:
        return None
    picked = np.unique(np.linspace(0, half - 1, 30).astype(int))
    return float(np.median([difference(geometries[k], geometries[k + half]) for k in picked]))


def near_limits(geometries: list[Geometry]) -> dict[tuple, float]:
    """For each group, the difference (Å) within which two frames count as nearly the same.

    In a small or stiff molecule any two frames are close, so that the limit follows the spread of the group.
    """
    limits = {}
    for group, members in _groups(geometries).items():
        typical = spread([geometries[m] for m in members])
        limits[group] = NEAR if typical is None else max(EXACT, min(NEAR, SHARE * typical))
    return limits


def neighbours(sample: Sample) -> list[tuple[int, int]]:
    """Pairs (positions in the sample, first < second) of one group that look alike or follow each other."""
    found: set[tuple[int, int]] = set()
    for members in _groups(sample.geometries).values():
        if len(members) < 2:
            continue
        summaries = np.array([_summary(_sorted_columns(sample.geometries[m])) for m in members])
        _, nearest = cKDTree(summaries).query(summaries, k=min(NEIGHBOURS, len(members)))
        found.update(
            (min(m, members[k]), max(m, members[k])) for m, row in zip(members, nearest, strict=True) for k in row
        )
        found.update(pairwise(members))
    return sorted((i, j) for i, j in found if i != j)


def duplicates(sample: Sample, pairs: list[tuple[int, int]]) -> tuple[list[Pair], list[Check]]:
    """Exact and near duplicates among candidate pairs, closest first, and what is to be said of them."""
    limits = near_limits(sample.geometries)
    found = []
    for i, j in pairs:
        gap = difference(sample.geometries[i], sample.geometries[j])
        if gap < limits[sample.geometries[i].group] and len(sample.frames[i].structure) > 1:
            found.append((gap, i, j))
    found.sort()
    alike = [Pair(int(sample.rows[i]), int(sample.rows[j]), gap) for gap, i, j in found]
    checks = [_said(alike, len(sample.frames)), _trajectory(sample)]
    conflict = _conflict(sample, [(i, j) for gap, i, j in found if gap < EXACT])
    return alike, [check for check in (*checks, conflict) if check is not None]


def _said(alike: list[Pair], n: int) -> Check:
    exact = {pair.second for pair in alike if pair.difference < EXACT}
    near = {pair.second for pair in alike} - exact
    if not alike:
        return Check("duplicates", "ok", f"none among {n} frames.")
    if exact:
        shown = ", ".join(f"{p.first} = {p.second}" for p in alike[:SHOWN] if p.difference < EXACT)
        text = f"{len(exact)} of {n} frames repeat an earlier one (frames {shown}); drop them before splitting."
        return Check("duplicates", "suspicious", f"{text} {len(near)} more nearly do." if near else text)
    shown = ", ".join(f"{p.first} ~ {p.second}" for p in alike[:SHOWN])
    text = f"{len(near)} of {n} frames are nearly an earlier one (frames {shown}; {alike[0].difference:.2g} Å rms)"
    status = "suspicious" if len(near) > 0.05 * n else "ok"
    return Check("duplicates", status, f"{text}; keep such pairs on one side of a split.")


def _trajectory(sample: Sample) -> Check | None:
    """Whether frames follow each other, the largest group asked."""
    members = max(_groups(sample.geometries).values(), key=len)
    typical = spread([sample.geometries[m] for m in members])
    if typical is None or len(members) < 20 or len(sample.frames[members[0]].structure) == 1:
        return None
    steps = [(a, b) for a, b in pairwise(members) if sample.rows[b] - sample.rows[a] == 1][:200]
    if not steps:
        return None
    gap = float(np.median([difference(sample.geometries[a], sample.geometries[b]) for a, b in steps]))
    facts = f"frames differ by {gap:.2g} Å rms from the one before, by {typical:.2g} Å from others"
    if gap < FOLLOWING * typical:
        text = f"{facts}: a trajectory. A random split would test on frames it has nearly seen; split it by blocks."
        return Check("order of frames", "suspicious", text)
    return Check("order of frames", "ok", f"{facts}: not a trajectory step by step.")


def _conflict(sample: Sample, pairs: list[tuple[int, int]]) -> Check | None:
    """Same geometry, other energy."""
    worst = (0.0, 0, 0)
    for i, j in pairs:
        a, b = sample.frames[i], sample.frames[j]
        if a.energy is not None and b.energy is not None:
            worst = max(worst, (abs(a.energy - b.energy) / len(a.structure), i, j))
    if worst[0] < 0.005:
        return None
    first, second = int(sample.rows[worst[1]]), int(sample.rows[worst[2]])
    message = f"frames {first} and {second} are the same structure, their energies differ by {worst[0]:.3g} eV/atom."
    return Check("conflicting labels", "suspicious", message)


def leakage(train: Dataset, test: Dataset) -> tuple[dict[str, object], Check]:
    """Frames of `test` that are in `train`, or nearly: counts, closest pairs (train row, test row), and a verdict."""
    return leak_between(draw(train), draw(test))


def leak_between(train: Sample, test: Sample) -> tuple[dict[str, object], Check]:
    """`leakage` of two samples."""
    best: dict[int, Pair] = {}
    limits, alike = near_limits(train.geometries), 0
    known = _groups(train.geometries)
    for group, members in _groups(test.geometries).items():
        others = known.get(group)
        if not others or len(test.frames[members[0]].structure) == 1:
            continue
        tree = cKDTree(np.array([_summary(_sorted_columns(train.geometries[k])) for k in others]))
        for member in members:
            entry = test.geometries[member]
            _, nearest = tree.query(_summary(_sorted_columns(entry)), k=min(NEIGHBOURS, len(others)))
            gaps = [(difference(train.geometries[others[k]], entry), others[k]) for k in np.atleast_1d(nearest)]
            gap, other = min(gaps)
            alike += gap < limits[group]
            best[member] = Pair(int(train.rows[other]), int(test.rows[member]), gap)
    closest = sorted(best.values(), key=lambda pair: pair.difference)
    exact = sum(pair.difference < EXACT for pair in closest)
    near = alike - exact
    n = len(test.frames)
    sampled = f" (of {train.total} and {test.total} frames, {len(train.frames)} and {n} were compared)"
    note = sampled if train.total + test.total > len(train.frames) + n else ""
    summary: dict[str, object] = {"exact": exact, "near": near, "frames": n, "closest": closest[:SHOWN]}
    if not closest:
        return summary, Check("leakage", "ok", f"no composition of the test frames is among the training frames{note}.")
    typical = float(np.median([pair.difference for pair in closest]))
    shown = ", ".join(f"{p.first} ~ {p.second} ({p.difference:.3g} Å)" for p in closest[:SHOWN])
    tail = f"Closest (train ~ test): {shown}; median of the test frames {typical:.3g} Å{note}."
    if exact or near:
        text = f"{exact} of {n} test frames are in the training set and {near} more nearly are."
        return summary, Check("leakage", "suspicious", f"{text} {tail}")
    return summary, Check("leakage", "ok", f"no test frame is in the training set. {tail}")
