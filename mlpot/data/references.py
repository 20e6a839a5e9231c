"""Reference energies: what each element's free atom contributes to a total, so that a model learns the rest."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlpot.data.dataset import Dataset
from mlpot.data.frame import Frame
from mlpot.data.split import is_isolated_atom
from mlpot.errors import PhysicsWarning, UserError
from mlpot.structure import SYMBOLS, number_of

SAMPLE = 10_000  # frames that a fit looks at
FAR = 20.0  # eV an atom


@dataclass(frozen=True)
class References:
    """Energies in eV by atomic number, in float64.

    `rank` of `n_elements` compositions are independent; elements in `ambiguous` cannot be told apart by the data, and
    only sums over the compositions seen are meaningful.
    """

    energies: dict[int, float]
    origin: str
    rank: int
    n_elements: int
    ambiguous: tuple[str, ...] = ()

    def of(self, numbers: NDArray[np.int64]) -> float:
        """Sum over atoms, eV."""
        return float(
            sum(self.energies[int(z)] * int(n) for z, n in zip(*np.unique(numbers, return_counts=True), strict=True))
        )


def compositions(frames: Iterable[Frame], elements: tuple[int, ...]) -> NDArray[np.float64]:
    """Number of atoms of each element in each frame, (n, n_elements)."""
    table = [[np.count_nonzero(frame.structure.numbers == z) for z in elements] for frame in frames]
    return np.array(table, dtype=np.float64)


def sample(dataset: Dataset, limit: int = SAMPLE) -> list[Frame]:
    """At most `limit` frames, evenly over the set."""
    rows = np.unique(np.linspace(0, len(dataset) - 1, min(limit, len(dataset))).astype(int))
    return [dataset[int(row)] for row in rows]


def least_squares(frames: Iterable[Frame]) -> References:
    """The energies that fit the totals best; the ones of least norm, with a warning, where the data leave a choice."""
    labelled = [frame for frame in frames if frame.energy is not None]
    if not labelled:
        raise UserError("reference energies need energies; no frame has one. Use reference_energies=none.")
    elements = tuple(int(z) for z in np.unique(np.concatenate([frame.structure.numbers for frame in labelled])))
    counts = compositions(labelled, elements)
    totals = np.array([frame.energy for frame in labelled], dtype=np.float64)
    solution, _, rank, _ = np.linalg.lstsq(counts, totals, rcond=1e-10)
    # An element is settled when its unit vector lies in the space of the compositions seen.
    _, singular, directions = np.linalg.svd(counts, full_matrices=False)
    kept = directions[singular > 1e-10 * singular[0]]
    settled = np.linalg.norm(kept, axis=0) > 1 - 1e-8
    ambiguous = tuple(SYMBOLS[z] for z, known in zip(elements, settled, strict=True) if not known)
    if ambiguous:
        warnings.warn(
            f"reference energies: rank {rank} of {len(elements)}: the compositions do not tell {', '.join(ambiguous)} "
            f"apart, so these share the total by least norm. Energies of the compositions seen are right; those of "
            f"other compositions, atomisation and dissociation energies are not. Give isolated atoms, or "
            f"data.reference_energies, to settle them.",
            PhysicsWarning,
            stacklevel=2,
        )
    energies = {z: float(e) for z, e in zip(elements, solution, strict=True)}
    return References(energies, "least squares", int(rank), len(elements), ambiguous)


def from_isolated_atoms(frames: Iterable[Frame], elements: Iterable[int]) -> References | None:
    """From frames of one atom that are not periodic or marked IsolatedAtom; None where an element has none."""
    found: dict[int, float] = {}
    for frame in frames:
        marked = is_isolated_atom(frame.config_type) or not frame.structure.pbc.any()
        if len(frame.structure) == 1 and frame.energy is not None and marked:
            found[int(frame.structure.numbers[0])] = frame.energy
    wanted = tuple(int(z) for z in elements)
    if not found or any(z not in found for z in wanted):
        return None
    return References({z: found[z] for z in wanted}, "isolated atoms", len(wanted), len(wanted))


def from_mapping(given: Mapping[str, float], elements: Iterable[int]) -> References:
    """From symbols and energies in eV, as a recipe states them; UserError where an element of the data is missing."""
    energies = {}
    for symbol, energy in given.items():
        if isinstance(energy, bool) or not isinstance(energy, int | float) or not np.isfinite(energy):
            raise UserError(f"data.reference_energies: {symbol} is {energy!r}; expected an energy in eV.")
        energies[number_of(symbol)] = float(energy)
    missing = [SYMBOLS[z] for z in elements if z not in energies]
    if missing:
        raise UserError(f"data.reference_energies lacks {', '.join(missing)}; the data hold these elements.")
    return References(energies, "given", len(energies), len(energies))


def check_scale(frames: Iterable[Frame], references: References) -> None:
    """Warn where totals lie further from the sum of references than any bond explains: another scale or theory."""
    worst, which = 0.0, None
    for frame in frames:
        if frame.energy is None:
            continue
        expected = references.of(frame.structure.numbers)
        distance = abs(frame.energy - expected) / len(frame.structure)
        if distance > worst:
            worst, which = distance, (frame.energy, expected, len(frame.structure))
    if which is not None and worst > FAR:
        warnings.warn(
            f"reference energies are on another scale than the totals: a frame of {which[2]} atoms has "
            f"{which[0]:.4f} eV, the references add up to {which[1]:.4f} eV, {worst:.1f} eV an atom apart. Bonds are "
            f"worth some 10 eV at most: are both of one level of theory, and in eV?",
            PhysicsWarning,
            stacklevel=2,
        )
