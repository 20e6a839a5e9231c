"""What is said of the properties in a data set: their ranges, gaps, far outliers, and classes out of balance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mlpot.data.frame import Frame
from mlpot.data.inspection_sample import Check
from mlpot.data.references import compositions
from mlpot.target import Target

FAR = 12.0  # times the median distance from the median; 8 standard deviations of a normal distribution
RARE = 0.01  # of the labels


def _values(frames: Sequence[Frame], target: Target) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Frames that carry a target, and its value there; of vectors and tensors the size."""
    rows = [k for k, frame in enumerate(frames) if target.name in frame.properties]
    values = [np.asarray(frames[k].properties[target.name], dtype=np.float64) for k in rows]
    sizes = [float(np.linalg.norm(v)) if target.shape else float(v) for v in values]
    return np.array(rows, dtype=np.int64), np.array(sizes, dtype=np.float64)


def property_ranges(frames: Sequence[Frame], targets: Sequence[Target]) -> dict[str, dict[str, Any]]:
    """For each property that is there: frames, kind, unit, min, mean, max and standard deviation."""
    found = {}
    for target in targets:
        _, values = _values(frames, target)
        if len(values):
            numbers = {"min": values.min(), "mean": values.mean(), "max": values.max(), "std": values.std()}
            found[target.name] = {
                "frames": len(values),
                "quantity": f"size of a {target.kind}" if target.shape else target.kind,
                "unit": target.unit or "-",
                **{name: float(value) for name, value in numbers.items()},
            }
    return found


def property_checks(frames: Sequence[Frame], targets: Sequence[Target]) -> list[Check]:
    """Missing labels, outliers, and classes that hardly occur; nothing where there are no properties."""
    if not targets:
        return []
    missing, outliers, rare = [], [], []
    for target in targets:
        rows, values = _values(frames, target)
        if len(values) < len(frames):
            missing.append(f"{target.name} in {len(frames) - len(values)}")
        if target.is_class:
            rare += _rare(target, values)
        elif len(values) > 4:
            distance = np.abs(_centred(target, [frames[k] for k in rows], values))
            typical = float(np.median(distance))
            far = rows[distance > FAR * typical] if typical > 0 else rows[:0]
            if len(far):
                worst, value = int(rows[distance.argmax()]), float(values[distance.argmax()])
                told = f"{len(far)} frames, the furthest {worst} with {value:.5g} {target.unit}".rstrip()
                outliers.append(f"{target.name}: {told}")
    return [
        _check("missing properties", missing, f"every one of {len(frames)} frames carries every property."),
        _check("property outliers", outliers, "no value lies far from the others."),
        _check("rare classes", rare, "every class occurs often enough, where there are any."),
    ]


def _centred(target: Target, frames: Sequence[Frame], values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Values less their median; extensive ones less what the elements explain, since these follow the size."""
    if target.kind == "extensive":
        elements = np.unique(np.concatenate([frame.structure.numbers for frame in frames]))
        counts = compositions(frames, tuple(elements.tolist()))
        values = values - counts @ np.linalg.lstsq(counts, values, rcond=None)[0]
    return values - np.median(values)


def _rare(target: Target, values: NDArray[np.float64]) -> list[str]:
    n_classes = target.classes or 2
    counts = np.bincount(values.astype(np.int64), minlength=n_classes)
    few = [number for number in range(n_classes) if counts[number] < RARE * len(values)]
    return [f"{target.name}: class {number} in {counts[number]} of {len(values)} frames" for number in few]


def _check(name: str, found: Sequence[str], good: str) -> Check:
    if found:
        return Check(name, "suspicious", "; ".join(found) + ".")
    return Check(name, "ok", good)
