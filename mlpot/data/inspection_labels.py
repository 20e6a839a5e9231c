"""Labels that cannot be right, or that stand apart: missing, zero, outliers, net forces, overlapping atoms."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from mlpot.data.frame import LABELS, Frame
from mlpot.data.inspection_sample import Check, Sample
from mlpot.data.references import compositions
from mlpot.structure import SYMBOLS

SHOWN = 5
OVERLAP, COINCIDENT = 0.5, 0.1  # of the covalent radii's sum; Å
SMALL_FORCE, LARGE_FORCE = 2.0, 50.0  # eV/Å, never and nearly always out of the ordinary
FORCE_SIGMAS, ENERGY_SIGMAS = 6.0, 10.0
NET = 0.05  # of the sum of the forces' sizes


def listed(rows: Iterable[int]) -> str:
    """The first few frame numbers."""
    numbers = [str(int(row)) for row in rows]
    return ", ".join(numbers[:SHOWN]) + (" ..." if len(numbers) > SHOWN else "")


def label_checks(sample: Sample) -> list[Check]:
    """All checks of this file."""
    return [
        _missing(sample),
        *_zeros(sample),
        *_force_outliers(sample),
        *_energy_outliers(sample),
        *_net(sample),
        _closest(sample),
    ]


def _missing(sample: Sample) -> Check:
    n = len(sample.frames)
    gaps = []
    for label in LABELS:
        lacking = [row for row, frame in zip(sample.rows, sample.frames, strict=True) if not frame.has(label)]
        if label == "forces":  # the forces on a free atom are zero, so that nobody writes them
            lacking = [
                r for r, f in zip(sample.rows, sample.frames, strict=True) if not f.has(label) and len(f.structure) > 1
            ]
        if label == "stress":
            whole = [f.structure.pbc.all() for f in sample.frames]
            lacking = [r for r, f, p in zip(sample.rows, sample.frames, whole, strict=True) if p and not f.has(label)]
        if 0 < len(lacking) < n and any(frame.has(label) for frame in sample.frames):
            gaps.append(f"{len(lacking)} frames lack {label} ({listed(lacking)})")
    if gaps:
        return Check("missing labels", "suspicious", f"of {n} frames, {'; '.join(gaps)}. They are masked in training.")
    return Check("missing labels", "ok", "every frame carries each label that the set has, where it can.")


def _zeros(sample: Sample) -> list[Check]:
    checks = []
    with_forces = [
        (r, f) for r, f in zip(sample.rows, sample.frames, strict=True) if f.forces is not None and len(f.structure) > 1
    ]
    still = [(r, f) for r, f in with_forces if not np.any(f.forces)]
    # Symmetry makes forces vanish in crystals, seldom in molecules.
    odd = [r for r, f in still if not f.structure.pbc.any() or len(still) == len(with_forces)]
    if odd:
        text = f"{len(odd)} of {len(with_forces)} frames have forces that are all exactly zero ({listed(odd)})"
        checks.append(
            Check("zero forces", "suspicious", f"{text}: placeholders? Leave them out by keys.forces or NaN.")
        )
    with_stress = [(r, f) for r, f in zip(sample.rows, sample.frames, strict=True) if f.stress is not None]
    odd = [r for r, f in with_stress if not np.any(f.stress)]
    if odd:
        text = f"{len(odd)} of {len(with_stress)} frames have a stress that is exactly zero ({listed(odd)})"
        checks.append(Check("zero stress", "suspicious", f"{text}: placeholders? A calculated stress never is."))
    return checks


def _robust(values: NDArray[np.float64]) -> tuple[float, float]:
    """Median and a standard deviation that outliers do not move."""
    middle = float(np.median(values))
    return middle, 1.4826 * float(np.median(np.abs(values - middle)))


def _force_outliers(sample: Sample) -> list[Check]:
    rows, sizes, atoms = [], [], []
    for row, frame in zip(sample.rows, sample.frames, strict=True):
        if frame.forces is not None and np.any(frame.forces):
            norms = np.linalg.norm(frame.forces, axis=1)
            rows.append(row)
            sizes.append(norms.max())
            atoms.append(norms.argmax())
    if len(rows) < 5:
        return []
    largest = np.array(sizes, dtype=np.float64)
    middle, width = _robust(np.log(largest))
    limit = min(max(LARGE_FORCE, 3 * np.exp(middle)), np.exp(middle + FORCE_SIGMAS * max(width, 0.1)))
    odd = np.flatnonzero(largest > max(limit, SMALL_FORCE))
    typical = f"the largest force of a frame is {np.exp(middle):.3g} eV/Å in the median"
    if not len(odd):
        return [Check("force outliers", "ok", f"none; {typical} and {largest.max():.3g} at most.")]
    odd = odd[np.argsort(-largest[odd])]
    shown = ", ".join(f"frame {rows[k]} atom {atoms[k]}: {largest[k]:.4g} eV/Å" for k in odd[:SHOWN])
    return [
        Check(
            "force outliers",
            "suspicious",
            f"{len(odd)} of {len(rows)} frames; {shown}; {typical}. Look at them, or leave them out.",
        )
    ]


def _energy_outliers(sample: Sample) -> list[Check]:
    """Energies against the best sum over elements: what is left should have no far tail."""
    kept = [k for k, f in enumerate(sample.frames) if f.energy is not None and len(f.structure) > 1]
    frames: list[Frame] = [sample.frames[k] for k in kept]
    if len(frames) < 10:
        return []
    elements = tuple(int(z) for z in np.unique(np.concatenate([f.structure.numbers for f in frames])))
    table = compositions(frames, elements)
    if len(frames) < 4 * len(elements):  # the fit would leave nothing over
        return []
    sizes = table.sum(axis=1)
    per_atom = np.array([f.energy for f in frames], dtype=np.float64) / sizes
    shares = table / sizes[:, None]
    good = np.ones(len(frames), dtype=bool)
    for _ in range(3):  # the fit again without what stands apart, so that one frame cannot bend it
        solution = np.linalg.lstsq(shares[good], per_atom[good], rcond=1e-10)[0]
        left = per_atom - shares @ solution
        middle, width = _robust(left[good])
        good = np.abs(left - middle) <= ENERGY_SIGMAS * max(width, 1e-4)
    odd = np.flatnonzero(~good)
    odd = odd[np.argsort(-np.abs(left[odd] - middle))]
    spread = f"energies scatter by {width:.3g} eV/atom about the sum over their elements"
    if not len(odd):
        return [Check("energy outliers", "ok", f"none; {spread}.")]
    shown = ", ".join(f"frame {sample.rows[kept[k]]}: {left[k] - middle:+.3g} eV/atom" for k in odd[:SHOWN])
    return [Check("energy outliers", "suspicious", f"{len(odd)} of {len(frames)} frames; {shown}; {spread}.")]


def _net(sample: Sample) -> list[Check]:
    """Net force of every frame, net torque of free molecules, as a share of the forces in them."""
    pushed, turned, largest, tested = [], [], 0.0, 0
    for row, frame in zip(sample.rows, sample.frames, strict=True):
        forces, structure = frame.forces, frame.structure
        if forces is None or len(structure) < 2:
            continue
        total = float(np.linalg.norm(forces, axis=1).sum())
        if total < 0.05 * len(structure):  # relaxed: what is left is noise
            continue
        tested += 1
        net = float(np.linalg.norm(forces.sum(axis=0)))
        largest = max(largest, net)
        if net > NET * total:
            pushed.append(row)
        elif not structure.pbc.any():
            arms = structure.positions - structure.positions.mean(axis=0)
            torque = np.linalg.norm(np.cross(arms, forces).sum(axis=0))
            if torque > NET * float((np.linalg.norm(arms, axis=1) * np.linalg.norm(forces, axis=1)).sum()):
                turned.append(row)
    checks = []
    if pushed:
        text = f"forces do not sum to zero in {len(pushed)} of {tested} frames ({listed(pushed)})"
        text += f", up to {largest:.3g} eV/Å"
        checks.append(Check("net force", "suspicious", f"{text}: fixed atoms, a field, or forces of another frame?"))
    elif tested:
        checks.append(Check("net force", "ok", f"at most {largest:.2g} eV/Å in {tested} frames."))
    if turned:
        text = f"forces turn {len(turned)} of {tested} free molecules ({listed(turned)})"
        checks.append(Check("net torque", "suspicious", f"{text}: were positions and forces rotated apart?"))
    return checks


def _closest(sample: Sample) -> Check:
    near, worst = [], (np.inf, "")
    for row, frame, entry in zip(sample.rows, sample.frames, sample.geometries, strict=True):
        if entry.closest is None:
            continue
        i, j, distance, ratio = entry.closest
        if ratio < OVERLAP or distance < COINCIDENT:
            near.append(int(row))
        if ratio < worst[0]:
            pair = "-".join(SYMBOLS[frame.structure.numbers[k]] for k in sorted((i, j)))
            first, second = sorted((i, j))
            text = (
                f"{pair} {distance:.3g} Å ({ratio:.2f} of the covalent radii), frame {row} atoms {first} and {second}"
            )
            worst = (ratio, text)
    if near:
        return Check(
            "close atoms",
            "suspicious",
            f"{len(near)} frames ({listed(near)}) have overlapping atoms; closest {worst[1]}.",
        )
    return Check("close atoms", "ok", f"closest {worst[1]}." if worst[1] else "no two atoms within 5 Å.")
