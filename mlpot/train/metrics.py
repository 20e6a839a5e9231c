"""Errors of predictions against labels: overall, per element and per config type."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlpot.data.loader import Batch
from mlpot.potential import Prediction
from mlpot.structure import SYMBOLS

# quantity -> (unit in the summary, factor from the internal unit)
UNITS = {
    "energy": ("meV", 1e3),
    "energy_per_atom": ("meV/atom", 1e3),
    "forces": ("meV/Å", 1e3),
    "stress": ("meV/Å³", 1e3),
}
SUFFIX = {"energy": "meV", "energy_per_atom": "meV_per_atom", "forces": "meV_per_A", "stress": "meV_per_A3"}


class _Sums:
    """Count, sum of |error|, sum of error²; added in float64."""

    def __init__(self) -> None:
        self.n, self.absolute, self.square, self.largest = 0, 0.0, 0.0, 0.0

    def add(self, errors: NDArray[np.float64]) -> None:
        if errors.size:
            self.n += errors.size
            self.absolute += float(np.abs(errors).sum())
            self.square += float(np.square(errors).sum())
            self.largest = max(self.largest, float(np.abs(errors).max()))

    def merge(self, other: _Sums) -> None:
        self.n += other.n
        self.absolute += other.absolute
        self.square += other.square
        self.largest = max(self.largest, other.largest)

    def as_dict(self, factor: float) -> dict[str, float]:
        return {
            "n": self.n,
            "mae": factor * self.absolute / self.n,
            "rmse": factor * math.sqrt(self.square / self.n),
            "max": factor * self.largest,
        }


class ErrorTable:
    """Errors gathered batch by batch.

    Energies are compared in total and per atom, forces and stress by component. Missing labels do not count.
    """

    def __init__(self) -> None:
        self._sums: dict[tuple[str, str, str], _Sums] = defaultdict(_Sums)  # (group, name, quantity)
        self.n_frames = 0

    def add(self, batch: Batch, prediction: Prediction) -> None:
        """Take in one batch."""
        graph, labels = batch.graph, batch.labels
        self.n_frames += graph.n_structures
        atoms = graph.batch.cpu().numpy()
        n_atoms = np.bincount(atoms, minlength=graph.n_structures)
        types = np.array(labels.config_type)
        has = labels.has_energy.cpu().numpy()
        if has.any():
            error = (prediction.energy.detach() - labels.energy).cpu().numpy()
            self._by_type("energy", error[has], types[has])
            self._by_type("energy_per_atom", (error / n_atoms)[has], types[has])
        has = labels.has_forces.cpu().numpy()[atoms]
        if prediction.forces is not None and has.any():
            error = (prediction.forces.detach() - labels.forces).cpu().numpy()[has]
            self._by_type("forces", error, types[atoms[has]])
            numbers = graph.numbers.cpu().numpy()[has]
            for z in np.unique(numbers):
                self._sums["element", SYMBOLS[z], "forces"].add(error[numbers == z])
        has = labels.has_stress.cpu().numpy()
        if prediction.stress is not None and has.any():
            error = (prediction.stress.detach() - labels.stress).cpu().numpy()[has]
            self._by_type("stress", error, types[has])

    def _by_type(self, quantity: str, errors: NDArray[np.float64], types: NDArray[np.str_]) -> None:
        self._sums["all", "", quantity].add(errors)
        for name in np.unique(types):
            if name:
                self._sums["config_type", str(name), quantity].add(errors[types == name])

    def merge(self, other: ErrorTable) -> None:
        """Add what another table has gathered (from another process, say)."""
        self.n_frames += other.n_frames
        for key, sums in other._sums.items():
            self._sums[key].merge(sums)

    def mae(self, quantity: str) -> float:
        """Mean absolute error over everything, in eV, eV/Å or eV/Å³; NaN where there was nothing to compare."""
        sums = self._sums.get(("all", "", quantity))
        return sums.absolute / sums.n if sums and sums.n else math.nan

    def summary(self) -> dict[str, Any]:
        """Plain numbers: ``{"energy_mae_meV_per_atom": .., "forces": {"n", "mae", "rmse", "max"}, "per_element": ..}``.

        Energies in meV and meV/atom, forces in meV/Å, stress in meV/Å³.
        """
        out: dict[str, Any] = {"n_frames": self.n_frames}
        grouped: dict[str, dict[str, Any]] = {"element": {}, "config_type": {}}
        for (group, name, quantity), sums in sorted(self._sums.items()):
            entry = sums.as_dict(UNITS[quantity][1])
            if group == "all":
                out[quantity] = entry
                for figure in ("mae", "rmse"):
                    out[f"{quantity.removesuffix('_per_atom')}_{figure}_{SUFFIX[quantity]}"] = entry[figure]
            else:
                grouped[group].setdefault(name, {})[quantity] = entry
        return {**out, "per_element": grouped["element"], "per_config_type": grouped["config_type"]}
