"""PaiNN (Schütt, Unke, Gastegger, arXiv:2102.03150): scalar and vector features, exchanged by messages."""

from __future__ import annotations

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from mlpot.graph import AtomsGraph
from mlpot.nn.linear import Stack
from mlpot.nn.radial import SincBasis, cosine_cutoff, norm
from mlpot.nn.segment import PairEdges, bag, gather
from mlpot.potential import Potential
from mlpot.structure import MAX_NUMBER


class Config(BaseModel):
    """Settings of PaiNN; the defaults are the paper's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cutoff: float = Field(5.0, gt=0, description="radius of the neighbourhood, Å")
    channels: int = Field(128, ge=1, description="scalar features of an atom, and vector features")
    n_interactions: int = Field(3, ge=1, description="message and update blocks")
    n_basis: int = Field(20, ge=1, description="radial functions that expand the distance")


class Geometry:
    """What the messages need of a graph: ends of its edges, one or three blocks at a time, and unit vectors."""

    def __init__(self, edges: PairEdges, unit: Tensor, channels: int) -> None:
        """unit: (P, 3), from target to source of each pair's edge."""
        self.sources, self.targets, self.pairs = edges.sources(3), edges.targets(3), edges.pairs(3)
        self.target = edges.targets()
        directed = (gather(unit, edges.pairs()) * edges.sign(unit.dtype)).T  # (3, E)
        self.directions = directed[:, :, None].expand(-1, -1, channels).contiguous()  # (3, E, C)


class Message(nn.Module):
    """Δs_i = Σ_j φ_s(s_j) ∘ W_s;  Δv_i = Σ_j v_j ∘ φ_vv(s_j) ∘ W_vv + Σ_j φ_vs(s_j) ∘ W_vs r̂_ij  (eqs. 7 and 8)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(channels, channels), nn.SiLU(), Stack(3, channels, channels))

    def forward(
        self,
        s: Tensor,  # (N, C)
        v: Tensor | None,  # (3, N, C); None where all are zero still
        filters: Tensor,  # (3, P, C)
        geometry: Geometry,
    ) -> tuple[Tensor, Tensor]:  # (N, C), (3, N, C)
        """The messages that each atom receives."""
        weights = gather(self.phi(s), geometry.sources) * gather(filters, geometry.pairs)  # (3, E, C)
        scalar, along, mixed = weights.unbind()  # (E, C) each
        vector = geometry.directions * along  # (3, E, C)
        if v is not None:
            vector = vector + gather(v, geometry.sources) * mixed
        return bag(scalar, geometry.target), bag(vector, geometry.targets)


class Update(nn.Module):
    """Δs = a_ss + a_sv ⟨Uv, Vv⟩;  Δv = a_vv ∘ Uv  with a = MLP(s, ‖Vv‖)  (eqs. 9 and 10)."""

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
        """The change of an atom's features by its own."""
        u, w = self.u(v), self.v(v)  # (3, N, C) each
        # The small number keeps the root smooth where a vector vanishes, as it does for an isolated atom.
        length = ((w * w).sum(0) + 1e-8).sqrt()
        ss, sv, vv = self.a(torch.cat([s, length], dim=1)).unbind()
        return ss + sv * (u * w).sum(0), vv * u


class PaiNN(Potential):
    """s⁰_i = a_{Z_i}, v⁰_i = 0; blocks of message and update; E_i = W silu(W s_i)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.cutoff = config.cutoff
        channels, n = config.channels, config.n_interactions
        self.embedding = nn.Embedding(MAX_NUMBER + 1, channels)
        self.basis = SincBasis(config.n_basis, config.cutoff)
        self.filters = Stack(3 * n, config.n_basis, channels)
        self.messages = nn.ModuleList(Message(channels) for _ in range(n))
        self.updates = nn.ModuleList(Update(channels) for _ in range(n))
        half = max(1, channels // 2)
        self.readout = nn.Sequential(nn.Linear(channels, half), nn.SiLU(), nn.Linear(half, 1))
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def atom_energies(self, graph: AtomsGraph) -> Tensor:
        """(N,) eV."""
        edges = PairEdges.of(graph)
        dtype = self.embedding.weight.dtype
        vectors = graph.edge_vectors(edges.pair_edge)  # (P, 3) float64
        distances = norm(vectors)
        envelope = cosine_cutoff(distances, self.cutoff).to(dtype)[:, None]
        # The filters of all messages, worked out once a pair.
        filters = self.filters(self.basis(distances.to(dtype))) * envelope  # (3 L, P, C)
        unit = (vectors / torch.where(distances == 0, 1.0, distances)[:, None]).to(dtype)
        geometry = Geometry(edges, unit, self.config.channels)
        s, v = self.embedding(graph.numbers), None  # (N, C), (3, N, C)
        for message, update, weights in zip(self.messages, self.updates, filters.split(3), strict=True):
            ds, dv = message(s, v, weights, geometry)
            s, v = s + ds, dv if v is None else v + dv
            ds, dv = update(s, v)
            s, v = s + ds, v + dv
        return self.readout(s)[:, 0]
