"""Frames that are the same structure, or nearly: within a set, and across two sets (leakage)."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist

from mlpot.data.dataset import Dataset
from mlpot.data.inspection_sample import Check, Geometry, Sample, draw

EXACT, NEAR = 1e-3, 0.02  # Å, root mean square difference of the distances between atoms
BLOCKS, NEIGHBOURS = 24, 4
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
    blocks = np.array_split(values.astype(np.float64), min(BLOCKS, max(1, len(values))))
    return np.array([block.mean() * np.sqrt(len(block) / len(values)) if len(block) else 0.0 for block in blocks])


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
    bound = float(np.sqrt(np.mean((_sorted_columns(a) - _sorted_columns(b)) ** 2)))
    if bound >= NEAR and len(a.environments) > 24:
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


def neighbours(sample: Sample) -> list[tuple[int, int]]:
    """Pairs (positions in the sample, first < second) of one group that look alike or follow each other."""
    found: set[tuple[int, int]] = set()
    for members in _groups(sample.geometries).values():
        if len(members) < 2:
            continue
        summaries = np.array([_summary(_sorted_columns(sample.geometries[m])) for m in members])
        _, nearest = cKDTree(summaries).query(summaries, k=min(NEIGHBOURS, len(members)))
        found.update((min(m, members[k]), max(m, members[k])) for m, row in zip(members, nearest, strict=True) for k in row)
        found.update(zip(members[:-1], members[1:], strict=True))
    return sorted((i, j) for i, j in found if i != j)


def duplicates(sample: Sample, pairs: list[tuple[int, int]]) -> tuple[list[Pair], list[Check]]:
    """Exact and near duplicates among candidate pairs, closest first, and what is to be said of them."""
    found = []
    for i, j in pairs:
        gap = difference(sample.geometries[i], sample.geometries[j])
        if gap < NEAR and len(sample.frames[i].structure) > 1:
            found.append((gap, i, j))
    found.sort()
    alike = [Pair(int(sample.rows[i]), int(sample.rows[j]), gap) for gap, i, j in found]
    exact = {pair.second for pair in alike if pair.difference < EXACT}
    near = {pair.second for pair in alike} - exact
    following = {pair.second for pair in alike if pair.second - pair.first == 1}
    checks = [_said(alike, exact, near, following, len(sample.frames))]
    conflict = _conflict(sample, [(i, j) for gap, i, j in found if gap < EXACT])
    return alike, [*checks, *([conflict] if conflict else [])]


def _said(alike: list[Pair], exact: set[int], near: set[int], following: set[int], n: int) -> Check:
    if not alike:
        return Check("duplicates", "ok", f"none among {n} frames (distances differ by more than {NEAR} Å rms).")
    if exact:
        shown = ", ".join(f"{p.first} = {p.second}" for p in alike[:SHOWN] if p.difference < EXACT)
        text = f"{len(exact)} of {n} frames repeat an earlier one (frames {shown}); drop them before splitting."
        return Check("duplicates", "suspicious", f"{text} {len(near)} more nearly do." if near else text)
    text = f"{len(near)} of {n} frames are nearly an earlier one (within {NEAR} Å rms)"
    if len(following) > 0.5 * len(near):
        return Check("duplicates", "suspicious", f"{text}, most of them the one before: a trajectory; split it by blocks.")
    shown = ", ".join(f"{p.first} ~ {p.second}" for p in alike[:SHOWN])
    status = "suspicious" if len(near) > 0.01 * n else "ok"
    return Check("duplicates", status, f"{text} (frames {shown}); keep such pairs on one side of a split.")


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
            best[member] = Pair(int(train.rows[other]), int(test.rows[member]), gap)
    closest = sorted(best.values(), key=lambda pair: pair.difference)
    exact = sum(pair.difference < EXACT for pair in closest)
    near = sum(pair.difference < NEAR for pair in closest) - exact
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
        text = f"{exact} of {n} test frames are in the training set and {near} more nearly are (within {NEAR} Å rms)."
        return summary, Check("leakage", "suspicious", f"{text} {tail}")
    return summary, Check("leakage", "ok", f"no test frame is in the training set. {tail}")
