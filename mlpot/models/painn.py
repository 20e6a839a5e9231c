"""PaiNN (Schütt, Unke, Gastegger, arXiv:2102.03150): scalar and vector features, exchanged by messages."""

from __future__ import annotations

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn
from torch.nn import functional as F

from mlpot.graph import AtomsGraph
from mlpot.nn.radial import SincBasis, cosine_cutoff, norm
from mlpot.nn.segment import Ends, PairEdges, bag, gather
from mlpot.potential import Potential
from mlpot.structure import MAX_NUMBER


class Config(BaseModel):
    """Settings of PaiNN; the defaults are the paper's."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cutoff: float = Field(5.0, gt=0, description="radius of the neighbourhood, Å")
    channels: int = Field(128, ge=1, description="scalar features of an atom, and vector features")
    n_interactions: int = Field(3, ge=1, description="message and update blocks")
    n_basis: int = Field(20, ge=1, description="radial functions that expand the distance")


class Message(nn.Module):
    """Δs_i = Σ_j φ_s(s_j) ∘ W_s;  Δv_i = Σ_j v_j ∘ φ_vv(s_j) ∘ W_vv + Σ_j φ_vs(s_j) ∘ W_vs r̂_ij  (eqs. 7 and 8)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(channels, channels), nn.SiLU(), nn.Linear(channels, 3 * channels))

    def forward(
        self,
        s: Tensor,  # (N, C)
        v: Tensor | None,  # (N, 3, C); None where all are zero still
        filters: Tensor,  # (P, 3 C)
        directions: Tensor,  # (E, 3, 1)
        edges: PairEdges,
        sources: Ends,
        targets: Ends,
    ) -> tuple[Tensor, Tensor]:  # (N, C), (N, 3, C)
        """The messages that each atom receives."""
        weights = gather(self.phi(s), sources) * gather(filters, edges.pairs)  # (E, 3 C)
        scalar, along, mixed = weights.chunk(3, dim=1)  # (E, C) each
        vector = directions * along[:, None]  # (E, 3, C)
        if v is not None:
            vector = vector + gather(v.flatten(1), sources).view_as(vector) * mixed[:, None]
        return bag(scalar, targets), bag(vector.flatten(1), targets).unflatten(1, (3, -1))


class Update(nn.Module):
    """Δs = a_ss + a_sv ⟨Uv, Vv⟩;  Δv = a_vv ∘ Uv  with a = MLP(s, ‖Vv‖)  (eqs. 9 and 10)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mix = nn.Linear(channels, 2 * channels, bias=False)
        self.a = nn.Sequential(nn.Linear(2 * channels, channels), nn.SiLU(), nn.Linear(channels, 3 * channels))

    def forward(
        self,
        s: Tensor,  # (N, C)
        v: Tensor,  # (N, 3, C)
    ) -> tuple[Tensor, Tensor]:  # (N, C), (N, 3, C)
        """The change of an atom's features by its own."""
        u, w = self.mix(v).chunk(2, dim=-1)  # (N, 3, C) each
        # The small number keeps the root smooth where a vector vanishes, as it does for an isolated atom.
        length = ((w * w).sum(1) + 1e-8).sqrt()
        ss, sv, vv = self.a(torch.cat([s, length], dim=1)).chunk(3, dim=1)
        return ss + sv * (u * w).sum(1), vv[:, None] * u


class PaiNN(Potential):
    """s⁰_i = a_{Z_i}, v⁰_i = 0; blocks of message and update; E_i = W silu(W s_i)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.cutoff = config.cutoff
        channels, n = config.channels, config.n_interactions
        self.embedding = nn.Embedding(MAX_NUMBER + 1, channels)
        self.basis = SincBasis(config.n_basis, config.cutoff)
        self.filters = nn.Linear(config.n_basis, n * 3 * channels)
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
        sources, targets = edges.sources, edges.targets
        dtype = self.embedding.weight.dtype
        vectors = graph.edge_vectors(edges.pair_edge)  # (P, 3) float64
        distances = norm(vectors)
        envelope = cosine_cutoff(distances, self.cutoff).to(dtype)[:, None]
        filters = F.linear(self.basis(distances.to(dtype)), self.filters.weight, self.filters.bias) * envelope
        unit = (vectors / torch.where(distances == 0, 1.0, distances)[:, None]).to(dtype)
        directions = (gather(unit, edges.pairs) * edges.sign(dtype))[:, :, None]  # (E, 3, 1)
        s, v = self.embedding(graph.numbers), None  # (N, C), (N, 3, C)
        for message, update, weights in zip(
            self.messages, self.updates, filters.chunk(len(self.messages), 1), strict=True
        ):
            ds, dv = message(s, v, weights, directions, edges, sources, targets)
            s, v = s + ds, dv if v is None else v + dv
            ds, dv = update(s, v)
            s, v = s + ds, v + dv
        return self.readout(s)[:, 0]
