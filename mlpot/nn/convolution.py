"""Equivariant convolution: A_i = Σ_j (R(r_ij) ∘ h_j) ⊗ Y(r̂_ij), by batched matrix products over padded neighbourhoods.

Atoms are sorted by their number of neighbours and worked through in chunks that stay in the cache, each padded to its
own longest list: little padding, memory that does not grow with edges times paths, and matrix products throughout.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mlpot.graph import AtomsGraph
from mlpot.nn.angular import Path, coupling
from mlpot.nn.constant import Constant
from mlpot.nn.segment import Ends, PairEdges, bag, gather

# Floating-point numbers in a chunk's filters: they fit into a CPU's cache; a GPU wants few and large launches.
CHUNK = {"cpu": 1 << 19}
LARGE = 1 << 26
KEEP = 1 << 26  # filters kept, in floating-point numbers
FILL = 0.8  # how full a chunk's padded lists are at least, unless it is small
LEAST = 256  # slots of a small chunk


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

    pairs, sources, targets: the pair and the atoms of each slot, as ends to gather by (see `mlpot.nn.segment`).
    slot (E,): where each edge is.
    sign (T, 1): 1 where the slot's edge points as its pair's vector does, -1 where it points back.
    """

    def __init__(self, graph: AtomsGraph, width: int, least: int = LEAST) -> None:
        edges = PairEdges.of(graph)
        target, device = edges.target, graph.device
        degree = torch.bincount(target, minlength=graph.n_atoms)
        self.order = torch.argsort(degree, descending=True, stable=True)
        place = torch.empty_like(self.order)
        place[self.order] = torch.arange(len(place), device=device)
        self.unsort = Ends(place, self.order, torch.arange(len(place), device=device))
        self.chunks = _chunks(degree[self.order], max(1, CHUNK.get(device.type, LARGE) // width), least)
        starts = torch.tensor([chunk.first for chunk in self.chunks] or [0], device=device)
        of_atom = torch.searchsorted(starts, place, right=True) - 1
        columns = [torch.tensor([chunk[k] for chunk in self.chunks] or [0], device=device) for k in (0, 2, 3)]
        first, longest, slot = (column[of_atom] for column in columns)
        first_slot = slot + (place - first) * longest
        rank = torch.arange(len(target), device=device) - edges.first_edge[target]
        where = first_slot[target] + rank
        n_slots = self.chunks[-1].slots.stop if self.chunks else 0
        self.slot = where
        self.pairs = _ends(edges.pair, where, n_slots, len(edges.pair_edge))
        self.sources = _ends(edges.source, where, n_slots, graph.n_atoms)
        self.targets = _ends(target, where, n_slots, graph.n_atoms)
        self._sign = torch.zeros(n_slots, 1, dtype=torch.int8, device=device)
        self._sign[where] = -1
        self._sign[where[edges.pair_edge]] = 1

    def sign(self, dtype: torch.dtype) -> Tensor:
        """(T, 1)."""
        return self._sign.to(dtype)

    @classmethod
    def of(cls, graph: AtomsGraph, width: int, least: int = LEAST) -> Neighborhoods:
        """Those of a graph for filters of `width` numbers an edge, made once for it and its moved copies.

        A chunk may be padded to `least` slots, however empty, since each costs a round of calls.
        """
        return graph.derived(f"neighborhoods_{width}_{least}", lambda graph: cls(graph, width, least))


def _ends(index: Tensor, where: Tensor, n_slots: int, n: int) -> Ends:
    """Ends of slots: what `index` (E,) says of edges, for slots; padding points to row 0 and is in nobody's sum."""
    atom = torch.zeros(n_slots, dtype=torch.int64, device=index.device)
    atom[where] = index
    order = torch.argsort(index, stable=True)
    first = torch.searchsorted(index[order], torch.arange(n, device=index.device))
    return Ends(atom, where[order], first)


def _chunks(degree: Tensor, most: int, least: int) -> list[Chunk]:
    """Chunks of at most about `most` slots, for degrees in descending order; atoms without neighbours are in none."""
    degrees = degree.cpu()
    n = int((degrees > 0).sum())
    rising = -degrees
    chunks, first, slot = [], 0, 0
    while first < n:
        width = int(degrees[first])
        full = int(torch.searchsorted(rising, torch.tensor(-FILL * width), right=True))
        last = min(n, first + max(1, most // width), max(full, first + -(-least // width)))
        chunks.append(Chunk(first, last - first, width, slot))
        slot += (last - first) * width
        first = last
    return chunks


class _Convolve(torch.autograd.Function):
    """Sums over neighbours of harmonics ⊗ (basis · weight ∘ features), chunk by chunk.

    Filters are kept for the way back while they are few; else only the inputs are, and each chunk's filters are worked
    out anew, so that memory grows with the edges, not with edges times paths times channels.
    """

    @staticmethod
    def forward(
        ctx: Any, around: Neighborhoods, steps: Sequence[_Step], basis: Tensor, weight: Tensor, *rest: Tensor
    ) -> Any:
        harmonics, features = rest[: len(steps)], rest[len(steps) :]
        ctx.around, ctx.steps = around, steps
        ctx.save_for_backward(basis, weight, *rest)
        n_atoms, _, channels = features[0].shape
        ctx.kernels = []
        keep = len(around.sources.atom) * len(steps) * channels <= KEEP and any(ctx.needs_input_grad)
        out = [basis.new_zeros(n_atoms, 2 * path.l_out + 1, channels) for path, _ in steps]
        for chunk in around.chunks:
            near, sent = _gathered(around, basis, features, chunk)
            kernels = [near @ own for own in weight]
            for p, (path, source) in enumerate(steps):
                message = _message(kernels[p], sent[source], chunk)
                torch.bmm(_folded(harmonics[p], chunk, path).mT, message, out=out[p][chunk.atoms])
            if keep:
                ctx.kernels.append(kernels)
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        basis, weight, *rest = ctx.saved_tensors
        n_paths = len(ctx.steps)
        need = ctx.needs_input_grad[2:]
        wanted = _Wanted(need[0], need[1], any(need[2 : 2 + n_paths]), any(need[2 + n_paths :]))
        inputs = (basis, weight, rest[:n_paths], rest[n_paths:])
        kernels = [] if torch.is_grad_enabled() else ctx.kernels
        return None, None, *_gradients(ctx.around, ctx.steps, inputs, grads, wanted, kernels)


class _Step(NamedTuple):
    """A path, and which of the features it takes."""

    path: Path
    source: int


class _Wanted(NamedTuple):
    basis: bool
    weight: bool
    harmonics: bool
    features: bool


def _gradients(
    around: Neighborhoods,
    steps: Sequence[_Step],
    inputs: tuple[Tensor, Tensor, Sequence[Tensor], Sequence[Tensor]],
    grads: Sequence[Tensor],
    wanted: _Wanted,
    kernels: Sequence[Sequence[Tensor]],
) -> list[Tensor | None]:
    """The gradients of `_Convolve`, in operations that can be differentiated again."""
    basis, weight, harmonics, features = inputs
    rows: tuple[Tensor, list[Tensor]] | None = None
    if torch.is_grad_enabled():
        rows = (gather(basis, around.pairs), [gather(h.flatten(1), around.sources) for h in features])
    to_basis, to_weight = _Summed(basis, around.pairs), _Collected()
    to_harmonics = [_Collected() for _ in steps]
    to_features = [_Summed(h.flatten(1), around.sources) for h in features]
    for number, chunk in enumerate(around.chunks):
        near, sent = _gathered(around, basis, features, chunk, rows)
        own_basis, own_weight, own_features = _Total(), [], [_Total() for _ in features]
        for p, (path, source) in enumerate(steps):
            grad, received, folded = grads[p][chunk.atoms], sent[source], _folded(harmonics[p], chunk, path)
            kernel = kernels[number][p] if kernels else near @ weight[p]
            if wanted.harmonics:
                product = torch.bmm(_message(kernel, received, chunk), grad.mT)
                to_harmonics[p].add(product.view(-1, grad.shape[1]))
            back = torch.bmm(folded, grad).view_as(received)
            if wanted.basis or wanted.weight:
                to_kernel = back * received
                to_kernel = to_kernel.sum(1) if path.l_in else to_kernel[:, 0]
                if wanted.basis:
                    own_basis.add_product(to_kernel, weight[p].mT)
                if wanted.weight:
                    own_weight.append(near.mT @ to_kernel)
            if wanted.features:
                own_features[source].add_scaled(back, kernel[:, None])
        if wanted.basis:
            to_basis.add(own_basis.value(), chunk.slots)
        if wanted.weight:
            to_weight.add(torch.stack(own_weight))
        if wanted.features:
            for part, total in zip(to_features, own_features, strict=True):
                part.add(total.value().flatten(1), chunk.slots)
    return [
        to_basis.value() if wanted.basis else None,
        to_weight.sum(weight) if wanted.weight else None,
        *(part.rows(z) if wanted.harmonics else None for part, z in zip(to_harmonics, harmonics, strict=True)),
        *(part.value().view_as(h) if wanted.features else None for part, h in zip(to_features, features, strict=True)),
    ]


class _Collected:
    """What each chunk gives, put together at the end."""

    def __init__(self) -> None:
        self._parts: list[Tensor] = []

    def add(self, part: Tensor) -> None:
        self._parts.append(part)

    def rows(self, like: Tensor) -> Tensor:
        return torch.cat(self._parts) if self._parts else like.new_zeros(0, like.shape[1])

    def sum(self, like: Tensor) -> Tensor:
        return torch.stack(self._parts).sum(0) if self._parts else torch.zeros_like(like)


class _Summed:
    """Rows of slots, added up by what they belong to: at once, or in the end where that is to be differentiated."""

    def __init__(self, like: Tensor, ends: Ends) -> None:
        self._like, self._ends, self._later = like, ends, _Collected()
        self._now = None if torch.is_grad_enabled() else torch.zeros_like(like)

    def add(self, rows: Tensor, slots: slice) -> None:
        if self._now is None:
            self._later.add(rows)
        else:
            self._now.index_add_(0, self._ends.atom[slots], rows)  # padding adds zeros to the first

    def value(self) -> Tensor:
        return bag(self._later.rows(self._like), self._ends) if self._now is None else self._now


class _Total:
    """A sum over paths, in as few passes as can be."""

    def __init__(self) -> None:
        self._sum: Tensor | None = None

    def add_product(self, a: Tensor, b: Tensor) -> None:
        self._sum = a @ b if self._sum is None else torch.addmm(self._sum, a, b)

    def add_scaled(self, a: Tensor, b: Tensor) -> None:
        self._sum = a * b if self._sum is None else torch.addcmul(self._sum, a, b)

    def value(self) -> Tensor:
        assert self._sum is not None
        return self._sum


def _gathered(
    around: Neighborhoods,
    basis: Tensor,
    features: Sequence[Tensor],
    chunk: Chunk,
    rows: tuple[Tensor, list[Tensor]] | None = None,
) -> tuple[Tensor, list[Tensor]]:
    """A chunk's basis (t, Q) and its neighbours' features (t, 2 l + 1, C); from `rows` where they are there."""
    slots = chunk.slots
    if rows is None:
        near = F.embedding(around.pairs.atom[slots], basis)
        sent = [F.embedding(around.sources.atom[slots], h.flatten(1)) for h in features]
    else:
        near, sent = rows[0][slots], [row[slots] for row in rows[1]]
    return near, [row.view(len(row), *h.shape[1:]) for row, h in zip(sent, features, strict=True)]


def _message(kernel: Tensor, sent: Tensor, chunk: Chunk) -> Tensor:
    """R ∘ h of a chunk's neighbours: (t, C) and (t, 2 l + 1, C) -> (n, width (2 l + 1), C)."""
    return (kernel[:, None] * sent).view(chunk.n, -1, kernel.shape[1])


def _folded(harmonics: Tensor, chunk: Chunk, path: Path) -> Tensor:
    """A chunk's part of a path's harmonics (T (2 l_in + 1), 2 l_out + 1) -> (n, width (2 l_in + 1), 2 l_out + 1)."""
    m = 2 * path.l_in + 1
    slots = chunk.slots
    return harmonics[slots.start * m : slots.stop * m].view(chunk.n, -1, harmonics.shape[1])


def slot_harmonics(
    harmonics: Tensor,  # (P, (l_max + 1)²), of each pair
    around: Neighborhoods,
) -> Tensor:  # (T, (l_max + 1)²)
    """Those of each slot: odd ones change sign with the direction; those of padding are zero."""
    sign = around.sign(harmonics.dtype)
    parities = [sign if degree % 2 else sign.abs() for degree in range(math.isqrt(harmonics.shape[1]))]
    factors = torch.cat([p.expand(-1, 2 * degree + 1) for degree, p in enumerate(parities)], 1)
    return gather(harmonics, around.pairs) * factors


def neighbor_sum(
    harmonics: Tensor,  # (T, M), of each slot
    basis: Tensor,  # (P, Q), of each pair
    around: Neighborhoods,
) -> Tensor:  # (N, M, Q)
    """Σ_j harmonics ⊗ basis over each atom's neighbours. Differentiable to any order."""
    return slot_sum(harmonics, gather(basis, around.pairs), around)


def slot_sum(
    a: Tensor,  # (T, M), of each slot
    b: Tensor,  # (T, Q), of each slot
    around: Neighborhoods,
) -> Tensor:  # (N, M, Q)
    """Σ_j a ⊗ b over each atom's neighbours; one of the two must be zero in padding. Differentiable to any order."""
    # Split, since a slice's gradient is as long as the whole.
    sizes = [chunk.n * chunk.width for chunk in around.chunks]
    parts = zip(around.chunks, a.split(sizes), b.split(sizes), strict=True)
    sums = [torch.bmm(x.view(chunk.n, chunk.width, -1).mT, y.view(chunk.n, chunk.width, -1)) for chunk, x, y in parts]
    alone = len(around.order) - sum(chunk.n for chunk in around.chunks)
    together = torch.cat([*sums, b.new_zeros(alone, a.shape[1], b.shape[1])])
    return gather(together.flatten(1), around.unsort).view_as(together)


class Convolution(nn.Module):
    """For each path (l_in, l_edge, l_out): A_i = Σ_j R(r_ij) ∘ (h_j ⊗ Y(r̂_ij))_{l_out}, (N, 2 l_out + 1, C)."""

    def __init__(self, paths: Sequence[Path], sources: Sequence[int] | None = None) -> None:
        """`sources`: the place of each path's feature among those given; by default it is the degree."""
        super().__init__()
        self.paths = tuple(paths)
        self.sources = tuple(path.l_in for path in self.paths) if sources is None else tuple(sources)
        self._steps = [_Step(path, source) for path, source in zip(self.paths, self.sources, strict=True)]
        # From Y (2 l_edge + 1) to the matrix between the components of the feature and those of the result.
        self._couplings = [
            Constant(coupling(*path).permute(1, 0, 2).reshape(2 * path.l_edge + 1, -1)) for path in self.paths
        ]

    def forward(
        self,
        harmonics: Tensor,  # (T, (l_max + 1)²), of each slot
        basis: Tensor,  # (P, Q), of each pair; the filters are basis · weight
        weight: Tensor,  # (paths, Q, C)
        features: Sequence[Tensor],  # one (N, 2 l + 1, C) for each l, or for each of what `sources` counts
        around: Neighborhoods,
    ) -> list[Tensor]:
        """One (N, 2 l_out + 1, C) for each path, differentiable to any order."""
        folded = []
        for (a, b, c), matrix in zip(self.paths, self._couplings, strict=True):
            degree = harmonics[:, b * b : (b + 1) ** 2]
            if a:  # else the coupling is the identity
                degree = (degree @ matrix.like(degree)).view(-1, 2 * c + 1)
            folded.append(degree.contiguous())
        given = [feature.contiguous() for feature in features[: max(self.sources) + 1]]
        sums = _Convolve.apply(around, self._steps, basis.contiguous(), weight.contiguous(), *folded, *given)
        together = torch.cat(sums, 1)
        sizes = [a.shape[1] for a in sums]
        return list(gather(together.flatten(1), around.unsort).view_as(together).split(sizes, 1))
