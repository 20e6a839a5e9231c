"""Units against ASE's constants and the numbers of published conversions."""

from __future__ import annotations

import ase.units
import pytest

from mlpot import units
from mlpot.errors import UserError


def test_constants_are_those_of_ase():
    assert pytest.approx(ase.units.Hartree, rel=1e-12) == units.HARTREE
    assert pytest.approx(ase.units.Bohr, rel=1e-12) == units.BOHR
    assert pytest.approx(ase.units.kcal / ase.units.mol, rel=1e-12) == units.KCAL_PER_MOL
    assert pytest.approx(ase.units.kJ / ase.units.mol, rel=1e-12) == units.KJ_PER_MOL
    assert pytest.approx(ase.units.GPa, rel=1e-12) == units.GPA
    assert pytest.approx(ase.units.kB, rel=1e-12) == units.KELVIN
    assert pytest.approx(ase.units.Debye, rel=1e-12) == units.DEBYE
    assert pytest.approx(ase.units.fs, rel=1e-12) == units.FEMTOSECOND


@pytest.mark.parametrize(
    ("unit", "quantity", "value"),
    [
        ("eV", "energy", 1.0),
        ("meV", "energy", 1e-3),
        ("ha", "energy", 27.211386),
        ("kcal/mol", "energy", 0.0433641),
        ("nm", "length", 10.0),
        ("kcal/mol/Å", "forces", 0.0433641),
        ("kcal/mol/Ang", "forces", 0.0433641),
        ("Hartree/Bohr", "forces", 51.42206),
        ("kJ/mol/nm", "forces", 0.001036427),
        ("GPa", "stress", 1 / 160.21766208),
        ("kbar_vasp", "stress", -0.0624151 / 100),
        ("eV/Å^3", "stress", 1.0),
        ("eV/Ang**3", "stress", 1.0),
        ("Hartree/Bohr^3", "stress", 183.6315),
    ],
)
def test_factors(unit, quantity, value):
    assert units.factor(unit, quantity) == pytest.approx(value, rel=1e-6)


@pytest.mark.parametrize(
    ("unit", "quantity", "near"),
    [
        ("kcal", "energy", "kcal/mol"),
        ("eV", "forces", "eV/Å"),
        ("Gpa/2", "stress", "GPa"),
        ("eV/Å", "stress", "eV/Å^3"),
    ],
)
def test_unknown_units_name_the_nearest(unit, quantity, near):
    with pytest.raises(UserError) as caught:
        units.factor(unit, quantity)
    assert f'Did you mean "{near}"?' in str(caught.value)
    assert f'unit "{unit}"' in str(caught.value)


def test_unknown_quantities_name_the_nearest():
    with pytest.raises(UserError, match='Did you mean "forces"'):
        units.factor("eV", "force")
