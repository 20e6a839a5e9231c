"""ZBL as in the MACE family: the repulsion of two nuclei ends at the sum of their covalent radii."""

from __future__ import annotations

import torch
from ase.data import covalent_radii
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from mlpot.graph import AtomsGraph
from mlpot.nn.constant import Constant
from mlpot.nn.radial import norm, polynomial_cutoff
from mlpot.nn.segment import segment_sum
from mlpot.potential import Potential
from mlpot.structure import MAX_NUMBER

# φ(x) = Σ c exp(-e x), and the numbers of the authors' code, which is what their weights were fitted beside.
COEFFICIENTS = (0.1818, 0.5099, 0.2802, 0.02817)
EXPONENTS = (3.2, 0.9423, 0.4028, 0.2016)
BOHR, COULOMB = 0.529, 14.3996


class Config(BaseModel):
    """Settings of this form of ZBL."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cutoff: float = Field(6.0, gt=0, description="Å; pairs whose radii add up to more are cut here")
    order: int = Field(5, ge=3, description="order p of the polynomial envelope")
    exponent: float = Field(0.300, gt=0, description="power of the atomic numbers in the screening length")
    prefactor: float = Field(0.4543, gt=0, description="factor of the screening length")


class ZBLCovalent(Potential):
    """½ Z_i Z_j e² φ(r / a) / r for each atom of a pair, a = prefactor · a₀ / (Z_i^x + Z_j^x), times an envelope."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.cutoff = config.cutoff
        self._radii = Constant(torch.tensor(covalent_radii[: MAX_NUMBER + 1]))

    def atom_energies(self, graph: AtomsGraph) -> Tensor:
        """(N,) eV, float64."""
        config = self.config
        source, target = graph.edge_index
        r = norm(graph.edge_vectors())  # (E,)
        numbers = graph.numbers
        z, radii = numbers.to(r.dtype), self._radii.like(r)
        length = config.prefactor * BOHR / (z[source] ** config.exponent + z[target] ** config.exponent)
        screening = sum(c * torch.exp(-e * r / length) for c, e in zip(COEFFICIENTS, EXPONENTS, strict=True))
        reach = (radii[numbers[source]] + radii[numbers[target]]).clamp(max=self.cutoff)
        pair_energy = COULOMB * z[source] * z[target] / r * screening
        inside = polynomial_cutoff(r, reach, config.order)
        return segment_sum(0.5 * pair_energy * inside, target, graph.n_atoms)
