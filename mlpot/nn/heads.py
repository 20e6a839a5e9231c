"""Heads: from the features of atoms to one property of a structure, by the kind of the property.

All answers are in units of the target's own scale, around its own shift; classes are answered by logits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from ase.data import atomic_masses
from torch import Tensor, nn

from mlpot.graph import AtomsGraph
from mlpot.model import Features
from mlpot.nn.coarsening import COARSENINGS, coarsening
from mlpot.nn.constant import Constant
from mlpot.nn.linear import Stack
from mlpot.nn.pooling import READOUTS
from mlpot.nn.radial import cosine_cutoff, norm
from mlpot.structure import MAX_NUMBER
from mlpot.target import Target


class Inputs(NamedTuple):
    """What a head is told of the network below it."""

    channels: int  # scalars of an atom
    vectors: int  # vectors of an atom
    cutoff: float  # Å
    bonds: bool  # whether the network sends along bonds alone
    readout: str  # name of a readout (`mlpot.nn.pooling`) or of a coarsening (`mlpot.nn.coarsening`)
    dropout: float


MASSES = Constant(torch.tensor(atomic_masses[: MAX_NUMBER + 1]))


def network(inputs: Inputs, n_out: int) -> nn.Sequential:
    """A hidden layer of half the width, and dropout before it."""
    half = max(1, inputs.channels // 2)
    return nn.Sequential(
        nn.Dropout(inputs.dropout), nn.Linear(inputs.channels, half), nn.SiLU(), nn.Linear(half, n_out)
    )


def structure_sum(x: Tensor, graph: AtomsGraph) -> Tensor:
    """Σ over the atoms of each structure, (N, ...) -> (S, ...)."""
    return x.new_zeros(graph.n_structures, *x.shape[1:]).index_add(0, graph.batch, x)


def from_centre_of_mass(graph: AtomsGraph) -> Tensor:
    """r_i - r_0 in Å, (N, 3) float64, with r_0 the centre of mass of the structure."""
    mass = MASSES.like(graph.positions)[graph.numbers][:, None]
    centre = structure_sum(mass * graph.positions, graph) / structure_sum(mass, graph)
    return graph.positions - centre[graph.batch]


class AtomSum(nn.Module):
    """Σ_i MLP(s_i): extensive properties."""

    def __init__(self, target: Target, inputs: Inputs) -> None:
        super().__init__()
        self.own = network(inputs, 1)

    def forward(self, features: Features, graph: AtomsGraph) -> Tensor:
        """(S,)."""
        return structure_sum(self.own(features.scalars)[:, 0], graph)


class Pooled(nn.Module):
    """MLP(readout of s): intensive properties, and logits of classes."""

    def __init__(self, target: Target, inputs: Inputs) -> None:
        super().__init__()
        self.pool = READOUTS[inputs.readout](inputs.channels)
        self.many = target.kind == "classes"
        self.out = network(inputs._replace(channels=self.pool.out_channels), target.classes if self.many else 1)

    def forward(self, features: Features, graph: AtomsGraph) -> Tensor:
        """(S,), or (S, classes)."""
        answer = self.out(self.pool(features.scalars, graph.batch, graph.n_structures))
        return answer if self.many else answer[:, 0]


class Coarse(nn.Module):
    """The same of graphs that are made coarser step by step (`mlpot.nn.coarsening`).

    Edges are bonds, each of weight 1, for networks that read bonds alone, and else the pairs within the cutoff,
    weighted by its envelope.
    """

    def __init__(self, target: Target, inputs: Inputs) -> None:
        super().__init__()
        self.pool = coarsening(inputs.readout, inputs.channels)
        self.bonds, self.cutoff = inputs.bonds, inputs.cutoff
        self.many = target.kind == "classes"
        self.out = network(inputs._replace(channels=self.pool.out_channels), target.classes if self.many else 1)

    def forward(self, features: Features, graph: AtomsGraph) -> Tensor:
        """(S,), or (S, classes)."""
        return self.with_losses(features, graph)[0]

    def with_losses(self, features: Features, graph: AtomsGraph) -> tuple[Tensor, Tensor]:
        """The same, and the losses of the coarsening itself, ()."""
        x, around = features.scalars, (graph.batch, graph.n_structures)
        if self.bonds:
            assert graph.bonds is not None
            found = self.pool(x, graph.bonds.index, None, *around)
        else:
            # Positions choose which atoms are left, and nothing else depends on them here.
            weight = cosine_cutoff(norm(graph.edge_vectors()), self.cutoff).to(x.dtype)
            found = self.pool(x, graph.edge_index, weight, *around, graph.positions.to(x.dtype))
        answer = self.out(found.output)
        return answer if self.many else answer[:, 0], found.auxiliary


class Dipole(nn.Module):
    """μ = Σ_i q_i (r_i - r_0) + Σ_i μ_i (Schütt et al., arXiv:2102.03150, section 4.2), r_0 the centre of mass.

    Charges q_i come from the scalars and add up to the total charge; dipoles μ_i of the atoms come from the vectors,
    gated by the scalars, where the network has vectors.
    """

    def __init__(self, target: Target, inputs: Inputs) -> None:
        super().__init__()
        self.charge = network(inputs, 1)
        self.mix = nn.Linear(inputs.vectors, 1, bias=False) if inputs.vectors else None

    def forward(self, features: Features, graph: AtomsGraph) -> Tensor:
        """(S, 3)."""
        charges = self.charge(features.scalars)[:, 0]
        counts = torch.bincount(graph.batch, minlength=graph.n_structures)
        excess = structure_sum(charges, graph)
        if graph.charge is not None:
            excess = excess - graph.charge.to(charges.dtype)
        charges = charges - (excess / counts)[graph.batch]
        dipole = structure_sum(charges[:, None] * from_centre_of_mass(graph).to(charges.dtype), graph)
        if self.mix is None or features.vectors is None:
            return dipole
        own = self.mix(features.vectors)[:, :, 0].T  # (N, 3)
        return dipole + structure_sum(own, graph)


class Length(Dipole):
    """‖μ‖, where the data gives no more than the length."""

    def forward(self, features: Features, graph: AtomsGraph) -> Tensor:
        """(S,)."""
        return norm(super().forward(features, graph))


class Extent(nn.Module):
    """⟨R²⟩ = Σ_i q_i ‖r_i - r_0‖², with as many electrons as an atom draws to itself (arXiv:2102.03150)."""

    def __init__(self, target: Target, inputs: Inputs) -> None:
        super().__init__()
        self.charge = network(inputs, 1)

    def forward(self, features: Features, graph: AtomsGraph) -> Tensor:
        """(S,)."""
        charges = self.charge(features.scalars)[:, 0]
        square = from_centre_of_mass(graph).square().sum(1)
        return structure_sum(charges * square.to(charges.dtype), graph)


class Polarizability(nn.Module):
    """α = Σ_i α_i 1 + ½ Σ_i (ν_i ⊗ r_i + r_i ⊗ ν_i) where the network has vectors (arXiv:2102.03150, equation 13);

    else ½ Σ_ij β_ij r̂_ij ⊗ r̂_ij over neighbours, with β_ij a product of what their scalars give, times the envelope
    of the cutoff. Symmetric in either case.
    """

    def __init__(self, target: Target, inputs: Inputs) -> None:
        super().__init__()
        self.own = network(inputs, 1)
        self.mix = nn.Linear(inputs.vectors, 1, bias=False) if inputs.vectors else None
        self.cutoff = inputs.cutoff
        self.pair = None if inputs.vectors else Stack(2, inputs.channels, max(1, inputs.channels // 2))

    def forward(self, features: Features, graph: AtomsGraph) -> Tensor:
        """(S, 3, 3)."""
        scalars = features.scalars
        one = torch.eye(3, dtype=scalars.dtype, device=scalars.device)
        isotropic = self.own(scalars)[:, :, None] * one  # (N, 3, 3)
        if self.mix is not None and features.vectors is not None:
            nu = self.mix(features.vectors)[:, :, 0].T  # (N, 3)
            outer = nu[:, :, None] * from_centre_of_mass(graph).to(nu.dtype)[:, None]
        else:
            assert self.pair is not None
            outer = self._pairs(scalars, graph)
        return structure_sum(isotropic + 0.5 * (outer + outer.mT), graph)

    def _pairs(self, scalars: Tensor, graph: AtomsGraph) -> Tensor:
        assert self.pair is not None
        source, target = graph.edge_index
        sent, received = self.pair(scalars)
        vectors = graph.edge_vectors()
        distances = norm(vectors)
        unit = (vectors / torch.where(distances == 0, 1.0, distances)[:, None]).to(scalars.dtype)
        envelope = cosine_cutoff(distances, self.cutoff).to(scalars.dtype)
        strength = (sent[source] * received[target]).mean(1) * envelope
        outer = strength[:, None, None] * unit[:, :, None] * unit[:, None]
        return scalars.new_zeros(graph.n_atoms, 3, 3).index_add(0, target, outer)


POOLS = (*READOUTS, *COARSENINGS)

HEADS: dict[str, type[nn.Module]] = {
    "extensive": AtomSum,
    "vector": Dipole,
    "magnitude": Length,
    "extent": Extent,
    "tensor": Polarizability,
}


def head(target: Target, inputs: Inputs) -> nn.Module:
    """The head of a target: by its kind, and by how atoms are pooled for an intensive one or for classes."""
    if target.kind in HEADS:
        return HEADS[target.kind](target, inputs)
    return (Coarse if inputs.readout in COARSENINGS else Pooled)(target, inputs)
