"""What a simulation needs to know of its atoms: degrees of freedom, temperature, velocities to start with, bonds."""

from __future__ import annotations

import numpy as np
from ase import Atoms
from ase.data import covalent_radii
from ase.md.velocitydistribution import Stationary, ZeroRotation
from numpy.typing import NDArray

from mlpot.convert import ase as convert
from mlpot.errors import UserError
from mlpot.neighbors import neighbor_list
from mlpot.structure import SYMBOLS
from mlpot.units import KELVIN

FloatArray = NDArray[np.float64]

BONDED = 1.25  # pairs nearer than this times the sum of their covalent radii are bonds
MOLECULAR = [SYMBOLS.index(symbol) for symbol in ("H", "B", "C", "N", "O", "F", "P", "S", "Cl", "Se", "Br", "I")]


def refuse_overlap(atoms: Atoms, where: str, nearest: float = 0.1) -> None:
    """UserError where two atoms are nearer than `nearest` (Å), or where there is something else no model can take."""
    structure = convert.structure(atoms)
    structure.check(where)
    (source, target), shift = neighbor_list(structure, nearest)
    if len(source):
        i, j = int(target[0]), int(source[0])
        image = " (a periodic image)" if shift[0].any() else ""
        raise UserError(
            f"{where}: atoms {i} ({atoms.symbols[i]}) and {j} ({atoms.symbols[j]}){image} lie within {nearest} Å of "
            f"each other. Remove one of them, or mend the cell."
        )


def degrees_of_freedom(atoms: Atoms, momentum_conserved: bool, rotation_removed: bool) -> int:
    """How many degrees of freedom share the kinetic energy; at least one.

    Those that constraints hold are left out; without constraints so are the three of the centre of mass where the
    total momentum stays at zero, and the rotations of a free molecule that was started without any.
    """
    n = len(atoms)
    if atoms.constraints:
        return max(1, int(atoms.get_number_of_degrees_of_freedom()))
    if not momentum_conserved or n == 1:
        return 3 * n
    rotations = 0
    if rotation_removed and not atoms.pbc.any():
        moments = atoms.get_moments_of_inertia()
        rotations = int((moments > 1e-4 * moments.max()).sum()) if moments.max() > 0 else 0
    return max(1, 3 * n - 3 - rotations)


def kinetic_energy(atoms: Atoms, masses: FloatArray) -> float:
    """Kinetic energy in eV; masses (n,) in u."""
    momenta = atoms.arrays["momenta"]
    return 0.5 * float(np.einsum("nx,nx,n->", momenta, momenta, 1.0 / masses))


def start_velocities(atoms: Atoms, temperature: float, rng: np.random.Generator) -> None:
    """Momenta of a Maxwell-Boltzmann distribution that carry exactly the temperature (K).

    Without constraints the total momentum is zero, and so is the angular momentum of a free molecule.
    """
    masses = atoms.get_masses()
    atoms.set_momenta(rng.standard_normal((len(atoms), 3)) * np.sqrt(masses * KELVIN * temperature)[:, None])
    if not atoms.constraints and len(atoms) > 1:
        Stationary(atoms, preserve_temperature=False)
        if not atoms.pbc.any():
            ZeroRotation(atoms, preserve_temperature=False)
    dof = degrees_of_freedom(atoms, momentum_conserved=True, rotation_removed=True)
    present = 2.0 * kinetic_energy(atoms, masses) / (dof * KELVIN)
    if present > 0:
        atoms.set_momenta(atoms.get_momenta() * np.sqrt(temperature / present))


class Bonds:
    """The bonds between non-metals of a structure, to notice when one of them is torn apart.

    A pair is a bond if nearer than 1.25 times the sum of its covalent radii. Atoms must not be wrapped afterwards.
    """

    def __init__(self, atoms: Atoms) -> None:
        radii = np.where(np.isin(atoms.numbers, MOLECULAR), covalent_radii[atoms.numbers], 0.0)
        pairs, shift = neighbor_list(convert.structure(atoms), max(0.1, 2.0 * BONDED * float(radii.max())))
        source, target = pairs
        reach = radii[source] + radii[target]
        vectors = atoms.positions[source] + shift @ atoms.cell.array - atoms.positions[target]
        bonded = np.linalg.norm(vectors, axis=1) < BONDED * reach
        bonded &= (source < target) & (radii[source] > 0) & (radii[target] > 0)
        self.source, self.target, self.shift = source[bonded], target[bonded], shift[bonded]
        self.length: FloatArray = reach[bonded]

    def longest(self, atoms: Atoms) -> tuple[float, int, int, float]:
        """Largest ratio of length to covalent length, its two atoms, that length in Å; ratio 0 without bonds."""
        if not len(self.length):
            return 0.0, 0, 0, 0.0
        vectors = atoms.positions[self.source] - atoms.positions[self.target]
        if atoms.pbc.any():
            vectors += self.shift @ atoms.cell.array
        lengths = np.sqrt(np.einsum("bx,bx->b", vectors, vectors))
        worst = int((lengths / self.length).argmax())
        ratio = float(lengths[worst] / self.length[worst])
        return ratio, int(self.target[worst]), int(self.source[worst]), float(lengths[worst])
