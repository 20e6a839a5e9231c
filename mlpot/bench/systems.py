"""Standard systems for timings, built from nothing but a seed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from ase import Atoms
from ase.build import bulk, molecule
from scipy.spatial.transform import Rotation

WATER_BOX = 12.42  # Å, 64 molecules at 1 g/cm³


def ethanol() -> Atoms:
    """9 atoms."""
    return molecule("CH3CH2OH")


def aspirin() -> Atoms:
    """21 atoms."""
    from mlpot.convert import ase as convert
    from mlpot.convert.conformers import embedded

    return convert.atoms(embedded("CC(=O)Oc1ccccc1C(=O)O"))


def water() -> Atoms:
    """192 atoms at the density of the liquid, molecules on a grid turned at random, periodic."""
    random = np.random.default_rng(0)
    one = molecule("H2O")
    one.positions -= one.get_center_of_mass()
    box = Atoms(cell=[WATER_BOX] * 3, pbc=True)
    turns = Rotation.random(64, random_state=random)
    for place, turn in zip(np.ndindex(4, 4, 4), turns, strict=True):
        added = one.copy()
        added.positions = turn.apply(added.positions) + (np.array(place) + 0.5) * WATER_BOX / 4
        box += added
    return box


def silicon(n: int) -> Atoms:
    """A diamond crystal of n × n × n cubic cells, its atoms displaced a little."""
    atoms = bulk("Si", "diamond", a=5.431, cubic=True) * (n, n, n)
    atoms.rattle(0.03, seed=0)
    return atoms


SYSTEMS: dict[str, Callable[[], Atoms]] = {
    "ethanol": ethanol,
    "aspirin": aspirin,
    "water192": water,
    "si216": lambda: silicon(3),
    "si1000": lambda: silicon(5),
}
