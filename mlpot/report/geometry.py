"""Trajectories made fit to be looked at: bonds, whole molecules, no drift or tumbling."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from ase.data import covalent_radii
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, connected_components
from scipy.spatial import cKDTree

from mlpot.report.inputs import Array
from mlpot.structure import SYMBOLS

BOND_SLACK = 0.4  # Å; a bond is at most this longer than the sum of the covalent radii (Meng and Lewis 1991)
Bonds = NDArray[np.int64]  # (B, 2), lower atom first


def radii(numbers: NDArray[np.int64]) -> Array:
    """Covalent radii (Cordero 2008, as in ASE) and half the slack, Å: atoms nearer than the sum of two are bonded."""
    return np.asarray(covalent_radii[numbers], dtype=np.float64) + BOND_SLACK / 2


def bonds(numbers: NDArray[np.int64], positions: Array, cell: Array | None = None, pbc: Sequence[bool] = ()) -> Bonds:
    """(B, 2): pairs nearer than the sum of their `radii`, by their nearest images where periodic.

    A periodic cell narrower than two bond lengths loses the bonds beyond the nearest image; for drawing that will do.
    """
    radius = radii(numbers)
    shifts = _shifts(cell, pbc)
    images = (positions[None] + shifts[:, None]).reshape(-1, 3)
    pairs = cKDTree(positions).query_ball_tree(cKDTree(images), 2 * float(radius.max()))
    found = {
        (i, image % len(positions)) for i, near in enumerate(pairs) for image in near if image % len(positions) > i
    }
    index = np.array(sorted(found), dtype=np.int64).reshape(-1, 2)
    length = np.linalg.norm(nearest(positions[index[:, 1]] - positions[index[:, 0]], cell, pbc), axis=-1)
    return index[length < radius[index].sum(axis=1)]


def _shifts(cell: Array | None, pbc: Sequence[bool]) -> Array:
    if cell is None or not any(pbc):
        return np.zeros((1, 3))
    steps = np.stack(np.meshgrid(*([-1, 0, 1] if periodic else [0] for periodic in pbc), indexing="ij"), axis=-1)
    return steps.reshape(-1, 3) @ cell


def nearest(vectors: Array, cell: Array | None, pbc: Sequence[bool] = ()) -> Array:
    """Vectors (..., 3), each less whole lattice vectors, to about its shortest (exact for moderate skew)."""
    if cell is None or not any(pbc):
        return vectors
    return vectors - _whole(vectors, cell, pbc)


def _whole(vectors: Array, cell: Array, pbc: Sequence[bool]) -> Array:
    """The lattice vectors nearest to the vectors, component by component in the cell's own axes."""
    filled = _filled(cell)
    return (np.round(vectors @ np.linalg.inv(filled)) * np.asarray(pbc)) @ filled


def _filled(cell: Array) -> Array:
    """The cell with missing (zero) lattice vectors replaced by ones at right angles to the rest."""
    if np.linalg.matrix_rank(cell) == 3:
        return np.asarray(cell, dtype=np.float64)
    filled = np.array(cell, dtype=np.float64)
    missing = np.flatnonzero(np.linalg.norm(filled, axis=1) < 1e-8)
    filled[missing] = np.linalg.svd(filled)[2][3 - len(missing) :]
    return filled


def presented(positions: Array, numbers: NDArray[np.int64], cell: Array | None, pbc: Sequence[bool]) -> Array:
    """(F, n, 3) as shown: periodic runs without jumps, whole molecules in the cell; others without drift and rotation.

    cell: (3, 3) or (F, 3, 3), Å.
    """
    positions = np.array(positions, dtype=np.float64)
    if cell is None or not any(pbc):
        return aligned(positions)
    cells = np.broadcast_to(np.asarray(cell, dtype=np.float64), (len(positions), 3, 3))
    for previous, frame in pairwise(range(len(positions))):
        positions[frame] -= _whole(positions[frame] - positions[previous], cells[frame], pbc)
    moves = _gathered(numbers, positions[0], cells[0], pbc) - positions[0]
    fractional = np.round(moves @ np.linalg.inv(_filled(cells[0])))
    filled = np.stack([_filled(box) for box in cells]) if np.ndim(cell) == 3 else _filled(cells[0])
    return positions + fractional @ filled


def _gathered(numbers: NDArray[np.int64], positions: Array, cell: Array, pbc: Sequence[bool]) -> Array:
    """Positions of one frame with each molecule whole and its centre in the cell; endless networks atom by atom."""
    index = bonds(numbers, positions, cell, pbc)
    n = len(numbers)
    network = coo_array((np.ones(len(index)), (index[:, 0], index[:, 1])), shape=(n, n)).tocsr()
    out = positions.copy()
    count, label = connected_components(network, directed=False)
    for component in range(count):
        members = np.flatnonzero(label == component)
        order, parents = breadth_first_order(network, members[0], directed=False)
        for atom in order[1:]:
            out[atom] = out[parents[atom]] + nearest(positions[atom] - positions[parents[atom]], cell, pbc)
        inner = index[label[index[:, 0]] == component]
        vectors = out[inner[:, 1]] - out[inner[:, 0]]
        endless = len(inner) > 0 and bool((np.abs(_whole(vectors, cell, pbc)) > 1e-6).any())
        if endless:
            out[members] -= _home(positions[members], cell, pbc) + out[members] - positions[members]
        else:
            out[members] -= _home(out[members].mean(axis=0, keepdims=True), cell, pbc)
    return out


def _home(points: Array, cell: Array, pbc: Sequence[bool]) -> Array:
    """What to take off the points to have them in the cell; those just outside a face stay where they are."""
    filled = _filled(cell)
    return (np.floor(points @ np.linalg.inv(filled) + 0.02) * np.asarray(pbc)) @ filled


def aligned(positions: Array) -> Array:
    """(F, n, 3) with each frame moved and turned onto the first (Kabsch 1976); equal weights."""
    centred = positions - positions.mean(axis=1, keepdims=True)
    if positions.shape[1] < 3:
        return centred
    u, _, vt = np.linalg.svd(np.einsum("fni,nj->fij", centred, centred[0]))
    u[:, :, -1] *= np.sign(np.linalg.det(u @ vt))[:, None]
    return centred @ (u @ vt)


def bond_lengths(
    numbers: NDArray[np.int64], positions: Array, index: Bonds, cell: Array | None, pbc: Sequence[bool]
) -> dict[str, Array]:
    """Lengths (Å) over all frames of the bonds `index`, gathered by the elements they join: {"C–H": ..., ...}."""
    vectors = positions[:, index[:, 1]] - positions[:, index[:, 0]]
    if cell is not None and np.ndim(cell) == 3:
        vectors = np.stack([nearest(vector, box, pbc) for vector, box in zip(vectors, cell, strict=True)])
    else:
        vectors = nearest(vectors, cell, pbc)
    lengths = np.linalg.norm(vectors, axis=-1)
    names = ["–".join(SYMBOLS[z] for z in _order(numbers[pair])) for pair in index]
    return {
        name: lengths[:, [i for i, other in enumerate(names) if other == name]].ravel() for name in dict.fromkeys(names)
    }


def _order(pair: NDArray[np.int64]) -> list[int]:
    """Hydrogen last, carbon first, the others by atomic number: C–H, C–O, O–H."""
    return sorted((int(z) for z in pair), key=lambda z: (z == 1, z != 6, z))
