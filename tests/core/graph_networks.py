"""What the tests of the classic graph networks share: small models, molecules, and the options there are."""

from __future__ import annotations

from typing import Any

import torch
from ase.build import molecule
from torch import Tensor

from mlpot import models
from mlpot.convert.ase import structure as from_ase
from mlpot.convert.rdkit import with_bonds
from mlpot.graph import AtomsGraph
from mlpot.models._graph_network import GraphNetwork
from mlpot.structure import Structure

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


def graph_of(*structures: Structure) -> AtomsGraph:
    return AtomsGraph.from_structure(list(structures), CUTOFF)


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
