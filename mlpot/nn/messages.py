"""Messages of scalars and vectors between neighbours, PaiNN's (arXiv:2102.03150, eqs. 7 and 8).

    Δs_i = Σ_j W₀ ∘ x_j;   Δv_i = Σ_j r̂_ij (W₁ ∘ z_j) + W₂ ∘ y_j,   W_k = u(r_ij) F_k

Neighbours lie in chunks of padded lists (`mlpot.nn.convolution.Neighborhoods`). Where weights do not learn, filters and
messages exist for one chunk at a time, in the cache, and are worked out anew on the way back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from mlpot.graph import AtomsGraph
from mlpot.nn.convolution import Neighborhoods, slot_sum
from mlpot.nn.segment import bag, gather
from mlpot.nn.species import Species


class Surroundings:
    """A graph's neighbourhoods, and their indices for features in up to five blocks (5, N, C)."""

    def __init__(self, graph: AtomsGraph, channels: int) -> None:
        # A slot and channel has about eight numbers in filters and messages, of which half are in use at a time.
        self.around = Neighborhoods.of(graph, 4 * channels, least=512)
        self.sources = {n_blocks: self.around.sources.repeated(n_blocks) for n_blocks in (1, 2, 5)}
        self.targets = self.around.targets.repeated(3)
        self._species: Tensor | None = None
        block = torch.arange(5, device=graph.device)[:, None] * graph.n_atoms
        self.places = [
            (
                (self.around.order[chunk.atoms] + block).flatten(),
                (self.around.sources.atom[chunk.slots] + block).flatten(),
            )
            for chunk in self.around.chunks
        ]

    def species(self, species: Species) -> Tensor:
        """(T, Z) bool: which of the species present each slot's neighbour is of."""
        if self._species is None:
            present = torch.arange(len(species.present), device=species.place.device)
            self._species = species.place[self.around.sources.atom][:, None] == present
        return self._species

    @classmethod
    def of(cls, graph: AtomsGraph, channels: int) -> Surroundings:
        """Those of a graph, made once for it and its moved copies."""
        return graph.derived(f"surroundings_{channels}", lambda graph: cls(graph, channels))


def messages(
    u: Tensor,  # (T, Q), of each slot, zero in padding
    unit: Tensor,  # (T, 3), r̂_ij from target i to source j, zero in padding
    filters: Tensor,  # (3, Q, C): F
    features: Tensor,  # (5, N, C): x, the components of y, z; (2, N, C): x and z, where y is zero
    surroundings: Surroundings,
) -> tuple[Tensor, Tensor]:  # (N, C), (3, N, C)
    """Δs and Δv, differentiable to any order.

    u must be the same for an edge and its reverse: gradients in it are right once the two are added up.
    """
    if torch.is_grad_enabled() and filters.requires_grad:
        return _as_a_whole(u, unit, filters, features, surroundings)
    return _Messages.apply(u, unit, filters, features.contiguous(), surroundings)


def _as_a_whole(
    u: Tensor, unit: Tensor, filters: Tensor, features: Tensor, surroundings: Surroundings
) -> tuple[Tensor, Tensor]:
    """The equations as they stand, over all edges at once: for the gradients of gradients that training needs."""
    around, n_blocks = surroundings.around, len(features)
    x, *y, z = gather(features, surroundings.sources[n_blocks]).split([1, *[3] * (n_blocks > 2), 1])  # (blocks, T, C)
    ds = bag((u @ filters[0]) * x[0], around.targets)
    dv = slot_sum(unit, (u @ filters[1]) * z[0], around).transpose(0, 1)
    for part in y:
        dv = dv + bag((u @ filters[2]) * part, surroundings.targets)
    return ds, dv


class _Part(NamedTuple):
    """A chunk: n atoms, each with `width` slots, t in all."""

    slots: slice
    own: Tensor  # (5 n,): where in (5 N, C) its atoms are
    source: Tensor  # (5 t,): and their neighbours
    unit: Tensor  # (n, width, 3)
    kernels: Tensor  # (3, n, width, C): W

    def sent(self, features: Tensor) -> Tensor:
        """(blocks, N, C) -> (blocks, n, width, C): the neighbours' features."""
        n_rows = len(features) * self.unit.shape[0] * self.unit.shape[1]
        rows = F.embedding(self.source[:n_rows], features.flatten(0, 1))
        return rows.view(-1, *self.kernels.shape[1:])

    def of(self, features: Tensor) -> Tensor:
        """(blocks, N, C) -> (blocks, n, C): its atoms' features."""
        n_blocks, n = len(features), self.unit.shape[0]
        return F.embedding(self.own[: n_blocks * n], features.flatten(0, 1)).view(n_blocks, n, -1)

    def put(self, values: Tensor, out: Tensor) -> None:
        """Write (blocks, n, C) to its atoms' places in (at least as many blocks, N, C)."""
        out.view(-1, out.shape[2]).index_copy_(0, self.own[: len(values) * values.shape[1]], values.flatten(0, 1))


def _parts(u: Tensor, unit: Tensor, filters: Tensor, surroundings: Surroundings) -> Iterator[_Part]:
    for chunk, (own, source) in zip(surroundings.around.chunks, surroundings.places, strict=True):
        shape = (chunk.n, chunk.width)
        kernels = torch.bmm(u[chunk.slots].expand(3, -1, -1), filters).view(3, *shape, -1)
        yield _Part(chunk.slots, own, source, unit[chunk.slots].view(*shape, 3), kernels)


def _weigh(alike: Tensor, kernels: Tensor) -> Tensor:
    """x or x and y (1 or 4, n, width, C), multiplied by their filters and summed over neighbours, (1 or 4, n, C)."""
    alike[0].mul_(kernels[0])
    alike[1:].mul_(kernels[2])
    return alike.sum(2)


def _added(sums: Tensor, along: Tensor) -> Tensor:
    """Σ W₂ ∘ y and Σ r̂ (W₁ ∘ z) together, (4, n, C)."""
    sums[1:] += along
    return sums


class _Messages(torch.autograd.Function):
    """(u, r̂, F, features) -> Δs, Δv.

    Each edge has its reverse, so what neighbours sent of x and y goes back to them by the same sums; what went along
    r̂, which is not the same both ways, is collected for all edges and summed by source.
    """

    @staticmethod
    def forward(
        ctx: Any, u: Tensor, unit: Tensor, filters: Tensor, features: Tensor, surroundings: Surroundings
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(u, unit, filters, features)
        ctx.surroundings = surroundings
        out = features.new_zeros(4, *features.shape[1:])
        for part in _parts(u, unit, filters, surroundings):
            sent = part.sent(features)
            along = torch.bmm(part.unit.mT, sent[-1].mul_(part.kernels[1])).transpose(0, 1)  # (3, n, C)
            sums = _weigh(sent[:-1], part.kernels)
            part.put(torch.cat([sums, along]) if len(sums) == 1 else _added(sums, along), out)
        return out[0], out[1:]

    @staticmethod
    def backward(ctx: Any, to_scalar: Tensor, to_vector: Tensor) -> Any:
        inputs, wanted, surroundings = ctx.saved_tensors, ctx.needs_input_grad, ctx.surroundings
        if torch.is_grad_enabled() or wanted[2]:
            return *_differentiable(inputs, wanted, (to_scalar, to_vector), surroundings), None
        u, unit, filters, features = inputs
        to_u, to_unit, to_features = torch.empty_like(u), torch.empty_like(unit), torch.zeros_like(features)
        to_sent = features.new_empty(len(u), features.shape[2])  # of z
        grad, alike, z = torch.cat([to_scalar[None], to_vector]), features[:-1], features[-1:]
        for part in _parts(u, unit, filters, surroundings):
            to_kernels = torch.empty_like(part.kernels)
            # Of r̂ (W₁ ∘ z): from the targets.
            dv = part.of(grad)[1:].transpose(0, 1)  # (n, 3, C)
            projected = torch.bmm(part.unit, dv)  # (n, width, C)
            sent = part.sent(z)[0]
            torch.mul(projected, sent, out=to_kernels[1])
            torch.mul(projected, part.kernels[1], out=to_sent[part.slots].view_as(projected))
            to_unit[part.slots] = torch.bmm(sent.mul_(part.kernels[1]), dv.mT).flatten(0, 1)
            # Of W₀ ∘ x and W₂ ∘ y: from the sources.
            back, own = part.sent(grad[: len(alike)]), part.of(alike)[:, :, None]
            torch.mul(back[0], own[0], out=to_kernels[0])
            if len(alike) > 1:
                torch.mul(back[1], own[1], out=to_kernels[2]).addcmul_(back[2], own[2]).addcmul_(back[3], own[3])
            part.put(_weigh(back, part.kernels), to_features)
            n_kernels = 3 if len(alike) > 1 else 2
            to_u[part.slots] = torch.bmm(to_kernels[:n_kernels].flatten(1, 2), filters[:n_kernels].mT).sum(0)
        to_features[-1] = bag(to_sent, surroundings.around.sources)
        return to_u, to_unit, None, to_features, None


def _differentiable(
    inputs: tuple[Tensor, ...], wanted: tuple[bool, ...], grads: tuple[Tensor, Tensor], surroundings: Surroundings
) -> list[Tensor | None]:
    """The gradients of the equations as they stand, for gradients of them in turn."""
    create_graph = torch.is_grad_enabled()
    chosen = [x for x, want in zip(inputs, wanted, strict=False) if want]
    with torch.enable_grad():
        sums = _as_a_whole(inputs[0], inputs[1], inputs[2], inputs[3], surroundings)
        found = iter(torch.autograd.grad(sums, chosen, grads, create_graph=create_graph))
    return [next(found) if want else None for want in wanted[:4]]
