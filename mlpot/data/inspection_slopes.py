"""Do the labels fit each other? Energy differences between like frames against the work of forces and stress."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from mlpot import units
from mlpot.data.frame import Frame
from mlpot.data.inspection_sample import Check, Sample

FARTHEST, LARGEST_STRAIN = 0.6, 0.1  # Å rms over the atoms; relative
MOST_PAIRS = 150
NEIGHBOURS, DIRECTIONS = 4, 16
# What a ratio (energy difference) / (work) other than 1 means.
FORCE_RATIOS: dict[str, float] = {
    "the forces have the opposite sign (gradients)": -1.0,
    "the energies are in kcal/mol and the forces in eV/Å (units.energy=kcal/mol)": 1 / units.KCAL_PER_MOL,
    "the forces are in kcal/mol/Å and the energies in eV (units.forces=kcal/mol/Å)": units.KCAL_PER_MOL,
    "the forces are in Hartree/Å and the energies in eV (units.forces=Hartree/Å)": units.HARTREE,
    "the energies are in Hartree and the forces in eV/Å (units.energy=Hartree)": 1 / units.HARTREE,
    "the forces are in Hartree/Bohr and the energies in eV (units.forces=Hartree/Bohr)": units.HARTREE / units.BOHR,
    "the forces are per Bohr, not per Å (units.forces=eV/Bohr, or Hartree/Bohr for both)": 1 / units.BOHR,
    "a length was converted from Bohr once too often, in the positions or in the forces": units.BOHR,
    "the energies are in kJ/mol and the forces in eV/Å (units.energy=kJ/mol)": 1 / units.KJ_PER_MOL,
    "the forces are in kJ/mol/Å and the energies in eV (units.forces=kJ/mol/Å)": units.KJ_PER_MOL,
    "the forces are in kJ/mol/nm and the energies in eV (units.forces=kJ/mol/nm)": units.KJ_PER_MOL / 10,
    "the energies are in kcal/mol and the forces in Hartree/Bohr": units.HARTREE / units.BOHR / units.KCAL_PER_MOL,
    "the energies are in meV and the forces in eV/Å (units.energy=meV)": 1000.0,
    "the forces are in meV/Å and the energies in eV (units.forces=meV/Å)": 0.001,
}  # fmt: skip
STRESS_RATIOS: dict[str, float] = {
    "the stress has the sign of a pressure, opposite to ASE's": -1.0,
    "the stress is in GPa (units.stress=GPa)": units.GPA,
    "the stress is in kbar (units.stress=kbar)": 0.1 * units.GPA,
    "the stress is VASP's, in kbar with the sign of a pressure (units.stress=kbar_vasp)": -0.1 * units.GPA,
    "the stress is in GPa with the sign of a pressure": -units.GPA,
    "the stress is in Hartree/Bohr³ (units.stress=Hartree/Bohr^3)": units.HARTREE / units.BOHR**3,
}


@dataclass(frozen=True)
class Step:
    """From one frame to another: energy difference and what forces and stress say it is, eV; size of the step."""

    energy: float
    by_forces: float | None
    by_stress: float | None
    moved: float
    strain: float


def step(a: Frame, b: Frame) -> Step | None:
    """The step from a to b by the trapezium rule, exact for quadratic energies; None where none is meaningful."""
    first, second = a.structure, b.structure
    if a.energy is None or b.energy is None or not np.array_equal(first.numbers, second.numbers):
        return None
    if not np.array_equal(first.pbc, second.pbc) or len(first) < 2:
        return None
    if first.pbc.any():
        return _periodic_step(a, b)
    start, end = first.positions - first.positions.mean(axis=0), second.positions - second.positions.mean(axis=0)
    left, _, right = np.linalg.svd(end.T @ start)
    turn = left @ np.diag([1.0, 1.0, np.sign(np.linalg.det(left @ right))]) @ right
    moved = end @ turn - start
    work = None
    if a.forces is not None and b.forces is not None:
        work = -0.5 * float(np.sum((a.forces + b.forces @ turn) * moved))
    return Step(b.energy - a.energy, work, None, float(np.sqrt((moved**2).sum(axis=1).mean())), 0.0)


def _periodic_step(a: Frame, b: Frame) -> Step | None:
    first, second = a.structure, b.structure
    strained = first.pbc.all() and second.pbc.all()
    if abs(np.linalg.det(first.cell)) < 1e-6:
        return None
    deformation = np.linalg.solve(first.cell, second.cell)
    strain = 0.5 * (deformation + deformation.T) - np.eye(3)
    size = float(np.abs(deformation - np.eye(3)).max())
    if size > LARGEST_STRAIN or (size > 1e-6 and not strained):
        return None
    steps = second.positions @ np.linalg.inv(second.cell) - first.positions @ np.linalg.inv(first.cell)
    steps -= np.round(steps) * first.pbc
    moved = steps @ (0.5 * (first.cell + second.cell))
    moved -= moved.mean(axis=0)
    by_forces = by_stress = None
    if a.forces is not None and b.forces is not None:
        by_forces = -0.5 * float(np.sum((a.forces + b.forces) * moved))
    if a.stress is not None and b.stress is not None:
        volumes = abs(np.linalg.det(first.cell)), abs(np.linalg.det(second.cell))
        by_stress = 0.5 * float(np.sum((volumes[0] * a.stress + volumes[1] * b.stress) * strain))
    rms = float(np.sqrt((moved**2).sum(axis=1).mean()))
    return Step((b.energy or 0.0) - (a.energy or 0.0), by_forces, by_stress, rms, size)


def like_pairs(sample: Sample) -> list[tuple[int, int]]:
    """Pairs of frames, positions in the sample, with the same atoms in the same order in like places."""
    groups: dict[tuple, list[int]] = defaultdict(list)
    for index, (frame, entry) in enumerate(zip(sample.frames, sample.geometries, strict=True)):
        groups[(frame.structure.numbers.tobytes(), frame.structure.pbc.tobytes(), *entry.group[2:])].append(index)
    found: set[tuple[int, int]] = set()
    generator = np.random.default_rng(0)
    for members in groups.values():
        found.update(pairwise(members))
        width = sample.geometries[members[0]].environments.size
        # A few random directions keep distances well enough to find neighbours.
        directions = generator.standard_normal((width, DIRECTIONS)).astype(np.float32)
        shadows = np.array([sample.geometries[m].environments.ravel() @ directions for m in members])
        _, nearest = cKDTree(shadows).query(shadows, k=min(NEIGHBOURS, len(members)))
        for m, row in zip(members, nearest.reshape(len(members), -1), strict=True):
            found.update((min(m, members[k]), max(m, members[k])) for k in row)
    return sorted((i, j) for i, j in found if i != j)


def slope_checks(sample: Sample) -> list[Check]:
    """Whether the energies' slope is that of the forces, and, where cells vary, of the stress."""
    found = [step(sample.frames[i], sample.frames[j]) for i, j in like_pairs(sample)]
    steps = [s for s in found if s is not None and s.moved < FARTHEST and s.moved + s.strain > 1e-5]
    checks = []
    if _all_carry(sample, "energy", "forces"):
        still = [s for s in steps if s.by_forces is not None and s.strain < 1e-6]
        strained = [s for s in steps if s.by_forces is not None and s.by_stress is not None and s.strain >= 1e-6]
        name = "forces against energies"
        columns = ("by_forces",) if len(still) >= len(strained) else ("by_forces", "by_stress")
        chosen = still if len(still) >= len(strained) else strained
        checks.append(_judged(name, chosen, columns, "by_forces", FORCE_RATIOS))
    if _all_carry(sample, "energy", "stress"):
        forces = _all_carry(sample, "forces")
        strained = [
            s for s in steps if s.by_stress is not None and s.strain >= 1e-4 and (s.by_forces is not None) == forces
        ]
        columns = ("by_forces", "by_stress") if forces else ("by_stress",)
        checks.append(_judged("stress against energies", strained, columns, "by_stress", STRESS_RATIOS))
    return checks


def _all_carry(sample: Sample, *labels: str) -> bool:
    return any(all(frame.has(label) for label in labels) for frame in sample.frames)


def _judged(name: str, steps: list[Step], columns: tuple[str, ...], wanted: str, known: dict[str, float]) -> Check:
    if len(steps) < 5:
        what = "one cell shape close to another's" if wanted == "by_stress" else "the same atoms in like places"
        return Check(
            name, "not testable", f"too few pairs of frames with {what} ({len(steps)}) to compare differences."
        )
    steps = sorted(steps, key=lambda s: s.moved + 10 * s.strain)[:MOST_PAIRS]
    design = np.array([[getattr(s, column) or 0.0 for column in columns] for s in steps])
    energies = np.array([s.energy for s in steps])
    slope, error, share = _robust_fit(design, energies, columns.index(wanted))
    moved = float(np.median([s.moved for s in steps]))
    facts = f"energy differences are {slope:.4g} ± {error:.2g} times the work of the {wanted[3:]}"
    facts += f" ({len(steps)} pairs of frames, atoms {moved:.2g} Å apart)"
    if share < 0.7:  # what the work explains of the energy differences
        if moved < 0.05 and wanted == "by_forces" and len(columns) == 1:
            text = f"they do not follow each other: the work explains {max(share, 0):.0%} of the energy differences"
            return Check(
                name,
                "suspicious",
                f"{text} ({len(steps)} pairs, atoms {moved:.2g} Å apart). Are they one calculation's?",
            )
        return Check(
            name,
            "not testable",
            f"frames are too far apart: the work explains {max(share, 0):.0%} of their differences.",
        )
    tolerance = min(0.25, 0.1 + 2 * error / abs(slope))
    if error > 0.15 * abs(slope):
        return Check(name, "not testable", f"the slope is uncertain: {facts}.")
    if abs(np.log(abs(slope))) < tolerance and slope > 0:
        return Check(name, "ok", f"{facts}, as they should be (1).")
    if slope > 0 and abs(np.log(slope)) < 1 and (share < 0.9 or moved > 0.25):
        return Check(name, "not testable", f"frames are too far apart to be sure: {facts}, where 1 is right.")
    meaning, factor = nearest(slope, known)
    # Nothing but a sign makes a slope near -1, so that it need not be sharp.
    if slope * factor > 0 and abs(np.log(slope / factor)) < (0.4 if factor == -1 else tolerance):
        return Check(name, "suspicious", f"{facts}, not 1 but near {factor:.4g}: {meaning}?")
    if slope > 0 and abs(np.log(slope)) < 0.3:
        return Check(name, "not testable", f"the slope is not sharp enough to tell: {facts}.")
    return Check(name, "suspicious", f"{facts}, not 1; no usual mistake of units gives this.")


def nearest(ratio: float, known: dict[str, float]) -> tuple[str, float]:
    """The known factor that is nearest to a ratio, by sign first, then by logarithm."""
    return min(known.items(), key=lambda item: (item[1] * ratio < 0, abs(np.log(abs(item[1] / ratio)))))


def _robust_fit(design: NDArray[np.float64], values: NDArray[np.float64], column: int) -> tuple[float, float, float]:
    """Least squares through the origin without the worst tenth: slope of a column, its error, share explained."""
    kept = np.ones(len(values), dtype=bool)
    scale = np.where(np.abs(design).max(axis=0) > 0, np.abs(design).max(axis=0), 1.0)
    for _ in range(3):
        solution = np.linalg.lstsq(design[kept] / scale, values[kept], rcond=None)[0] / scale
        residual = np.abs(values - design @ solution)
        kept = residual <= np.quantile(residual, 0.9)
    rest, total = float(np.sum(residual[kept] ** 2)), float(np.sum(values[kept] ** 2))
    normal = np.linalg.pinv((design[kept] / scale).T @ (design[kept] / scale))
    error = float(np.sqrt(rest / max(1, kept.sum() - design.shape[1]) * normal[column, column])) / scale[column]
    return float(solution[column]), error, 1.0 - rest / total if total > 0 else 0.0
