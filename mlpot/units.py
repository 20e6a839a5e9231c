"""Factors to eV, Å and e: the only numbers of this kind in the package.

The constants are those of ASE 3.29 (CODATA 2014), so that figures agree with ASE to the last digit.
"""

from __future__ import annotations

import math

from mlpot.errors import UserError, suggestion

HARTREE = 27.211386024367243  # eV
RYDBERG = HARTREE / 2  # eV
BOHR = 0.5291772105638411  # Å
KCAL_PER_MOL = 0.04336410390059322  # eV
KJ_PER_MOL = 0.010364269574711572  # eV
GPA = 0.006241509125883258  # eV/Å³
KELVIN = 8.617330337217213e-05  # eV, Boltzmann's constant times 1 K
DEBYE = 0.20819433442462576  # e Å
FEMTOSECOND = 0.09822694788464063  # 1 fs in ASE's unit of time, Å sqrt(u/eV)

ENERGY = {
    "eV": 1.0,
    "meV": 1e-3,
    "Ha": HARTREE,
    "Hartree": HARTREE,
    "Ry": RYDBERG,
    "kcal/mol": KCAL_PER_MOL,
    "kJ/mol": KJ_PER_MOL,
}
LENGTH = {"Å": 1.0, "Ang": 1.0, "Angstrom": 1.0, "A": 1.0, "Bohr": BOHR, "a0": BOHR, "nm": 10.0, "pm": 0.01}
# "kbar_vasp" is VASP's "in kB": pressure-like, so that compression is positive, opposite to ASE's stress.
STRESS = {"GPa": GPA, "kbar": 0.1 * GPA, "bar": 1e-4 * GPA, "Pa": 1e-9 * GPA, "kbar_vasp": -0.1 * GPA}
INTERNAL = {"energy": "eV", "length": "Å", "forces": "eV/Å", "stress": "eV/Å³"}


def _lookup(table: dict[str, float], unit: str) -> float | None:
    folded = {name.lower(): value for name, value in table.items()}
    return folded.get(unit.strip().lower())


def _divided(unit: str, power: int) -> float | None:
    """``energy/length`` and ``energy/length^3``: the last slash parts the two (kcal/mol/Å)."""
    energy, _, length = unit.replace("^", "").replace("³", "3").replace("**", "").rpartition("/")
    if power > 1:
        if not length.endswith(str(power)):
            return None
        length = length[: -len(str(power))]
    energy_factor, length_factor = _lookup(ENERGY, energy), _lookup(LENGTH, length)
    if energy_factor is None or length_factor is None:
        return None
    return energy_factor / length_factor**power


def factor(unit: str, quantity: str) -> float:
    """What a number in `unit` is multiplied by to be in the package's own unit.

    quantity: "energy" (eV), "length" (Å), "forces" (eV/Å) or "stress" (eV/Å³, ASE's sign).
    Raises UserError for a unit that is not known for the quantity.
    """
    found: float | None
    if quantity == "energy":
        found, examples = _lookup(ENERGY, unit), list(ENERGY)
    elif quantity == "length":
        found, examples = _lookup(LENGTH, unit), list(LENGTH)
    elif quantity == "forces":
        found, examples = _divided(unit, 1), ["eV/Å", "kcal/mol/Å", "kJ/mol/nm", "Hartree/Bohr", "Hartree/Å", "Ry/Bohr"]
    elif quantity == "stress":
        found = _lookup(STRESS, unit)
        found = _divided(unit, 3) if found is None else found
        examples = ["eV/Å^3", *STRESS, "Hartree/Bohr^3"]
    else:
        raise UserError(f'unknown quantity "{quantity}".{suggestion(quantity, INTERNAL)}')
    if found is None or not math.isfinite(found):
        raise UserError(f'unit "{unit}" is not known for {quantity}.{suggestion(unit, examples)}')
    return found
