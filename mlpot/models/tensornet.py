"""TensorNet (Simeon, De Fabritiis, arXiv:2306.06482): features that are 3×3 matrices, mixed by matrix products.

A feature X = I + A + S, multiple of the unit matrix, skew-symmetric and symmetric traceless part, is kept as its nine
coordinates in an orthonormal basis of 1 + 3 + 5 matrices, components first: (9, N, C). ‖X‖² is their sum of squares.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from mlpot.graph import AtomsGraph
from mlpot.model import Features
from mlpot.nn.constant import Constant
from mlpot.nn.convolution import Neighborhoods, slot_sum
from mlpot.nn.linear import Gated, Stack
from mlpot.nn.radial import ExpNormalBasis, SmoothSincBasis, cosine_cutoff, norm
from mlpot.nn.segment import PairEdges, gather, pair_convolution
from mlpot.potential import Potential
from mlpot.structure import MAX_NUMBER

PARTS = (1, 3, 5)

BASES: dict[str, Callable[[int, float], nn.Module]] = {"exp_normal": ExpNormalBasis, "smooth_sinc": SmoothSincBasis}


class Config(BaseModel):
    """Settings of TensorNet; the defaults are those of the authors' code, torchmd-net.

    matgl's models have the basis "smooth_sinc", no self_message and a gated readout (`mlpot.pretrained`).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    cutoff: float = Field(4.5, gt=0, description="radius of the neighbourhood, Å")
    channels: int = Field(128, ge=2, description="matrices that describe an atom")
    n_interactions: int = Field(2, ge=0, description="interaction layers")
    n_basis: int = Field(32, ge=1, description="radial functions that expand the distance")
    basis: Literal["exp_normal", "smooth_sinc"] = Field("exp_normal", description="kind of radial functions")
    self_message: bool = Field(True, description="an atom is among its own neighbours, at distance zero")
    readout: Literal["plain", "gated"] = Field("plain", description="network that gives the energy")


def _basis() -> Tensor:
    """(9, 3, 3): orthonormal 3×3 matrices, first the unit matrix, then three skew and five symmetric traceless ones.

    A(v) w = w × v has the coordinates √2 v, and 1 has √3.
    """
    unit = torch.eye(3, dtype=torch.float64)
    levi_civita = torch.linalg.cross(unit[:, None].expand(3, 3, 3), unit[None].expand(3, 3, 3))
    outer = [torch.outer(unit[a], unit[b]) + torch.outer(unit[b], unit[a]) for a, b in ((0, 1), (1, 2), (0, 2))]
    diagonal = [torch.tensor(d, dtype=torch.float64).diag() for d in ((1, -1, 0), (-1, -1, 2))]
    matrices = torch.stack([unit, *levi_civita, *outer, *diagonal])
    return matrices / torch.linalg.matrix_norm(matrices)[:, None, None]


BASIS = Constant(_basis().flatten(1))


def matrices(x: Tensor) -> Tensor:
    """Coordinates (9, N, C) -> matrices (3, 3, N, C)."""
    return (BASIS.like(x).T @ x.flatten(1)).view(3, 3, *x.shape[1:])


def coordinates(matrix: Tensor) -> Tensor:
    """Matrices (3, 3, N, C) -> coordinates (9, N, C)."""
    return (BASIS.like(matrix) @ matrix.flatten(0, 1).flatten(1)).view(9, *matrix.shape[2:])


def product(a: Tensor, b: Tensor) -> Tensor:
    """Products of matrices (3, 3, N, C): the sum of a's columns times b's rows."""
    (a0, a1, a2), (b0, b1, b2) = a.unbind(1), b.unbind(0)
    return a0[:, None] * b0 + a1[:, None] * b1 + a2[:, None] * b2


def parts(x: Tensor) -> tuple[Tensor, ...]:
    """I, A and S: (1, N, C), (3, N, C), (5, N, C)."""
    return x.split(PARTS)


def scaled(x: Tensor, factors: Tensor) -> Tensor:
    """f_I I + f_A A + f_S S: (9, N, C) and (3, N, C) -> (9, N, C)."""
    return torch.cat([part * factor for part, factor in zip(parts(x), factors, strict=True)])


def squares(x: Tensor) -> Tensor:
    """‖X‖², (9, N, C) -> (N, C)."""
    return x.square().sum(0)


def bounded(x: Tensor) -> Tensor:
    """X / (‖X‖² + 1)."""
    return x / (squares(x) + 1.0)


class Mix(nn.Module):
    """W_I I + W_A A + W_S S: mixes channels, of each part with its own weights."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(len(PARTS), channels, channels))
        for block in self.weight:
            nn.init.xavier_uniform_(block)

    def forward(self, x: Tensor) -> Tensor:
        """(9, N, C) -> (9, N, C)."""
        return torch.cat([part @ weight for part, weight in zip(parts(x), self.weight, strict=True)])


class Geometry(NamedTuple):
    """What the layers need of a graph."""

    edges: PairEdges
    around: Neighborhoods
    radial: Tensor  # (P, Q), radial functions of each pair
    envelope: Tensor  # (P, 1)
    harmonics: Tensor  # (T, 9), 1 + A(r̂) + S(r̂) of each slot in the lists of neighbours; zero in padding
    origin: Tensor | None  # (1, Q), radial functions at distance zero; None where atoms do not see themselves


class Embedding(nn.Module):
    """X_i = Σ_j φ(d_ij) Z_ij ∘ (f_I 1 + f_A A(r̂_ij) + f_S S(r̂_ij)), then mixed and scaled by networks of ‖X_i‖².

    f are linear in the radial functions, and Z_ij in the two atoms' embeddings (section "Tensor embedding").
    """

    def __init__(self, channels: int, n_basis: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(MAX_NUMBER + 1, channels)
        self.own = nn.Linear(channels, channels)
        self.other = nn.Linear(channels, channels, bias=False)
        self.filters = Stack(3, n_basis, channels)
        self.mix = Mix(channels)
        self.scales = nn.Sequential(
            nn.LayerNorm(channels),
            nn.Linear(channels, 2 * channels),
            nn.SiLU(),
            Stack(3, 2 * channels, channels),
            nn.SiLU(),
        )

    def forward(
        self,
        numbers: Tensor,  # (N,)
        geometry: Geometry,
    ) -> Tensor:  # (9, N, C)
        """The atoms' first features."""
        around = geometry.around
        z = self.embedding(numbers)
        own, other = self.own(z), self.other(z)  # (N, C)
        z_pair = gather(own, around.targets) + gather(other, around.sources)  # (T, C)
        weights = [gather(f, around.pairs) for f in self.filters(geometry.radial) * geometry.envelope]  # 3 of (T, C)
        sums = [
            slot_sum(harmonics, weight * z_pair, around)
            for harmonics, weight in zip(geometry.harmonics.split(PARTS, 1), weights, strict=True)
        ]
        scalar, vector, tensor = (part.transpose(0, 1) for part in sums)  # (1, N, C), (3, N, C), (5, N, C)
        if geometry.origin is not None:
            scalar = scalar + math.sqrt(3.0) * self.filters(geometry.origin)[:1] * (own + other)
        x = torch.cat([scalar, vector, tensor])
        return scaled(self.mix(x), self.scales(squares(x)))


class Interaction(nn.Module):
    """X ← X' + ΔX + ΔX², X' = X / (‖X‖² + 1), ΔX = mixed {Y, M} / (‖{Y, M}‖² + 1) (section "Interaction").

    Y is X' mixed and M_i = Σ_j φ(d_ij) (f_I I_j + f_A A_j + f_S S_j) of Y's parts. {Y, M} = Y M + M Y keeps the parity
    of each part, so that energies do not change under reflection.
    """

    def __init__(self, channels: int, n_basis: int) -> None:
        super().__init__()
        self.filters = nn.Sequential(
            nn.Linear(n_basis, channels),
            nn.SiLU(),
            nn.Linear(channels, 2 * channels),
            nn.SiLU(),
            Stack(3, 2 * channels, channels),
            nn.SiLU(),
        )
        self.inward = Mix(channels)
        self.outward = Mix(channels)

    def forward(
        self,
        x: Tensor,  # (9, N, C)
        geometry: Geometry,
    ) -> Tensor:  # (9, N, C)
        """The atoms' features after this layer."""
        x = bounded(x)
        y = self.inward(x)
        filters = self.filters(geometry.radial) * geometry.envelope  # (3, P, C)
        messages = torch.cat(
            [pair_convolution(f, part, geometry.edges) for f, part in zip(filters, parts(y), strict=True)]
        )
        if geometry.origin is not None:
            messages = messages + scaled(y, self.filters(geometry.origin))
        own, received = matrices(y), matrices(messages)
        change = self.outward(bounded(coordinates(product(own, received) + product(received, own))))
        changes = matrices(change)
        return x + change + coordinates(product(changes, changes))


class TensorNet(Potential):
    """E_i = MLP(W LayerNorm(‖I_i‖², ‖A_i‖², ‖S_i‖²)) of the atom's features after the last interaction.

    Envelopes multiply all that comes from a neighbour, so energy and forces go to zero smoothly at the cutoff.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.cutoff = config.cutoff
        self.channels = self.vector_channels = config.channels
        channels = config.channels
        self.basis = BASES[config.basis](config.n_basis, config.cutoff)
        self.embedding = Embedding(channels, config.n_basis)
        self.interactions = nn.ModuleList(Interaction(channels, config.n_basis) for _ in range(config.n_interactions))
        self.invariants = nn.Sequential(nn.LayerNorm(3 * channels), nn.Linear(3 * channels, channels))
        half = max(1, channels // 2)
        self.readout = (
            nn.Sequential(nn.SiLU(), nn.Linear(channels, half), nn.SiLU(), nn.Linear(half, 1))
            if config.readout == "plain"
            else Gated([channels] * 4 + [1])
        )

    def atom_energies(self, graph: AtomsGraph) -> Tensor:
        """(N,) eV."""
        return self.readout(self.features(graph).scalars)[:, 0]

    def features(self, graph: AtomsGraph) -> Features:
        """Invariants of the atoms' tensors, and their antisymmetric parts as vectors."""
        geometry = self.geometry(graph)
        x = self.embedding(graph.numbers, geometry)  # (9, N, C)
        for interaction in self.interactions:
            x = interaction(x, geometry)
        sizes = torch.cat([squares(part) for part in parts(x)], 1)  # (N, 3 C)
        return Features(self.invariants(sizes), parts(x)[1])

    def geometry(self, graph: AtomsGraph) -> Geometry:
        """Radial functions and 1 + A(r̂) + S(r̂), worked out once a pair."""
        edges, around = PairEdges.of(graph), Neighborhoods.of(graph, 4 * self.config.channels)
        dtype = self.embedding.embedding.weight.dtype
        vectors = graph.edge_vectors(edges.pair_edge)  # (P, 3) float64
        distances = norm(vectors)
        unit = (vectors / torch.where(distances == 0, 1.0, distances)[:, None]).to(dtype)
        scalar, vector = torch.full_like(unit[:, :1], math.sqrt(3.0)), math.sqrt(2.0) * unit
        tensor = (unit[:, :, None] * unit[:, None]).flatten(1) @ BASIS.like(unit)[4:].T  # (P, 5)
        # Of a pair's two edges the second points back, which changes the sign of A(r̂) alone.
        odd = around.sign(dtype)
        even = odd.abs()
        signs = torch.cat([even, odd.expand(-1, 3), even.expand(-1, 5)], 1)
        return Geometry(
            edges,
            around,
            self.basis(distances.to(dtype)),
            cosine_cutoff(distances, self.cutoff).to(dtype)[:, None],
            gather(torch.cat([scalar, vector, tensor], 1), around.pairs) * signs,
            self.basis(torch.zeros(1, dtype=dtype, device=graph.device)) if self.config.self_message else None,
        )
