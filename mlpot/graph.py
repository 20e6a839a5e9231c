"""AtomsGraph: a batch of structures as a radius graph, the input of every model."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from mlpot.bonds import BondTable
from mlpot.convert import ase as _ase
from mlpot.convert import pyg as _pyg
from mlpot.convert import pymatgen as _pymatgen
from mlpot.convert import rdkit as _rdkit
from mlpot.errors import UserError
from mlpot.neighbors import neighbor_list
from mlpot.structure import Structure

T = TypeVar("T")


@dataclass(frozen=True)
class AtomsGraph:
    """Always a batch: S structures, N atoms, E directed edges.

    | field      | shape, dtype      | meaning                                                     |
    |------------|-------------------|-------------------------------------------------------------|
    | numbers    | (N,) int64        | atomic numbers                                              |
    | positions  | (N, 3) float64    | Å                                                           |
    | cell       | (S, 3, 3) float64 | Å, rows are lattice vectors; zeros where there is none      |
    | pbc        | (S, 3) bool       |                                                             |
    | edge_index | (2, E) int64      | [source j, target i], sorted by target                      |
    | edge_shift | (E, 3) int64      | lattice translations of the source                          |
    | batch      | (N,) int64        | structure of each atom, in ascending order                  |
    | cutoff     | float             | Å; all pairs nearer than this are edges                     |
    | charge     | (S,) float64, None | total charge in e; None where no structure states one      |
    | spin       | (S,) float64, None | spin multiplicity 2S + 1; None where no structure states one |
    | bonds      | BondTable or None | bonds and their features; None where no structure states any |

    Positions stay in float64 whatever the model's dtype: a molecule 5000 Å from the origin has the same edge vectors
    as one at the origin. Edge vectors are computed, never stored, so that gradients in positions and strain come free.
    """

    numbers: Tensor
    positions: Tensor
    cell: Tensor
    pbc: Tensor
    edge_index: Tensor
    edge_shift: Tensor
    batch: Tensor
    cutoff: float
    charge: Tensor | None = None
    spin: Tensor | None = None
    bonds: BondTable | None = None

    @property
    def n_structures(self) -> int:
        """S."""
        return self.cell.shape[0]

    @property
    def n_atoms(self) -> int:
        """N."""
        return self.numbers.shape[0]

    @property
    def n_edges(self) -> int:
        """E, directed."""
        return self.edge_index.shape[1]

    @property
    def has_positions(self) -> bool:
        """Whether positions are known; molecules from a SMILES have their bonds alone, and positions that are NaN."""
        return self.bonds is None or not bool(torch.isnan(self.positions).any())

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.positions.device

    def edge_vectors(self, which: Tensor | None = None) -> Tensor:
        """r_j + shift·cell - r_i in Å, (E, 3) float64, from target i to source j; differentiable in positions and cell.

        `which` (M,) picks edges, e.g. one of each pair.
        """
        edge_index, edge_shift = self.edge_index, self.edge_shift
        if which is not None:
            edge_index, edge_shift = edge_index[:, which], edge_shift[which]
        source, target = edge_index
        vectors = self.positions.index_select(0, source) - self.positions.index_select(0, target)
        shift = edge_shift.to(self.cell.dtype)
        if self.n_structures == 1:
            return vectors + shift @ self.cell[0]
        return vectors + torch.bmm(shift[:, None], self.cell[self.batch[target]])[:, 0]

    def derived(self, key: str, make: Callable[[AtomsGraph], T]) -> T:
        """`make(graph)`, kept under `key` for this graph and those `moved` from it: for what depends on edges alone."""
        kept = self.__dict__.setdefault("_derived", {})
        if key not in kept:
            kept[key] = make(self)
        return kept[key]

    @property
    def pairs(self) -> tuple[Tensor, Tensor]:
        """The undirected pairs: (pair_edge (P,), edge_pair (E,)).

        pair_edge names one directed edge of each pair, edge_pair the pair of each edge; P = E / 2. What depends on
        the distance alone, such as a radial filter, need only be worked out once a pair.
        Raises ValueError where an edge lacks its reverse.
        """
        return self.derived("pairs", _pairs)

    def moved(self, positions: Tensor, cell: Tensor | None = None) -> AtomsGraph:
        """The same atoms and edges at other positions (N, 3) and, where given, in another cell (S, 3, 3)."""
        graph = replace(self, positions=positions, cell=self.cell if cell is None else cell)
        graph.__dict__["_derived"] = self.__dict__.setdefault("_derived", {})
        return graph

    def to(self, device: str | torch.device) -> AtomsGraph:
        """The same graph on another device."""
        if torch.device(device) == self.device:
            return self
        moved: dict[str, Any] = {
            f.name: v.to(device) for f in fields(self) if isinstance(v := getattr(self, f.name), Tensor | BondTable)
        }
        return replace(self, **moved)

    @classmethod
    def from_structure(cls, source: Structure | Iterable[Structure], cutoff: float) -> AtomsGraph:
        """From one Structure or several, with all pairs nearer than `cutoff` (Å)."""
        if not isinstance(source, Structure):
            if not isinstance(source, Iterable) or isinstance(source, str):
                raise UserError(f"expected a Structure or a list of them, got {type(source).__name__}.")
            return collate([cls.from_structure(one, cutoff) for one in source])
        if not source.has_positions:
            return cls.from_edges(source, np.zeros((2, 0), np.int64), np.zeros((0, 3), np.int64), cutoff)
        return cls.from_edges(source, *neighbor_list(source, cutoff), cutoff)

    @classmethod
    def from_edges(cls, source: Structure, edge_index: Any, edge_shift: Any, cutoff: float) -> AtomsGraph:
        """From one Structure and its neighbour list (see `mlpot.neighbors.neighbor_list`)."""
        return cls(
            torch.from_numpy(np.array(source.numbers)),
            torch.from_numpy(np.array(source.positions)),
            torch.from_numpy(np.array(source.cell))[None],
            torch.from_numpy(np.array(source.pbc))[None],
            torch.from_numpy(edge_index),
            torch.from_numpy(edge_shift),
            torch.zeros(len(source), dtype=torch.int64),
            float(cutoff),
            None if source.charge is None else torch.tensor([source.charge], dtype=torch.float64),
            None if source.spin is None else torch.tensor([source.spin], dtype=torch.float64),
            None if source.bonds is None else BondTable.of(source.bonds),
        )

    @classmethod
    def from_ase(cls, atoms: Any, cutoff: float) -> AtomsGraph:
        """From one ``ase.Atoms`` or a list of them."""
        return cls.from_structure(_each(_ase.structure, atoms, hasattr(atoms, "positions")), cutoff)

    @classmethod
    def from_pymatgen(cls, source: Any, cutoff: float) -> AtomsGraph:
        """From one pymatgen ``Structure`` or ``Molecule`` or a list of them."""
        return cls.from_structure(_each(_pymatgen.structure, source, hasattr(source, "sites")), cutoff)

    @classmethod
    def from_rdkit(cls, mol: Any, cutoff: float) -> AtomsGraph:
        """From one rdkit ``Mol`` with a 3D conformer or a list of them."""
        return cls.from_structure(_each(_rdkit.structure, mol, hasattr(mol, "GetAtoms")), cutoff)

    @classmethod
    def from_pyg(cls, data: Any, cutoff: float) -> AtomsGraph:
        """From one torch_geometric ``Data`` or ``Batch`` or a list of them (see `mlpot.convert.pyg`).

        Edges are found anew, since ``radius_graph`` there neither knows periodicity nor keeps every neighbour.
        """
        each = data if isinstance(data, list | tuple) else [data]
        return cls.from_structure([structure for one in each for structure in _pyg.structures(one)], cutoff)

    def to_pyg(self) -> Any:
        """A torch_geometric ``Data`` (one structure) or ``Batch``, with z, pos, edge_index, edge_shift, cell, pbc."""
        from torch_geometric.data import Batch, Data

        items = [
            Data(
                z=one.numbers,
                pos=one.positions,
                edge_index=one.edge_index,
                edge_shift=one.edge_shift,
                cell=one.cell,
                pbc=one.pbc,
            )
            for one in self.split()
        ]
        return items[0] if len(items) == 1 else Batch.from_data_list(items)

    def structures(self) -> list[Structure]:
        """The structures as plain arrays."""
        charges, spins = (None if x is None else x.cpu().tolist() for x in (self.charge, self.spin))
        numbers, positions = (x.detach().cpu().numpy() for x in (self.numbers, self.positions))
        cell, pbc = self.cell.detach().cpu().numpy(), self.pbc.cpu().numpy()
        bounds = np.searchsorted(self.batch.cpu().numpy(), np.arange(self.n_structures + 1))
        return [
            Structure(
                numbers[first:last],
                positions[first:last],
                cell[s],
                pbc[s],
                None if charges is None else charges[s],
                None if spins is None else spins[s],
                None if self.bonds is None else self.bonds.of_atoms(int(first), int(last)).plain(),
            )
            for s, (first, last) in enumerate(itertools.pairwise(bounds))
        ]

    def to_ase(self) -> list[Any]:
        """A list of ``ase.Atoms``, one a structure."""
        return [_ase.atoms(structure) for structure in self.structures()]

    def split(self) -> list[AtomsGraph]:
        """The single structures as graphs of their own; the inverse of `collate`."""
        counts = torch.bincount(self.batch, minlength=self.n_structures)
        first = torch.cumsum(counts, 0) - counts
        of_edge = self.batch[self.edge_index[1]]
        graphs = []
        for s, (start, count) in enumerate(zip(first.tolist(), counts.tolist(), strict=True)):
            atoms, edges = slice(start, start + count), of_edge == s
            graphs.append(
                AtomsGraph(
                    self.numbers[atoms],
                    self.positions[atoms],
                    self.cell[s : s + 1],
                    self.pbc[s : s + 1],
                    self.edge_index[:, edges] - start,
                    self.edge_shift[edges],
                    torch.zeros_like(self.batch[atoms]),
                    self.cutoff,
                    None if self.charge is None else self.charge[s : s + 1],
                    None if self.spin is None else self.spin[s : s + 1],
                    None if self.bonds is None else self.bonds.of_atoms(start, start + count),
                )
            )
        return graphs

    def validate(self) -> None:
        """Raise ValueError where a field has a shape, dtype or order that the table above does not allow."""
        n, s, e = self.n_atoms, self.n_structures, self.n_edges
        expected = {
            "numbers": ((n,), torch.int64),
            "positions": ((n, 3), torch.float64),
            "cell": ((s, 3, 3), torch.float64),
            "pbc": ((s, 3), torch.bool),
            "edge_index": ((2, e), torch.int64),
            "edge_shift": ((e, 3), torch.int64),
            "batch": ((n,), torch.int64),
        }
        for name, (shape, dtype) in expected.items():
            value = getattr(self, name)
            if value.shape != shape or value.dtype != dtype:
                raise ValueError(f"{name} is {tuple(value.shape)} {value.dtype}; expected {shape} {dtype}")
        if e and not bool((self.edge_index[1, 1:] >= self.edge_index[1, :-1]).all()):
            raise ValueError("edge_index is not sorted by target")
        if n > 1 and not bool((self.batch[1:] >= self.batch[:-1]).all()):
            raise ValueError("batch is not in ascending order")


def _each(convert: Any, source: Any, single: bool) -> Structure | list[Structure]:
    if single:
        return convert(source)
    if not isinstance(source, Iterable):
        return convert(source)  # raises the message that names the type expected
    return [convert(one) for one in source]


def _pairs(graph: AtomsGraph) -> tuple[Tensor, Tensor]:
    source, target = graph.edge_index
    forward = source < target
    same = torch.nonzero(source == target)[:, 0]
    if same.numel():
        # Of an atom's image at +shift and -shift, take the one whose first non-zero component is positive.
        a, b, c = graph.edge_shift[same].unbind(1)
        forward[same] = (a > 0) | ((a == 0) & ((b > 0) | ((b == 0) & (c > 0))))
    pair_edge, reverse_edge = torch.nonzero(forward)[:, 0], torch.nonzero(~forward)[:, 0]
    if pair_edge.numel() != reverse_edge.numel():
        raise ValueError("every edge needs its reverse; this graph's edges are one-sided")
    shift = graph.edge_shift
    ahead = _ordered(source[pair_edge], target[pair_edge], shift[pair_edge])
    back = _ordered(target[reverse_edge], source[reverse_edge], -shift[reverse_edge])
    edge_pair = torch.empty_like(source)
    pair_number = torch.arange(pair_edge.numel(), device=source.device)
    edge_pair[pair_edge[ahead]] = pair_number
    edge_pair[reverse_edge[back]] = pair_number
    return pair_edge[ahead], edge_pair


def _ordered(source: Tensor, target: Tensor, shift: Tensor) -> Tensor:
    """The permutation that sorts directed edges by (target, source, shift)."""
    order = torch.arange(source.numel(), device=source.device)
    span = int(shift.abs().max()) + 1 if shift.numel() else 1
    a, b, c = (shift + span).unbind(1)
    n = int(torch.maximum(source.max(), target.max())) + 1 if source.numel() else 1
    key = (target * n + source) * (2 * span) ** 3 + (a * 2 * span + b) * 2 * span + c
    return order[torch.argsort(key)]


def _joined(graphs: Sequence[AtomsGraph], name: str, default: float) -> Tensor | None:
    """A structure-level input of several graphs; where only some state it, the others get the default."""
    values = [getattr(graph, name) for graph in graphs]
    if all(value is None for value in values):
        return None
    filled = [
        torch.full((graph.n_structures,), default, dtype=torch.float64) if value is None else value
        for graph, value in zip(graphs, values, strict=True)
    ]
    return torch.cat(filled)


def _joined_bonds(graphs: Sequence[AtomsGraph]) -> BondTable | None:
    tables = [graph.bonds for graph in graphs]
    known = [table for table in tables if table is not None]
    if not known:
        return None
    if len(known) < len(tables):
        missing = next(number for number, table in enumerate(tables) if table is None)
        raise UserError(f"structure {missing} of the batch has no bonds, but others have: give all of them, or none.")
    return BondTable.joined(known)


def collate(graphs: Sequence[AtomsGraph]) -> AtomsGraph:
    """Several graphs as one batch. The cutoff is the smallest of theirs."""
    if not graphs:
        raise UserError("a batch needs at least one structure; the list is empty.")
    if len(graphs) == 1:
        return graphs[0]
    n_atoms = [g.n_atoms for g in graphs]
    n_structures = [g.n_structures for g in graphs]
    first_atom = np.cumsum([0, *n_atoms[:-1]]).tolist()
    first_structure = np.cumsum([0, *n_structures[:-1]]).tolist()
    joined = AtomsGraph(
        torch.cat([g.numbers for g in graphs]),
        torch.cat([g.positions for g in graphs]),
        torch.cat([g.cell for g in graphs]),
        torch.cat([g.pbc for g in graphs]),
        torch.cat([g.edge_index + start for g, start in zip(graphs, first_atom, strict=True)], dim=1),
        torch.cat([g.edge_shift for g in graphs]),
        torch.cat([g.batch + start for g, start in zip(graphs, first_structure, strict=True)]),
        min(g.cutoff for g in graphs),
        _joined(graphs, "charge", 0.0),
        _joined(graphs, "spin", 1.0),
        _joined_bonds(graphs),
    )
    if all("pairs" in g.__dict__.get("_derived", {}) for g in graphs):
        pairs = [g.pairs for g in graphs]
        first_edge = np.cumsum([0, *(g.n_edges for g in graphs[:-1])]).tolist()
        first_pair = np.cumsum([0, *(len(pair_edge) for pair_edge, _ in pairs[:-1])]).tolist()
        shifted = (
            torch.cat([pair_edge + start for (pair_edge, _), start in zip(pairs, first_edge, strict=True)]),
            torch.cat([edge_pair + start for (_, edge_pair), start in zip(pairs, first_pair, strict=True)]),
        )
        joined.derived("pairs", lambda graph: shifted)
    return joined
