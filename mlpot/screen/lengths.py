"""Are these positions in Å? Bonds tell: the distance to the nearest atom beside the sum of two covalent radii."""

from __future__ import annotations

import numpy as np
from ase.data import covalent_radii

from mlpot.neighbors import neighbor_list
from mlpot.screen.molecule import Refused
from mlpot.structure import Structure

SHORT, LONG = 0.55, 1.5  # of a bond's length; positions in nm give 0.1, in bohr 1.9
REACH = 5.0  # Å
NOBLE = (2, 10, 18, 36, 54, 86)


def refuse_doubtful(structure: Structure) -> None:
    """Refused where two atoms are at one place, or where the distances (their median) are not those of bonds in Å."""
    pair = structure.coincident()
    if pair is not None:
        raise Refused("doubtful lengths", f"atoms {pair[0]} and {pair[1]} are at the same place")
    numbers = structure.numbers
    if (len(numbers) == 1 and not structure.pbc.any()) or bool(np.isin(numbers, NOBLE).all()):
        return
    (source, target), shift = neighbor_list(structure, REACH)
    vectors = structure.positions[source] + shift @ structure.cell - structure.positions[target]
    ratio = np.linalg.norm(vectors, axis=1) / (covalent_radii[numbers[source]] + covalent_radii[numbers[target]])
    nearest = np.full(len(numbers), np.inf)
    np.minimum.at(nearest, target, ratio)
    median = float(np.median(nearest))
    if not SHORT < median < LONG:
        seen = f"{median:.2f} times as long as bonds" if np.isfinite(median) else f"longer than {REACH} Å"
        raise Refused("doubtful lengths", f"the distances between neighbours are {seen}; are the positions in Å?")
