"""SchNet (Schütt et al., arXiv:1706.08566; J. Chem. Phys. 148, 241722, 2018): continuous-filter convolutions."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from mlpot.graph import AtomsGraph
from mlpot.model import Features
from mlpot.nn.activation import ShiftedSoftplus
from mlpot.nn.linear import Stack
from mlpot.nn.radial import GaussianBasis, cosine_cutoff, norm
from mlpot.nn.segment import PairEdges, pair_convolution
from mlpot.potential import Potential
from mlpot.structure import MAX_NUMBER


class Config(BaseModel):
    """Settings of SchNet; the defaults are of the size of the paper's models of molecular dynamics."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cutoff: float = Field(5.0, gt=0, description="radius of the neighbourhood, Å")
    channels: int = Field(64, ge=1, description="features of an atom, and filters")
    n_interactions: int = Field(3, ge=1, description="interaction blocks")
    n_basis: int = Field(20, ge=2, description="Gaussians that expand the distance")


class Interaction(nn.Module):
    """v_i = W₃ ssp(W₂ Σ_j (W₁ x_j) ∘ W(d_ij)): figure 2 of the paper."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.inward = nn.Linear(channels, channels, bias=False)
        self.outward = nn.Sequential(nn.Linear(channels, channels), ShiftedSoftplus(), nn.Linear(channels, channels))

    def forward(
        self,
        x: Tensor,  # (N, C)
        weights: Tensor,  # (P, C)
        edges: PairEdges,
    ) -> Tensor:  # (N, C)
        """The update of the atoms' features."""
        return self.outward(pair_convolution(weights, self.inward(x), edges))


class SchNet(Potential):
    """Atom features x from embeddings, refined by interactions; the energy of an atom is read out of its features.

    x⁰_i = a_{Z_i};  x^{l+1}_i = x^l_i + v^l_i;  E_i = W ssp(W x_i). The filter is multiplied by a cosine envelope, as
    in schnetpack, so that energy and forces go to zero smoothly at the cutoff.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.cutoff, self.channels = config.cutoff, config.channels
        self.embedding = nn.Embedding(MAX_NUMBER + 1, config.channels)
        self.basis = GaussianBasis(config.n_basis, config.cutoff)
        # The filters of all interactions are worked out together: W(d) = W₂ ssp(W₁ e(d) + b₁) + b₂.
        self.filters = nn.Sequential(
            Stack(config.n_interactions, config.n_basis, config.channels),
            ShiftedSoftplus(),
            Stack(config.n_interactions, config.channels, config.channels),
        )
        self.interactions = nn.ModuleList(Interaction(config.channels) for _ in range(config.n_interactions))
        half = max(1, config.channels // 2)
        self.readout = nn.Sequential(nn.Linear(config.channels, half), ShiftedSoftplus(), nn.Linear(half, 1))
        for layer in (*self.interactions.modules(), *self.readout.modules()):
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def atom_energies(self, graph: AtomsGraph) -> Tensor:
        """(N,) eV."""
        return self.readout(self.features(graph).scalars)[:, 0]

    def features(self, graph: AtomsGraph) -> Features:
        """x after the last interaction."""
        edges = PairEdges.of(graph)
        distances = norm(graph.edge_vectors(edges.pair_edge))  # (P,) float64
        dtype = self.embedding.weight.dtype
        envelope = cosine_cutoff(distances, self.cutoff).to(dtype)[:, None]
        # They depend on the distance alone: once a pair, not once a direction.
        filters = self.filters(self.basis(distances.to(dtype))) * envelope  # (L, P, C)
        x = self.embedding(graph.numbers)  # (N, C)
        for interaction, weights in zip(self.interactions, filters.unbind(), strict=True):
            x = x + interaction(x, weights, edges)
        return Features(x)
