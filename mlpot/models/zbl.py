"""ZBL: the universal screened repulsion of nuclei (Ziegler, Biersack, Littmark 1985), for what no data set samples."""

from __future__ import annotations

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from mlpot.graph import AtomsGraph
from mlpot.nn.radial import norm, polynomial_cutoff
from mlpot.nn.segment import segment_sum
from mlpot.potential import Potential
from mlpot.units import BOHR, HARTREE

# φ(x) = Σ c exp(-e x), x = r / a
COEFFICIENTS = (0.18175, 0.50986, 0.28022, 0.02817)
EXPONENTS = (3.19980, 0.94229, 0.40290, 0.20162)


class Config(BaseModel):
    """Settings of ZBL."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cutoff: float = Field(2.0, gt=0, description="Å; the repulsion is taken to zero here")
    order: int = Field(6, ge=3, description="order p of the polynomial envelope")


class ZBL(Potential):
    """Pair energy Z_i Z_j e² φ(r / a) / r, a = 0.8854 a₀ / (Z_i^0.23 + Z_j^0.23), times an envelope. In float64."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.cutoff = config.cutoff

    def atom_energies(self, graph: AtomsGraph) -> Tensor:
        """(N,) eV; half of each pair's energy goes to each of its atoms."""
        source, target = graph.edge_index
        r = norm(graph.edge_vectors())  # (E,)
        z = graph.numbers.to(r.dtype)
        length = 0.8854 * BOHR / (z[source] ** 0.23 + z[target] ** 0.23)
        x = r / length
        screening = sum(c * torch.exp(-e * x) for c, e in zip(COEFFICIENTS, EXPONENTS, strict=True))
        pair_energy = HARTREE * BOHR * z[source] * z[target] / r * screening
        pair_energy = pair_energy * polynomial_cutoff(r, self.cutoff, self.config.order)
        return segment_sum(0.5 * pair_energy, target, graph.n_atoms)
