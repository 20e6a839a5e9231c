"""Coarsening: graphs that shrink step by step, between messages, read out after each step.

x ← σ(conv(x));  (x, edges) ← a coarser graph;  r ← r + [mean_i x_i, max_i x_i]  (Cangea et al., arXiv:1811.01287).
The convolutions are those of Kipf and Welling, arXiv:1609.02907; σ is SiLU, since ReLU makes nodes equal by zeros.

Which nodes are left jumps where two scores or distances change places, so that this is for properties, not for
energies and forces. Where they are equal, as for equivalent atoms of a symmetric molecule, the choice between them may
depend on their order.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mlpot.errors import UserError, unknown
from mlpot.nn.pooling import Max, Mean


class Coarsened(NamedTuple):
    """What is read out of a graph and its coarser ones."""

    output: Tensor  # (S, out_channels)
    auxiliary: Tensor  # (), losses of the coarsening itself; zero where it has none
    kept: list[Tensor]  # of each step: the atoms that are left, (N_k,) int64; or what nodes become, (S, n_k, n_k+1)


class Graph(NamedTuple):
    """Nodes and weighted edges of S structures, at some step."""

    x: Tensor  # (N, C)
    edge_index: Tensor  # (2, E), [source, target]
    edge_weight: Tensor  # (E,)
    batch: Tensor  # (N,)
    n_structures: int


def _library() -> Any:
    try:
        import torch_geometric.nn  # two seconds to import, so only where it is needed
    except ImportError:
        raise UserError("coarsening needs the package torch_geometric: pip install 'mlpot[convert]'.") from None
    return torch_geometric


class Coarsening(nn.Module):
    """(N, C) -> (S, `out_channels`) and what else `Coarsened` says.

    `ratio` of the nodes are left after each of `n_steps` steps, at least one of each structure.
    Raises UserError for settings out of range, and where torch_geometric is not installed.
    """

    has_losses = False  # of its own

    def __init__(self, channels: int, ratio: float = 0.5, n_steps: int = 2) -> None:
        super().__init__()
        _positive(channels=channels, n_steps=n_steps)
        if not 0.0 < ratio <= 1.0:
            raise UserError(f"ratio = {ratio} is not a part of the nodes: give a number above 0 and up to 1.")
        self.n_steps, self.out_channels = n_steps, 2 * channels
        # A little less, so that rounding adds no node; and torch_geometric takes a ratio of 1 for one node.
        self.ratio = ratio * (1.0 - 1e-7)

    def forward(
        self,
        x: Tensor,  # (N, C)
        edge_index: Tensor,  # (2, E), [source, target]
        edge_weight: Tensor | None,  # (E,), not negative; None for 1
        batch: Tensor,  # (N,), ascending
        n_structures: int,
        positions: Tensor | None = None,  # (N, 3)
    ) -> Coarsened:
        """Features of each structure, which do not depend on the order of its atoms."""
        raise NotImplementedError


def _positive(**settings: int) -> None:
    for name, value in settings.items():
        if value < 1:
            raise UserError(f"{name} = {value} is too few: give 1 or more.")


class _Sparse(Coarsening):
    """Those whose coarser graphs are of some of the nodes."""

    def __init__(self, channels: int, ratio: float = 0.5, n_steps: int = 2) -> None:
        super().__init__(channels, ratio, n_steps)
        convolution = _library().nn.GCNConv
        self.convolutions = nn.ModuleList(convolution(channels, channels, add_self_loops=False) for _ in range(n_steps))
        self.mean, self.max = Mean(channels), Max(channels)

    def _convolved(self, step: int, graph: Graph) -> Graph:
        # Self-loops are added here, since GCNConv would drop edges from an atom to its own periodic images for them.
        nodes = torch.arange(len(graph.x), device=graph.x.device)
        looped = torch.cat([graph.edge_index, nodes.expand(2, -1)], 1)
        weight = torch.cat([graph.edge_weight, graph.edge_weight.new_ones(len(nodes))])
        return graph._replace(x=F.silu(self.convolutions[step](graph.x, looped, weight)))

    def _coarser(self, step: int, graph: Graph, positions: Tensor | None) -> tuple[Graph, Tensor]:
        """The coarser graph, and which nodes are left, (N',)."""
        raise NotImplementedError

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        batch: Tensor,
        n_structures: int,
        positions: Tensor | None = None,
    ) -> Coarsened:
        """See `Coarsening.forward`."""
        weight = x.new_ones(edge_index.shape[1]) if edge_weight is None else edge_weight
        graph = Graph(x, edge_index, weight, batch, n_structures)
        atoms = torch.arange(len(x), device=x.device)
        output, kept = x.new_zeros(n_structures, self.out_channels), []
        for step in range(self.n_steps):
            graph, left = self._coarser(step, self._convolved(step, graph), positions)
            atoms, positions = atoms[left], None if positions is None else positions[left]
            kept.append(atoms)
            near = graph.x, graph.batch, n_structures
            output = output + torch.cat([self.mean(*near), self.max(*near)], 1)
        return Coarsened(output, output.new_zeros(()), kept)


class TopK(_Sparse):
    """The ⌈ratio n⌉ nodes with the largest y_i = tanh(x_i · p / ‖p‖), times it (Gao and Ji, arXiv:1905.05178)."""

    def __init__(self, channels: int, ratio: float = 0.5, n_steps: int = 2) -> None:
        super().__init__(channels, ratio, n_steps)
        self.pools = nn.ModuleList(self._pool(channels) for _ in range(n_steps))

    def _pool(self, channels: int) -> nn.Module:
        return _library().nn.TopKPooling(channels, self.ratio)

    def _coarser(self, step: int, graph: Graph, positions: Tensor | None) -> tuple[Graph, Tensor]:
        x, edge_index, weight, batch, left, _ = self.pools[step](*graph[:4])
        return Graph(x, edge_index, weight, batch, graph.n_structures), left


class SelfAttention(TopK):
    """As `TopK`, with y = tanh(GraphConv(x)) of the node and its neighbours: SAGPool (Lee et al., arXiv:1904.08082).

    Scores do not depend on the weights of edges.
    """

    def _pool(self, channels: int) -> nn.Module:
        pool = _library().nn.SAGPooling(channels, self.ratio)
        # Of this one number torch_geometric takes the sign alone, so that there is nothing to learn.
        nn.init.ones_(pool.select.weight).requires_grad_(False)
        return pool


class NearestNeighbours(_Sparse):
    """Centres far from each other, each with the maximum over its nearest nodes (PointNet++, arXiv:1706.02413).

    ⌈ratio n⌉ centres come by farthest-point sampling (fewer where nodes are equal). Each takes in its
    `n_neighbors` nearest nodes, and those to which it is the nearest centre, so that none is lost; centres then hear
    their `n_neighbors` nearest others. Near is in space where positions are given (Å; without periodic images), else
    between features.
    """

    def __init__(self, channels: int, ratio: float = 0.5, n_steps: int = 2, n_neighbors: int = 4) -> None:
        super().__init__(channels, ratio, n_steps)
        _positive(n_neighbors=n_neighbors)
        self.n_neighbors = n_neighbors

    def _coarser(self, step: int, graph: Graph, positions: Tensor | None) -> tuple[Graph, Tensor]:
        points = (graph.x if positions is None else positions).detach()
        dense = _library().utils.to_dense_batch
        padded, there = dense(points, graph.batch, batch_size=graph.n_structures)  # (S, n, d), (S, n)
        node = dense(torch.arange(len(points), device=points.device), graph.batch, batch_size=graph.n_structures)[0]
        distances = torch.cdist(padded, padded, compute_mode="donot_use_mm_for_euclid_dist")
        centres, real = farthest_points(padded, distances, there, self.ratio)  # (S, m) each
        number = (real.flatten().cumsum(0) - 1).view_as(real)  # of each centre, in all structures
        to_nodes = distances.gather(1, centres[:, :, None].expand(-1, -1, distances.shape[2]))  # (S, m, n)
        to_nodes = to_nodes.masked_fill(~(real[:, :, None] & there[:, None]), torch.inf)
        group, member = _nearest(to_nodes, self.n_neighbors)
        owner = torch.where(there, number.gather(1, to_nodes.argmin(1)), 0)[there]
        x = self.max(
            graph.x[torch.cat([node.gather(1, member.flatten(1)).view_as(member)[group], node[there]])],
            torch.cat([number[:, :, None].expand_as(group)[group], owner]),
            int(real.sum()),
        )
        apart = to_nodes.gather(2, centres[:, None].expand(-1, centres.shape[1], -1))  # (S, m, m)
        apart = apart.masked_fill(~(real[:, :, None] & real[:, None]), torch.inf)
        apart.diagonal(dim1=1, dim2=2).fill_(torch.inf)
        linked, other = _nearest(apart, self.n_neighbors)
        source = number.gather(1, other.flatten(1)).view_as(other)[linked]
        target = number[:, :, None].expand_as(linked)[linked]
        left = node.gather(1, centres)[real]
        edges = torch.stack([source, target])
        return Graph(x, edges, x.new_ones(len(source)), graph.batch[left], graph.n_structures), left


def _nearest(distances: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Of the k least along the last axis: whether they are finite, and where they are, (..., k) each."""
    least, where = distances.topk(min(k, distances.shape[-1]), largest=False)
    return torch.isfinite(least), where


def farthest_points(
    points: Tensor,  # (S, n, d)
    distances: Tensor,  # (S, n, n)
    there: Tensor,  # (S, n), False in padding
    ratio: float,
) -> tuple[Tensor, Tensor]:  # (S, m) int64, and (S, m) bool, False in padding
    """⌈ratio n⌉ points of each structure: the one nearest to the mean, then each time that farthest from all chosen.

    Fewer where all others are where one of these is already: of equal ones rounding would choose.
    """
    counts = there.sum(1)
    wanted = (counts.double() * ratio).ceil()
    mean = (points * there[:, :, None]).sum(1) / counts.clamp(min=1)[:, None]
    from_mean = (points - mean[:, None]).square().sum(2).masked_fill(~there, torch.inf)
    width = distances.masked_fill(~(there[:, :, None] & there[:, None]), 0.0).amax((1, 2))
    least = width * math.sqrt(torch.finfo(width.dtype).eps)
    chosen, real = [from_mean.argmin(1)], [counts > 0]
    rows = torch.arange(len(points), device=points.device)
    gap = torch.full_like(from_mean, torch.inf).masked_fill(~there, 0.0)  # to the nearest of those chosen
    for step in range(1, int(wanted.max())):
        gap = torch.minimum(gap, distances[rows, chosen[-1]])
        farthest, where = gap.max(1)
        chosen.append(where)
        real.append((farthest > least) & (wanted > step))
    return torch.stack(chosen, 1), torch.stack(real, 1)


class DiffPool(Coarsening):
    """X' = Sᵀ Z, A' = Sᵀ A S with Z = σ(conv(X, A)), S = softmax(conv(X, A)) (Ying et al., arXiv:1806.08804).

    Nodes become clusters, the same number in every structure: after step k the k-th power of `ratio`, of `n_atoms`,
    which is to be the usual number of atoms of the structures. The auxiliary loss is ‖A - S Sᵀ‖_F / n² and the mean
    entropy of the rows of S, added up over the steps, as torch_geometric has it for one structure; for several it is
    their mean here, with no part in it of padding.
    """

    has_losses = True

    def __init__(self, channels: int, ratio: float = 0.5, n_steps: int = 2, n_atoms: int = 20) -> None:
        super().__init__(channels, ratio, n_steps)
        _positive(n_atoms=n_atoms)
        convolution = _library().nn.DenseGCNConv
        self.n_clusters = [math.ceil(n_atoms * self.ratio**step) for step in range(1, n_steps + 1)]
        self.embed = nn.ModuleList(convolution(channels, channels) for _ in self.n_clusters)
        self.assign = nn.ModuleList(convolution(channels, n) for n in self.n_clusters)

    def forward(
        self,
        x: Tensor,
        edge_index: Tensor,
        edge_weight: Tensor | None,
        batch: Tensor,
        n_structures: int,
        positions: Tensor | None = None,
    ) -> Coarsened:
        """See `Coarsening.forward`; positions are not used."""
        utils = _library().utils
        weight = x.new_ones(edge_index.shape[1]) if edge_weight is None else edge_weight
        dense, there = utils.to_dense_batch(x, batch, batch_size=n_structures)  # (S, n, C), (S, n)
        # Rows are targets, as in the product A X.
        adjacency = utils.to_dense_adj(edge_index.flip(0), batch, weight, dense.shape[1], n_structures)
        output, auxiliary, kept = x.new_zeros(n_structures, self.out_channels), x.new_zeros(()), []
        for embed, assign in zip(self.embed, self.assign, strict=True):
            looped = adjacency + torch.eye(dense.shape[1], dtype=x.dtype, device=x.device)
            features = F.silu(embed(dense, looped, there, add_loop=False))
            logits = assign(dense, looped, add_loop=False)
            auxiliary = auxiliary + losses(adjacency, logits, there)
            assignment = torch.softmax(logits, -1) * there[:, :, None]
            dense, adjacency = assignment.mT @ features, assignment.mT @ adjacency @ assignment
            there = torch.ones_like(dense[:, :, 0], dtype=torch.bool)
            kept.append(assignment)
            output = output + torch.cat([dense.mean(1), dense.amax(1)], 1)
        return Coarsened(output, auxiliary, kept)


def losses(adjacency: Tensor, logits: Tensor, there: Tensor) -> Tensor:
    """‖A - S Sᵀ‖_F / n² + mean_i H(S_i), S the softmax of logits, as the mean over structures (arXiv:1806.08804, 3.2).

    (S, n, n), (S, n, clusters), (S, n) -> ().
    """
    counts = there.sum(1).clamp(min=1)
    inside = there[:, :, None].to(logits.dtype)
    logarithm = torch.log_softmax(logits, -1)
    assignment = logarithm.exp() * inside
    link = torch.linalg.matrix_norm(adjacency - assignment @ assignment.mT) / counts**2
    entropy = -(assignment * logarithm).sum((1, 2)) / counts
    return (link + entropy).mean()


COARSENINGS: dict[str, type[Coarsening]] = {
    "topk": TopK,
    "sag": SelfAttention,
    "knn": NearestNeighbours,
    "diffpool": DiffPool,
}


def coarsening(name: str, channels: int, ratio: float = 0.5, n_steps: int = 2) -> Coarsening:
    """One by its name; UserError with the nearest name for one that is not known."""
    if name not in COARSENINGS:
        raise unknown("coarsening", name, COARSENINGS)
    return COARSENINGS[name](channels, ratio, n_steps)
