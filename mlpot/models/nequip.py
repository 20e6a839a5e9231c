"""NequIP (Batzner et al., arXiv:2101.03164): messages that are products of features and spherical harmonics."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Annotated, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor, nn
from torch.nn import functional as F

from mlpot.graph import AtomsGraph
from mlpot.model import Features
from mlpot.nn.angular import SCALAR, Irrep, Path, SphericalHarmonics, edge_degrees
from mlpot.nn.convolution import Convolution, Neighborhoods, slot_harmonics
from mlpot.nn.radial import SincBasis, TrainableSincBasis, norm, polynomial_cutoff
from mlpot.nn.scaled import SILU_SCALE, TANH_SCALE, EmbeddedMix, Mix, ScaledNetwork
from mlpot.nn.segment import PairEdges
from mlpot.nn.species import Species
from mlpot.potential import Potential
from mlpot.structure import MAX_NUMBER

VECTOR = Irrep(1, -1)


class Config(BaseModel):
    """Settings of NequIP. Training takes `elements` and `average_neighbors` from its data where they are not given."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cutoff: float = Field(5.0, gt=0, description="radius of the neighbourhood, Å")
    channels: int = Field(32, ge=1, description="features of an atom for each degree and parity")
    l_max: int = Field(2, ge=0, le=4, description="highest degree of the features and of the spherical harmonics")
    parity: bool = Field(True, description="whether features of both parities are kept, not only those of (-1)^l")
    n_interactions: int = Field(4, ge=1, description="interaction blocks")
    n_basis: int = Field(8, ge=1, description="Bessel functions that expand the distance")
    trainable_basis: bool = Field(False, description="whether the frequencies of the Bessel functions are trained")
    envelope: int = Field(6, ge=3, description="order p of the polynomial envelope")
    radial_channels: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (64, 64), min_length=1, description="hidden layers of the radial network"
    )
    readout_channels: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        (), description="hidden layers between the last scalars and the energy"
    )
    average_neighbors: float = Field(10.0, gt=0, description="mean number of neighbours; messages are divided by its √")
    elements: tuple[Annotated[int, Field(ge=1, le=MAX_NUMBER)], ...] | None = Field(
        None, min_length=1, description="atomic numbers with an embedding of their own; all if null"
    )

    @field_validator("elements")
    @classmethod
    def _distinct(cls, elements: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if elements is not None and len(set(elements)) < len(elements):
            raise ValueError(f"each atomic number once, not {list(elements)}")
        return elements

    @property
    def species(self) -> tuple[int, ...]:
        """Atomic numbers in the order of the embedding."""
        return tuple(range(1, MAX_NUMBER + 1)) if self.elements is None else self.elements

    def layouts(self) -> list[list[Irrep]]:
        """What atoms hold before each block and after the last: of each irrep C features.

        Scalars at both ends, and between them what products with harmonics lead to from the first and from where
        they lead on to the last; the rest would not change the energy.
        """
        every = [
            Irrep(degree, parity)
            for degree in range(self.l_max + 1)
            for parity in ((1, -1) if self.parity else ((-1) ** degree,))
        ]
        held = [[SCALAR]]
        for _ in range(self.n_interactions - 1):
            held.append([made for made in every if any(edge_degrees(given, made, self.l_max) for given in held[-1])])
        held.append([SCALAR])
        for number in reversed(range(1, self.n_interactions)):
            held[number] = [
                given
                for given in held[number]
                if any(edge_degrees(given, made, self.l_max) for made in held[number + 1])
            ]
        return held


class Geometry(NamedTuple):
    """What all blocks share."""

    basis: Tensor  # (P, n_basis), times the envelope
    harmonics: Tensor  # (T, (l_max + 1)²), of each slot
    around: Neighborhoods
    species: Species
    embedding: Tensor  # (present species, C)


class Block(nn.Module):
    """h_i ← gate(W Σ_j R(r_ij) ∘ (V h_j ⊗ Y(r̂_ij)) / √n + h_i U_z), with weights W and V for each irrep.

    The first block has no term of the atom's own, so that the energy of an isolated atom is zero.
    """

    def __init__(self, config: Config, given: Sequence[Irrep], made: Sequence[Irrep], first: bool) -> None:
        super().__init__()
        channels = config.channels
        self.given, self.made = tuple(given), tuple(made)
        steps = [
            (source, Path(a.degree, b, c.degree), place)
            for place, c in enumerate(made)
            for source, a in enumerate(given)
            for b in edge_degrees(a, c, config.l_max)
        ]
        sources, paths, self.places = zip(*steps, strict=True)
        self.convolution = Convolution(paths, sources)
        self.width = channels * len(paths)
        self.radial = ScaledNetwork([config.n_basis, *config.radial_channels, self.width], math.sqrt(2.0))
        self.up = nn.ModuleList(Mix(channels, channels, config.average_neighbors**-0.5) for _ in given)
        # Beside its own features the scalar has one that opens the gate of each feature of a higher degree.
        gated = sum(irrep.degree > 0 for irrep in made)
        widths = [channels * (1 + gated * (irrep == SCALAR)) for irrep in made]
        self.mix = nn.ModuleList(Mix(channels * self.places.count(place), width) for place, width in enumerate(widths))
        self.own = nn.ModuleDict()
        if not first:
            for irrep, width in zip(made, widths, strict=True):
                if irrep in given:
                    self.own[str(irrep)] = EmbeddedMix(channels, channels, width)

    def forward(self, features: list[Tensor], geometry: Geometry) -> list[Tensor]:
        """[(N, 2 l + 1, C)] for each irrep given -> the same for each that is made."""
        sent = [up(h) for up, h in zip(self.up, features, strict=True)]
        basis = self.radial.hidden(geometry.basis)
        sums = self.convolution(geometry.harmonics, basis, self._filters(), sent, geometry.around)
        result = []
        for place, (irrep, mix) in enumerate(zip(self.made, self.mix, strict=True)):
            h = mix(torch.cat([a for a, its in zip(sums, self.places, strict=True) if its == place], 2))
            if str(irrep) in self.own:
                own = self.own[str(irrep)]
                h = h + own(features[self.given.index(irrep)], geometry.embedding, geometry.species)
            result.append(h)
        return gate(result, self.made)

    def _filters(self) -> Tensor:
        """The last layer of the radial network, (paths, hidden, C)."""
        return self.radial.matrix.unflatten(1, (len(self.places), -1)).transpose(0, 1)


def gate(features: Sequence[Tensor], irreps: Sequence[Irrep]) -> list[Tensor]:
    """silu of the even scalars and tanh of the odd ones; higher degrees times the silu of an even scalar of their own.

    features: one (N, 2 l + 1, C) for each irrep; the even scalar comes first, with C more for each of higher degree.
    """
    channels = features[-1].shape[2] if len(features) > 1 else features[0].shape[2]
    scalars, *gates = (SILU_SCALE * F.silu(features[0])).split(channels, 2)
    result = [scalars]
    for irrep, h in zip(irreps[1:], features[1:], strict=True):
        result.append(h * gates.pop(0) if irrep.degree else TANH_SCALE * torch.tanh(h))
    return result


class NequIP(Potential):
    """E_i = W s_i, of the scalars s after the last block.

    Radial functions, normalisation and parametrisation are those of the authors' package (0.19), so that its weights
    give its numbers here; features that the energy does not depend on are left out.
    """

    index: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.cutoff, self.channels = config.cutoff, config.channels
        layouts, n_species = config.layouts(), len(config.species)
        self._vectors = layouts[-2].index(VECTOR) if VECTOR in layouts[-2] else None
        self.vector_channels = 0 if self._vectors is None else config.channels
        index = torch.full((MAX_NUMBER + 1,), -1)
        index[list(config.species)] = torch.arange(n_species)
        self.register_buffer("index", index, persistent=False)
        self.harmonics = SphericalHarmonics(config.l_max)
        self.basis = (TrainableSincBasis if config.trainable_basis else SincBasis)(config.n_basis, config.cutoff)
        self.embedding = nn.Parameter(torch.randn(n_species, config.channels))
        self.blocks = nn.ModuleList(
            Block(config, given, made, first=number == 0)
            for number, (given, made) in enumerate(itertools.pairwise(layouts))
        )
        self.readout = ScaledNetwork([config.channels, *config.readout_channels, 1], math.sqrt(2.0))
        self.width = max(block.width for block in self._blocks())
        if config.elements is not None:
            self.restrict_to(config.elements)

    def atom_energies(self, graph: AtomsGraph) -> Tensor:
        """(N,) eV."""
        return self.readout(self.hidden(graph)[-1][0])[:, 0, 0]

    def features(self, graph: AtomsGraph) -> Features:
        """The scalars after the last block, and the vectors before it where there are any."""
        *_, before, last = self.hidden(graph)
        vectors = None if self._vectors is None else before[self._vectors].transpose(0, 1)
        return Features(last[0][:, 0], vectors)

    def hidden(self, graph: AtomsGraph) -> list[list[Tensor]]:
        """What atoms hold before each block and after the last: [(N, 2 l + 1, C)] for each irrep of the layouts."""
        geometry = self._geometry(graph)
        hidden = [[F.embedding(geometry.species.place, geometry.embedding)[:, None]]]
        for block in self._blocks():
            hidden.append(block(hidden[-1], geometry))
        return hidden

    def _blocks(self) -> list[Block]:
        return [block for block in self.blocks if isinstance(block, Block)]

    def _geometry(self, graph: AtomsGraph) -> Geometry:
        edges, around = PairEdges.of(graph), Neighborhoods.of(graph, self.width)
        species = Species.of(graph, self.index, str(self.config.elements))
        dtype = self.embedding.dtype
        vectors = graph.edge_vectors(edges.pair_edge)  # (P, 3) float64, from atom to neighbour as in the package
        distances = norm(vectors)
        unit = (vectors / torch.where(distances == 0, 1.0, distances)[:, None]).to(dtype)
        harmonics = slot_harmonics(self.harmonics(unit), around)
        envelope = polynomial_cutoff(distances, self.cutoff, self.config.envelope)
        basis = (2.0 / self.cutoff) * self.basis(distances.to(dtype)) * envelope.to(dtype)[:, None]
        return Geometry(basis, harmonics, around, species, self.embedding[species.present])
