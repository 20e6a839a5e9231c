"""Neighbour lists: every pair within the cutoff, self-images included, without a cap. vesin does the search."""

from __future__ import annotations

import numpy as np
import vesin
from numpy.typing import NDArray

from mlpot.errors import UserError
from mlpot.structure import Structure

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


def _search_box(structure: Structure, cutoff: float) -> tuple[FloatArray, FloatArray]:
    """Positions and a box that vesin can search, whatever the cell is where it is not periodic.

    Lattice vectors without periodicity carry no meaning, so they are replaced by ones that are orthogonal to the
    periodic plane and enclose all atoms. Periodic vectors are kept, so the shifts found are those of the real cell.
    """
    positions, pbc = structure.positions, structure.pbc
    if pbc.all():
        return positions, structure.cell
    box = np.zeros((3, 3))
    box[pbc] = structure.cell[pbc]
    # The rows of V^T beyond the rank of the periodic vectors span the open directions.
    open_directions = np.linalg.svd(structure.cell[pbc])[2][int(pbc.sum()) :] if pbc.any() else np.eye(3)
    heights = positions @ open_directions.T
    extent = heights.max(axis=0) - heights.min(axis=0) + 2.0 * cutoff
    box[~pbc] = open_directions * extent[:, None]
    origin = (heights.min(axis=0) - cutoff) @ open_directions
    return positions - origin, box


def neighbor_list(structure: Structure, cutoff: float) -> tuple[IntArray, IntArray]:
    """All directed pairs with |r_j + shift·cell - r_i| < cutoff.

    Returns edge_index (2, E) as [source j, target i], sorted by target, then source, then shift, and edge_shift (E, 3),
    the lattice translations of the source; both int64. Work is in float64. A pair exactly at the cutoff is left out;
    every model's envelope is zero there.
    """
    if not (np.isfinite(cutoff) and cutoff >= 0):
        raise UserError(f"cutoff is {cutoff}; expected a length in Å, zero or more.")
    if cutoff == 0:
        return np.zeros((2, 0), dtype=np.int64), np.zeros((0, 3), dtype=np.int64)
    points, box = _search_box(structure, cutoff)
    search = vesin.NeighborList(cutoff=cutoff, full_list=True, sorted=False, n_threads=1)
    pairs, shift = search.compute(
        points=np.ascontiguousarray(points), box=box, periodic=structure.pbc, quantities="PS", copy=False
    )
    # One order for one set of edges, so that sums over them do not depend on how the list was found.
    target, source, shift = pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64), shift.astype(np.int64)
    span = 2 * int(np.abs(shift).max(initial=0)) + 1
    key = target * len(points) + source
    for axis in range(3):
        key = key * span + shift[:, axis] + span // 2
    order = np.argsort(key)
    return np.stack([source[order], target[order]]), shift[order]


def edge_vectors(structure: Structure, edge_index: IntArray, edge_shift: IntArray) -> FloatArray:
    """r_j + shift·cell - r_i in Å, shape (E, 3)."""
    source, target = edge_index
    vectors: FloatArray = structure.positions[source] - structure.positions[target]
    if structure.pbc.any():
        vectors += edge_shift @ structure.cell
    return vectors


class SkinList:
    """A neighbour list that is searched anew only when atoms have moved, or the cell has changed, by too much.

    Between searches the candidates within cutoff + skin are cut down to those within the cutoff at the present
    positions, so the edges are always those of a fresh list. While they stay the same, the same arrays are returned.
    With ``skin=0`` every call searches.
    """

    def __init__(self, cutoff: float, skin: float) -> None:
        if not (np.isfinite(skin) and skin >= 0):
            raise UserError(f"skin is {skin}; expected zero or a positive length in Å.")
        self.cutoff, self.skin = cutoff, skin
        self.n_searches = 0
        self._reference: Structure | None = None
        self._candidates: tuple[IntArray, IntArray] | None = None
        self._offsets: tuple[FloatArray, FloatArray] | None = None  # (the cell, shift·cell of each candidate)
        self._within: NDArray[np.bool_] | None = None
        self._edges: tuple[IntArray, IntArray] | None = None

    def _outdated(self, structure: Structure) -> bool:
        reference = self._reference
        if reference is None or self.skin == 0 or len(reference) != len(structure):
            return True
        if not np.array_equal(reference.pbc, structure.pbc):
            return True
        positions, stretch = structure.positions, 1.0
        if not np.array_equal(reference.cell, structure.cell):
            if not structure.pbc.all():
                return True
            # A pair at d in this cell was no further than d / stretch in the reference cell, moves of atoms apart.
            positions = np.linalg.solve(structure.cell.T, positions.T).T @ reference.cell
            deformation = np.linalg.solve(reference.cell, structure.cell)
            stretch = float(np.linalg.svd(deformation, compute_uv=False)[-1])
        moved = positions - reference.positions
        furthest = float(np.einsum("nx,nx->n", moved, moved).max()) ** 0.5
        return bool(self.cutoff / stretch + 2.0 * furthest > self.cutoff + self.skin)

    def _search(self, structure: Structure) -> None:
        self._candidates = neighbor_list(structure, self.cutoff + self.skin)
        # A copy: the caller may go on to move the atoms in place.
        self._reference = Structure(
            structure.numbers.copy(), structure.positions.copy(), structure.cell.copy(), structure.pbc.copy()
        )
        self._offsets = self._within = self._edges = None
        self.n_searches += 1

    def few(self, structure: Structure, most: int) -> tuple[IntArray, IntArray]:
        """Those within cutoff + skin while they are no more than `most`, the same arrays from search to search.

        Else those within the cutoff alone. Either way none within the cutoff is missing.
        """
        if self._outdated(structure):
            self._search(structure)
        assert self._candidates is not None
        return self._candidates if len(self._candidates[1]) <= most else self(structure)

    def __call__(self, structure: Structure) -> tuple[IntArray, IntArray]:
        """edge_index (2, E) and edge_shift (E, 3) as of `neighbor_list`."""
        if self._outdated(structure):
            self._search(structure)
        assert self._candidates is not None
        (source, target), edge_shift = self._candidates
        if self.skin == 0:
            return self._candidates
        vectors = structure.positions[source] - structure.positions[target]
        if structure.pbc.any():
            if self._offsets is None or not np.array_equal(self._offsets[0], structure.cell):
                self._offsets = structure.cell.copy(), edge_shift @ structure.cell
            vectors += self._offsets[1]
        within = np.einsum("ex,ex->e", vectors, vectors) < self.cutoff**2
        if self._edges is None or self._within is None or not np.array_equal(within, self._within):
            self._within, self._edges = within, (self._candidates[0][:, within], edge_shift[within])
        return self._edges
