"""The classic graph networks: every option in every model, smoothness, what they can tell apart, and bad input."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from torch import Tensor, nn

import mlpot
from mlpot import models
from mlpot.convert.ase import structure as from_ase
from mlpot.convert.rdkit import with_bonds
from mlpot.convert.smiles import ATOM_FEATURES, columns, from_smiles, parsed
from mlpot.errors import UserError
from mlpot.graph import AtomsGraph
from mlpot.models import gat
from mlpot.models._graph_network import AttentionNetwork, GraphNetwork
from mlpot.nn import edge_attention
from mlpot.nn.edge_attention import EdgeAttention, HeadEdges, edge_softmax
from mlpot.nn.edges import N_BOND, MessageEdges, fully_adjacent
from mlpot.nn.links import Links, products, weighed_sum
from mlpot.nn.segment import Ends
from mlpot.property_model import build as build_property
from mlpot.structure import Bonds, Structure
from mlpot.testing import check_potential

NAMES = ["gat", "gcn", "ggnn", "mpnn", "transformer"]
ATTENTION = ["gat", "transformer"]
CUTOFF = 4.0
SMALL: dict[str, Any] = {"channels": 8, "n_layers": 2, "n_basis": 6, "cutoff": CUTOFF}
TARGETS = [{"name": "a", "kind": "extensive"}, {"name": "b", "kind": "intensive"}]


def build(name: str, **settings: Any) -> GraphNetwork:
    torch.manual_seed(4)
    model = models.build(name, **{**SMALL, **settings}).double().eval()
    assert isinstance(model, GraphNetwork)
    return model


def molecules(*names: str) -> AtomsGraph:
    structures = [with_bonds(from_ase(molecule(name))) for name in names or ("CH3CH2OH", "H2O", "C6H6")]
    return AtomsGraph.from_structure(structures, CUTOFF)


def features(model: GraphNetwork, graph: AtomsGraph) -> Tensor:
    with torch.no_grad():
        return model.features(graph).scalars


# --------------------------------------------------------------------------------------------------------- options

LAWFUL: list[dict[str, Any]] = [
    {"residual": "gated", "jumping_knowledge": "lstm", "normalisation": "layer"},
    {"residual": "none", "jumping_knowledge": "concat"},
    {"residual": "plain"},
]
OTHERS: list[dict[str, Any]] = [
    {"normalisation": "graph"},
    {"virtual_node": True},
    {"fully_adjacent_last_layer": True},
    {"jumping_knowledge": "max"},
    {"dropout": 0.4},
]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", NAMES)
def test_all_lawful_options_at_once_conform(name: str, dtype: str) -> None:
    check_potential(build(name, **LAWFUL[0]), dtype=dtype)


@pytest.mark.parametrize(
    ("name", "settings"),
    [("gat", {"variant": "gat"}), ("gcn", {"edge_weights": "learned"}), ("ggnn", {"edge_weights": "learned"})],
    ids=str,
)
def test_variants_conform(name: str, settings: dict[str, Any]) -> None:
    check_potential(build(name, **settings), dtype="float64")


@pytest.mark.parametrize("settings", OTHERS, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_what_breaks_a_law_is_for_properties_alone(name: str, settings: dict[str, Any]) -> None:
    model = build(name, **settings)
    with pytest.raises(UserError, match=f"for properties, not for energies: {next(iter(settings))}"):
        mlpot.predict(model, molecules())
    assert torch.isfinite(features(model, molecules())).all()


@pytest.mark.parametrize("edges", ["radius", "bonds", "both"])
@pytest.mark.parametrize("settings", [{}, *LAWFUL, *OTHERS], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_every_option_serves_properties(name: str, settings: dict[str, Any], edges: str) -> None:
    """A batch is its molecules, the order of atoms does not matter, and training reaches every parameter."""
    torch.manual_seed(4)
    model = build_property(name, TARGETS, **{**SMALL, **settings}, edges=edges).double().eval()
    graph = molecules()
    with torch.no_grad():
        together = model(graph)
        for place, one in enumerate(graph.split()):
            for key, value in model(one).items():
                torch.testing.assert_close(value[0], together[key][place], rtol=1e-9, atol=1e-11)
        (ethanol,) = molecules("CH3CH2OH").structures()
        order = np.random.default_rng(1).permutation(len(ethanol))
        torch.testing.assert_close(model(graph_of(permuted(ethanol, order)))["b"][0], together["b"][0])
    model.train()
    sum(value.square().sum() for value in model(graph).values()).backward()
    without = [
        key
        for key, p in model.named_parameters()
        if p.requires_grad and (p.grad is None or not bool(p.grad.isfinite().all() and (p.grad != 0).any()))
    ]
    assert not without


def graph_of(*structures: Structure) -> AtomsGraph:
    return AtomsGraph.from_structure(list(structures), CUTOFF)


def permuted(one: Structure, order: np.ndarray) -> Structure:
    assert one.bonds is not None
    place = np.argsort(order)
    bonds = Bonds(place[one.bonds.index], one.bonds.features, one.bonds.atom_features[order])
    return Structure.of(one.numbers[order], one.positions[order], bonds=bonds)


@pytest.mark.parametrize("settings", [*LAWFUL, *OTHERS], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_no_option_is_without_effect(name: str, settings: dict[str, Any]) -> None:
    opposite = {"residual": "plain" if settings.get("residual") == "none" else "none"}
    plain, changed = build(name, **opposite), build(name, **{**opposite, **settings})
    if "dropout" in settings:
        changed.train()
    for a, b in zip(plain.stack.embedding.parameters(), changed.stack.embedding.parameters(), strict=True):
        b.data.copy_(a.data)
    a, b = features(plain, molecules()), features(changed, molecules())
    assert a.shape != b.shape or float((a - b).abs().max()) > 1e-4


@pytest.mark.parametrize("settings", [{"virtual_node": True}, {"fully_adjacent_last_layer": True}], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_reach_beyond_the_layers(name: str, settings: dict[str, Any]) -> None:
    """One end of a chain longer than the layers reach hears of the other end with these options alone."""
    alike, other = ("CCCCCCCCCC", "CCCCCCCCCO")

    def first_atom(**more: Any) -> list[Tensor]:
        model = build(name, edges="bonds", **more)
        return [features(model, graph_of(from_smiles(smiles)))[0] for smiles in (alike, other)]

    near, far = first_atom()
    torch.testing.assert_close(near, far, rtol=0, atol=1e-13)
    near, far = first_atom(**settings)
    assert float((near - far).abs().max()) > 1e-6


def test_zeros_fill_up_the_input_of_ggnn() -> None:
    graph = molecules()
    start = build("ggnn", input_channels=3).stack.start(graph)
    assert start.shape == (graph.n_atoms, 8)
    assert bool((start[:, 3:] == 0).all())
    assert bool((start[:, :3] != 0).any())
    assert bool((build("ggnn").stack.start(graph)[:, 4:] == 0).all())  # half of them, if nothing is said


# ------------------------------------------------------------------------------------------------- edges and sums


def test_both_kinds_of_edges_are_each_pair_once() -> None:
    """Against a loop over all pairs, with a bond that is longer than the cutoff."""
    stretched = with_bonds(from_ase(molecule("CH3CH2OH")))
    positions = stretched.positions.copy()
    positions[2] += [0.0, 0.0, 6.0]  # the oxygen leaves; its bonds stay
    graph = graph_of(Structure.of(stretched.numbers, positions, bonds=stretched.bonds), stretched)
    model = build("gat", edges="both")
    edges = model.stack.edges(graph, torch.float64)
    assert graph.bonds is not None
    bonds = {(int(j), int(i)): row for (j, i), row in zip(graph.bonds.index.T, graph.bonds.features, strict=True)}
    width = SMALL["n_basis"]
    expected = {}
    for i, j in itertools.permutations(range(graph.n_atoms), 2):
        distance = float((graph.positions[i] - graph.positions[j]).norm())
        near = graph.batch[i] == graph.batch[j] and distance < CUTOFF
        if not near and (j, i) not in bonds:
            continue
        x = min(1.0, distance / CUTOFF)
        envelope = 1 - 28 * x**6 + 48 * x**7 - 21 * x**8
        centres = np.linspace(0.0, CUTOFF, width)
        radial = envelope * np.exp(-0.5 * ((distance - centres) / (centres[1] - centres[0])) ** 2)
        bond = bonds.get((j, i), torch.zeros(N_BOND)).numpy()
        expected[j, i] = (1.0 if (j, i) in bonds else envelope, np.concatenate([radial, bond]))
    found = [tuple(pair) for pair in edges.edge_index.T.tolist()]
    assert sorted(found) == sorted(expected)
    assert [i for _, i in found] == sorted(i for _, i in found)
    for pair, envelope, attributes in zip(found, edges.envelope[:, 0], edges.attributes, strict=True):
        assert float(envelope) == pytest.approx(expected[pair][0], abs=1e-12)
        np.testing.assert_allclose(attributes.numpy(), expected[pair][1], atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_a_bond_drawn_beyond_the_cutoff_leaves_no_jump(name: str) -> None:
    ethanol = with_bonds(from_ase(molecule("CH3CH2OH")))
    model = build(name, edges="both")

    def answer(distance: float) -> mlpot.Prediction:
        positions = ethanol.positions.copy()
        direction = positions[2] - positions[0]
        positions[2] = positions[0] + distance * direction / np.linalg.norm(direction)
        return mlpot.predict(model, graph_of(Structure.of(ethanol.numbers, positions, bonds=ethanol.bonds)))

    inside, outside = answer(CUTOFF - 1e-6), answer(CUTOFF + 1e-6)
    assert float((inside.energy - outside.energy).abs()) < 1e-5
    assert inside.forces is not None
    assert outside.forces is not None
    torch.testing.assert_close(inside.forces, outside.forces, rtol=0, atol=1e-4)
    # And forces are slopes.
    h, middle = 1e-4, answer(3.0)
    direction = torch.tensor(ethanol.positions[2] - ethanol.positions[0])
    slope = (answer(3.0 + h).energy - answer(3.0 - h).energy) / (2 * h)
    assert middle.forces is not None
    assert float(middle.forces[2] @ direction / direction.norm()) == pytest.approx(-float(slope), abs=1e-6)


@pytest.mark.parametrize("periodic", [False, True])
def test_fully_adjacent_edges_are_all_pairs(periodic: bool) -> None:
    graph = AtomsGraph.from_ase([bulk("NaCl", "rocksalt", 5.6, cubic=True)] * 2, CUTOFF) if periodic else molecules()
    edges = build("gat").stack.edges(graph, torch.float64)
    found = fully_adjacent(edges, graph.batch)
    expected = torch.zeros(graph.n_atoms, graph.n_atoms, SMALL["n_basis"], dtype=torch.float64)
    for (j, i), row in zip(edges.edge_index.T.tolist(), edges.attributes, strict=True):
        expected[i, j] += row
    pairs = [tuple(pair) for pair in found.edge_index.T.tolist()]
    same = graph.batch[:, None] == graph.batch
    assert pairs == [(j, i) for i in range(len(same)) for j in range(len(same)) if i != j and same[i, j]]
    source, target = found.edge_index
    torch.testing.assert_close(found.attributes, expected[target, source])
    assert bool((found.envelope == 1).all())


def random_links(heads: int) -> tuple[Links, int, int]:
    torch.manual_seed(6)
    target = torch.sort(torch.randint(0, 5, (12,)))[0]
    return Links.of(Ends.of(torch.randint(0, 7, (12,)), 7), Ends.ascending(target, 6), heads), 7, 6  # atom 5 has none


@pytest.mark.parametrize("heads", [1, 3])
def test_sums_along_links_are_those_of_dense_matrices(heads: int) -> None:
    links, n_sources, n_targets = random_links(heads)
    weights = torch.randn(12, heads, dtype=torch.float64, requires_grad=True)
    x = torch.randn(n_sources, heads * 2, dtype=torch.float64, requires_grad=True)
    a = torch.randn(n_targets, heads * 2, dtype=torch.float64, requires_grad=True)
    dense = torch.zeros(n_targets, n_sources, heads, dtype=torch.float64)
    dense = dense.index_put((links.targets, links.sources), weights, accumulate=True)
    expected = torch.einsum("tsh,shd->thd", dense, x.view(n_sources, heads, 2)).flatten(1)
    torch.testing.assert_close(weighed_sum(weights, x, links), expected)
    rows = (a[links.targets] * x[links.sources]).view(12, heads, 2).sum(2)
    torch.testing.assert_close(products(a, x, links), rows)
    torch.testing.assert_close(products(x, a, links.reversed), rows)
    for call, arguments in ((weighed_sum, (weights, x)), (products, (a, x))):
        assert torch.autograd.gradcheck(lambda *given, call=call: call(*given, links), arguments)
        assert torch.autograd.gradgradcheck(lambda *given, call=call: call(*given, links), arguments)


def some_edges(heads: int) -> HeadEdges:
    links, _, _ = random_links(1)
    index = torch.stack([links.sources.clamp(max=5), links.targets])
    envelope = torch.rand(12, 1, dtype=torch.float64)
    envelope[[0, 7]] = 0.0
    return HeadEdges.of(MessageEdges.of(index, torch.zeros(12, 2, dtype=torch.float64), envelope, 6), heads)


def test_the_softmax_is_its_formula_and_so_are_its_derivatives() -> None:
    edges = some_edges(2)
    target, envelope = edges.edge_index[1], edges.edges.envelope
    logits = torch.randn(12, 2, dtype=torch.float64, requires_grad=True)
    own = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    found = edge_softmax(logits, own, edges)
    total = own.exp().index_add(0, target, envelope * logits.exp())
    torch.testing.assert_close(found.weights, envelope * logits.exp() / total[target])
    torch.testing.assert_close(found.own, own.exp() / total)
    torch.testing.assert_close(found.own.index_add(0, target, found.weights), torch.ones_like(own))
    far = torch.zeros_like(logits)
    far[[0, 7]], far[1] = 1e4, 900.0  # what has no envelope does not count, however large; nor does exp overflow
    assert bool(torch.isfinite(torch.cat([*edge_softmax(logits + far, own, edges)])).all())

    def weights(logits: Tensor, own: Tensor, envelope: Tensor) -> EdgeAttention:
        return edge_softmax(logits, own, edges._replace(edges=edges.edges._replace(envelope=envelope)))

    inside = (envelope + 0.1).requires_grad_()
    assert torch.autograd.gradcheck(weights, (logits, own, inside))
    assert torch.autograd.gradgradcheck(weights, (logits, own, inside))


# ---------------------------------------------------------------------------------------- attention at the cutoff


def plain_softmax(logits: Tensor, own: Tensor, edges: HeadEdges) -> EdgeAttention:
    """As in the papers: an edge counts in full, or is not there."""
    there = (edges.edges.envelope > 0).to(logits)
    return edge_softmax(logits, own, edges._replace(edges=edges.edges._replace(envelope=there)))


def without_own(logits: Tensor, own: Tensor, edges: HeadEdges) -> EdgeAttention:
    """With the envelope, but without the atom itself: a last neighbour has weight 1 until it has gone."""
    return edge_softmax(logits, torch.full_like(own, -60.0), edges)


@pytest.mark.parametrize("name", ATTENTION)
@pytest.mark.parametrize("softmax", [plain_softmax, without_own], ids=lambda softmax: softmax.__name__)
def test_other_softmaxes_jump_at_the_cutoff(name: str, softmax: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ours passes the same suite: see test_conformance."""
    monkeypatch.setattr(models.find(name).__module__ + ".edge_softmax", softmax)
    with pytest.raises(AssertionError, match="smooth at cutoff"):
        check_potential(build(name), dtype="float64")


def crossing(model: GraphNetwork) -> float:
    """The jump in energy (eV) where a third atom crosses the cutoff of a pair."""

    def energy(distance: float) -> float:
        atoms = Atoms("HOC", [[0.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0 + distance]])
        return float(mlpot.predict(model, AtomsGraph.from_ase(atoms, CUTOFF)).energy)

    return abs(energy(CUTOFF - 1e-3) - energy(CUTOFF + 1e-3))


@pytest.mark.parametrize("name", ATTENTION)
def test_the_size_of_the_jump(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(name)
    assert crossing(model) < 1e-8
    monkeypatch.setattr(models.find(name).__module__ + ".edge_softmax", plain_softmax)
    assert crossing(model) > 1e-4


def test_a_kink_in_the_logits_is_refused_for_energies() -> None:
    with pytest.raises(UserError, match="leaky_relu has a kink"):
        mlpot.predict(build("gat", slope="leaky_relu"), molecules())


def test_the_smooth_slope_is_a_leaky_relu_far_from_zero() -> None:
    x = torch.tensor([-1e4, 0.0, 1e4], dtype=torch.float64, requires_grad=True)
    slope = gat.SLOPES["smooth"](0.2)
    y = slope(x)
    (dy,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(dy, torch.tensor([0.2, 0.6, 1.0], dtype=torch.float64), rtol=0, atol=1e-8)
    assert float(y[1].detach()) == 0.0
    near = torch.linspace(-3, 3, 13, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(slope, (near,))
    assert torch.autograd.gradgradcheck(slope, (near,))


@pytest.mark.parametrize("settings", [{}, {"fully_adjacent_last_layer": True}], ids=str)
@pytest.mark.parametrize("name", ATTENTION)
def test_attention_is_that_of_the_forward_pass(name: str, settings: dict[str, Any]) -> None:
    model, graph = build(name, edges="both", **settings), molecules()
    assert isinstance(model, AttentionNetwork)
    found = model.attention(graph)
    assert len(found) == SMALL["n_layers"]
    for index, weights in found:
        assert weights.shape == (index.shape[1], 4)
        sums = torch.zeros(graph.n_atoms, 4, dtype=torch.float64).index_add(0, index[1], weights)
        torch.testing.assert_close(sums, torch.ones_like(sums))
        assert bool((weights >= 0).all())
        loops = index[:, index[0] == index[1]]
        assert torch.equal(loops[0], torch.arange(graph.n_atoms))
    # The answer depends on these very tensors.
    known, passes = model.traced(graph)
    torch.testing.assert_close(known.scalars, model.features(graph).scalars, rtol=0, atol=0)
    gradients = torch.autograd.grad(known.scalars.square().sum(), [one.weights for one in passes])
    assert all(bool((g != 0).any()) for g in gradients)


# ------------------------------------------------------------------------------------------ what can be told apart


def embedded(smiles: str, seed: int = 7) -> Structure:
    """With hydrogens, in 3D, and bonds."""
    from rdkit import Chem
    from rdkit.Chem import AllChem

    mol = Chem.AddHs(parsed(smiles))
    assert AllChem.EmbedMolecule(mol, randomSeed=seed) == 0
    from mlpot.convert.rdkit import structure

    return structure(mol)


def without_features(one: Structure) -> Structure:
    """Bonds that are all alike."""
    assert one.bonds is not None
    bonds = Bonds(one.bonds.index, np.zeros_like(one.bonds.features), np.zeros_like(one.bonds.atom_features))
    return Structure.of(one.numbers, one.positions, bonds=bonds)


def rings(*sizes: int) -> Structure:
    """Regular rings of carbon, far from each other."""
    ends, positions = [], []
    for place, n in enumerate(sizes):
        first = len(positions)
        ends += [(first + k, first + (k + 1) % n) for k in range(n)]
        angles, radius = 2 * np.pi * np.arange(n) / n, 0.75 / np.sin(np.pi / n)
        positions += [(radius * np.cos(a) + 50.0 * place, radius * np.sin(a), 0.0) for a in angles]
    zeros = np.zeros((sum(sizes), len(columns(ATOM_FEATURES))))
    return Structure.of(
        [6] * sum(sizes), positions, bonds=Bonds(np.array(ends).T, np.zeros((len(ends), N_BOND)), zeros)
    )


# Where all atoms are alike, a mean of neighbours' features, however weighed, is that feature: weights tell nothing.
AVERAGES = {"gat", "gcn"}
DECALIN, BICYCLOPENTYL = "C1CCC2CCCCC2C1", "C1CCCC1C1CCCC1"
# Neither of a pair's colours, refined from neighbours' colours alone (Weisfeiler, Leman), tells it from the other.
ALIKE = {
    "two triangles and a hexagon": lambda: (rings(3, 3), rings(6)),
    "decalin and bicyclopentyl": lambda: tuple(without_features(embedded(s)) for s in (DECALIN, BICYCLOPENTYL)),
}


@pytest.mark.parametrize("pair", ALIKE)
@pytest.mark.parametrize("name", NAMES)
def test_bonds_alone_tell_no_more_than_weisfeiler_and_leman(name: str, pair: str) -> None:
    first, second = ALIKE[pair]()
    sums = {}
    for edges in ("bonds", "radius"):
        model = build(name, edges=edges, n_layers=4)
        sums[edges] = [features(model, graph_of(one)).sum(0) for one in (first, second)]
    torch.testing.assert_close(*sums["bonds"], rtol=1e-10, atol=1e-10)
    difference = float((sums["radius"][0] - sums["radius"][1]).abs().max())
    if pair == "two triangles and a hexagon" and name in AVERAGES:
        assert difference < 1e-10
    else:
        assert difference > 1e-3  # distances tell them apart


@pytest.mark.parametrize("edges", ["radius", "both"])
@pytest.mark.parametrize("name", NAMES)
def test_mirror_images_have_the_same_distances(name: str, edges: str) -> None:
    """Chirality is in the atoms' features; without these columns no network of distances can tell."""
    one = embedded("C[C@H](O)C(=O)N")
    assert one.bonds is not None
    chiral = [k for k, column in enumerate(columns(ATOM_FEATURES)) if column.startswith("chirality")]
    assert one.bonds.atom_features[:, chiral].any()
    blind = one.bonds.atom_features.copy()
    blind[:, chiral] = 0.0
    bonds = Bonds(one.bonds.index, one.bonds.features, blind)
    left, right = (Structure.of(one.numbers, one.positions * sign, bonds=bonds) for sign in ([1, 1, 1], [1, 1, -1]))
    model = build(name, edges=edges)
    torch.testing.assert_close(features(model, graph_of(left)), features(model, graph_of(right)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
def test_the_columns_of_chirality_tell_mirror_images_of_bonds(name: str) -> None:
    left, right = (graph_of(from_smiles(smiles)) for smiles in ("C[C@H](O)C(=O)N", "C[C@@H](O)C(=O)N"))
    model = build(name, edges="bonds")
    assert float((features(model, left) - features(model, right)).abs().max()) > 1e-4


# --------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("gta", {}, 'unknown model "gta". Did you mean "gat"'),
        ("gat", {"edges": "bond"}, "edges = 'bond'.*'radius', 'bonds' or 'both'"),
        ("gat", {"residul": "plain"}, 'unknown setting "residul". Did you mean "residual"'),
        ("gcn", {"residual": "skip"}, "residual = 'skip'.*'none', 'plain' or 'gated'"),
        ("mpnn", {"jumping_knowledge": "sum"}, "jumping_knowledge = 'sum'.*'lstm'"),
        ("ggnn", {"normalisation": "batch"}, "normalisation = 'batch'.*'layer' or 'graph'"),
        ("gat", {"heads": 3}, "heads = 3: .*must divide channels, 8; the nearest number that does is 2"),
        ("transformer", {"heads": 5}, "must divide channels, 8; the nearest number that does is 4"),
        ("gat", {"variant": "gatv3"}, "'gat' or 'gatv2'"),
        ("ggnn", {"input_channels": 9}, "at most as many as channels, 8"),
        ("gcn", {"dropout": 1.0}, "dropout = 1.0"),
        ("gcn", {"channels": 1, "n_layers": 1, "jumping_knowledge": "lstm"}, "two channels or two layers"),
    ],
)
def test_wrong_settings_are_named(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(name, **settings)


@pytest.mark.parametrize("edges", ["bonds", "both"])
def test_a_graph_without_bonds_is_refused(edges: str) -> None:
    graph = AtomsGraph.from_ase(molecule("H2O"), CUTOFF)
    model = build_property("gat", TARGETS, **SMALL, edges=edges).double()
    with pytest.raises(UserError, match="these structures have none: give SMILES"):
        model.check(graph)
    with pytest.raises(UserError, match="these structures have none: give SMILES"):
        model(graph)


def test_what_an_edge_needs_is_asked_for() -> None:
    assert build("gat").needs == {"positions"}
    assert build("gat", edges="bonds").needs == {"bonds"}
    assert build("gat", edges="both").needs == {"positions", "bonds"}
    with pytest.raises(UserError, match="embed it in 3D"):
        build("gat", edges="both").check(graph_of(from_smiles("CCO")))
    with pytest.raises(UserError, match="reads bonds alone and knows no distances"):
        mlpot.predict(build("gat", edges="bonds"), molecules())


def test_bonds_of_a_periodic_structure_do_not_say_which_image() -> None:
    water = with_bonds(from_ase(molecule("H2O")))
    boxed = Structure.of(water.numbers, water.positions, np.eye(3) * 6.0, True, bonds=water.bonds)
    with pytest.raises(UserError, match="which periodic image"):
        features(build("gat", edges="both"), graph_of(boxed))
    alone = features(build("gat", edges="bonds"), graph_of(boxed))
    torch.testing.assert_close(alone, features(build("gat", edges="bonds"), graph_of(water)))


def test_other_columns_are_refused() -> None:
    water = with_bonds(from_ase(molecule("H2O")))
    assert water.bonds is not None
    narrow = Bonds(water.bonds.index, water.bonds.features[:, :3], water.bonds.atom_features)
    with pytest.raises(UserError, match=r"bonds have 3 features.*expected \d+"):
        features(build("gcn", edges="bonds"), graph_of(Structure.of(water.numbers, water.positions, bonds=narrow)))


@pytest.mark.parametrize("edges", ["radius", "bonds", "both"])
@pytest.mark.parametrize("settings", [{}, *OTHERS[:3], LAWFUL[0]], ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_one_atom_and_no_edges(name: str, settings: dict[str, Any], edges: str) -> None:
    """A lone atom, and ions that no bond joins, in a batch and alone."""
    model = build(name, edges=edges, **settings)
    if edges == "bonds":
        lone, ions = from_smiles("[Na+]"), from_smiles("[Na+].[Cl-]")
    else:
        lone, ions = (
            with_bonds_of_none(Structure.of(numbers, np.outer(range(len(numbers)), [9.0, 0, 0])))
            for numbers in ([11], [11, 17])
        )
    both = features(model, graph_of(lone, ions))
    assert bool(torch.isfinite(both).all())
    torch.testing.assert_close(both[:1], features(model, graph_of(lone)))
    torch.testing.assert_close(both[1:], features(model, graph_of(ions)))


def with_bonds_of_none(one: Structure) -> Structure:
    none = Bonds(np.zeros((2, 0), np.int64), np.zeros((0, N_BOND)), np.zeros((len(one), len(columns(ATOM_FEATURES)))))
    return Structure.of(one.numbers, one.positions, bonds=none)
