"""What a user says of a file of labelled structures, and what follows from it for the units of its labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from mlpot import units
from mlpot.errors import UserError, unknown

KEYS = ("energy", "forces", "stress", "virial", "config_type", "weight")


class Unit(NamedTuple):
    """Unit of a quantity in a file, the factor from it to ours, and how it is known."""

    name: str
    factor: float
    reason: str


class ReadOptions(BaseModel):
    """What the user says of a file: names of its labels, units, which frames, level of theory.

    keys: names in the file, e.g. ``{"energy": "REF_energy"}`` for the labels in KEYS. units: units in the file of
    "energy", "forces", "stress" and "length". index: a slice, e.g. ":100" or "::10". embed: give molecules of a table
    coordinates (rdkit). uncharacterized: keep the molecules of QM9 that failed its consistency check.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: dict[str, str] = {}
    units: dict[str, str] = {}
    index: str = ":"
    theory: str = ""
    embed: bool = False
    uncharacterized: bool = False

    def validated(self, where: str, own_names: bool = False) -> ReadOptions:
        """Itself; UserError for a label, quantity, unit or index that is not known.

        `own_names`: the user names properties, which may have any unit.
        """
        for key in self.keys:
            if key not in KEYS and not own_names:
                raise unknown("label in keys", key, KEYS, where)
        for quantity, unit in self.units.items():
            if own_names:
                continue
            if quantity not in units.INTERNAL:
                raise unknown("quantity in units", quantity, units.INTERNAL, where)
            units.factor(unit, quantity)
        self.slice()
        return self

    def slice(self) -> slice:
        """`index` as a slice; "5" is the one frame of number 5."""
        try:
            parts = [int(part) if part.strip() else None for part in self.index.split(":")]
            if len(parts) > 3 or (len(parts) == 3 and parts[2] == 0) or parts == [None]:
                raise ValueError
        except ValueError:
            raise UserError(f'index "{self.index}" is not a slice; write e.g. ":100" or "::10".') from None
        if len(parts) == 1:
            return slice(parts[0], (parts[0] or 0) + 1 or None)
        return slice(*parts)

    def frames(self, n: int) -> range:
        """The frame numbers that `index` picks out of n."""
        return range(n)[self.slice()]


def resolve(
    options: ReadOptions,
    where: str,
    stated: Mapping[str, str] | None = None,
    convention: Mapping[str, str] | None = None,
    by: str = "",
) -> dict[str, Unit]:
    """Unit of each quantity: what the user says, else what the file states, else the convention of the format (`by`).

    Forces follow the units of energy and length where only these are told, since no program writes kcal/mol beside
    eV/Å. A stress does not: GPa beside Hartree is common, so its factor is NaN then (see `known`).
    """
    told: dict[str, tuple[str, str]] = {}
    for source, reason in ((convention, by), (stated, "stated in the file"), (options.units, "stated by you")):
        told.update(
            {quantity: (unit, reason) for quantity, unit in (source or {}).items() if quantity in units.INTERNAL}
        )
    rank = {"": 0, by: 1, "stated in the file": 2, "stated by you": 3}
    below = {quantity: rank[told[quantity][1]] if quantity in told else 0 for quantity in units.INTERNAL}
    energy, length = told.get("energy", ("eV", "")), told.get("length", ("Å", ""))
    if max(below["energy"], below["length"]) > below["forces"]:
        told["forces"] = f"{energy[0]}/{length[0]}", "follows from the units of energy and length"
    found = {}
    for quantity, internal in units.INTERNAL.items():
        name, reason = told.get(quantity, (internal, ""))
        try:
            found[quantity] = Unit(name, units.factor(name, quantity), reason)
        except UserError as error:
            raise UserError(f"{where}: {error} State it with units.{quantity}=.") from None
    if "stress" not in told and found["energy"].factor != 1.0:
        found["stress"] = Unit("", float("nan"), "")
    return found


def known(unit: Unit, quantity: str, where: str) -> float:
    """The factor of a unit; UserError where it cannot be told."""
    if unit.factor != unit.factor:
        raise UserError(
            f"{where}: the energy is not in eV, so the unit of its {quantity} is open. "
            f"State it, e.g. units.{quantity}=GPa."
        )
    return unit.factor


def note(label: str, unit: Unit) -> tuple[str, ...]:
    """The note on a conversion; none where nothing is converted."""
    if unit.factor == 1.0:
        return ()
    return (f"{label}: {unit.name} -> {units.INTERNAL[label]} ({unit.reason})",)
