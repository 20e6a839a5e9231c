"""Frame: one labelled structure, in the package's units, before it becomes a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from mlpot.errors import UserError
from mlpot.structure import Structure

LABELS = ("energy", "forces", "stress")


@dataclass(frozen=True)
class Frame:
    """A structure of n atoms with its labels; None where a label is missing.

    | field       | shape    | unit  | meaning                                               |
    |-------------|----------|-------|-------------------------------------------------------|
    | energy      | float    | eV    | total energy                                          |
    | forces      | (n, 3)   | eV/Å  |                                                       |
    | stress      | (3, 3)   | eV/Å³ | ASE's sign: negative under compression                |
    | weight      | float    |       | weight of the frame in the loss                       |
    | config_type | str      |       | the group the frame belongs to, "" where none         |
    | properties  | mapping  |       | molecular properties by name, in the unit of the data set's `targets` |
    | info        | mapping  |       | other text and numbers of the frame, kept for outputs |
    """

    structure: Structure
    energy: float | None = None
    forces: NDArray[np.float64] | None = None
    stress: NDArray[np.float64] | None = None
    weight: float = 1.0
    config_type: str = ""
    info: Mapping[str, str | float | int] = field(default_factory=dict)
    properties: Mapping[str, float | NDArray[np.float64]] = field(default_factory=dict)

    def has(self, label: str) -> bool:
        """Whether the frame carries the label "energy", "forces" or "stress"."""
        return getattr(self, label) is not None


def checked(frame: Frame, where: str) -> Frame:
    """The frame with NaN labels taken as missing; UserError naming `where` for malformed ones.

    A label that is wholly NaN counts as missing. A label that is partly NaN, or infinite, or of the wrong
    shape, is an error, since nobody can tell what was meant.
    """
    frame.structure.check(where)
    n = len(frame.structure)
    labels: dict[str, NDArray[np.float64] | float | None] = {}
    for label, shape in zip(LABELS, ((), (n, 3), (3, 3)), strict=True):
        value = getattr(frame, label)
        if value is None:
            labels[label] = None
            continue
        array = np.asarray(value, dtype=np.float64)
        if array.shape != shape:
            raise UserError(f"{where}: {label} has shape {array.shape}; expected {shape} for {n} atoms.")
        bad = ~np.isfinite(array)
        if np.isnan(array).all():
            labels[label] = None
        elif bad.any():
            rows = np.flatnonzero(bad.reshape(shape[0], -1).any(axis=1)) if shape else np.array([0])
            raise UserError(
                f"{where}: {label} is not finite in {len(rows)} of {shape[0] if shape else 1} rows "
                f"(first: row {rows[0]}). "
                f"Mend the frame, or set all of its {label} to NaN to leave them out."
            )
        else:
            labels[label] = float(array) if not shape else array
    if not (np.isfinite(frame.weight) and frame.weight >= 0):
        raise UserError(f"{where}: weight {frame.weight}; expected a finite number, zero or more.")
    return replace(frame, properties=_finite(frame.properties, where), **labels)  # type: ignore[arg-type]


def _finite(
    properties: Mapping[str, float | NDArray[np.float64]], where: str
) -> dict[str, float | NDArray[np.float64]]:
    """The properties that there are: those that are wholly NaN are missing; UserError for a part of one."""
    kept: dict[str, float | NDArray[np.float64]] = {}
    for name, value in properties.items():
        finite = np.isfinite(value)
        if finite.all():
            kept[name] = value
        elif not np.isnan(value).all():
            raise UserError(f"{where}: property {name} is not finite: {np.asarray(value).tolist()}.")
    return kept
