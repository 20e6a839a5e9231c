"""Relaxation: to the right place, with constraints, and said when it fails (cases S02, U05)."""

from __future__ import annotations

import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, fcc111
from ase.constraints import FixAtoms
from ase.optimize import BFGS

from mlpot import models
from mlpot.calculator import Calculator
from mlpot.errors import UserError
from mlpot.simulate.relax import relax
from mlpot.units import GPA


def metal(atoms: Atoms) -> Atoms:
    atoms.calc = Calculator(models.build("lennard_jones", sigma=2.3, epsilon=0.3, cutoff=6.0))
    return atoms


@pytest.mark.parametrize("optimizer", ["bfgs", "lbfgs", "fire"])
def test_positions_and_cell_come_to_rest_at_the_pressure(optimizer: str) -> None:
    atoms = metal(bulk("Cu", a=3.7).repeat(2))
    atoms.rattle(0.05, seed=0)
    result = relax(atoms, cell=True, pressure=2.0, fmax=1e-3, steps=300, optimizer=optimizer)
    assert result.converged
    assert result.energy < result.first_energy
    np.testing.assert_allclose(atoms.get_stress()[:3] / GPA, -2.0, atol=0.05)
    assert result.max_stress is not None
    assert result.max_stress < 0.05


def test_same_minimum_as_ase_alone() -> None:
    ours, theirs = (metal(bulk("Cu", a=3.6).repeat(2)) for _ in range(2))
    ours.rattle(0.1, seed=1)
    theirs.rattle(0.1, seed=1)
    result = relax(ours, fmax=0.005)
    BFGS(theirs, logfile=None).run(fmax=0.005)
    np.testing.assert_allclose(ours.positions, theirs.positions, atol=1e-10)
    assert result.max_force < 0.005


def test_fixed_atoms_do_not_move() -> None:
    atoms = metal(fcc111("Cu", (2, 2, 3), a=3.6, vacuum=6.0))
    atoms.rattle(0.05, seed=0)
    atoms.set_constraint(FixAtoms([0, 1, 2, 3]))
    before = atoms.positions.copy()
    assert relax(atoms, fmax=0.01).converged
    assert np.array_equal(atoms.positions[:4], before[:4])
    assert not np.array_equal(atoms.positions[4:], before[4:])


def test_symmetry_is_kept() -> None:
    pytest.importorskip("spglib", reason="FixSymmetry needs spglib")
    from ase.constraints import FixSymmetry
    from ase.spacegroup.symmetrize import check_symmetry

    atoms = metal(bulk("Cu", "hcp", a=2.6, c=4.4))
    atoms.set_constraint(FixSymmetry(atoms))
    relax(atoms, cell=True, fmax=0.01)
    assert check_symmetry(atoms, symprec=1e-5).number == 194


def test_what_did_not_converge_is_said() -> None:
    atoms = metal(bulk("Cu", a=3.6).repeat(2))
    atoms.rattle(0.1, seed=0)
    result = relax(atoms, fmax=1e-6, steps=2)
    assert not result.converged
    assert result.steps == 2
    assert result.max_force > 1e-6


def test_requests_that_cannot_be_met_are_errors() -> None:
    atoms = metal(bulk("Cu", a=3.6))
    for settings, message in (
        ({"optimizer": "bgfs"}, 'Did you mean "bfgs"'),
        ({"fmax": 0.0}, "fmax is 0.0"),
        ({"pressure": 1.0}, "cell is not relaxed"),
    ):
        with pytest.raises(UserError, match=message):
            relax(atoms, **settings)
    with pytest.raises(UserError, match="not periodic in three directions"):
        relax(metal(fcc111("Cu", (1, 1, 2), vacuum=5.0)), cell=True)
