"""What a report is made of: plain arrays with units, checked when they are put together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Predictions:
    """Predictions against labels of one set of F frames with N atoms in all; None where there is nothing to compare.

    | field              | shape          | unit  | meaning                                         |
    |--------------------|----------------|-------|-------------------------------------------------|
    | n_atoms            | (F,)           |       | atoms of each frame, for energies per atom      |
    | energy_reference   | (F,)           | eV    | labels, total energies; NaN where one is missing |
    | energy_predicted   | (F,)           | eV    |                                                 |
    | forces_reference   | (N, 3)         | eV/Å  | labels; NaN where missing                       |
    | forces_predicted   | (N, 3)         | eV/Å  |                                                 |
    | stress_reference   | (F, 3, 3)      | eV/Å³ | labels, ASE's sign; NaN where missing           |
    | stress_predicted   | (F, 3, 3)      | eV/Å³ |                                                 |

    Raises ValueError where the two halves of a pair differ in shape or one is missing.
    """

    n_atoms: NDArray[np.int64]
    energy_reference: Array | None = None
    energy_predicted: Array | None = None
    forces_reference: Array | None = None
    forces_predicted: Array | None = None
    stress_reference: Array | None = None
    stress_predicted: Array | None = None

    def __post_init__(self) -> None:
        n, total = len(self.n_atoms), int(np.sum(self.n_atoms))
        for name, shape in (("energy", (n,)), ("forces", (total, 3)), ("stress", (n, 3, 3))):
            for half in ("reference", "predicted"):
                _shaped(f"{name}_{half}", getattr(self, f"{name}_{half}"), shape)
            if (getattr(self, f"{name}_reference") is None) != (getattr(self, f"{name}_predicted") is None):
                raise ValueError(f"{name}: give both {name}_reference and {name}_predicted, or neither")

    def pair(self, name: str) -> tuple[Array, Array] | None:
        """(reference, predicted) of "energy" (per atom, eV), "forces" or "stress", flat; only what is finite."""
        reference, predicted = getattr(self, f"{name}_reference"), getattr(self, f"{name}_predicted")
        if reference is None:
            return None
        scale = np.asarray(self.n_atoms, dtype=np.float64) if name == "energy" else 1.0
        reference, predicted = (np.asarray(reference) / scale).ravel(), (np.asarray(predicted) / scale).ravel()
        kept = np.isfinite(reference) & np.isfinite(predicted)
        return (reference[kept], predicted[kept]) if kept.any() else None

    def not_finite(self, name: str) -> int:
        """How many predictions of "energy", "forces" or "stress" are NaN or infinite where there is a label."""
        reference, predicted = getattr(self, f"{name}_reference"), getattr(self, f"{name}_predicted")
        return 0 if reference is None else int((np.isfinite(reference) & ~np.isfinite(predicted)).sum())


@dataclass(frozen=True)
class TrainingResult:
    """A finished training run.

    config: the resolved settings, nested mappings of plain values.
    log_rows: one mapping per validation, in order: epoch, step, seconds, learning_rate (or lr), train_loss,
        valid_loss, valid_energy_mae_meV_per_atom, valid_forces_mae_meV_per_A, ...; text from a CSV file will do.
    metrics: the errors of each set by its name, as mlpot.train.metrics.ErrorTable.summary gives them,
        e.g. ``{"validation": {...}, "test": {...}}``. The set named last is the one that counts (in the key figures).
    predictions: predictions of the same sets, for the parity plots; may lack some or all of them.
    goals: limits to judge key figures by, under the names that they have in `metrics`
        ("forces_mae_meV_per_A", "energy_mae_meV_per_atom").
    provenance: versions, hashes, file names, level of theory: whatever is needed to do it again.
    warnings, notes: sentences for the reader; warnings come first.
    """

    config: Mapping[str, Any]
    log_rows: Sequence[Mapping[str, Any]] = ()
    metrics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    predictions: Mapping[str, Predictions] = field(default_factory=dict)
    goals: Mapping[str, float] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Dynamics:
    """A molecular dynamics run of n atoms: T samples of the energies and F frames.

    | field              | shape                     | unit | meaning                                            |
    |--------------------|---------------------------|------|----------------------------------------------------|
    | name               | str                       |      | heading, e.g. "NVE from 500 K"                     |
    | times_fs           | (T,)                      | fs   | rising                                             |
    | potential_energy   | (T,)                      | eV   | of all atoms                                       |
    | kinetic_energy     | (T,)                      | eV   | of all atoms                                       |
    | temperature        | (T,)                      | K    |                                                    |
    | numbers            | (n,)                      |      | atomic numbers                                     |
    | positions          | (F, n, 3) or None         | Å    | wrapped or not                                     |
    | frame_times_fs     | (F,) or None              | fs   | times of the frames; None: those of the energies   |
    | cell               | (3, 3), (F, 3, 3) or None | Å    | rows are lattice vectors                           |
    | pbc                | (3,)                      |      | periodic along each lattice vector                 |
    | target_temperature | float or None             | K    | of the thermostat; None in NVE                     |
    | conserved_energy   | (T,) or None              | eV   | what the equations of motion conserve, where that  |
    |                    |                           |      | is not potential + kinetic (Nosé–Hoover, say)      |
    | conserves_energy   | bool                      |      | whether potential + kinetic should stay (NVE)      |
    | description        | str                       |      | a sentence on time step, thermostat and start      |

    Raises ValueError where shapes do not fit or an energy or temperature is not finite: hand over what came before.
    """

    name: str
    times_fs: Array
    potential_energy: Array
    kinetic_energy: Array
    temperature: Array
    numbers: NDArray[np.int64]
    positions: Array | None = None
    frame_times_fs: Array | None = None
    cell: Array | None = None
    pbc: Sequence[bool] = (False, False, False)
    target_temperature: float | None = None
    conserved_energy: Array | None = None
    conserves_energy: bool = True
    description: str = ""

    def __post_init__(self) -> None:
        samples = (len(self.times_fs),)
        if samples[0] < 2 or not (np.diff(self.times_fs) > 0).all():
            raise ValueError("times_fs: expected at least two rising times")
        for name in ("potential_energy", "kinetic_energy", "temperature", "conserved_energy"):
            value = getattr(self, name)
            _shaped(name, value, samples)
            if value is not None and not np.isfinite(value).all():
                raise ValueError(f"{name}: not finite in {int((~np.isfinite(value)).sum())} of {samples[0]} samples")
        if self.positions is not None:
            frames = len(self.positions)
            _shaped("positions", self.positions, (frames, len(self.numbers), 3))
            _shaped("frame_times_fs", self.times_fs if self.frame_times_fs is None else self.frame_times_fs, (frames,))
            if self.cell is not None and np.ndim(self.cell) == 3:
                _shaped("cell", self.cell, (frames, 3, 3))
        if any(self.pbc) and self.cell is None:
            raise ValueError("cell: needed where pbc is true")

    @property
    def n_atoms(self) -> int:
        """Number of atoms."""
        return len(self.numbers)

    @property
    def frame_times(self) -> Array:
        """Times of the frames, fs."""
        return np.asarray(self.times_fs if self.frame_times_fs is None else self.frame_times_fs, dtype=np.float64)

    def conserved(self) -> Array | None:
        """(T,) eV: the energy that should stay as it is; None where the run conserves none."""
        if self.conserved_energy is not None:
            return np.asarray(self.conserved_energy, dtype=np.float64)
        if not self.conserves_energy:
            return None
        return np.asarray(self.potential_energy, dtype=np.float64) + np.asarray(self.kinetic_energy)

    def drift(self) -> float | None:
        """Slope of a straight line through the conserved energy, meV/atom/ps; None where the run conserves none."""
        energy = self.conserved()
        if energy is None:
            return None
        time = np.asarray(self.times_fs) / 1000
        return float(1000 / self.n_atoms * np.polyfit(time - time.mean(), energy - energy.mean(), 1)[0])


@dataclass(frozen=True)
class Reference:
    """A labelled trajectory of what the dynamics ran: positions (F, n, 3) in Å, atoms in the same order.

    name says where it is from ("GFN2-xTB, 500 K"); cell and pbc as in Dynamics.
    """

    name: str
    numbers: NDArray[np.int64]
    positions: Array
    cell: Array | None = None
    pbc: Sequence[bool] = (False, False, False)

    def __post_init__(self) -> None:
        _shaped("positions", self.positions, (len(self.positions), len(self.numbers), 3))


def _shaped(name: str, value: Any, shape: tuple[int, ...]) -> None:
    if value is not None and np.shape(value) != shape:
        raise ValueError(f"{name}: shape {np.shape(value)}; expected {shape}")
