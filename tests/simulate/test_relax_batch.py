"""Relaxation in batches: ASE's FIRE, step for step, whatever shares the batch."""

from __future__ import annotations

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk
from ase.optimize import FIRE

import mlpot
from mlpot import models
from mlpot.convert.ase import structure
from mlpot.errors import UserError
from mlpot.potential import Potential
from mlpot.simulate.relax_batch import relax_batch


@pytest.fixture(scope="module")
def potential() -> Potential:
    return models.build("lennard_jones")  # argon's


def test_the_steps_are_those_of_ase(potential: Potential) -> None:
    crystal = bulk("Ar", a=5.4, cubic=True) * (2, 1, 1)
    cluster = bulk("Ar", a=5.4, cubic=True) * (2, 2, 1)
    cluster.pbc = False
    for seed, atoms in enumerate((crystal, cluster)):
        atoms.rattle(0.4, seed=seed)
    alone = [crystal, cluster, Atoms("Ar3", [(0, 0, 0), (0, 0, 3.0), (0, 5.0, 1.0)]), Atoms("Ar")]
    found = relax_batch(potential, [structure(atoms) for atoms in alone], fmax=0.01, steps=40)
    assert {result.converged for result in found} == {True, False}, [result[1:] for result in found]
    for atoms, result in zip(alone, found, strict=True):
        atoms = atoms.copy()
        atoms.calc = mlpot.Calculator(potential)
        with FIRE(atoms, logfile=None) as dynamics:
            converged = bool(dynamics.run(fmax=0.01, steps=40))
        assert result.converged is converged
        assert result.steps == dynamics.nsteps
        assert result.energy == pytest.approx(atoms.get_potential_energy(), abs=1e-8)
        assert np.abs(result.structure.positions - atoms.positions).max() < 1e-6
        assert result.max_force == pytest.approx(np.linalg.norm(atoms.get_forces(), axis=1).max(), abs=1e-6)


def test_atoms_that_meet_new_neighbours_feel_them() -> None:
    model = models.build("lennard_jones", cutoff=6.0)
    atoms = structure(Atoms("Ar2", [(0, 0, 0), (0, 0, 5.5)]))
    third = structure(Atoms("Ar3", [(0, 0, 0), (0, 0, 5.5), (0, 0, 12.8)]))  # the last one is beyond cutoff and skin
    result, chain = relax_batch(model, [atoms, third], fmax=1e-5, steps=2000)
    assert result.converged
    distance = np.linalg.norm(result.structure.positions[1] - result.structure.positions[0])
    assert distance == pytest.approx(2 ** (1 / 6) * 3.4, abs=0.02)
    assert chain.energy == pytest.approx(result.energy, abs=1e-5)  # the pair left the third atom behind
    assert (atoms.positions[1] == (0, 0, 5.5)).all()  # the input stays as it was


def test_settings_that_make_no_sense(potential: Potential) -> None:
    with pytest.raises(UserError, match="fmax is -1"):
        relax_batch(potential, [structure(Atoms("Ar"))], fmax=-1)
    assert relax_batch(potential, []) == []
