"""Are the labels in the units they are taken for? Judged by numbers that nature fixes, not by the set itself."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from mlpot import units
from mlpot.data.inspection_sample import Check, Sample
from mlpot.data.inspection_slopes import nearest

# Total energies of free atoms, Hartree, all electrons, rounded: any functional is within 1 % of them.
ATOMS = {
    1: -0.50, 2: -2.90, 3: -7.48, 4: -14.67, 5: -24.65, 6: -37.84, 7: -54.58, 8: -75.06, 9: -99.73, 10: -128.9,
    11: -162.3, 12: -200.0, 13: -242.3, 14: -289.3, 15: -341.2, 16: -398.1, 17: -460.1, 18: -527.5,
}  # fmt: skip
ENERGY_RATIOS: dict[str, float] = {
    "eV": 1.0,
    "Hartree": 1 / units.HARTREE,
    "kcal/mol": 1 / units.KCAL_PER_MOL,
    "kJ/mol": 1 / units.KJ_PER_MOL,
    "meV": 1000.0,
}
# Stretching force constants of bonds to hydrogen, eV/Å² (1 mdyn/Å is 6.24): C-H 4.8, N-H 6.4, O-H 7.6 mdyn/Å.
STRETCH = {6: 30.0, 7: 40.0, 8: 47.5}
FORCE_RATIOS: dict[str, float] = {
    "gradients, with the sign opposite to forces": -1.0,
    "in kcal/mol/Å (units.forces=kcal/mol/Å)": 1 / units.KCAL_PER_MOL,
    "in kJ/mol/Å (units.forces=kJ/mol/Å)": 1 / units.KJ_PER_MOL,
    "in kJ/mol/nm (units.forces=kJ/mol/nm)": 0.1 / units.KJ_PER_MOL,
    "in meV/Å (units.forces=meV/Å)": 1000.0,
    "in Hartree/Å (units.forces=Hartree/Å)": 1 / units.HARTREE,
    "in Hartree/Bohr (units.forces=Hartree/Bohr)": units.BOHR / units.HARTREE,
    "per Bohr instead of per Å (units.forces=eV/Bohr)": units.BOHR,
    "scaled from per Bohr once too often": 1 / units.BOHR,
}
FORCE_LIMIT, PRESSURE_LIMIT = 20.0, 200.0  # eV/Å, GPa: medians beyond these are not of matter near equilibrium


def scale_checks(sample: Sample) -> list[Check]:
    """All checks of this file."""
    return [*_energy_scale(sample), *_force_scale(sample), *_stress_scale(sample)]


def _energy_scale(sample: Sample) -> list[Check]:
    frames = [f for f in sample.frames if f.energy is not None]
    if not frames:
        return []
    per_atom = float(np.median([(f.energy or 0.0) / len(f.structure) for f in frames]))
    known = [f for f in frames if all(int(z) in ATOMS for z in np.unique(f.structure.numbers))]
    name = "energy scale"
    if len(known) < 0.5 * len(frames):
        text = f"{per_atom:.4g} eV/atom; all-electron totals to compare with are known here to Ar only."
        return [Check(name, "not testable", text)]
    expected = [units.HARTREE * sum(ATOMS[int(z)] for z in f.structure.numbers) for f in known]
    ratio = float(np.median([(f.energy or 0.0) / e for f, e in zip(known, expected, strict=True)]))
    facts = f"{per_atom:.4g} eV/atom, {ratio:.4g} of the free atoms' all-electron totals"
    unit, factor = nearest(ratio or 1e-300, ENERGY_RATIOS)
    if ratio > 0 and abs(ratio / factor - 1) < 0.015:
        if factor == 1.0:
            return [Check(name, "ok", f"{facts}: total energies of all electrons, in eV.")]
        return [
            Check(
                name, "suspicious", f"{facts}: these are total energies in {unit}, taken for eV (units.energy={unit})."
            )
        ]
    if abs(per_atom) < 15:
        text = "cohesive or atomisation energies, or totals of valence electrons; their unit shows in the forces only"
        return [Check(name, "not testable", f"{facts}: {text}.")]
    return [Check(name, "not testable", f"{facts}: totals of part of the electrons, or relative to something.")]


def _force_scale(sample: Sample) -> list[Check]:
    """The slope of the force on H along its bond against the bond length is minus the bond's force constant."""
    found: dict[int, list[tuple[float, float]]] = defaultdict(list)
    sizes = []
    for frame, entry in zip(sample.frames, sample.geometries, strict=True):
        if frame.forces is None:
            continue
        sizes.append(float(np.sqrt((frame.forces**2).sum(axis=1).mean())))
        for partner, atom, length, *unit in entry.hydrogens:
            found[int(partner)].append((length, float(frame.forces[int(atom)] @ np.array(unit))))
    if not sizes:
        return []
    name, middle = "force scale", float(np.median(sizes))
    fits = {z: fit for z, pairs in found.items() if (fit := _stiffness(np.array(pairs))) is not None}
    if not fits:
        if middle > FORCE_LIMIT:
            return [
                Check(
                    name,
                    "suspicious",
                    f"forces are {middle:.3g} eV/Å rms in the median, more than matter bears: kcal/mol/Å?",
                )
            ]
        return [
            Check(
                name,
                "not testable",
                f"{middle:.3g} eV/Å rms in the median; too few stretched bonds of hydrogen to gauge it.",
            )
        ]
    best = max(fits, key=lambda z: fits[z][1])
    stiffness, n = fits[best]
    ratio = stiffness / STRETCH[best]
    bond = {6: "C-H", 7: "N-H", 8: "O-H"}[best]
    facts = f"{bond} bonds have {stiffness:.3g} eV/Å² ({n} bonds; {STRETCH[best]:.0f} is usual)"
    if 0.65 < ratio < 1.5:
        return [Check(name, "ok", f"{facts}.")]
    meaning, factor = nearest(ratio, FORCE_RATIOS)
    if factor * ratio > 0 and abs(np.log(ratio / factor)) < 0.35:
        return [Check(name, "suspicious", f"{facts}: are the forces {meaning}?")]
    return [Check(name, "suspicious", f"{facts}: the forces, or the positions, are in other units than eV/Å and Å?")]


def _stiffness(pairs: NDArray[np.float64]) -> tuple[float, int] | None:
    """Force constant in eV/Å² at the median length, number of bonds; None where lengths do not set the force."""
    if len(pairs) < 30:
        return None
    length = pairs[:, 0] - np.median(pairs[:, 0])
    near = np.abs(length) < 0.12
    length, force = length[near], pairs[near, 1]
    if len(length) < 30 or length.std() < 0.005 or np.ptp(force) == 0:
        return None
    if abs(np.corrcoef(length, force)[0, 1]) < 0.75:
        return None
    return float(-np.polyfit(length, force, 2)[1]), len(length)


def _stress_scale(sample: Sample) -> list[Check]:
    """Size of the pressure, and whether tension grows with volume."""
    pressures, groups = [], defaultdict(list)
    for frame, entry in zip(sample.frames, sample.geometries, strict=True):
        if frame.stress is not None and frame.structure.pbc.all():
            mean = float(np.trace(frame.stress)) / 3 / units.GPA
            pressures.append(abs(mean))
            groups[entry.group].append((abs(np.linalg.det(frame.structure.cell)), mean))
    if not pressures:
        return []
    middle = float(np.median(pressures))
    if middle > PRESSURE_LIMIT:
        text = f"|pressure| is {middle:.4g} GPa in the median: GPa or kbar taken for eV/Å³"
        return [Check("stress scale", "suspicious", f"{text} (units.stress=GPa, kbar or kbar_vasp)?")]
    checks = [Check("stress scale", "ok", f"|pressure| is {middle:.3g} GPa in the median.")]
    trends = []
    for members in groups.values():
        volumes, means = np.array(members).T
        if len(members) >= 6 and np.ptp(volumes) > 0.02 * volumes.mean() and np.ptp(means) > 0:
            trends.append((float(np.corrcoef(volumes, means)[0, 1]), len(members)))
    if trends:
        trend = float(np.average([t for t, _ in trends], weights=[n for _, n in trends]))
        facts = (
            f"over {sum(n for _, n in trends)} frames of one composition, volume and stress correlate by {trend:+.2f}"
        )
        if trend < -0.7:
            text = (
                "compression should make it negative: is this the sign of a pressure (units.stress=kbar_vasp for VASP)"
            )
            checks.append(Check("stress sign", "suspicious", f"{facts}; {text}?"))
        elif trend > 0.5:
            checks.append(Check("stress sign", "ok", f"{facts}: compression is negative."))
    return checks
