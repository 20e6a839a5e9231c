"""Learning rate and loss weights as functions of the progress of a run, from 0 to 1."""

from __future__ import annotations

import itertools
import math
from typing import Any

from mlpot.train.config import Config, Ramp, TrainingConfig


def ramp(value: Ramp, progress: float) -> float:
    """A constant, or the points [[progress, value], ...] joined by straight lines and held at the ends."""
    if isinstance(value, int | float):
        return float(value)
    points = sorted(value)
    if progress <= points[0][0]:
        return points[0][1]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        if progress <= x1:
            return y1 if x1 == x0 else y0 + (y1 - y0) * (progress - x0) / (x1 - x0)
    return points[-1][1]


def weights(config: Config, progress: float) -> dict[str, float]:
    """Weight of each term of the loss."""
    return {name: ramp(getattr(config.loss, name).weight, progress) for name in ("energy", "forces", "stress")}


def learning_rate(config: TrainingConfig, progress: float, plateau: float) -> float:
    """The rate at a progress: a linear rise, then half a cosine, or the plateau's present factor, or a constant."""
    rise = min(1.0, progress / config.warmup) if config.warmup > 0 else 1.0
    if config.schedule == "cosine":
        rest = max(0.0, (progress - config.warmup) / (1.0 - config.warmup))
        rise *= config.final_rate + (1.0 - config.final_rate) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, rest)))
    elif config.schedule == "plateau":
        rise *= plateau
    return config.learning_rate * rise


class Plateau:
    """Cuts the rate when the validation loss has not improved for a while."""

    def __init__(self, config: TrainingConfig) -> None:
        self.patience, self.cut = config.plateau_patience, config.plateau_factor
        self.factor, self.best, self.waited = 1.0, math.inf, 0

    def saw(self, loss: float) -> None:
        """Take in a validation loss."""
        if loss < self.best:
            self.best, self.waited = loss, 0
            return
        self.waited += 1
        if self.waited > self.patience:
            self.factor, self.waited = self.factor * self.cut, 0

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {"factor": self.factor, "best": self.best, "waited": self.waited}

    def restore(self, state: dict[str, Any]) -> None:
        """From `state`."""
        self.factor, self.best, self.waited = state["factor"], state["best"], state["waited"]
