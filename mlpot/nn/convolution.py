"""Equivariant convolution: A_i = Σ_j (R(r_ij) ∘ h_j) ⊗ Y(r̂_ij), by batched matrix products over padded neighbourhoods.

Atoms are sorted by their number of neighbours and worked through in chunks that stay in the cache, each padded to its
own longest list: little padding, memory that does not grow with edges times paths, and matrix products throughout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mlpot.graph import AtomsGraph
from mlpot.nn.angular import Path, coupling
from mlpot.nn.segment import Ends, PairEdges, bag, gather

# Floating-point numbers in a chunk's filters: they fit into a CPU's cache; a GPU wants few and large launches.
CHUNK = {"cpu": 1 << 18}
LARGE = 1 << 26
FILL = 0.8  # how full a chunk's padded lists are at least, unless it is small


class Chunk(NamedTuple):
    """n atoms with up to `width` neighbours each, at places first .. first + n of the sorted order."""

    first: int
    n: int
    width: int
    slot: int

    @property
    def atoms(self) -> slice:
        """Their places in the sorted order."""
        return slice(self.first, self.first + self.n)

    @property
    def slots(self) -> slice:
        """Their neighbours' places, padding included."""
        return slice(self.slot, self.slot + self.n * self.width)


class Neighborhoods:
    """A graph's edges as padded lists of neighbours. T slots in all; a slot that is padding has sign 0.

    pairs, sources: the pair and the source atom of each slot, as ends to gather by (see `mlpot.nn.segment`).
    sign (T, 1): 1 where the slot's edge points as its pair's vector does, -1 where it points back.
    """

    def __init__(self, graph: AtomsGraph, width: int) -> None:
        edges = PairEdges.of(graph)
        target, device = edges.target, graph.device
        degree = torch.bincount(target, minlength=graph.n_atoms)
        self.order = torch.argsort(degree, descending=True, stable=True)
        place = torch.empty_like(self.order)
        place[self.order] = torch.arange(len(place), device=device)
        self.unsort = Ends(place, self.order, torch.arange(len(place), device=device))
        self.chunks = _chunks(degree[self.order], max(1, CHUNK.get(device.type, LARGE) // width))
        starts = torch.tensor([chunk.first for chunk in self.chunks] or [0], device=device)
        of_atom = torch.searchsorted(starts, place, right=True) - 1
        columns = [torch.tensor([chunk[k] for chunk in self.chunks] or [0], device=device) for k in (0, 2, 3)]
        first, longest, slot = (column[of_atom] for column in columns)
        first_slot = slot + (place - first) * longest
        rank = torch.arange(len(target), device=device) - edges.first_edge[target]
        where = first_slot[target] + rank
        n_slots = self.chunks[-1].slots.stop if self.chunks else 0
        self.pairs = _ends(edges.pair, where, n_slots, len(edges.pair_edge))
        self.sources = _ends(edges.source, where, n_slots, graph.n_atoms)
        self._sign = torch.zeros(n_slots, 1, dtype=torch.int8, device=device)
        self._sign[where] = -1
        self._sign[where[edges.pair_edge]] = 1

    def sign(self, dtype: torch.dtype) -> Tensor:
        """(T, 1)."""
        return self._sign.to(dtype)

    @classmethod
    def of(cls, graph: AtomsGraph, width: int) -> Neighborhoods:
        """Those of a graph for filters of `width` numbers an edge, made once for it and its moved copies."""
        return graph.derived(f"neighborhoods_{width}", lambda graph: cls(graph, width))


def _ends(index: Tensor, where: Tensor, n_slots: int, n: int) -> Ends:
    """Ends of slots: what `index` (E,) says of edges, for slots; padding points to row 0 and is in nobody's sum."""
    atom = torch.zeros(n_slots, dtype=torch.int64, device=index.device)
    atom[where] = index
    order = torch.argsort(index, stable=True)
    first = torch.searchsorted(index[order], torch.arange(n, device=index.device))
    return Ends(atom, where[order], first)


def _chunks(degree: Tensor, most: int) -> list[Chunk]:
    """Chunks of at most about `most` slots, for degrees in descending order; atoms without neighbours are in none."""
    degrees = degree.cpu()
    n = int((degrees > 0).sum())
    rising = -degrees
    chunks, first, slot = [], 0, 0
    while first < n:
        width = int(degrees[first])
        full = int(torch.searchsorted(rising, torch.tensor(-FILL * width), right=True))
        last = min(n, first + max(1, most // width), max(full, first + -(-256 // width)))
        chunks.append(Chunk(first, last - first, width, slot))
        slot += (last - first) * width
        first = last
    return chunks


class _Convolve(torch.autograd.Function):
    """Sum of products over each list. Trilinear in harmonics, filters and features; backward is differentiable."""

    @staticmethod
    def forward(ctx: Any, around: Neighborhoods, paths: Sequence[Path], filters: Tensor, *rest: Tensor) -> Any:
        n_paths = len(paths)
        harmonics, features = rest[:n_paths], rest[n_paths:]
        ctx.around, ctx.paths = around, paths
        ctx.save_for_backward(filters, *rest)
        n_atoms, channels = features[0].shape[0], features[0].shape[2]
        out = [filters.new_zeros(n_atoms, 2 * path.l_out + 1, channels) for path in paths]
        for chunk in around.chunks:
            kernel, sent = _gathered(around, filters, features, chunk)
            for p, path in enumerate(paths):
                message = _message(kernel[:, p], sent[path.l_in], chunk)
                torch.bmm(_folded(harmonics[p], chunk, path).mT, message, out=out[p][chunk.atoms])
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        filters, *rest = ctx.saved_tensors
        n_paths = len(ctx.paths)
        harmonics, features = rest[:n_paths], rest[n_paths:]
        need = ctx.needs_input_grad[2:]
        wanted = (need[0], any(need[1 : 1 + n_paths]), any(need[1 + n_paths :]))
        d_filters, d_harmonics, d_features = _gradients(
            ctx.around, ctx.paths, filters, harmonics, features, grads, wanted
        )
        return None, None, d_filters, *d_harmonics, *d_features


def _gradients(
    around: Neighborhoods,
    paths: Sequence[Path],
    filters: Tensor,
    harmonics: Sequence[Tensor],
    features: Sequence[Tensor],
    grads: Sequence[Tensor],
    wanted: tuple[bool, bool, bool],
) -> tuple[Tensor | None, list[Tensor | None], list[Tensor | None]]:
    """What _Convolve.backward returns, in operations that can be differentiated again."""
    rows: tuple[Tensor, list[Tensor]] | None = None
    if torch.is_grad_enabled():
        rows = (gather(filters, around.pairs), [gather(h.flatten(1), around.sources) for h in features])
    parts_filters: list[Tensor] = []
    parts_harmonics: list[list[Tensor]] = [[] for _ in paths]
    parts_features: list[list[Tensor]] = [[] for _ in features]
    for chunk in around.chunks:
        kernel, sent = _gathered(around, filters, features, chunk, rows)
        to_filters: list[Tensor] = []
        to_features: list[Tensor | None] = [None] * len(features)
        for p, path in enumerate(paths):
            grad = grads[p][chunk.atoms]
            if wanted[1]:
                product = torch.bmm(_message(kernel[:, p], sent[path.l_in], chunk), grad.mT)
                parts_harmonics[p].append(product.view(-1, grad.shape[1]))
            if wanted[0] or wanted[2]:
                back = torch.bmm(_folded(harmonics[p], chunk, path), grad).view_as(sent[path.l_in])
            if wanted[0]:
                to_filters.append((back * sent[path.l_in]).sum(1) if path.l_in else (back * sent[0])[:, 0])
            if wanted[2]:
                term, before = back * kernel[:, p, None], to_features[path.l_in]
                to_features[path.l_in] = term if before is None else before + term
        if wanted[0]:
            parts_filters.append(torch.cat(to_filters, 1))
        for part, value in zip(parts_features, to_features, strict=True):
            if value is not None:
                part.append(value.flatten(1))
    return (
        bag(_joined(parts_filters, filters), around.pairs) if wanted[0] else None,
        [_joined(part, z) if wanted[1] else None for part, z in zip(parts_harmonics, harmonics, strict=True)],
        [
            bag(_joined(part, h.flatten(1)), around.sources).view_as(h) if wanted[2] and part else None
            for part, h in zip(parts_features, features, strict=True)
        ],
    )


def _joined(parts: list[Tensor], like: Tensor) -> Tensor:
    return torch.cat(parts) if parts else like.new_zeros(0, like.shape[1])


def _gathered(
    around: Neighborhoods,
    filters: Tensor,
    features: Sequence[Tensor],
    chunk: Chunk,
    rows: tuple[Tensor, list[Tensor]] | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """A chunk's filters (t, paths, C) and its neighbours' features (t, 2 l + 1, C); from `rows` where they are there."""
    slots, channels = chunk.slots, features[0].shape[2]
    if rows is None:
        kernel = F.embedding(around.pairs.atom[slots], filters)
        sent = [F.embedding(around.sources.atom[slots], h.flatten(1)) for h in features]
    else:
        kernel, sent = rows[0][slots], [row[slots] for row in rows[1]]
    return kernel.view(len(kernel), -1, channels), [
        row.view(len(row), h.shape[1], channels) for row, h in zip(sent, features, strict=True)
    ]


def _message(kernel: Tensor, sent: Tensor, chunk: Chunk) -> Tensor:
    """R ∘ h of a chunk's neighbours: (t, C) and (t, 2 l + 1, C) -> (n, width (2 l + 1), C)."""
    return (kernel[:, None] * sent).view(chunk.n, -1, kernel.shape[1])


def _folded(harmonics: Tensor, chunk: Chunk, path: Path) -> Tensor:
    """A chunk's part of a path's harmonics (T (2 l_in + 1), 2 l_out + 1) -> (n, width (2 l_in + 1), 2 l_out + 1)."""
    m = 2 * path.l_in + 1
    slots = chunk.slots
    return harmonics[slots.start * m : slots.stop * m].view(chunk.n, -1, harmonics.shape[1])


class Convolution(nn.Module):
    """For each path (l_in, l_edge, l_out): A_i = Σ_j R(r_ij) ∘ (h_j ⊗ Y(r̂_ij))_{l_out}, (N, 2 l_out + 1, C)."""

    def __init__(self, paths: Sequence[Path]) -> None:
        super().__init__()
        self.paths = tuple(paths)
        for a, b, c in {path for path in paths if path.l_in}:
            # Y (2 b + 1) to the matrix between the components of the feature and of the result.
            matrix = coupling(a, b, c).permute(1, 0, 2).reshape(2 * b + 1, -1)
            self.register_buffer(f"coupling_{a}_{b}_{c}", matrix, persistent=False)

    def forward(
        self,
        harmonics: Tensor,  # (T, (l_max + 1)²), of each slot
        filters: Tensor,  # (P, paths C), of each pair
        features: Sequence[Tensor],  # one (N, 2 l + 1, C) for each l
        around: Neighborhoods,
    ) -> list[Tensor]:
        """One (N, 2 l_out + 1, C) for each path, differentiable to any order."""
        folded = []
        for a, b, c in self.paths:
            degree = harmonics[:, b * b : (b + 1) ** 2]
            if a:
                matrix = getattr(self, f"coupling_{a}_{b}_{c}").to(degree.dtype)
                degree = (degree @ matrix).view(-1, 2 * c + 1)
            folded.append(degree.contiguous())
        used = range(max(path.l_in for path in self.paths) + 1)
        given = [features[degree].contiguous() for degree in used]
        sums = _Convolve.apply(around, self.paths, filters.contiguous(), *folded, *given)
        return [gather(a.flatten(1), around.unsort).view_as(a) for a in sums]
