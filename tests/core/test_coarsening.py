"""Coarsening: torch_geometric's numbers, clusters counted by hand, and the laws of sets."""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from mlpot.errors import UserError
from mlpot.graph import AtomsGraph
from mlpot.nn import coarsening as module
from mlpot.nn.coarsening import COARSENINGS, Coarsened, Coarsening, DiffPool, NearestNeighbours, coarsening, losses
from mlpot.nn.radial import cosine_cutoff, norm

pyg = pytest.importorskip("torch_geometric.nn")
utils = pytest.importorskip("torch_geometric.utils")

C = 4
SPARSE = ["topk", "sag", "knn"]
SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=4)
SEEDS = st.integers(0, 2**20)


class Batch(NamedTuple):
    """Random graphs with weights that are symmetric."""

    x: Tensor
    edge_index: Tensor
    edge_weight: Tensor
    batch: Tensor
    n_structures: int
    positions: Tensor

    @classmethod
    def of(cls, sizes: list[int], seed: int = 0, dtype: torch.dtype = torch.float64) -> Batch:
        random = torch.Generator().manual_seed(seed)
        batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
        n = len(batch)
        weight = torch.rand(n, n, generator=random, dtype=dtype)
        weight = weight + weight.T
        there = (batch[:, None] == batch) & (weight > 0.9) & ~torch.eye(n, dtype=torch.bool)
        target, source = there.nonzero().T
        x, positions = (torch.randn(n, d, generator=random, dtype=dtype) for d in (C, 3))
        return cls(x, torch.stack([source, target]), weight[target, source], batch, len(sizes), positions)

    def permuted(self, order: Tensor) -> Batch:
        """Atoms in another order, which keeps the structures apart; edges in another order, too."""
        place, edges = torch.argsort(order), torch.arange(len(self.edge_weight)).flip(0)
        moved = place[self.edge_index[:, edges]], self.edge_weight[edges]
        return Batch(self.x[order], *moved, self.batch[order], self.n_structures, self.positions[order])

    def one(self, number: int) -> Batch:
        """One of the structures."""
        atoms, edges = self.batch == number, self.batch[self.edge_index[1]] == number
        first = int(atoms.nonzero()[0])
        graph = self.edge_index[:, edges] - first, self.edge_weight[edges]
        return Batch(self.x[atoms], *graph, torch.zeros(int(atoms.sum()), dtype=torch.int64), 1, self.positions[atoms])


def build(name: str, dtype: torch.dtype = torch.float64, **given: float) -> Coarsening:
    torch.manual_seed(0)
    made = COARSENINGS[name](C, **given).to(dtype)
    for parameter_name, parameter in made.named_parameters():
        if parameter_name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    return made


def within(sizes: list[int], seed: int) -> Tensor:
    """A random order of the atoms of each structure."""
    random = torch.Generator().manual_seed(seed)
    return torch.cat([torch.randperm(n, generator=random) + sum(sizes[:k]) for k, n in enumerate(sizes)])


CASES = [*((name, False) for name in COARSENINGS), ("knn", True)]


def called(model: Coarsening, batch: Batch, in_space: bool) -> Coarsened:
    return model(*batch) if in_space else model(*batch[:-1])


@pytest.mark.parametrize(("name", "in_space"), CASES)
@settings(max_examples=15, deadline=None)
@given(sizes=SIZES, seed=SEEDS)
def test_the_order_of_atoms_does_not_matter(name: str, in_space: bool, sizes: list[int], seed: int) -> None:
    batch, model = Batch.of(sizes, seed), build(name)
    order = within(sizes, seed)
    found, moved = (called(model, b, in_space) for b in (batch, batch.permuted(order)))
    assert found.output.shape == (len(sizes), model.out_channels)
    torch.testing.assert_close(moved.output, found.output)
    torch.testing.assert_close(moved.auxiliary, found.auxiliary)
    if name in ("topk", "sag"):  # for knn either of two nodes may be the centre of both
        for kept, again in zip(found.kept, moved.kept, strict=True):
            assert set(order[again].tolist()) == set(kept.tolist())
    if name == "diffpool":
        there = utils.to_dense_batch(batch.x, batch.batch)[1]
        torch.testing.assert_close(moved.kept[0][there], found.kept[0][there][order])


@pytest.mark.parametrize(("name", "in_space"), CASES)
@settings(max_examples=15, deadline=None)
@given(sizes=SIZES, seed=SEEDS)
def test_a_batch_is_its_structures(name: str, in_space: bool, sizes: list[int], seed: int) -> None:
    batch, model = Batch.of(sizes, seed), build(name)
    found = called(model, batch, in_space)
    singles = [called(model, batch.one(number), in_space) for number in range(len(sizes))]
    torch.testing.assert_close(found.output, torch.cat([one.output for one in singles]))
    torch.testing.assert_close(found.auxiliary, torch.stack([one.auxiliary for one in singles]).mean())
    first = [sum(sizes[:k]) for k in range(len(sizes))]
    for step, kept in enumerate(found.kept):
        if name == "diffpool":
            n = singles[0].kept[step].shape[1]
            torch.testing.assert_close(kept[0, :n], singles[0].kept[step][0])
            assert bool((kept[0, n:] == 0).all())
        elif name != "knn":  # of two nodes either may be the centre for both, and so may be equal ones
            assert torch.equal(kept, torch.cat([one.kept[step] + f for one, f in zip(singles, first, strict=True)]))


def theirs(model: Coarsening, batch: Batch) -> tuple[Tensor, list[Tensor]]:
    """The network of top-k or SAG pooling, written down with torch_geometric's own layers and weights taken over."""
    output, kept, atoms = 0.0, [], torch.arange(len(batch.x))
    x, edge_index, edge_weight, of = batch[:4]
    for convolution, pool in zip(model.convolutions, model.pools, strict=True):
        layer, other = pyg.GCNConv(C, C).to(x.dtype), type(pool)(C, 0.5).to(x.dtype)
        layer.load_state_dict(convolution.state_dict())
        other.load_state_dict(pool.state_dict())
        x = F.silu(layer(x, edge_index, edge_weight))
        x, edge_index, edge_weight, of, left, _ = other(x, edge_index, edge_weight, of)
        atoms = atoms[left]
        kept.append(atoms)
        output = output + torch.cat([pyg.global_mean_pool(x, of), pyg.global_max_pool(x, of)], 1)
    return output, kept


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["topk", "sag"])
def test_selections_are_torch_geometrics(name: str, dtype: torch.dtype) -> None:
    batch, model = Batch.of([7, 1, 5, 8], dtype=dtype), build(name, dtype)
    output, kept = theirs(model, batch)
    found = model(*batch)
    assert [len(k) for k in kept] == [4 + 1 + 3 + 4, 2 + 1 + 2 + 2]
    assert all(torch.equal(a, b) for a, b in zip(found.kept, kept, strict=True))
    torch.testing.assert_close(found.output, output)
    assert float(found.auxiliary) == 0.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_diffpool_is_torch_geometrics(dtype: torch.dtype) -> None:
    batch, model = Batch.of([7, 1, 5], dtype=dtype), build("diffpool", dtype)
    x, there = utils.to_dense_batch(batch.x, batch.batch)
    adjacency = utils.to_dense_adj(batch.edge_index, batch.batch, batch.edge_weight)  # symmetric
    output = 0.0
    mask: Tensor | None = there
    for step, n in enumerate(model.n_clusters):
        looped = adjacency + torch.eye(x.shape[1], dtype=dtype)
        embed, assign = pyg.DenseGCNConv(C, C).to(dtype), pyg.DenseGCNConv(C, n).to(dtype)
        embed.load_state_dict(model.embed[step].state_dict())
        assign.load_state_dict(model.assign[step].state_dict())
        inputs = (x, adjacency, mask) if step == 0 else (x, looped, mask, False)  # clusters have weights of their own
        x, adjacency, *_ = pyg.dense_diff_pool(F.silu(embed(*inputs)), adjacency, assign(*inputs), mask)
        mask = None
        output = output + torch.cat([x.mean(1), x.amax(1)], 1)
    torch.testing.assert_close(model(*batch).output, output)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_losses_of_diffpool_are_torch_geometrics(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    sizes, n = [7, 1, 5], 7
    there = torch.arange(n) < torch.tensor(sizes)[:, None]
    pairs = (there[:, :, None] & there[:, None]).to(dtype)
    adjacency = torch.rand(3, n, n, dtype=dtype) * pairs
    logits = torch.randn(3, n, 4, dtype=dtype)
    each = []
    for a, s, size in zip(adjacency, logits, sizes, strict=True):
        x = torch.zeros(1, size, C, dtype=dtype)
        _, _, link, entropy = pyg.dense_diff_pool(x, a[:size, :size], s[:size])
        each.append(link + entropy)
    torch.testing.assert_close(losses(adjacency, logits, there), torch.stack(each).mean())
    # A one-hot assignment has no entropy, and clusters that are cliques with self-loops no missing links.
    sharp = torch.where(F.one_hot(torch.tensor([0, 0, 1]), 2).bool(), 0.0, -1e4).to(dtype).requires_grad_()
    blocks = torch.tensor([[1, 1, 0], [1, 1, 0], [0, 0, 1]], dtype=dtype)
    loss = losses(blocks[None], sharp[None], torch.ones(1, 3, dtype=torch.bool))
    assert abs(loss.item()) < 1e-12
    assert bool(torch.isfinite(torch.autograd.grad(loss, sharp)[0]).all())


def by_hand(points: Tensor, ratio: float, k: int) -> tuple[list[int], list[set[int]], set[tuple[int, int]]]:
    """Centres, the nodes of each, and edges (source, target) between centres of one structure, one by one."""
    n = len(points)

    def gap(i: int, j: int) -> float:
        return float((points[i] - points[j]).norm())

    centres = [min(range(n), key=lambda i: float((points[i] - points.mean(0)).norm()))]
    while len(centres) < math.ceil(ratio * n):
        centres.append(max(set(range(n)) - set(centres), key=lambda i: min(gap(i, c) for c in centres)))
    groups = [set(sorted(range(n), key=lambda i: gap(i, c))[:k]) for c in centres]
    for i in range(n):
        groups[min(range(len(centres)), key=lambda c: gap(i, centres[c]))].add(i)
    edges = set()
    for c, centre in enumerate(centres):
        others = sorted(set(range(len(centres))) - {c}, key=lambda o: gap(centres[o], centre))
        edges |= {(o, c) for o in others[:k]}
    return centres, groups, edges


@pytest.mark.parametrize("in_space", [True, False])
@pytest.mark.parametrize("ratio", [0.3, 0.6, 1.0])
def test_nearest_neighbours_are_those_counted_by_hand(ratio: float, in_space: bool) -> None:
    sizes = [9, 1, 12, 2]
    batch, model = Batch.of(sizes, 3), build("knn", ratio=ratio, n_steps=1)
    assert isinstance(model, NearestNeighbours)
    model.n_neighbors = 3
    graph = module.Graph(*batch[:5])
    found, left = model._coarser(0, graph, batch.positions if in_space else None)
    points = batch.positions if in_space else batch.x
    first, offset = 0, 0
    for number, size in enumerate(sizes):
        centres, groups, edges = by_hand(points[first : first + size], ratio, 3)
        of = found.batch == number
        assert (left[of] - first).tolist() == centres
        expected = torch.stack([batch.x[[first + i for i in group]].amax(0) for group in groups])
        torch.testing.assert_close(found.x[of], expected)
        own = of[found.edge_index[1]]
        assert {(int(a) - offset, int(b) - offset) for a, b in found.edge_index[:, own].T} == edges
        assert int(own.sum()) == len(edges)
        first, offset = first + size, offset + len(centres)


def test_places_in_space_do_not_depend_on_where_and_how_a_molecule_lies() -> None:
    batch, model = Batch.of([9, 4]), build("knn")
    turn, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    moved = batch._replace(positions=batch.positions @ turn + 5000.0)
    torch.testing.assert_close(model(*moved).output, model(*batch).output)
    assert not torch.allclose(model(*batch._replace(positions=batch.positions.flip(0))).output, model(*batch).output)


def test_of_atoms_at_one_place_one_is_chosen() -> None:
    batch = Batch.of([6, 4])
    places = batch.positions[[0, 1, 0, 1, 0, 0, 6, 7, 8, 9]]
    kept = build("knn", ratio=1.0, n_steps=1)(*batch._replace(positions=places)).kept[0]
    assert sorted(places[kept].tolist()) == sorted(places[[0, 1, 6, 7, 8, 9]].tolist())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["CH4", "C6H6", "C2H6", "trans-butane", "CH3SCH3"])
def test_equivalent_atoms_may_be_permuted(name: str, dtype: torch.dtype) -> None:
    """Their features are equal but for rounding, which must not choose between them."""
    atoms, model = molecule(name), build("knn", dtype)
    embedding = torch.randn(20, C, generator=torch.Generator().manual_seed(1), dtype=dtype)

    def output(atoms: Atoms) -> Tensor:
        graph = AtomsGraph.from_ase(atoms, 3.0)
        weight = cosine_cutoff(norm(graph.edge_vectors()), 3.0).to(dtype)
        return model(embedding[graph.numbers], graph.edge_index, weight, graph.batch, 1).output

    expected, random = output(atoms), np.random.default_rng(0)
    for _ in range(5):
        torch.testing.assert_close(output(atoms[random.permutation(len(atoms))]), expected)


@pytest.mark.parametrize(("name", "in_space"), CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_reach_every_parameter(name: str, in_space: bool, dtype: torch.dtype) -> None:
    batch, model = Batch.of([9, 1, 6], dtype=dtype), build(name, dtype)
    batch.x.requires_grad_()
    found = called(model, batch, in_space)
    assert found.output.dtype == found.auxiliary.dtype == dtype
    (found.output.square().sum() + found.auxiliary).backward()
    learned = {n: p for n, p in model.named_parameters() if p.requires_grad}
    assert len(learned) >= 4
    for parameter_name, parameter in [*learned.items(), ("x", batch.x)]:
        assert parameter.grad is not None, parameter_name
        assert bool(torch.isfinite(parameter.grad).all())
        assert bool(parameter.grad.abs().max() > 1e-7), parameter_name


@pytest.mark.parametrize(("name", "in_space"), [c for c in CASES if c[0] != "diffpool"])
def test_gradients_are_right(name: str, in_space: bool) -> None:
    batch, model = Batch.of([6, 1, 4]), build(name)
    assert torch.autograd.gradcheck(
        lambda x: called(model, batch._replace(x=x), in_space).output, batch.x.requires_grad_()
    )


@pytest.mark.parametrize(("name", "in_space"), CASES)
def test_one_atom_and_no_edges(name: str, in_space: bool) -> None:
    model = build(name)
    for sizes in ([1], [1, 1], [4, 1]):
        batch = Batch.of(sizes)
        bare = batch._replace(edge_index=batch.edge_index[:, :0], edge_weight=batch.edge_weight[:0])
        found = called(model, bare, in_space)
        assert found.output.shape == (len(sizes), 2 * C)
        assert bool(torch.isfinite(found.output).all())
        assert bool(torch.isfinite(found.auxiliary))
        if name != "diffpool":
            # One atom: its features as they are, twice a step.
            mean, largest = found.output[-1].chunk(2)
            torch.testing.assert_close(mean, largest)


@pytest.mark.parametrize("name", COARSENINGS)
def test_without_weights_edges_weigh_one_and_weights_matter(name: str) -> None:
    batch, model = Batch.of([7, 5]), build(name)
    ones = torch.ones_like(batch.edge_weight)
    bare = model(*batch._replace(edge_weight=None)).output
    torch.testing.assert_close(bare, model(*batch._replace(edge_weight=ones)).output)
    assert not torch.allclose(bare, model(*batch).output)


@pytest.mark.parametrize("name", COARSENINGS)
def test_messages_run_from_source_to_target(name: str) -> None:
    """Where an edge has no reverse, what it ends in hears what it starts from, and not the other way round."""
    model = build(name, n_steps=1, ratio=1.0)
    x = torch.randn(2, C, dtype=torch.float64).requires_grad_()
    layer = model.embed[0] if isinstance(model, DiffPool) else model.convolutions[0]
    heard = []
    layer.register_forward_hook(lambda module, inputs, output: heard.append(output.view(2, -1)))
    model(x, torch.tensor([[0], [1]]), None, torch.tensor([0, 0]), 1)
    to_source, to_target = (torch.autograd.grad(heard[0][k].sum(), x, retain_graph=True)[0] for k in (0, 1))
    assert bool((to_source[1] == 0).all())
    assert bool((to_target[0] != 0).any())


@pytest.mark.parametrize("name", SPARSE)
def test_edges_to_own_images_count(name: str) -> None:
    """In a crystal an atom may be its own neighbour, more than once."""
    batch, model = Batch.of([3]), build(name)

    def with_loops(n: int) -> Tensor:
        index = torch.cat([batch.edge_index, torch.zeros(2, n, dtype=torch.int64)], 1)
        weight = torch.cat([batch.edge_weight, torch.full((n,), 0.5, dtype=torch.float64)])
        return model(*batch._replace(edge_index=index, edge_weight=weight)).output

    none, one, two = (with_loops(n) for n in range(3))
    assert not torch.allclose(none, one)
    assert not torch.allclose(one, two)


@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_part_that_is_left(name: str, dtype: torch.dtype) -> None:
    """⌈ratio n⌉ whatever the rounding; 0.1 · 30 is a little more than 3 in float64."""
    batch = Batch.of([30, 10], dtype=dtype)
    for ratio, expected in ((1.0, 40), (0.1, 4), (0.7, 28), (1e-4, 2)):
        kept = build(name, dtype, ratio=ratio, n_steps=1)(*batch).kept[0]
        assert len(kept) == expected
        assert bool((batch.batch[kept].diff() >= 0).all())


def test_clusters_of_diffpool() -> None:
    model = DiffPool(C, ratio=0.25, n_steps=3, n_atoms=30)
    assert model.n_clusters == [8, 2, 1]
    found = model.double()(*Batch.of([9, 1, 4]))
    assert [tuple(s.shape) for s in found.kept] == [(3, 9, 8), (3, 8, 2), (3, 2, 1)]
    torch.testing.assert_close(found.kept[1].sum(2), torch.ones(3, 8, dtype=torch.float64))
    assert DiffPool(C, ratio=1.0, n_atoms=7).n_clusters == [7, 7]


def test_bad_settings() -> None:
    with pytest.raises(UserError, match=r'unknown coarsening "tokp"\. Did you mean "topk"\? Known: diffpool, knn'):
        coarsening("tokp", C)
    for name in COARSENINGS:
        assert isinstance(coarsening(name, C, 0.4, 1), COARSENINGS[name])
        for ratio in (0.0, 1.5, -0.5, float("nan")):
            with pytest.raises(UserError, match=rf"ratio = {ratio} .* above 0 and up to 1"):
                coarsening(name, C, ratio)
        with pytest.raises(UserError, match="n_steps = 0 is too few"):
            coarsening(name, C, n_steps=0)
        with pytest.raises(UserError, match="channels = 0 is too few"):
            coarsening(name, 0)
    with pytest.raises(UserError, match="n_neighbors = 0 is too few"):
        NearestNeighbours(C, n_neighbors=0)
    with pytest.raises(UserError, match="n_atoms = -1 is too few"):
        DiffPool(C, n_atoms=-1)


@pytest.mark.parametrize("name", COARSENINGS)
def test_without_torch_geometric(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_geometric.nn", None)
    with pytest.raises(UserError, match=r"torch_geometric: pip install 'mlpot\[convert\]'"):
        coarsening(name, C)
