"""Integrators of the equations of motion: one step each, all state in the atoms and one random generator.

They act through ``Atoms.set_positions`` and ``set_momenta``, so ASE's constraints hold.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from ase import Atoms

from mlpot.errors import UserError
from mlpot.simulate.system import degrees_of_freedom, kinetic_energy
from mlpot.units import FEMTOSECOND, GPA, KELVIN


class VelocityVerlet:
    """Constant energy: velocity Verlet (Swope et al., J. Chem. Phys. 76, 637, 1982).

    timestep: fs. rng: source of all random numbers. rotation_removed: whether the run began without rotation.
    """

    conserves_momentum: ClassVar[bool] = True
    has_bath: ClassVar[bool] = False

    def __init__(self, atoms: Atoms, timestep: float, rng: np.random.Generator, rotation_removed: bool = True) -> None:
        self.atoms, self.dt, self.rng = atoms, timestep * FEMTOSECOND, rng
        self.masses = atoms.get_masses()
        self.dof = degrees_of_freedom(atoms, self.conserves_momentum, rotation_removed)

    def step(self, number: int, temperature: float) -> None:
        """Step `number` (from 1) with the bath at `temperature` (K)."""
        self.kick(0.5 * self.dt)
        self.drift(self.dt)
        self.kick(0.5 * self.dt)

    def kick(self, dt: float) -> None:
        """Momenta by the forces."""
        self.atoms.set_momenta(self.atoms.get_momenta() + dt * self.atoms.get_forces(md=True))

    def drift(self, dt: float) -> None:
        """Positions by the momenta; where a constraint bends the path, the momenta follow it."""
        atoms, per_mass = self.atoms, dt / self.masses[:, None]
        before = atoms.get_positions()
        atoms.set_positions(before + per_mass * atoms.get_momenta())
        if atoms.constraints:
            atoms.set_momenta((atoms.positions - before) / per_mass, apply_constraint=False)

    def kinetic(self) -> float:
        """Kinetic energy, eV."""
        return kinetic_energy(self.atoms, self.masses)

    def temperature(self) -> float:
        """2 E_kin / (degrees of freedom · k_B), K."""
        return 2.0 * self.kinetic() / (self.dof * KELVIN)


class Langevin(VelocityVerlet):
    """Constant temperature: Langevin dynamics as BAOAB (Leimkuhler, Matthews, J. Chem. Phys. 138, 174102, 2013).

    time: fs, the inverse of the friction.
    """

    conserves_momentum = False
    has_bath = True

    def __init__(
        self,
        atoms: Atoms,
        timestep: float,
        rng: np.random.Generator,
        rotation_removed: bool = True,
        time: float = 100.0,
    ) -> None:
        super().__init__(atoms, timestep, rng, rotation_removed)
        self.decay = math.exp(-timestep / time)

    def step(self, number: int, temperature: float) -> None:
        """As of VelocityVerlet, with the bath acting in the middle."""
        self.kick(0.5 * self.dt)
        self.drift(0.5 * self.dt)
        noise = self.rng.standard_normal(self.atoms.positions.shape)
        spread = np.sqrt((1.0 - self.decay**2) * KELVIN * temperature * self.masses)[:, None]
        self.atoms.set_momenta(self.decay * self.atoms.get_momenta() + spread * noise)
        self.drift(0.5 * self.dt)
        self.kick(0.5 * self.dt)


class Bussi(VelocityVerlet):
    """Constant temperature: velocity rescaling (Bussi, Donadio, Parrinello, J. Chem. Phys. 126, 014101, 2007).

    time: fs in which the kinetic energy relaxes.
    """

    has_bath = True

    def __init__(
        self,
        atoms: Atoms,
        timestep: float,
        rng: np.random.Generator,
        rotation_removed: bool = True,
        time: float = 100.0,
    ) -> None:
        super().__init__(atoms, timestep, rng, rotation_removed)
        self.decay = math.exp(-timestep / time)

    def step(self, number: int, temperature: float) -> None:
        """As of VelocityVerlet, after the velocities were rescaled."""
        self.rescale(temperature)
        super().step(number, temperature)

    def rescale(self, temperature: float) -> None:
        """Draw the next kinetic energy, equation A7 of the paper, and scale the momenta to it."""
        one, rest = self.rng.standard_normal(), 2.0 * self.rng.standard_gamma(0.5 * (self.dof - 1))
        kinetic, each = self.kinetic(), (1.0 - self.decay) * 0.5 * KELVIN * temperature
        wanted = (
            self.decay * kinetic
            + each * (rest + one * one)
            + 2.0 * one * math.sqrt(self.decay * each * max(kinetic, 0.0))
        )
        if kinetic < 1e-14 * len(self.masses):
            if wanted <= 0.0:
                return
            # Nothing to scale: a direction is drawn first.
            random = self.rng.standard_normal(self.atoms.positions.shape) * np.sqrt(self.masses)[:, None]
            if not self.atoms.constraints:
                random -= self.masses[:, None] * random.sum(0) / self.masses.sum()
            self.atoms.set_momenta(random)
            kinetic = self.kinetic()
        self.atoms.set_momenta(math.sqrt(max(wanted, 0.0) / kinetic) * self.atoms.get_momenta())


class StochasticCell(Bussi):
    """Constant temperature and pressure: stochastic cell rescaling (Bernetti, Bussi, J. Chem. Phys. 153, 114107, 2020).

    The volume fluctuates and the shape of the cell stays, so any cell will do. Bussi's thermostat goes with it.
    pressure: GPa. pressure_time: fs in which the volume relaxes. compressibility: 1/(eV/Å³).
    """

    EVERY = 10  # steps between two changes of the volume; stress is worked out only then

    def __init__(
        self,
        atoms: Atoms,
        timestep: float,
        rng: np.random.Generator,
        rotation_removed: bool = True,
        time: float = 100.0,
        pressure: float = 0.0,
        pressure_time: float = 1000.0,
        compressibility: float | None = None,
    ) -> None:
        super().__init__(atoms, timestep, rng, rotation_removed, time)
        if not atoms.pbc.all():
            raise UserError(
                f"npt needs a cell that is periodic in three directions; pbc is {atoms.pbc.tolist()}. "
                f"Use langevin or bussi for molecules and slabs."
            )
        if atoms.constraints:
            raise UserError(
                "npt cannot hold constraints while it scales the cell; remove them, or use bussi or langevin."
            )
        if self.EVERY * timestep > 0.2 * pressure_time:
            raise UserError(f"the barostat's time is {pressure_time} fs; expected at least {50 * timestep:g} fs.")
        self.pressure = pressure * GPA
        self.compressibility = estimated_compressibility(atoms) if compressibility is None else compressibility
        self.rate = self.EVERY * timestep / pressure_time

    def step(self, number: int, temperature: float) -> None:
        """As of Bussi; before every tenth step the volume changes."""
        if (number - 1) % self.EVERY == 0:
            self.rescale_cell(temperature)
        super().step(number, temperature)

    def rescale_cell(self, temperature: float) -> None:
        """One Euler step of λ = √V, for which the noise is constant (equation 9 of the paper)."""
        atoms, heat = self.atoms, KELVIN * temperature
        volume = atoms.get_volume()
        root, soft = math.sqrt(volume), self.compressibility * self.rate
        # The centre of mass, which has no momentum here, would add heat / volume to the pressure.
        excess = self.pressure - self.internal_pressure() - 1.5 * heat / volume
        noise = math.sqrt(0.5 * heat * soft) * self.rng.standard_normal()
        change = min(max(-0.5 * soft * root * excess + noise, -0.02 * root), 0.02 * root)
        factor = ((root + change) / root) ** (2.0 / 3.0)
        atoms.set_cell(atoms.cell.array * factor)
        atoms.set_positions(atoms.positions * factor)
        atoms.set_momenta(atoms.get_momenta() / factor)

    def internal_pressure(self) -> float:
        """Pressure with the share of the kinetic energy, eV/Å³."""
        ideal = 2.0 * self.kinetic() / (3.0 * self.atoms.get_volume())
        return ideal - float(self.atoms.get_stress()[:3].mean())


def estimated_compressibility(atoms: Atoms, strain: float = 0.003) -> float:
    """-dV/(V dP) in 1/(eV/Å³) from the pressures of two scaled copies; between those of diamond and of a dense gas."""
    pressures = []
    for factor in (1.0 - strain, 1.0 + strain):
        scaled = atoms.copy()
        scaled.set_cell(atoms.cell.array * factor, scale_atoms=True)
        scaled.calc = atoms.calc
        pressures.append(-float(scaled.get_stress()[:3].mean()))
    modulus = (pressures[0] - pressures[1]) / (6.0 * strain)
    return 1.0 / min(max(modulus, 0.01 * GPA), 1000.0 * GPA)


ENSEMBLES: dict[str, type[VelocityVerlet]] = {
    "nve": VelocityVerlet,
    "langevin": Langevin,
    "bussi": Bussi,
    "nvt": Bussi,
    "npt": StochasticCell,
}
