"""What is inside a data set, and what looks wrong with it."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from mlpot import units
from mlpot.data.dataset import Dataset
from mlpot.data.inspection_duplicates import Pair, duplicates, leak_between, neighbours
from mlpot.data.inspection_labels import label_checks
from mlpot.data.inspection_properties import property_checks, property_ranges
from mlpot.data.inspection_sample import Check, Sample, draw
from mlpot.data.inspection_scales import scale_checks
from mlpot.data.inspection_slopes import slope_checks
from mlpot.data.split import is_isolated_atom
from mlpot.structure import SYMBOLS, symbols_of

PERIODICITY = ("free", "wire", "slab", "bulk")


@dataclass(frozen=True)
class Inspection:
    """The facts about a data set and the outcome of the checks.

    Of large sets `looked_at` frames, in stretches evenly over the set, are read; figures other than `frames`,
    `config_types`, `atoms_per_frame` and the counts of labels are those of these frames.

    labels: for each label present, the frames that carry it, its unit and the range of its values: energy per atom
    (eV), size of the forces (eV/Å), pressure (GPa, positive under compression); properties in their units.
    leakage: for `against`, how many of its frames are in this set, and the closest pairs.
    """

    path: str
    source: str
    sha: str
    theory: str
    notes: tuple[str, ...]
    frames: int
    looked_at: int
    config_types: dict[str, int]
    elements: dict[str, dict[str, int]]
    atoms_per_frame: dict[str, float]
    periodicity: dict[str, int]
    volume_per_atom: dict[str, float] | None
    isolated_atoms: list[str]
    labels: dict[str, dict[str, Any]]
    checks: list[Check]
    duplicates: list[Pair] = field(default_factory=list)
    leakage: dict[str, object] | None = None

    @property
    def suspicious(self) -> list[Check]:
        """The checks that found something."""
        return [check for check in self.checks if check.status == "suspicious"]

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, text, lists and mappings, for JSON."""
        value = asdict(self)
        if self.leakage is not None:
            closest = self.leakage["closest"]
            value["leakage"] = {**self.leakage, "closest": [asdict(p) for p in closest]}  # type: ignore[attr-defined]
        return value


def inspect(dataset: Dataset, against: Dataset | None = None) -> Inspection:
    """Look into a data set, and, with `against`, for frames of that one (say, the test set) that are in this one."""
    sample = draw(dataset)
    if all(frame.structure.has_positions for frame in sample.frames):
        alike, checks = duplicates(sample, neighbours(sample))
        checks = [*label_checks(sample), *slope_checks(sample), *scale_checks(sample), *checks]
    else:  # known by their bonds alone
        alike, checks = [], []
    checks += property_checks(sample.frames, dataset.targets)
    leak = None
    if against is not None:
        leak, verdict = leak_between(sample, draw(against))
        leak = {"against": against.path, **leak}
        checks.append(verdict)
    n_atoms = dataset.n_atoms()
    structures = [frame.structure for frame in sample.frames]
    volumes = [abs(np.linalg.det(s.cell)) / len(s) for s in structures if s.pbc.all()]
    kinds = Counter(PERIODICITY[int(s.pbc.sum())] for s in structures)
    return Inspection(
        path=dataset.path,
        source=dataset.source,
        sha=dataset.sha,
        theory=dataset.theory,
        notes=dataset.notes,
        frames=len(dataset),
        looked_at=len(sample.frames),
        config_types=dict(Counter(dataset.config_types()).most_common()),
        elements=_elements(sample),
        atoms_per_frame={"min": int(n_atoms.min()), "mean": float(n_atoms.mean()), "max": int(n_atoms.max())},
        periodicity={kind: kinds[kind] for kind in PERIODICITY if kinds[kind]},
        volume_per_atom=_range(volumes) if volumes else None,
        isolated_atoms=_isolated(sample),
        labels=_labels(dataset, sample),
        checks=checks,
        duplicates=alike,
        leakage=leak,
    )


def _isolated(sample: Sample) -> list[str]:
    single = [frame for frame in sample.frames if len(frame.structure) == 1]
    marked = [f for f in single if is_isolated_atom(f.config_type) or not f.structure.pbc.any()]
    return symbols_of([frame.structure.numbers[0] for frame in marked])


def _range(values: list[float]) -> dict[str, float]:
    array = np.array(values, dtype=np.float64)
    names = {"min": array.min(), "mean": array.mean(), "max": array.max(), "std": array.std()}
    return {name: float(value) for name, value in names.items()}


def _elements(sample: Sample) -> dict[str, dict[str, int]]:
    frames: Counter[int] = Counter()
    atoms: Counter[int] = Counter()
    for frame in sample.frames:
        present, counts = np.unique(frame.structure.numbers, return_counts=True)
        frames.update(present.tolist())
        atoms.update(dict(zip(present.tolist(), counts.tolist(), strict=True)))
    return {SYMBOLS[z]: {"frames": frames[z], "atoms": atoms[z]} for z in sorted(frames)}


def _labels(dataset: Dataset, sample: Sample) -> dict[str, dict[str, Any]]:
    counts = dataset.counts()
    frames = sample.frames
    energies = [f.energy / len(f.structure) for f in frames if f.energy is not None]
    forces = [np.linalg.norm(f.forces, axis=1) for f in frames if f.forces is not None]
    pressures = [-float(np.trace(f.stress)) / 3 / units.GPA for f in frames if f.stress is not None]
    found: dict[str, dict[str, Any]] = {}
    if energies:
        found["energy"] = {"frames": counts["energy"], "quantity": "energy per atom", "unit": "eV", **_range(energies)}
    if forces:
        sizes = np.concatenate(forces)
        rms = float(np.sqrt((sizes**2).mean()))
        shown = {"quantity": "|force|", "unit": "eV/Å", **_range(sizes.tolist()), "rms": rms}
        found["forces"] = {"frames": counts["forces"], **shown}
    if pressures:
        found["stress"] = {"frames": counts["stress"], "quantity": "pressure", "unit": "GPa", **_range(pressures)}
    return {**found, **property_ranges(sample.frames, dataset.targets)}
