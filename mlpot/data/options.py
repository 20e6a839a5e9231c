"""What a user says of a file of labelled structures."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from mlpot import units
from mlpot.errors import UserError, unknown

KEYS = ("energy", "forces", "stress", "virial", "config_type", "weight")


class ReadOptions(BaseModel):
    """What the user says of a file: names of its labels, units, which frames, level of theory."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keys: dict[str, str] = {}
    units: dict[str, str] = {}
    index: str = ":"
    theory: str = ""

    def validated(self, where: str) -> ReadOptions:
        """Itself; UserError for a label, quantity or unit that is not known."""
        for key in self.keys:
            if key not in KEYS:
                raise unknown("label in keys", key, KEYS, where)
        for quantity, unit in self.units.items():
            if quantity not in units.INTERNAL:
                raise unknown("quantity in units", quantity, units.INTERNAL, where)
            units.factor(unit, quantity)
        return self

    def factors(self, **defaults: str) -> dict[str, float]:
        """Factor of each quantity to the internal unit; `defaults` are the units of the format."""
        named = {**units.INTERNAL, **defaults, **self.units}
        return {quantity: units.factor(unit, quantity) for quantity, unit in named.items()}

    def frames(self, n: int) -> range:
        """The frame numbers that `index` picks out of n: ":100", "::10", "-1"."""
        try:
            parts = [int(part) if part else None for part in self.index.split(":")]
            numbers = range(n)
            return numbers[slice(*parts)] if len(parts) > 1 else numbers[slice(parts[0], (parts[0] or 0) + 1 or None)]
        except ValueError:
            raise UserError(f'index "{self.index}" is not a slice; write e.g. ":100" or "::10".') from None
