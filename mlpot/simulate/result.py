"""What dynamics leave behind."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from ase import Atoms
from numpy.typing import NDArray

from mlpot.simulate.settings import Settings

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class MDResult:
    """What a run left: T rows of the log, from its very beginning, and F frames of this process.

    times_fs, potential_energy (eV), kinetic_energy (eV), temperature (K), target_temperature (K): (T,).
    positions (F, n, 3) and cells (F, 3, 3) in Å, frame_times_fs (F,): those kept in memory, None where none were.
    atoms: the final state. log: every column by its name.
    """

    settings: Settings
    atoms: Atoms
    log: dict[str, FloatArray]
    frame_times_fs: FloatArray | None = None
    positions: FloatArray | None = None
    cells: FloatArray | None = None
    trajectory: Path | None = None
    log_file: Path | None = None
    seconds: float = 0.0

    @property
    def n_atoms(self) -> int:
        """Number of atoms."""
        return len(self.atoms)

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Atomic numbers, (n,)."""
        return self.atoms.numbers

    @property
    def times_fs(self) -> FloatArray:
        """(T,) fs."""
        return self.log["time_fs"]

    @property
    def potential_energy(self) -> FloatArray:
        """(T,) eV."""
        return self.log["potential_eV"]

    @property
    def kinetic_energy(self) -> FloatArray:
        """(T,) eV."""
        return self.log["kinetic_eV"]

    @property
    def temperature(self) -> FloatArray:
        """(T,) K."""
        return self.log["temperature_K"]

    @property
    def target_temperature(self) -> FloatArray:
        """(T,) K, of the bath; in NVE that of the first velocities."""
        return self.log["target_K"]

    def drift(self) -> float:
        """Slope of potential + kinetic energy in meV/atom/ps; what NVE should keep near zero."""
        return energy_drift(self.times_fs, self.log["total_eV"], self.n_atoms)


def energy_drift(times_fs: FloatArray, total_energy: FloatArray, n_atoms: int) -> float:
    """Slope of a straight line through the total energy (eV) in meV/atom/ps; NaN with fewer than three points."""
    if len(times_fs) < 3:
        return math.nan
    times = (np.asarray(times_fs) - np.mean(times_fs)) / 1000.0
    energies = np.asarray(total_energy) - np.mean(total_energy)
    return float(1000.0 * (times @ energies) / (times @ times) / n_atoms)
