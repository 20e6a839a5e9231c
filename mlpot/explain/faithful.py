"""Does an attribution name the atoms that the answer hangs on? Deletion curves beside those of random orders."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mlpot.explain.subject import Subject, without

Array = NDArray[np.float64]
RANDOM_ORDERS = 20


class Deletion(NamedTuple):
    """Taking atoms away, the most important first, against orders at random.

    curve (n,): |f(k atoms taken away) - f(all)|, k = 0 .. n - 1; random (R, n): the same for R random orders; score:
    how many of the random orders change the answer less on average, a number from 0 to 1: 0.5 is no better than chance.
    """

    curve: Array
    random: Array
    score: float


def deletion(subject: Subject, attribution: Array, seed: int = 0) -> Deletion:
    """The check for one attribution (n,); importance is its absolute value."""
    n = len(subject.structure)
    generator = np.random.default_rng(seed)
    orders = [np.argsort(-np.abs(attribution), kind="stable")]
    orders += [generator.permutation(n) for _ in range(RANDOM_ORDERS)]
    parts = [without(subject.structure, order[:k].tolist()) for order in orders for k in range(n)]
    values = subject.values(parts).reshape(len(orders), n)
    changes = np.abs(values - values[:, :1])
    means = changes.mean(axis=1)
    better = (means[1:] < means[0]).mean() + 0.5 * (means[1:] == means[0]).mean()
    return Deletion(changes[0], changes[1:], float(better))
