"""PaiNN (Schütt, Unke, Gastegger, arXiv:2102.03150): scalar and vector features, exchanged by messages."""

from __future__ import annotations

from typing import NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from mlpot.graph import AtomsGraph
from mlpot.model import Features
from mlpot.nn.convolution import slot_sum
from mlpot.nn.linear import Stack
from mlpot.nn.messages import Surroundings, messages
from mlpot.nn.radial import SincBasis, cosine_cutoff, norm
from mlpot.nn.segment import gather
from mlpot.nn.species import Species
from mlpot.potential import Potential
from mlpot.structure import MAX_NUMBER

# Up to so many species, neighbours of one are added up before the first message.
MANY = 8


class Config(BaseModel):
    """Settings of PaiNN; the defaults are the paper's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cutoff: float = Field(5.0, gt=0, description="radius of the neighbourhood, Å")
    channels: int = Field(128, ge=1, description="scalar features of an atom, and vector features")
    n_interactions: int = Field(3, ge=1, description="message and update blocks")
    n_basis: int = Field(20, ge=1, description="radial functions that expand the distance")


class Geometry(NamedTuple):
    """What the messages need of a graph, for each of the T places in its lists of neighbours."""

    u: Tensor  # (T, Q + 1): radial functions times the envelope, and the envelope; zero in padding
    unit: Tensor  # (T, 3): from target to source; zero in padding
    surroundings: Surroundings

    def of_species(self, species: Species) -> Tensor:
        """(4, N, Z (Q + 1)): Σ_j u, then Σ_j r̂_ij u, over the neighbours of each species."""
        kind = self.surroundings.species(species).to(self.u.dtype)  # (T, Z)
        n_atoms = len(species.place)
        vector = (self.unit[:, :, None] * kind[:, None]).flatten(1)  # (T, 3 Z)
        sums = slot_sum(torch.cat([kind, vector], 1), self.u, self.surroundings.around)  # (N, 4 Z, Q + 1)
        return sums.view(n_atoms, 4, -1).transpose(0, 1).contiguous()


class Message(nn.Module):
    """Δs_i = Σ_j φ_s(s_j) ∘ W_s;  Δv_i = Σ_j v_j ∘ φ_vv(s_j) ∘ W_vv + Σ_j φ_vs(s_j) ∘ W_vs r̂_ij  (eqs. 7 and 8)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(channels, channels), nn.SiLU(), Stack(3, channels, channels))

    def forward(
        self,
        s: Tensor,  # (N, C)
        v: Tensor | None,  # (3, N, C); None where all are zero still
        filters: Tensor,  # (3, Q + 1, C): W = u · filters
        geometry: Geometry,
    ) -> tuple[Tensor, Tensor]:  # (N, C), (3, N, C)
        """The messages that each atom receives."""
        scalar, along, mixed = self.phi(s).split(1)  # (1, N, C) each
        features = torch.cat([scalar, along] if v is None else [scalar, v * mixed, along])
        return messages(geometry.u, geometry.unit, filters, features, geometry.surroundings)

    def of_species(
        self,
        s: Tensor,  # (Z, C), of the species present
        sums: Tensor,  # (4, N, Z (Q + 1)), of their neighbours
        filters: Tensor,  # (3, Q + 1, C)
    ) -> tuple[Tensor, Tensor]:  # (N, C), (3, N, C)
        """The same where features depend on the species alone, so that neighbours of a species are summed first."""
        scalar, along, _ = (self.phi(s)[:, :, None] * filters[:, None]).flatten(1, 2).unbind()  # (Z (Q + 1), C) each
        one, three = sums.split([1, 3])
        return one[0] @ scalar, three @ along


class Update(nn.Module):
    """s + a_ss + a_sv ⟨Uv, Vv⟩ and v + a_vv ∘ Uv  with a = MLP(s, ‖Vv‖)  (eqs. 9 and 10)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.u = nn.Linear(channels, channels, bias=False)
        self.v = nn.Linear(channels, channels, bias=False)
        self.a = nn.Sequential(nn.Linear(2 * channels, channels), nn.SiLU(), Stack(3, channels, channels))

    def forward(
        self,
        s: Tensor,  # (N, C)
        v: Tensor,  # (3, N, C)
    ) -> tuple[Tensor, Tensor]:  # (N, C), (3, N, C)
        """An atom's features, changed by its own."""
        u, w = self.u(v), self.v(v)  # (3, N, C) each
        # The small number keeps the root smooth where a vector vanishes, as it does for an isolated atom.
        length = ((w * w).sum(0) + 1e-8).sqrt()
        ss, sv, vv = self.a(torch.cat([s, length], dim=1)).unbind()
        return s + ss + sv * (u * w).sum(0), v + vv * u


class PaiNN(Potential):
    """s⁰_i = a_{Z_i}, v⁰_i = 0; blocks of message and update; E_i = W silu(W s_i)."""

    _species: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.cutoff = config.cutoff
        self.channels = self.vector_channels = config.channels
        channels, n = config.channels, config.n_interactions
        self.embedding = nn.Embedding(MAX_NUMBER + 1, channels)
        self.basis = SincBasis(config.n_basis, config.cutoff)
        self.filters = Stack(3 * n, config.n_basis, channels)
        self.messages = nn.ModuleList(Message(channels) for _ in range(n))
        self.updates = nn.ModuleList(Update(channels) for _ in range(n))
        self.register_buffer("_species", torch.arange(MAX_NUMBER + 1), persistent=False)
        half = max(1, channels // 2)
        self.readout = nn.Sequential(nn.Linear(channels, half), nn.SiLU(), nn.Linear(half, 1))
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def atom_energies(self, graph: AtomsGraph) -> Tensor:
        """(N,) eV."""
        return self.readout(self.features(graph).scalars)[:, 0]

    def features(self, graph: AtomsGraph) -> Features:
        """s and v after the last block."""
        geometry = self.geometry(graph)
        filters = torch.cat([self.filters.weight, self.filters.bias], 1).split(3)  # L of (3, Q + 1, C)
        species = Species.of(graph, self._species, "all")
        s, v = self.embedding(graph.numbers), None  # (N, C), (3, N, C)
        for message, update, weights in zip(self.messages, self.updates, filters, strict=True):
            assert isinstance(message, Message)
            if v is None and len(species.present) <= MANY:
                ds, v = message.of_species(
                    self.embedding.weight[species.present], geometry.of_species(species), weights
                )
            else:
                ds, dv = message(s, v, weights, geometry)
                v = dv if v is None else v + dv
            s, v = update(s + ds, v)
        return Features(s, v)

    def geometry(self, graph: AtomsGraph) -> Geometry:
        """Distances and directions, worked out once a pair."""
        surroundings = Surroundings.of(graph, self.config.channels)
        around = surroundings.around
        vectors = graph.edge_vectors(graph.pairs[0])  # (P, 3) float64
        distances = norm(vectors)
        unit = vectors / torch.where(distances == 0, 1.0, distances)[:, None]
        dtype = self.embedding.weight.dtype
        envelope = cosine_cutoff(distances, self.cutoff).to(dtype)[:, None]
        u = self.basis(distances.to(dtype)) * envelope
        near = gather(torch.cat([u, envelope, unit.to(dtype)], 1), around.pairs)
        u, unit = near.split([near.shape[1] - 3, 3], 1)
        sign = around.sign(dtype)
        return Geometry(u * sign.abs(), unit * sign, surroundings)
