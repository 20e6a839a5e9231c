"""Edges that messages run along: radius edges, bonds, or both at once, with what the layers read of each.

A layer weighs what an edge sends by the edge's envelope, so that an atom that crosses the cutoff comes and goes
smoothly; a bond is there at any distance, and its envelope is 1.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from mlpot.bonds import BondTable
from mlpot.convert.smiles import ATOM_FEATURES, BOND_FEATURES, width
from mlpot.errors import UserError
from mlpot.graph import AtomsGraph
from mlpot.nn.radial import SincBasis, norm, polynomial_cutoff
from mlpot.nn.segment import Ends, gather, segment_sum

N_BOND, N_ATOM = width(BOND_FEATURES), width(ATOM_FEATURES)


class MessageEdges(NamedTuple):
    """E directed edges between N atoms.

    | field      | shape, dtype   | meaning                                                        |
    |------------|----------------|----------------------------------------------------------------|
    | edge_index | (2, E) int64   | [source j, target i], sorted by target                         |
    | attributes | (E, F)         | radial functions times their envelope, then features of bonds  |
    | envelope   | (E, 1)         | of the cutoff; 1 for bonds                                     |
    | sources    | Ends           | the ends that send, to gather by and to sum to                 |
    | targets    | Ends           | the ends that receive                                          |
    """

    edge_index: Tensor
    attributes: Tensor
    envelope: Tensor
    sources: Ends
    targets: Ends

    @property
    def n_atoms(self) -> int:
        """N."""
        return len(self.targets.first)

    @classmethod
    def of(cls, edge_index: Tensor, attributes: Tensor, envelope: Tensor, n_atoms: int) -> MessageEdges:
        """From the tensors alone; the edges must be sorted by target."""
        source, target = edge_index
        return cls(edge_index, attributes, envelope, Ends.of(source, n_atoms), Ends.ascending(target, n_atoms))


class RadiusEdges(nn.Module):
    """The pairs within the cutoff: radial functions e_k(d) f(d) and the envelope f(d), which ends with two derivatives.

    Differentiable in positions and cell. With n_basis = 0 the envelope is all.
    """

    needs = frozenset({"positions"})

    def __init__(self, cutoff: float, n_basis: int) -> None:
        super().__init__()
        self.cutoff, self.width = cutoff, n_basis
        self.basis = SincBasis(n_basis, cutoff) if n_basis else None

    def of_pairs(self, graph: AtomsGraph, dtype: torch.dtype) -> Tensor:
        """(P, Q + 1): e(d) f(d) and f(d), once for each pair of the graph."""
        distances = norm(graph.edge_vectors(graph.pairs[0]))  # float64
        envelope = polynomial_cutoff(distances, self.cutoff).to(dtype)[:, None]
        if self.basis is None:
            return envelope
        return torch.cat([self.basis(distances.to(dtype)) * envelope, envelope], 1)

    def forward(self, graph: AtomsGraph, dtype: torch.dtype) -> MessageEdges:
        """Of a graph, whose own cutoff may be longer."""
        kept = graph.derived("message_edges_radius", _Radius.of)
        rows = gather(self.of_pairs(graph, dtype), kept.pairs)
        return MessageEdges(graph.edge_index, rows[:, :-1], rows[:, -1:], kept.sources, kept.targets)


class BondEdges(nn.Module):
    """Bonds with their features, of molecules whose positions need not be known."""

    needs = frozenset({"bonds"})

    def __init__(self, cutoff: float, n_basis: int) -> None:
        super().__init__()
        self.width = N_BOND

    def forward(self, graph: AtomsGraph, dtype: torch.dtype) -> MessageEdges:
        """Of a graph; UserError for one without bonds."""
        bonds = bonds_of(graph)
        sources, targets = graph.derived("message_edges_bonds", _bond_ends)
        envelope = torch.ones(len(bonds.features), 1, dtype=dtype, device=graph.device)
        return MessageEdges(bonds.index, bonds.features.to(dtype), envelope, sources, targets)


class JoinedEdges(RadiusEdges):
    """The pairs within the cutoff and the bonds, each pair once: radial functions beside the features of the bond.

    A bond is an edge at any distance, with envelope 1, and its radial functions vanish smoothly at the cutoff: nothing
    jumps when a bond is drawn beyond it. Of pairs that are no bonds the features are zero, and the envelope f(d).
    A bond does not say which image of an atom it leads to, so that structures must not be periodic.
    """

    needs = frozenset({"positions", "bonds"})

    def __init__(self, cutoff: float, n_basis: int) -> None:
        super().__init__(cutoff, n_basis)
        self.width = n_basis + N_BOND

    def forward(self, graph: AtomsGraph, dtype: torch.dtype) -> MessageEdges:
        """Of a graph; UserError for one without bonds, or a periodic one."""
        kept = graph.derived("message_edges_both", _Joined.of)
        pairs = self.of_pairs(graph, dtype)
        rows = gather(torch.cat([pairs, pairs.new_zeros(1, pairs.shape[1])]), kept.pairs)
        attributes = torch.cat([rows[:, :-1], kept.features.to(dtype)], 1)
        envelope = torch.where(kept.bonded, 1.0, rows[:, -1:])
        return MessageEdges(kept.edge_index, attributes, envelope, kept.sources, kept.targets)


EDGES: dict[str, type[RadiusEdges | BondEdges | JoinedEdges]] = {
    "radius": RadiusEdges,
    "bonds": BondEdges,
    "both": JoinedEdges,
}


def bonds_of(graph: AtomsGraph) -> BondTable:
    """The bonds of a graph; UserError where it has none, or features of other columns than `mlpot.convert.smiles`."""
    bonds = graph.bonds
    if bonds is None:
        raise UserError(
            "edges = bonds or both: the model reads bonds, but these structures have none: give SMILES or rdkit "
            "molecules, or let rdkit find bonds (mlpot.convert.rdkit.with_bonds)."
        )
    found = bonds.features.shape[1], bonds.atom_features.shape[1]
    if found != (N_BOND, N_ATOM):
        raise UserError(
            f"bonds have {found[0]} features and atoms {found[1]}; expected {N_BOND} and {N_ATOM}, "
            f"the columns of mlpot.convert.smiles."
        )
    return bonds


class _Radius(NamedTuple):
    """What stays the same while a radius graph's atoms move."""

    pairs: Ends
    sources: Ends
    targets: Ends

    @classmethod
    def of(cls, graph: AtomsGraph) -> _Radius:
        pair_edge, edge_pair = graph.pairs
        source, target = graph.edge_index
        n = graph.n_atoms
        return cls(Ends.of(edge_pair, len(pair_edge)), Ends.of(source, n), Ends.ascending(target, n))


def _bond_ends(graph: AtomsGraph) -> tuple[Ends, Ends]:
    source, target = bonds_of(graph).index
    return Ends.of(source, graph.n_atoms), Ends.ascending(target, graph.n_atoms)


class _Joined(NamedTuple):
    """What stays the same while the atoms of joined edges move.

    edge_index (2, E); bonded (E, 1) bool; features (E, F_b), zero where there is no bond; pairs: the pair of each edge,
    or one past the last for bonds that are no pairs of the graph.
    """

    edge_index: Tensor
    bonded: Tensor
    features: Tensor
    pairs: Ends
    sources: Ends
    targets: Ends

    @classmethod
    def of(cls, graph: AtomsGraph) -> _Joined:
        bonds = bonds_of(graph)
        if bool(graph.pbc.any()):
            raise UserError(
                "edges = both: a bond does not say which periodic image it leads to; give molecules without "
                "periodicity, or set edges to radius or bonds."
            )
        pair_edge, edge_pair = graph.pairs
        n, n_pairs = graph.n_atoms, len(pair_edge)
        near, bonded = (target * n + source for source, target in (graph.edge_index, bonds.index))
        apart = ~torch.isin(bonded, near)
        keys, order = torch.sort(torch.cat([near, bonded[apart]]))
        pair = torch.cat([edge_pair, edge_pair.new_full((int(apart.sum()),), n_pairs)])[order]
        source, target = keys % n, torch.div(keys, n, rounding_mode="floor")
        features = bonds.features.new_zeros(len(keys), bonds.features.shape[1])
        features[torch.searchsorted(keys, bonded)] = bonds.features
        return cls(
            torch.stack([source, target]),
            torch.isin(keys, bonded)[:, None],
            features,
            Ends.of(pair, n_pairs + 1),
            Ends.of(source, n),
            Ends.ascending(target, n),
        )


def fully_adjacent(edges: MessageEdges, batch: Tensor) -> MessageEdges:
    """Every ordered pair of different atoms of a structure as one edge of envelope 1 (Alon, Yahav, arXiv:2006.05205).

    Its attributes are the sum of those of the edges between the two atoms, zero where there is none; they do not jump
    at the cutoff, since the radial functions vanish there. `batch` (N,): the structure of each atom, ascending.
    """
    counts = torch.bincount(batch)
    of_atom = counts[batch]  # (N,): how many atoms are in the structure of each
    first = (torch.cumsum(counts, 0) - counts)[batch]
    row = torch.cumsum(of_atom, 0) - of_atom  # the place of an atom's first pair, itself included
    target = torch.repeat_interleave(of_atom)
    source = torch.arange(len(target), device=batch.device) - row[target] + first[target]
    start, end = edges.edge_index
    pair, other = row[end] + start - first[end], source != target
    attributes = segment_sum(edges.attributes, pair, len(target))[other]
    index = torch.stack([source[other], target[other]])
    return MessageEdges.of(index, attributes, attributes.new_ones(len(attributes), 1), edges.n_atoms)


class Slots(NamedTuple):
    """Edges as padded lists: D places for each atom's edges, D the most that end in one, and at least 1.

    place (E,): of each edge among the N D; sources: the atoms that send to the places, to gather by; padding gathers
    from any atom, so that what it is multiplied by must be zero there.
    """

    place: Tensor
    sources: Ends
    shape: tuple[int, int]

    @classmethod
    def of(cls, edges: MessageEdges) -> Slots:
        """Of edges sorted by target."""
        source, target = edges.edge_index
        n = edges.n_atoms
        degree = int(torch.bincount(target).max()) if len(target) else 1
        place = target * degree + torch.arange(len(target), device=target.device) - edges.targets.first[target]
        atom = target.new_zeros(n * degree)
        atom[place] = source
        return cls(place, Ends(atom, place[edges.sources.order], edges.sources.first), (n, degree))

    def filled(self, rows: Tensor) -> Tensor:
        """(E, C) -> (N, D, C), zero in padding."""
        n, degree = self.shape
        return rows.new_zeros(n * degree, rows.shape[1]).index_copy(0, self.place, rows).view(n, degree, -1)
