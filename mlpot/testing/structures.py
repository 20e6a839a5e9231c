"""Structures to try a potential on: random, seeded, of the elements it knows, at distances that chemistry allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from ase.data import covalent_radii
from numpy.typing import NDArray

from mlpot.neighbors import edge_vectors, neighbor_list
from mlpot.structure import Structure

FloatArray = NDArray[np.float64]
TRIALS = 20


@dataclass(frozen=True)
class Samples:
    """Where the structures come from.

    elements: atomic numbers; cutoffs: every radius (Å) inside the potential; inputs: the structure-level inputs it
    takes. Bonds are sums of covalent radii, shortened where the potential would not see them.
    """

    elements: tuple[int, ...]
    cutoffs: tuple[float, ...]
    inputs: tuple[str, ...]
    rng: np.random.Generator

    @property
    def cutoff(self) -> float:
        """The longest radius, Å."""
        return max(self.cutoffs)

    def bond(self, a: int, b: int) -> float:
        """A sensible distance of two elements, Å."""
        return float(self._shrink * (covalent_radii[a] + covalent_radii[b]))

    @property
    def _shrink(self) -> float:
        return min(1.0, 0.55 * self.cutoff / (2.0 * self._radius))

    @property
    def _radius(self) -> float:
        """Of the largest element."""
        return float(max(covalent_radii[z] for z in self.elements))

    def structure(self, numbers: object, positions: object, cell: object = None, pbc: object = False) -> Structure:
        """A structure that states the inputs which the potential takes: neutral, singlet."""
        charge, spin = (value if name in self.inputs else None for name, value in (("charge", 0.0), ("spin", 1.0)))
        return Structure.of(numbers, positions, cell, pbc, charge, spin)

    def molecule(self, n: int = 7) -> Structure:
        """n atoms, each bonded to one placed before, none too near another."""
        numbers = self.rng.choice(self.elements, n)
        reach = self._shrink * covalent_radii[numbers]
        positions = self.rng.normal(size=(1, 3))
        while (k := len(positions)) < n:
            anchor, direction = int(self.rng.integers(k)), self.rng.normal(size=3)
            length = (reach[k] + reach[anchor]) * self.rng.uniform(1.0, 1.3)
            candidate = positions[anchor] + length * direction / np.linalg.norm(direction)
            if (np.linalg.norm(positions - candidate, axis=1) >= 0.9 * (reach[:k] + reach[k])).all():
                positions = np.vstack([positions, candidate])
        return self.structure(numbers, positions)

    def crystal(self, n: int = 5, pbc: Sequence[bool] = (True, True, True)) -> Structure:
        """n atoms at random places of a skewed cell, none too near another."""
        numbers = self.rng.choice(self.elements, n)
        reach = self._shrink * covalent_radii[numbers]
        while True:
            cell = 3.2 * reach.mean() * n ** (1 / 3) * (np.eye(3) + self.rng.uniform(-0.25, 0.25, (3, 3)))
            structure = self.structure(numbers, self.rng.uniform(size=(n, 3)) @ cell, cell, list(pbc))
            edges = neighbor_list(structure, 2.0 * float(reach.max()))
            lengths = np.linalg.norm(edge_vectors(structure, *edges), axis=1)
            if (lengths >= 0.9 * reach[edges[0]].sum(axis=0)).all():
                return structure

    def clear_of_cutoffs(self, make: Callable[[], Structure]) -> Structure:
        """Of several trials the one with no pair close to a cutoff, where second derivatives may jump."""
        return max((make() for _ in range(TRIALS)), key=self._clearance)

    def lattice(self) -> Structure:
        """One atom in the primitive cell of fcc: every force is zero by symmetry."""
        z = max(self.elements, key=lambda number: covalent_radii[number])
        half = 1.1 * self.bond(z, z) / np.sqrt(2.0)
        return self.structure([z], np.zeros((1, 3)), half * (np.ones((3, 3)) - np.eye(3)), True)

    def atom(self) -> Structure:
        """One atom, free."""
        return self.structure([self.elements[-1]], [[0.3, -0.2, 0.1]])

    def apart(self) -> Structure:
        """Three atoms, all out of each other's range."""
        numbers = self.rng.choice(self.elements, 3)
        return self.structure(numbers, np.diag([0.0, 1.0, -1.0]) * (2.0 * self.cutoff + 3.0))

    def line(self, *distances: float) -> Structure:
        """Atoms along z at these distances (Å) from one to the next; elements in turn."""
        numbers = [self.elements[k % len(self.elements)] for k in range(len(distances) + 1)]
        positions = np.zeros((len(numbers), 3))
        positions[1:, 2] = np.cumsum(distances)
        return self.structure(numbers, positions)

    def straight(self) -> Structure:
        """Three bonded atoms exactly along z: angles of 0 and 180 degrees."""
        z = self.elements
        return self.line(self.bond(z[0], z[1 % len(z)]), self.bond(z[1 % len(z)], z[2 % len(z)]))

    def molecule_and_stray(self) -> Structure:
        """A molecule and one atom that no other can reach."""
        return joined(self.molecule(3), moved(self.atom(), np.array([0.0, 0.0, 2.0 * self.cutoff + 20.0])))

    def mixed(self) -> list[Structure]:
        """Frames of every kind, for one batch."""
        slab = self.crystal(4, (True, True, False))
        return [self.crystal(), self.atom(), self.molecule(), self.apart(), slab, self.lattice(), self.molecule(4)]

    def _clearance(self, structure: Structure) -> float:
        edges = neighbor_list(structure, self.cutoff + 0.1)
        lengths = np.linalg.norm(edge_vectors(structure, *edges), axis=1)
        return float(min((np.abs(lengths - cutoff).min(initial=1.0) for cutoff in self.cutoffs), default=1.0))


def moved(source: Structure, by: FloatArray) -> Structure:
    """The structure with its atoms moved by (3,) or (n, 3) Å."""
    return replace(source, positions=source.positions + by)


def turned(source: Structure, rotation: FloatArray) -> Structure:
    """Positions and cell times an orthogonal matrix (3, 3)."""
    return replace(source, positions=source.positions @ rotation, cell=source.cell @ rotation)


def strained(source: Structure, strain: FloatArray) -> Structure:
    """The structure stretched by a symmetric strain (3, 3)."""
    return turned(source, np.eye(3) + 0.5 * (strain + strain.T))


def permuted(source: Structure, order: NDArray[np.int64]) -> Structure:
    """The same atoms in another order."""
    return replace(source, numbers=source.numbers[order], positions=source.positions[order])


def joined(first: Structure, second: Structure) -> Structure:
    """The atoms of two structures in the first one's cell."""
    return replace(
        first,
        numbers=np.concatenate([first.numbers, second.numbers]),
        positions=np.concatenate([first.positions, second.positions]),
    )


def repeated(source: Structure, times: tuple[int, int, int]) -> Structure:
    """A supercell: whole copies of the atoms one after the other."""
    shifts = np.array(list(np.ndindex(times))) @ source.cell
    return replace(
        source,
        numbers=np.tile(source.numbers, len(shifts)),
        positions=(shifts[:, None] + source.positions).reshape(-1, 3),
        cell=np.array(times)[:, None] * source.cell,
    )


def rotation(rng: np.random.Generator, *, proper: bool = True) -> FloatArray:
    """A random rotation, or with ``proper=False`` a rotation and a reflection."""
    q, _ = np.linalg.qr(rng.normal(size=(3, 3)))
    sign = np.sign(np.linalg.det(q))
    matrix: FloatArray = q * sign if proper else -q * sign
    return matrix
