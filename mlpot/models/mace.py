"""MACE (Batatia et al., arXiv:2206.07697): equivariant messages of many bodies, from products of an atom's features."""

from __future__ import annotations

import math
from typing import Annotated, Literal, NamedTuple

import torch
from ase.data import covalent_radii
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor, nn
from torch.nn import functional as F

from mlpot.graph import AtomsGraph
from mlpot.model import Features
from mlpot.nn.angular import SphericalHarmonics, paths
from mlpot.nn.constant import Constant
from mlpot.nn.convolution import Convolution, Neighborhoods, neighbor_sum, slot_harmonics
from mlpot.nn.radial import SincBasis, agnesi, norm, polynomial_cutoff
from mlpot.nn.scaled import Mix, ScaledNetwork, SpeciesMix
from mlpot.nn.segment import PairEdges, bag, gather
from mlpot.nn.species import Species
from mlpot.nn.symmetric import SymmetricContraction
from mlpot.potential import Potential
from mlpot.structure import MAX_NUMBER

# With more species than this in a batch, neighbours are not added up by species.
MANY = 8


class Config(BaseModel):
    """Settings of MACE. Training takes `elements` and `average_neighbors` from its data where they are not given."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cutoff: float = Field(5.0, gt=0, description="radius of the neighbourhood, Å")
    channels: int = Field(64, ge=1, description="features of an atom for each degree")
    l_hidden: int = Field(0, ge=0, le=2, description="highest degree of what atoms send each other")
    l_max: int = Field(3, ge=0, le=3, description="highest degree of the spherical harmonics")
    correlation: int = Field(3, ge=1, le=3, description="neighbours in one product; body order less one")
    n_interactions: int = Field(2, ge=1, description="interaction blocks")
    n_basis: int = Field(8, ge=1, description="Bessel functions that expand the distance")
    envelope: int = Field(5, ge=3, description="order p of the polynomial envelope")
    radial_channels: tuple[int, ...] = Field((64, 64, 64), description="hidden layers of the radial network")
    readout_channels: int = Field(16, ge=1, description="hidden layer of the last readout")
    first_residual: bool = Field(False, description="whether the first block, too, adds a term of the atom's own")
    density: bool = Field(False, description="divide messages by the density of neighbours, not by their mean number")
    distance_transform: Literal["none", "agnesi"] = Field("none", description="what the basis is a function of")
    average_neighbors: float = Field(10.0, gt=0, description="mean number of neighbours, divides the messages")
    elements: tuple[Annotated[int, Field(ge=1, le=MAX_NUMBER)], ...] | None = Field(
        None, min_length=1, description="atomic numbers with weights of their own; all if null"
    )

    @field_validator("elements")
    @classmethod
    def _distinct(cls, elements: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if elements is not None and len(set(elements)) < len(elements):
            raise ValueError(f"each atomic number once, not {list(elements)}")
        return elements

    @property
    def species(self) -> tuple[int, ...]:
        """Atomic numbers in the order of the weights."""
        return tuple(range(1, MAX_NUMBER + 1)) if self.elements is None else self.elements


class Geometry(NamedTuple):
    """What all blocks share."""

    basis: Tensor  # (P, n_basis), times the envelope
    harmonics: Tensor  # (T, (l_max + 1)²), of each slot
    around: Neighborhoods
    edges: PairEdges


class Interaction(nn.Module):
    """A_i = Σ_j R(r_ij) ∘ (W h_j) ⊗ Y(r̂_ij), mixed over channels and paths (equations 8 and 9 of the paper)."""

    def __init__(self, config: Config, l_in: int) -> None:
        super().__init__()
        channels = config.channels
        self.average = config.average_neighbors
        self.up = nn.ModuleList(Mix(channels, channels) for _ in range(l_in + 1))
        self.convolution = Convolution(paths(l_in, config.l_max, config.l_max))
        n_paths = [sum(path.l_out == degree for path in self.convolution.paths) for degree in range(config.l_max + 1)]
        self.width = channels * sum(n_paths)
        self.radial = ScaledNetwork([config.n_basis, *config.radial_channels, self.width])
        self.mix = nn.ModuleList(Mix(n * channels, channels) for n in n_paths)
        self.density = Mix(config.n_basis, 1) if config.density else None

    def forward(self, features: list[Tensor], geometry: Geometry) -> list[Tensor]:
        """[(N, 2 l + 1, C)] for l = 0 .. l_in -> the same for l = 0 .. l_max."""
        sent = [up(h) for up, h in zip(self.up, features, strict=True)]
        basis, weight = self.radial.hidden(geometry.basis), self._filters()
        sums = self.convolution(geometry.harmonics, basis, weight, sent, geometry.around)
        mixed = []
        for degree, mix in enumerate(self.mix):
            own = [a for path, a in zip(self.convolution.paths, sums, strict=True) if path.l_out == degree]
            mixed.append(mix(torch.cat(own, 2)))
        return self.normalised(mixed, geometry)

    def _filters(self) -> Tensor:
        """The last layer of the radial network, (paths, hidden, C)."""
        return self.radial.matrix.unflatten(1, (len(self.convolution.paths), -1)).transpose(0, 1)

    def normalised(self, a: list[Tensor], geometry: Geometry) -> list[Tensor]:
        """Divided by the mean number of neighbours, or by 1 + the density of those there are."""
        if self.density is None:
            return [x / self.average for x in a]
        near = torch.tanh(self.density(geometry.basis).square())  # (P, 1)
        edges = geometry.edges
        total = 1.0 + bag(gather(near, edges.pairs()), edges.targets())[:, :, None]  # (N, 1, 1)
        return [x / total for x in a]


class FirstInteraction(Interaction):
    """The same where h_j depends on the species of j alone. Then neighbours of a species can be added up first:

    A_i = Σ_z Σ_q T_{z,q} Σ_{j of z} u_q(r_ij) Y(r̂_ij), with u the radial network's last hidden layer.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config, 0)

    def of_species(self, embedding: Tensor, geometry: Geometry, species: Species) -> list[Tensor]:
        """embedding (present species, C) -> [(N, 2 l + 1, C)] for l = 0 .. l_max."""
        n_species = len(species.present)
        if n_species > MANY:
            rows = F.embedding(species.place, embedding)
            return self([rows[:, None]], geometry)
        basis, around = self.radial.hidden(geometry.basis), geometry.around
        kind = F.one_hot(species.place[around.sources.atom], n_species).to(basis.dtype)  # (T, Z)
        harmonics = geometry.harmonics
        sorted_out = (kind[:, :, None] * harmonics[:, None]).flatten(1)
        sums = neighbor_sum(sorted_out, basis, around).unflatten(1, (n_species, -1))  # (N, Z, (l_max + 1)², Q)
        sent = self.up[0](embedding)
        mixed = []
        for degree, (mix, weight) in enumerate(zip(self.mix, self._filters(), strict=True)):
            own = sums[:, :, degree**2 : (degree + 1) ** 2].transpose(1, 2).flatten(2)  # (N, 2 l + 1, Z Q)
            mixed.append(own @ mix((sent[:, None] * weight).flatten(0, 1)))
        return self.normalised(mixed, geometry)


class Product(nn.Module):
    """h_i = W B(A_i): symmetric polynomials of A_i, with weights for the atom's species (equations 10 and 11)."""

    def __init__(self, config: Config, l_out: int) -> None:
        super().__init__()
        n_species, channels = len(config.species), config.channels
        self.contractions = nn.ModuleList(
            SymmetricContraction(config.l_max, degree, config.correlation, n_species, channels)
            for degree in range(l_out + 1)
        )
        self.mix = nn.ModuleList(Mix(channels, channels) for _ in range(l_out + 1))

    def forward(self, a: list[Tensor], species: Species) -> list[Tensor]:
        """[(N, 2 l + 1, C)] for l = 0 .. l_max -> the same for l = 0 .. l_out."""
        together = torch.cat(a, 1)
        pairs = zip(self.contractions, self.mix, strict=True)
        return [mix(contraction(together, species)) for contraction, mix in pairs]


class Block(nn.Module):
    """Messages, their products, and a term of the atom's own; the first block may have weights for each species in
    place of that term. The energy is read out of the scalars: linearly, and by a small network after the last block.
    """

    def __init__(self, config: Config, number: int) -> None:
        super().__init__()
        last = number == config.n_interactions - 1
        l_in, l_out = (config.l_hidden if number else 0), (0 if last else config.l_hidden)
        self.residual = number > 0 or config.first_residual
        self.interaction = Interaction(config, l_in) if number else FirstInteraction(config)
        self.product = Product(config, l_out)
        degrees = min(l_in, l_out) if self.residual else config.l_max
        self.own = nn.ModuleList(SpeciesMix(len(config.species), config.channels) for _ in range(degrees + 1))
        self.readout = ScaledNetwork([config.channels, *([config.readout_channels] if last else []), 1])

    def forward(
        self,
        features: list[Tensor],  # [(N, 2 l + 1, C)]
        a: list[Tensor],  # what the interaction made of them
        species: Species,
    ) -> list[Tensor]:
        """The features after this block."""
        if self.residual:
            result = self.product(a, species)
            for degree, mix in enumerate(self.own):
                result[degree] = result[degree] + mix(features[degree], species)
        else:
            result = self.product([mix(x, species) for mix, x in zip(self.own, a, strict=True)], species)
        return result


class MACE(Potential):
    """E_i is read out of the scalars after each block: linearly, and by a small network after the last.

    Radial functions, normalisation and parametrisation are those of the authors' code, so that its weights fit here
    (`mlpot.pretrained.mace`); its polynomials are expanded without redundant terms.
    """

    index: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.cutoff, self.channels = config.cutoff, config.channels * config.n_interactions
        self.vector_channels = config.channels if config.l_hidden and config.n_interactions > 1 else 0
        channels, n_species = config.channels, len(config.species)
        index = torch.full((MAX_NUMBER + 1,), -1)
        index[list(config.species)] = torch.arange(n_species)
        self.register_buffer("index", index, persistent=False)
        self._radii = Constant(torch.tensor(covalent_radii[: MAX_NUMBER + 1]))
        self.harmonics = SphericalHarmonics(config.l_max)
        self.basis = SincBasis(config.n_basis, config.cutoff)
        self.embedding = nn.Parameter(torch.randn(n_species, channels))
        self.blocks = nn.ModuleList(Block(config, number) for number in range(config.n_interactions))
        self.width = max(block.interaction.width for block in self._blocks())
        if config.elements is not None:
            self.restrict_to(config.elements)

    def atom_energies(self, graph: AtomsGraph) -> Tensor:
        """(N,) eV."""
        shares = [block.readout(h[0])[:, 0, 0] for block, h in zip(self._blocks(), self.hidden(graph), strict=True)]
        return torch.stack(shares).sum(0)

    def features(self, graph: AtomsGraph) -> Features:
        """The scalars after every block, and the vectors before the last one where l_hidden is above zero."""
        hidden = self.hidden(graph)
        scalars = torch.cat([h[0][:, 0] for h in hidden], 1)
        if not self.vector_channels:
            return Features(scalars)
        return Features(scalars, hidden[-2][1].transpose(0, 1))

    def hidden(self, graph: AtomsGraph) -> list[list[Tensor]]:
        """What atoms know after each block: [(N, 2 l + 1, C)] for each degree l."""
        species = Species.of(graph, self.index, str(self.config.elements))
        geometry = self._geometry(graph)
        first, *others = self._blocks()
        assert isinstance(first.interaction, FirstInteraction)
        embedding = self.embedding[species.present] * len(self.embedding) ** -0.5  # (Z, C)
        features = [F.embedding(species.place, embedding)[:, None]]  # [(N, 1, C)]
        hidden = [first(features, first.interaction.of_species(embedding, geometry, species), species)]
        for block in others:
            hidden.append(block(hidden[-1], block.interaction(hidden[-1], geometry), species))
        return hidden

    def _blocks(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]

    def _geometry(self, graph: AtomsGraph) -> Geometry:
        edges, around = PairEdges.of(graph), Neighborhoods.of(graph, self.width)
        dtype = self.embedding.dtype
        vectors = -graph.edge_vectors(edges.pair_edge)  # (P, 3) float64, from neighbour to atom as in the authors' code
        distances = norm(vectors)
        unit = (vectors / torch.where(distances == 0, 1.0, distances)[:, None]).to(dtype)
        harmonics = slot_harmonics(self.harmonics(unit), around)
        envelope = polynomial_cutoff(distances, self.cutoff, self.config.envelope)
        inside = distances
        if self.config.distance_transform == "agnesi":
            radii = self._radii.like(distances)[graph.numbers]
            inside = agnesi(distances, radii[edges.pair_source] + radii[edges.pair_target])
        basis = math.sqrt(2.0 / self.cutoff) * self.basis(inside.to(dtype)) * envelope.to(dtype)[:, None]
        return Geometry(basis, harmonics, around, edges)
