"""Every way to pool atoms, in models of properties: on bonds and on radius graphs, trained, saved and loaded."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from typer.testing import CliRunner

import mlpot
from mlpot import checkpoint
from mlpot.cli import app
from mlpot.convert.smiles import from_smiles
from mlpot.data.frame import Frame
from mlpot.data.loader import Batch, collate_labels, labels_of
from mlpot.errors import UserError
from mlpot.graph import AtomsGraph, collate
from mlpot.nn.coarsening import COARSENINGS
from mlpot.nn.heads import POOLS, Coarse
from mlpot.property_model import PropertyModel, build, predict_properties
from mlpot.target import Target
from mlpot.train.config import PropertiesConfig
from mlpot.train.properties import PropertyObjective

Make = Callable[[str], PropertyModel]
TARGETS = [{"name": "gap", "unit": "eV"}, {"name": "active", "kind": "binary"}]
SMILES = ["CC(=O)Oc1ccccc1C(=O)O", "OCCN", "C"]  # no two neighbourhoods of one are equal where a choice depends on it
NAMES = ["CH3CH2OH", "H2O", "CH3CONH2"]


def on_bonds(readout: str, **settings: object) -> PropertyModel:
    torch.manual_seed(5)
    return build("gcn", TARGETS, readout=readout, edges="bonds", channels=8, **settings).double().eval()


def on_radius(readout: str) -> PropertyModel:
    torch.manual_seed(5)
    return build("schnet", TARGETS, readout=readout, channels=8, cutoff=4.0).double().eval()


def graphs(model: PropertyModel) -> list[AtomsGraph]:
    if model.needs == {"bonds"}:
        return [AtomsGraph.from_structure(from_smiles(text), model.cutoff) for text in SMILES]
    return [AtomsGraph.from_ase(molecule(name), model.cutoff) for name in NAMES]


@pytest.mark.parametrize("make", [on_bonds, on_radius])
@pytest.mark.parametrize("readout", POOLS)
def test_a_batch_is_its_molecules_and_a_checkpoint_its_model(readout: str, make: Make, tmp_path: Path) -> None:
    model = make(readout)
    alone = graphs(model)
    together = predict_properties(model, collate(alone))
    checkpoint.save(tmp_path / "m.mlpot", model, {})
    loaded = mlpot.load(tmp_path / "m.mlpot")
    assert isinstance(loaded, PropertyModel)
    for place, graph in enumerate(alone):
        for name, value in predict_properties(loaded, graph).items():
            torch.testing.assert_close(value[0], together[name][place], rtol=1e-10, atol=1e-12)
    assert len(set(together["gap"].tolist())) == len(alone)


@pytest.mark.parametrize("make", [on_bonds, on_radius])
@pytest.mark.parametrize("readout", COARSENINGS)
def test_gradients_reach_every_parameter(readout: str, make: Make) -> None:
    model = make(readout).train()
    answers, losses = model.with_losses(collate(graphs(model)))
    (sum(value.square().sum() for value in answers.values()) + losses).backward()
    without = [key for key, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert not without
    assert bool(losses > 0) == COARSENINGS[readout].has_losses


def test_edges_are_those_that_the_network_has() -> None:
    bonds, radius = on_bonds("topk").heads[0], on_radius("topk").heads[0]
    assert isinstance(bonds, Coarse)
    assert isinstance(radius, Coarse)
    assert bonds.bonds
    assert not radius.bonds
    model = on_radius("diffpool")
    near = Atoms("HeNe", [[0, 0, 0], [0, 0, 3.0]])
    apart = Atoms("HeNe", [[0, 0, 0], [0, 0, 3.999999]])
    beyond = Atoms("HeNe", [[0, 0, 0], [0, 0, 4.000001]])
    found = [float(predict_properties(model, AtomsGraph.from_ase(a, 4.0))["gap"]) for a in (near, apart, beyond)]
    assert found[1] == pytest.approx(found[2], abs=1e-9)  # an edge fades out, it does not drop
    assert abs(found[0] - found[1]) > 1e-6


def batch(weights: list[float]) -> Batch:
    frames = [
        Frame(from_smiles(text), weight=weight, properties={"gap": np.array(gap), "active": np.array(active)})
        for text, weight, gap, active in zip(SMILES, weights, [1.0, 2.5, 0.5], [0.0, 1.0, 1.0], strict=True)
    ]
    graph = collate([AtomsGraph.from_structure(frame.structure, 5.0) for frame in frames])
    targets = tuple(Target.model_validate(target) for target in TARGETS)
    return Batch(graph, collate_labels([labels_of(frame, k, targets=targets) for k, frame in enumerate(frames)]))


def test_losses_of_a_coarsening_are_a_term_of_training_that_chooses_no_checkpoint() -> None:
    model, labelled = on_bonds("diffpool"), batch([1.0, 1.0, 1.0])
    objective = PropertyObjective(PropertiesConfig(readout="diffpool"), model.targets)
    assert objective.names == ("gap", "active", "coarsening")
    totals = objective.totals(labelled)
    assert totals.tolist() == [3.0, 3.0, 3.0]
    prediction = objective.predict(model, labelled, True)
    loss, terms = objective.loss(prediction, labelled, 0.5, totals)
    own = float(model.with_losses(labelled.graph)[1].detach())
    assert own > 0
    assert float(terms[2]) == pytest.approx(own, rel=1e-12)
    assert float(loss) == pytest.approx(float(terms.sum()), rel=1e-12)
    assert objective.total(terms) == pytest.approx(float(terms[:2].sum()), rel=1e-12)
    loss.backward()
    plain = PropertyObjective(PropertiesConfig(readout="topk"), model.targets)
    assert plain.names == ("gap", "active")


def test_coarsening_in_a_whole_run(tmp_path: Path) -> None:
    table = tmp_path / "alcohols.csv"
    rows = [f"{'C' * n}O,{0.5 * n}" for n in range(1, 13)] + [f"{'C' * n}N,{0.5 * n + 1}" for n in range(1, 13)]
    table.write_text("smiles,logp\n" + "\n".join(rows) + "\n")
    options = [
        "model.name=gcn",
        "model.edges=bonds",
        "model.channels=16",
        "readout=diffpool",
        "epochs=3",
        f"out={tmp_path}/run",
    ]
    result = CliRunner().invoke(app, ["train", str(table), "valid=4", "keys.logp=logp", *options])
    assert result.exit_code == 0, result.output
    *_, last = csv.DictReader((tmp_path / "run" / "log.csv").open())
    terms = [float(last[f"train_loss_{name}"]) for name in ("logp", "coarsening")]
    assert terms[1] > 0
    assert float(last["train_loss"]) == pytest.approx(sum(terms))
    assert math.isfinite(float(last["valid_loss"]))


def test_unknown_readouts_are_answered_with_the_nearest() -> None:
    with pytest.raises(UserError, match='"diffpool"'):
        build("gcn", TARGETS, readout="difpool")
