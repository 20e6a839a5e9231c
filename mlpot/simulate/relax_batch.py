"""Relaxation of many structures at once: every step asks the potential for the forces of all of them together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from mlpot.errors import UserError
from mlpot.graph import AtomsGraph, collate
from mlpot.potential import Potential, predict
from mlpot.structure import Structure

SKIN = 1.0  # Å; neighbours are looked for anew when an atom has moved half of this
# FIRE's constants (Bitzek et al., Phys. Rev. Lett. 97, 170201, 2006), time steps as in ASE.
FIRST_STEP, LONGEST_STEP, LONGEST_MOVE = 0.1, 1.0, 0.2
WAIT, FASTER, SLOWER, MIXING, LESS_MIXING = 5, 1.1, 0.5, 0.1, 0.99


class Relaxed(NamedTuple):
    """A structure after relaxation: energy in eV, the largest force on an atom in eV/Å, and the steps it took."""

    structure: Structure
    converged: bool
    steps: int
    energy: float
    max_force: float


class _Fire:
    """Velocities and steps of S structures, each with a pace of its own."""

    def __init__(self, batch: Tensor, n_structures: int) -> None:
        self.velocities = torch.zeros(len(batch), 3, dtype=torch.float64)
        self.pace = torch.full((n_structures,), FIRST_STEP, dtype=torch.float64)
        self.mixing = torch.full((n_structures,), MIXING, dtype=torch.float64)
        self.downhill = torch.zeros(n_structures, dtype=torch.int64)  # steps since the last one uphill

    def kept(self, structures: Tensor, atoms: Tensor) -> None:
        """Go on with these structures and their atoms alone."""
        self.velocities = self.velocities[atoms]
        self.pace, self.mixing, self.downhill = (x[structures] for x in (self.pace, self.mixing, self.downhill))

    def moves(self, forces: Tensor, batch: Tensor) -> Tensor:
        """How far each atom goes, (N, 3) Å, for forces (N, 3); the structure's whole move is 0.2 Å at most."""
        n = len(self.pace)

        def dot(a: Tensor, b: Tensor) -> Tensor:
            return a.new_zeros(n).index_add(0, batch, (a * b).sum(1))

        velocities = self.velocities
        power = dot(forces, velocities)
        resting = dot(velocities, velocities) == 0  # at the start, and just after a step uphill
        good = (power > 0) | resting
        direction = (dot(velocities, velocities) / dot(forces, forces).clamp(min=1e-300)).sqrt()
        mixed = (1 - self.mixing)[batch, None] * velocities + (self.mixing * direction)[batch, None] * forces
        velocities = torch.where(good[batch, None], mixed, 0.0)
        long = (power > 0) & (self.downhill > WAIT)
        self.pace = torch.where(long, (self.pace * FASTER).clamp(max=LONGEST_STEP), self.pace)
        self.mixing = torch.where(long, self.mixing * LESS_MIXING, self.mixing)
        self.downhill = torch.where(power > 0, self.downhill + 1, self.downhill)
        self.pace = torch.where(good, self.pace, self.pace * SLOWER)
        self.mixing = torch.where(good, self.mixing, MIXING)
        self.downhill = torch.where(good, self.downhill, 0)
        self.velocities = velocities + self.pace[batch, None] * forces
        moves = self.pace[batch, None] * self.velocities
        return moves * (LONGEST_MOVE / dot(moves, moves).sqrt().clamp(min=LONGEST_MOVE))[batch, None]


def relax_batch(
    potential: Potential, structures: Sequence[Structure], *, fmax: float = 0.05, steps: int = 200
) -> list[Relaxed]:
    """Move the atoms of each structure downhill (FIRE) until no force on it exceeds fmax (eV/Å); cells stay.

    steps: at most, for each. A structure takes the same way whatever it shares the batch with. One whose energy or
    forces stop being finite is given back as it was then, with that energy or force, not converged.
    Raises UserError for settings that make no sense, and for structures that the potential does not take.
    """
    if not (math.isfinite(fmax) and fmax > 0) or steps < 0:
        raise UserError(f"fmax is {fmax} and steps {steps}; expected a force above zero in eV/Å, and zero or more.")
    done: dict[int, Relaxed] = {}
    places = torch.arange(len(structures))
    current = list(structures)
    fire: _Fire | None = None
    step = 0
    while current:
        graph = collate([AtomsGraph.from_structure(one, potential.cutoff + SKIN) for one in current])
        fire = fire or _Fire(graph.batch, len(current))
        positions, moving = graph.positions, torch.ones(len(current), dtype=torch.bool)
        while True:
            energy, _, forces, _ = predict(potential, graph.moved(positions))
            assert forces is not None
            largest = _largest(forces, graph.batch, len(current))
            lost = ~(energy.isfinite() & largest.isfinite())
            for one in (moving & ((largest < fmax) | lost | (step >= steps))).nonzero()[:, 0].tolist():
                moving[one] = False
                there = _placed(current[one], positions[graph.batch == one])
                good = bool(largest[one] < fmax)
                done[int(places[one])] = Relaxed(there, good, step, float(energy[one]), float(largest[one]))
            if 2 * int(moving.sum()) < len(current):
                break  # most of the work would be on those that are done
            moves = fire.moves(forces, graph.batch)
            positions = torch.where(moving[graph.batch, None], positions + moves, positions)
            step += 1
            if float((positions - graph.positions).norm(dim=1).max()) > SKIN / 2:
                break
        left = moving.nonzero()[:, 0].tolist()
        current = [_placed(current[one], positions[graph.batch == one]) for one in left]
        places = places[moving]
        fire.kept(moving, moving[graph.batch])
    return [done[place] for place in range(len(structures))]


def _largest(forces: Tensor, batch: Tensor, n: int) -> Tensor:
    """The largest force of each structure, (S,) eV/Å."""
    return forces.new_zeros(n).scatter_reduce(0, batch, forces.norm(dim=1), "amax")


def _placed(structure: Structure, positions: Tensor) -> Structure:
    return replace(structure, positions=positions.numpy().copy())
