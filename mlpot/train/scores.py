"""How good predicted properties are: errors, correlation, ranking of classes; with bootstrap intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from mlpot.data.loader import Batch
from mlpot.target import Target

Array = NDArray[np.float64]
RESAMPLES = 1000


def roc_auc(labels: Array, scores: Array) -> float:
    """Chance that a positive scores above a negative, ties counting half: the Mann-Whitney statistic.

    labels (n,) of 0 and 1, scores (n,); NaN where one of the classes is missing.
    """
    n_positive = int(labels.sum())
    n_negative = len(labels) - n_positive
    if not n_positive or not n_negative:
        return math.nan
    ranks = rankdata(scores)
    return float((ranks[labels == 1].sum() - n_positive * (n_positive + 1) / 2) / (n_positive * n_negative))


def roc_curve(labels: Array, scores: Array) -> tuple[list[float], list[float]]:
    """False and true positive rates as the threshold falls; equal scores are one step."""
    order = np.argsort(-scores, kind="stable")
    last = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))
    hits = np.cumsum(labels[order])[last]
    misses = last + 1 - hits
    n_positive = max(1.0, float(labels.sum()))
    n_negative = max(1.0, len(labels) - float(labels.sum()))
    return [0.0, *(misses / n_negative).tolist()], [0.0, *(hits / n_positive).tolist()]


def average_precision(labels: Array, scores: Array) -> float:
    """Area under precision over recall as the sum of steps, Σ (R_k - R_{k-1}) P_k; ties are taken together."""
    n_positive = int(labels.sum())
    if not n_positive:
        return math.nan
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(labels[order])
    last = np.flatnonzero(np.append(np.diff(scores[order]) != 0, True))  # the last of each run of equal scores
    precision, recall = hits[last] / (last + 1), hits[last] / n_positive
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))


def enrichment(labels: Array, scores: Array, part: float = 0.05) -> float:
    """Share of positives among the best-scored `part`, over their share in all; ties in the order given."""
    n_positive = int(labels.sum())
    if not n_positive:
        return math.nan
    n_best = max(1, math.ceil(part * len(labels)))
    best = np.argsort(-scores, kind="stable")[:n_best]
    return float(labels[best].mean() / (n_positive / len(labels)))


def mean_absolute(labels: Array, values: Array) -> float:
    """Mean of |error| over all components."""
    return float(np.abs(values - labels).mean())


def root_mean_square(labels: Array, values: Array) -> float:
    """Root of the mean of error² over all components."""
    return float(np.sqrt(np.square(values - labels).mean()))


def r_squared(labels: Array, values: Array) -> float:
    """1 - Σ error² / Σ (label - mean)²; NaN where labels do not vary."""
    spread = float(np.square(labels - labels.mean(axis=0)).sum())
    return 1.0 - float(np.square(values - labels).sum()) / spread if spread > 0 else math.nan


def accuracy(labels: Array, probabilities: Array) -> float:
    """Share of structures whose likeliest class, (n, K) or (n,), is the right one."""
    chosen = probabilities.argmax(1) if probabilities.ndim == 2 else (probabilities > 0.5)
    return float((chosen == labels).mean())


Score = Callable[[Array, Array], float]
NUMBERS: dict[str, Score] = {"mae": mean_absolute, "rmse": root_mean_square, "r2": r_squared}
BINARY: dict[str, Score] = {
    "roc_auc": roc_auc,
    "pr_auc": average_precision,
    "enrichment_5_percent": enrichment,
    "accuracy": accuracy,
}
CLASSES: dict[str, Score] = {"accuracy": accuracy}
_OF_KIND = {"binary": BINARY, "classes": CLASSES}


def scores_of(target: Target) -> dict[str, Score]:
    """The figures that suit a kind of target; the first is the main one."""
    return _OF_KIND.get(target.kind, NUMBERS)


def interval(
    score: Score, labels: Array, values: Array, level: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap interval of a score over structures (percentiles of resamples with replacement), NaN if undefined."""
    random = np.random.default_rng(seed)
    draws = [random.integers(0, len(labels), len(labels)) for _ in range(resamples)]
    found = np.array([score(labels[rows], values[rows]) for rows in draws])
    found = found[np.isfinite(found)]
    if not len(found):
        return math.nan, math.nan
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


class ScoreTable:
    """Labels and predictions of each target, gathered batch by batch. Missing labels do not count."""

    def __init__(self, targets: Sequence[Target]) -> None:
        self.targets = tuple(targets)
        self._labels: dict[str, list[Array]] = {target.name: [] for target in targets}
        self._values: dict[str, list[Array]] = {target.name: [] for target in targets}
        self.n_frames = 0

    def add(self, batch: Batch, prediction: Any) -> None:
        """Take in one batch; `prediction.values` are in the targets' units."""
        self.n_frames += batch.graph.n_structures
        for target in self.targets:
            labels = batch.labels.properties[target.name].cpu().numpy()
            there = np.isfinite(labels.reshape(len(labels), -1)).all(1)
            self._labels[target.name].append(labels[there])
            self._values[target.name].append(prediction.values[target.name].detach().cpu().numpy()[there])

    def merge(self, other: ScoreTable) -> None:
        """Add what another table has gathered."""
        self.n_frames += other.n_frames
        for name in self._labels:
            self._labels[name] += other._labels[name]
            self._values[name] += other._values[name]

    def pair(self, name: str) -> tuple[Array, Array]:
        """Labels (n, ...) and predictions of a target."""
        return np.concatenate(self._labels[name]), np.concatenate(self._values[name])

    def summary(self, intervals: bool = False) -> dict[str, Any]:
        """``{"n_frames": .., "targets": {"gap": {"unit", "kind", "n", "figure": "mae", "mae", "rmse", "r2"}}}``.

        "figure" names the main score. With `intervals`, "mae_95" and the like are 95 % bootstrap intervals.
        """
        found: dict[str, Any] = {}
        for target in self.targets:
            if not any(len(part) for part in self._labels[target.name]):
                continue
            labels, values = self.pair(target.name)
            scores = scores_of(target)
            entry: dict[str, Any] = {
                "unit": target.unit,
                "kind": target.kind,
                "n": len(labels),
                "figure": next(iter(scores)),
            }
            for name, score in scores.items():
                entry[name] = score(labels, values)
                if intervals:
                    entry[f"{name}_95"] = interval(score, labels, values)
            found[target.name] = entry
        return {"n_frames": self.n_frames, "targets": found}
