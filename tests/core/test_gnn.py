"""The classic graph networks: every option works in every model, and wrong settings and inputs are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ase.build import molecule
from torch import Tensor

import mlpot
from mlpot.convert.ase import structure as from_ase
from mlpot.convert.rdkit import with_bonds
from mlpot.convert.smiles import ATOM_FEATURES, columns, from_smiles
from mlpot.errors import UserError
from mlpot.graph import AtomsGraph
from mlpot.nn.edges import N_BOND
from mlpot.property_model import build as build_property
from mlpot.structure import Bonds, Structure
from mlpot.testing import check_potential
from tests.core.graph_networks import (
    CUTOFF,
    LAWFUL,
    NAMES,
    OTHERS,
    SMALL,
    TARGETS,
    build,
    features,
    graph_of,
    molecules,
)


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
