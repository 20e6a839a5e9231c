"""DimeNet++ (Gasteiger et al., arXiv:2003.03123 and arXiv:2011.14115): messages along edges that see angles."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from mlpot.graph import AtomsGraph
from mlpot.model import Features
from mlpot.nn.activation import silu
from mlpot.nn.linear import orthogonal
from mlpot.nn.radial import norm
from mlpot.nn.segment import PairEdges, bag, gather
from mlpot.nn.spherical_bessel import SphericalBessel, ZonalHarmonics, envelope
from mlpot.nn.triplets import Triplets
from mlpot.potential import Potential
from mlpot.structure import MAX_NUMBER


class Config(BaseModel):
    """Settings of DimeNet++; the defaults are the paper's.

    An atom with n neighbours has n (n - 1) triplets. Each takes `n_spherical` numbers, once for all blocks; all else
    grows with the edges.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    cutoff: float = Field(5.0, gt=0, description="radius of the neighbourhood, Å")
    channels: int = Field(128, ge=1, description="features of a message")
    n_interactions: int = Field(4, ge=1, description="interaction blocks")
    n_basis: int = Field(6, ge=1, description="radial functions that expand the distance")
    n_spherical: int = Field(7, ge=1, description="spherical harmonics that expand the angle")
    envelope: int = Field(5, ge=2, description="exponent of the envelope, the order of the polynomial less one")
    triplet_channels: int = Field(64, ge=1, description="features of a message that triplets exchange")
    basis_channels: int = Field(8, ge=1, description="width that the bases pass through")
    output_channels: int = Field(256, ge=1, description="features of an atom in the output blocks")
    n_before_skip: int = Field(1, ge=0, description="residual layers of a block before the skip connection")
    n_after_skip: int = Field(2, ge=0, description="residual layers of a block after it")
    n_output_layers: int = Field(3, ge=0, description="hidden layers of an output block")


class Geometry(NamedTuple):
    """What all blocks share."""

    edges: PairEdges
    triplets: Triplets
    rbf: Tensor  # (E, n_basis), times the envelope
    radial: Tensor  # (n_spherical, T, n_basis): the spherical basis' part of d_kj, times the envelope; 0 in padding
    angular: Tensor  # (n_spherical, M): its part of the angle k -> j -> i; zero where i is k


class Residual(nn.Module):
    """x + σ(W₂ σ(W₁ x))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = orthogonal(channels, channels), orthogonal(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """(E, H) -> (E, H)."""
        return x + silu(self.second(silu(self.first(x))))


class Bottleneck(nn.Module):
    """W₂ W₁ through few channels. Without a bias: what the envelope takes to zero stays zero."""

    def __init__(self, n_in: int, narrow: int, n_out: int) -> None:
        super().__init__()
        self.first, self.second = orthogonal(n_in, narrow, bias=False), orthogonal(narrow, n_out, bias=False)

    @property
    def matrix(self) -> Tensor:
        """What the basis is multiplied by, (n_in, n_out)."""
        return self.first.weight.T @ self.second.weight.T


class Embedding(nn.Module):
    """m_ji = σ(W [h_i, h_j, σ(W e_RBF)])  (equation 10 of the first paper)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        channels = config.channels
        self.atom = nn.Embedding(MAX_NUMBER + 1, channels)
        nn.init.uniform_(self.atom.weight, -math.sqrt(3.0), math.sqrt(3.0))
        self.rbf = nn.Linear(config.n_basis, channels)
        self.mix = nn.Linear(3 * channels, channels)

    def forward(self, numbers: Tensor, geometry: Geometry) -> Tensor:
        """(N,) -> (E, H)."""
        target, source, edge = self.mix.weight.chunk(3, 1)
        h, edges = self.atom(numbers), geometry.edges
        ends = gather(h @ target.T + self.mix.bias, edges.targets()) + gather(h @ source.T, edges.sources())
        return silu(torch.addmm(ends, silu(self.rbf(geometry.rbf)), edge.T))


class Interaction(nn.Module):
    """h = σ(W m_ji) + σ(W_up Σ_k σ(W_down (σ(W m_kj) ∘ W₂ W₁ e_RBF)) ∘ W₂ W₁ e_SBF), m_ji ← res(σ(W res(h)) + m_ji).

    Figure 1 of the second paper. e_SBF is a sum over degrees l of a function of d_kj times one of the angle: the first
    is multiplied with the message k -> j once an edge, the second enters the sum over k as a matrix.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        channels, narrow, small = config.channels, config.triplet_channels, config.basis_channels
        self.shape = (config.n_spherical, config.n_basis, narrow)
        self.rbf = Bottleneck(config.n_basis, small, channels)
        self.sbf = Bottleneck(config.n_spherical * config.n_basis, small, narrow)
        self.kj, self.ji = orthogonal(channels, channels), orthogonal(channels, channels)
        self.down, self.up = orthogonal(channels, narrow, False), orthogonal(narrow, channels, False)
        self.before_skip = nn.Sequential(*(Residual(channels) for _ in range(config.n_before_skip)))
        self.mix = orthogonal(channels, channels)
        self.after_skip = nn.Sequential(*(Residual(channels) for _ in range(config.n_after_skip)))

    def forward(self, m: Tensor, geometry: Geometry) -> Tensor:
        """(E, H) -> (E, H)."""
        triplets = geometry.triplets
        sent = silu(self.down(silu(self.kj(m)) * (geometry.rbf @ self.rbf.matrix)))  # (E, D)
        filters = torch.bmm(geometry.radial, self.sbf.matrix.view(self.shape))  # (n_spherical, T, D)
        heard = triplets.sum(geometry.angular, filters * triplets.slots(sent))  # (E, D)
        h = silu(self.ji(m)) + silu(self.up(heard))
        return self.after_skip(silu(self.mix(self.before_skip(h))) + m)


class Output(nn.Module):
    """t_i = MLP(W_up Σ_j W e_RBF ∘ m_ji)."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        channels, wide = config.channels, config.output_channels
        self.rbf = orthogonal(config.n_basis, channels, False)
        self.up = orthogonal(channels, wide, False)
        self.layers = nn.ModuleList(orthogonal(wide, wide) for _ in range(config.n_output_layers))

    def forward(self, m: Tensor, geometry: Geometry) -> Tensor:
        """(E, H) -> (N, output_channels)."""
        t = self.up(bag(self.rbf(geometry.rbf) * m, geometry.edges.targets()))
        for layer in self.layers:
            t = silu(layer(t))
        return t


class DimeNet(Potential):
    """Messages m_ji of edges, refined by interactions. After each an output block's t_i, and E_i = Σ_blocks w · t_i.

    The envelope multiplies both bases. A message itself does not vanish where its edge reaches the cutoff, but all that
    is heard of it, by atoms and in triplets, does so smoothly. An atom without neighbours has one energy, whatever its
    element: reference energies tell lone atoms apart.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.cutoff = config.cutoff
        self.channels = config.output_channels
        n = config.n_interactions
        # Trained, as in the authors' code; they start as those of the sines that vanish at the cutoff.
        self.frequencies = nn.Parameter(math.pi * torch.arange(1.0, config.n_basis + 1))
        self.embedding = Embedding(config)
        self.interactions = nn.ModuleList(Interaction(config) for _ in range(n))
        self.outputs = nn.ModuleList(Output(config) for _ in range(n + 1))
        self.readout = nn.ModuleList(orthogonal(config.output_channels, 1, False) for _ in range(n + 1))
        self._radial = SphericalBessel(config.n_spherical, config.n_basis)
        self._angular = ZonalHarmonics(config.n_spherical)

    def atom_energies(self, graph: AtomsGraph) -> Tensor:
        """(N,) eV."""
        parts = [w(t) for w, t in zip(self.readout, self.blocks(graph), strict=True)]
        return torch.stack(parts).sum(0)[:, 0]

    def features(self, graph: AtomsGraph) -> Features:
        """Σ over the output blocks of t, which is what the energy reads but for weights of its own for each block."""
        return Features(torch.stack(self.blocks(graph)).sum(0))

    def blocks(self, graph: AtomsGraph) -> list[Tensor]:
        """t of each output block, (N, output_channels)."""
        geometry = self.geometry(graph)
        first, *others = self.outputs
        m = self.embedding(graph.numbers, geometry)
        found = [first(m, geometry)]
        for interaction, output in zip(self.interactions, others, strict=True):
            m = interaction(m, geometry)
            found.append(output(m, geometry))
        return found

    def geometry(self, graph: AtomsGraph) -> Geometry:
        """The bases, of distances once a pair and of angles once for every two neighbours of an atom."""
        config, dtype = self.config, self.dtype
        edges = PairEdges.of(graph)
        triplets = Triplets.of(graph, config.n_spherical * config.triplet_channels)
        vectors = graph.edge_vectors(edges.pair_edge)  # (P, 3) float64
        distances = norm(vectors)
        unit = vectors / torch.where(distances == 0, 1.0, distances)[:, None]
        x, u = distances / self.cutoff, envelope(distances, self.cutoff, config.envelope)[:, None]
        rbf = (u * torch.sin(self.frequencies.to(x.dtype) * x[:, None])).to(dtype)
        padding = triplets.around.sign(dtype).abs()
        radial = gather((u * self._radial(x)).to(dtype), triplets.around.pairs) * padding  # (T, n_spherical n_basis)
        return Geometry(
            edges,
            triplets,
            gather(rbf, edges.pairs()),
            radial.view(-1, config.n_spherical, config.n_basis).transpose(0, 1).contiguous(),
            self._angular(triplets.cosines(unit.to(dtype))) * triplets.distinct,
        )
