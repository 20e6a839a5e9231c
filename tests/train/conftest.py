"""Small labelled sets: argon by ASE's Lennard-Jones, periodic and free."""

from __future__ import annotations

from pathlib import Path

import ase.io
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.calculators.lj import LennardJones
from ase.calculators.singlepoint import SinglePointCalculator


def labelled(atoms: Atoms, *, stress: bool = False) -> Atoms:
    atoms.calc = LennardJones(sigma=3.4, epsilon=0.0104, rc=6.0, smooth=True)
    results = {"energy": atoms.get_potential_energy(), "forces": atoms.get_forces()}
    if stress:
        results["stress"] = atoms.get_stress()
    atoms.calc = SinglePointCalculator(atoms, **results)
    return atoms


def cluster(seed: int, n: int = 5) -> Atoms:
    random = np.random.default_rng(seed)
    grid = np.array([[x, y, z] for x in range(2) for y in range(2) for z in range(2)], dtype=float)[:n] * 3.7
    return labelled(Atoms(f"Ar{n}", grid + random.normal(scale=0.15, size=(n, 3))))


def crystal(seed: int) -> Atoms:
    random = np.random.default_rng(seed)
    atoms = bulk("Ar", "fcc", a=5.3, cubic=True)
    atoms.set_cell(atoms.cell.array @ (np.eye(3) + random.normal(scale=0.02, size=(3, 3))), scale_atoms=True)
    atoms.rattle(0.1, seed=seed)
    return labelled(atoms, stress=True)


@pytest.fixture(scope="session")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twenty free clusters of four to six atoms."""
    path = tmp_path_factory.mktemp("clusters") / "clusters.xyz"
    ase.io.write(path, [cluster(k, 4 + k % 3) for k in range(20)])
    return path


@pytest.fixture(scope="session")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Free clusters without stress and crystals with it, in one file, of two config types."""
    path = tmp_path_factory.mktemp("mixed") / "mixed.xyz"
    frames = []
    for k in range(8):
        frames += [cluster(k), crystal(k)]
        frames[-2].info["config_type"], frames[-1].info["config_type"] = "cluster", "bulk"
    ase.io.write(path, frames)
    return path
