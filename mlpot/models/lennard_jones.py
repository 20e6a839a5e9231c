"""Lennard-Jones, the oracle of the force path: ASE's ``LennardJones(smooth=True)`` gives the same numbers."""

from __future__ import annotations

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from mlpot.graph import AtomsGraph
from mlpot.nn.radial import norm
from mlpot.nn.segment import segment_sum
from mlpot.potential import Potential


class Config(BaseModel):
    """Settings of Lennard-Jones; the defaults are argon's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    epsilon: float = Field(0.0104, gt=0, description="depth of the well, eV")
    sigma: float = Field(3.4, gt=0, description="where the pair energy crosses zero, Å")
    cutoff: float = Field(8.0, gt=0, description="Å")
    onset: float = Field(0.66, gt=0, lt=1, description="where the smoothing begins, as a fraction of the cutoff")


class LennardJones(Potential):
    """Pair energy 4ε [(σ/r)¹² - (σ/r)⁶], switched off smoothly between onset and cutoff. Always float64."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.cutoff = config.cutoff

    def atom_energies(self, graph: AtomsGraph) -> Tensor:
        """(N,) eV; half of each pair's energy goes to each of its atoms."""
        r = norm(graph.edge_vectors())  # (E,)
        c6 = (self.config.sigma / r) ** 6
        pair_energy = 4.0 * self.config.epsilon * (c6 * c6 - c6) * self._switch(r)
        return segment_sum(0.5 * pair_energy, graph.edge_index[1], graph.n_atoms)

    def _switch(self, r: Tensor) -> Tensor:
        """(r_c² - r²)² (r_c² + 2 r² - 3 r_o²) / (r_c² - r_o²)³ between onset r_o and cutoff r_c."""
        outer, inner = self.cutoff**2, (self.config.onset * self.cutoff) ** 2
        squares = r * r
        between = (outer - squares) ** 2 * (outer + 2.0 * squares - 3.0 * inner) / (outer - inner) ** 3
        return torch.where(squares < inner, 1.0, torch.where(squares < outer, between, 0.0))
