"""How dynamics are run."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlpot.errors import UserError, unknown
from mlpot.simulate.integrators import ENSEMBLES

COLUMNS = ("step", "time_fs", "potential_eV", "kinetic_eV", "total_eV", "temperature_K", "target_K")
NPT_COLUMNS = (*COLUMNS, "pressure_GPa", "volume_A3")


@dataclass(frozen=True)
class Settings:
    """How to run.

    | field           | default    | meaning                                                                       |
    |-----------------|------------|-------------------------------------------------------------------------------|
    | ensemble        | "nve"      | nve, langevin, bussi (also called nvt) or npt                                 |
    | steps           | 1000       | number of the last step, also of a restarted run                              |
    | timestep        | 0.5        | fs                                                                            |
    | temperature     | 300        | K, of the first velocities and the bath                                       |
    | temperature_end | None       | K: the bath goes there in a straight line over all steps                      |
    | thermostat_time | 100        | fs: time in which the bath acts; the inverse of Langevin's friction           |
    | pressure        | 0          | GPa, for npt                                                                  |
    | barostat_time   | 1000       | fs, for npt                                                                   |
    | seed            | 0          | of velocities and bath                                                        |
    | keep_velocities | False      | begin with the momenta that the atoms have, rather than draw new ones         |
    | every           | 10         | steps between frames of the trajectory and rows of the log                    |
    | max_temperature | None       | K: the run stops above it; by default 5 times the highest target plus 1000 K  |
    | max_bond        | 2.0        | the run stops when a bond of the first frame between non-metals exceeds this  |
    |                 |            | many covalent lengths; 0 for no such limit                                    |
    """

    ensemble: str = "nve"
    steps: int = 1000
    timestep: float = 0.5
    temperature: float = 300.0
    temperature_end: float | None = None
    thermostat_time: float = 100.0
    pressure: float = 0.0
    barostat_time: float = 1000.0
    seed: int = 0
    keep_velocities: bool = False
    every: int = 10
    max_temperature: float | None = None
    max_bond: float = 2.0

    def __post_init__(self) -> None:
        if self.ensemble not in ENSEMBLES:
            raise unknown("ensemble", self.ensemble, ENSEMBLES)
        for name, least in (("steps", 0), ("temperature", 0), ("temperature_end", 0), ("seed", 0), ("max_bond", 0)):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= least):
                raise UserError(f"{name} is {value}; expected {least} or more.")
        for name in ("timestep", "thermostat_time", "barostat_time", "every", "max_temperature"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise UserError(f"{name} is {value}; expected a number above zero.")
        if self.temperature_end is not None and not ENSEMBLES[self.ensemble].has_bath:
            raise UserError(f"{self.ensemble} has no bath, so no temperature to end at; use langevin, bussi or npt.")

    def target(self, step: int) -> float:
        """Temperature of the bath at a step, K."""
        if self.temperature_end is None or not self.steps:
            return self.temperature
        return self.temperature + (self.temperature_end - self.temperature) * min(1.0, step / self.steps)

    @property
    def limit(self) -> float:
        """The temperature above which the run stops, K."""
        return self.max_temperature or 5.0 * max(self.temperature, self.temperature_end or 0.0) + 1000.0

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of the log."""
        return NPT_COLUMNS if self.ensemble == "npt" else COLUMNS
