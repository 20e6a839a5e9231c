"""What all forms of QM9 share: names, kinds and units of its properties, energies of free atoms, doubtful molecules.

Ramakrishnan et al., Sci. Data 1, 140022 (2014): B3LYP/6-31G(2df,p). Published in GHz, D, a0³, Hartree, a0², cal/mol/K.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources

from mlpot.data.frame import Frame
from mlpot.data.options import ReadOptions
from mlpot.errors import UserError
from mlpot.target import Target
from mlpot.units import BOHR, DEBYE, HARTREE, KCAL_PER_MOL

THEORY = "B3LYP/6-31G(2df,p)"
# In the order of the raw files: target, factor from the published unit to ours.
PROPERTIES: tuple[tuple[Target, float], ...] = (
    (Target(name="A", unit="GHz", description="rotational constant"), 1.0),
    (Target(name="B", unit="GHz", description="rotational constant"), 1.0),
    (Target(name="C", unit="GHz", description="rotational constant"), 1.0),
    (Target(name="mu", unit="e·Å", kind="magnitude", description="length of the dipole moment"), DEBYE),
    (Target(name="alpha", unit="Å³", kind="extensive", description="isotropic polarizability"), BOHR**3),
    (Target(name="homo", unit="eV", description="energy of the highest occupied orbital"), HARTREE),
    (Target(name="lumo", unit="eV", description="energy of the lowest empty orbital"), HARTREE),
    (Target(name="gap", unit="eV", description="lumo less homo"), HARTREE),
    (Target(name="r2", unit="Å²", kind="extent", description="electronic spatial extent"), BOHR**2),
    (Target(name="zpve", unit="eV", kind="extensive", description="vibrational energy at 0 K"), HARTREE),
    (Target(name="u0", unit="eV", kind="extensive", description="internal energy at 0 K"), HARTREE),
    (Target(name="u298", unit="eV", kind="extensive", description="internal energy at 298.15 K"), HARTREE),
    (Target(name="h298", unit="eV", kind="extensive", description="enthalpy at 298.15 K"), HARTREE),
    (Target(name="g298", unit="eV", kind="extensive", description="free energy at 298.15 K"), HARTREE),
    (Target(name="cv", unit="eV/K", kind="extensive", description="heat capacity at 298.15 K"), KCAL_PER_MOL / 1000),
)
TARGETS = tuple(target for target, _ in PROPERTIES)
FACTORS = {target.name: factor for target, factor in PROPERTIES}
# Energies of the free atoms in Hartree at the same level, from the set's atomref.txt.
_ATOMS = {
    "u0": {1: -0.500273, 6: -37.846772, 7: -54.583861, 8: -75.064579, 9: -99.718730},
    "u298": {1: -0.498857, 6: -37.845355, 7: -54.582445, 8: -75.063163, 9: -99.717314},
    "h298": {1: -0.497912, 6: -37.844411, 7: -54.581501, 8: -75.062219, 9: -99.716370},
    "g298": {1: -0.510927, 6: -37.861317, 7: -54.598897, 8: -75.079532, 9: -99.733544},
}
# Target -> atomic number -> what the free atom contributes, in the target's unit.
REFERENCES = {name: {z: value * HARTREE for z, value in atoms.items()} for name, atoms in _ATOMS.items()}
REFERENCES["cv"] = dict.fromkeys((1, 6, 7, 8, 9), 2.981 * KCAL_PER_MOL / 1000)
SHOWN = 5
Molecules = Iterator[tuple[Frame, tuple[str, ...]]]


@functools.cache
def uncharacterized() -> frozenset[int]:
    """Numbers of the 3,054 molecules whose relaxed geometry is not the molecule it was meant to be.

    They failed the set's own consistency check (its file uncharacterized.txt), and studies leave them out.
    """
    text = resources.files("mlpot.data").joinpath("qm9_uncharacterized.txt").read_text(encoding="ascii")
    return frozenset(map(int, text.split()))


def characterized(molecules: Molecules, options: ReadOptions) -> Molecules:
    """The molecules named gdb_NUMBER that passed the check, or all with `options.uncharacterized`; noted at the end."""
    doubtful: list[str] = []
    waiting: tuple[Frame, tuple[str, ...]] | None = None  # the last comes with what is known of all
    for frame, notes in molecules:
        name = str(frame.info["name"])
        if int(name.removeprefix("gdb_")) in uncharacterized():
            doubtful.append(name)
            if not options.uncharacterized:
                continue
        if waiting is not None:
            yield waiting
        waiting = frame, notes
    if not doubtful:
        found = "none of the set's 3,054 uncharacterised molecules is among these"
    else:
        shown = ", ".join(doubtful[:SHOWN]) + (f" and {len(doubtful) - SHOWN} more" if len(doubtful) > SHOWN else "")
        what = "kept" if options.uncharacterized else "left out; uncharacterized=true keeps them"
        found = f"{len(doubtful)} of the set's 3,054 uncharacterised molecules are here ({shown}): {what}"
    if waiting is None:
        raise UserError(f"no molecule is left: {found}.")
    frame, notes = waiting
    yield frame, (*notes, found)


def number(text: str) -> float:
    """A number as the raw files spell it, e.g. 6.2*^-6."""
    return float(text.replace("*^", "e"))


def converted(values: Sequence[float] | Mapping[str, float]) -> dict[str, float]:
    """Published values, in the order of the raw files or by name, in our units; NaN where one is missing."""
    if isinstance(values, Mapping):
        return {name: values[name] * FACTORS[name] for name in FACTORS if not math.isnan(values.get(name, math.nan))}
    if len(values) != len(PROPERTIES):
        raise UserError(f"{len(values)} properties; QM9 has {len(PROPERTIES)}.")
    return {target.name: value * factor for (target, factor), value in zip(PROPERTIES, values, strict=True)}
