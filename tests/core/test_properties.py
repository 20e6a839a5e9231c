"""Models of properties: the laws of each kind of target, on every network that has features."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

import mlpot
from mlpot import checkpoint, models
from mlpot.convert.smiles import from_smiles
from mlpot.errors import UserError
from mlpot.graph import AtomsGraph
from mlpot.nn.heads import from_centre_of_mass
from mlpot.property_model import PropertyModel, Scale, build, predict_properties
from mlpot.target import KINDS, Target
from mlpot.train.scores import average_precision, enrichment, interval, roc_auc, roc_curve

CUTOFF = 4.0
TARGETS = [{"name": kind, "kind": kind, **({"classes": 3} if kind == "classes" else {})} for kind in KINDS]


def backbones() -> list[str]:
    return [name for name in models.names() if models.build(name).channels]


def model_of(name: str, **settings: object) -> PropertyModel:
    torch.manual_seed(3)
    return build(name, TARGETS, cutoff=CUTOFF, **settings).double().eval()


def molecules() -> list[Atoms]:
    return [molecule("CH3CH2OH"), molecule("H2O"), molecule("HCN")]


def answers(model: PropertyModel, atoms: list[Atoms]) -> dict[str, torch.Tensor]:
    return predict_properties(model, AtomsGraph.from_ase(atoms, CUTOFF))


@pytest.mark.parametrize("name", backbones())
@settings(max_examples=3, deadline=None)
@given(seed=st.integers(0, 1000), mirror=st.booleans())
def test_each_kind_turns_as_it_should(name: str, seed: int, mirror: bool) -> None:
    model = model_of(name)
    turn = Rotation.random(random_state=seed).as_matrix() * (-1.0 if mirror else 1.0)
    turned = molecules()
    for atoms in turned:
        atoms.positions = atoms.positions @ turn.T + [3.0, -1.0, 2.0]
    before, after, r = answers(model, molecules()), answers(model, turned), torch.tensor(turn)
    for kind in KINDS:
        expected = before[kind]
        if kind == "vector":
            expected = expected @ r.T
        elif kind == "tensor":
            expected = r @ expected @ r.T
        torch.testing.assert_close(after[kind], expected, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(before["tensor"], before["tensor"].mT)


@pytest.mark.parametrize("name", backbones())
def test_a_batch_is_its_molecules(name: str) -> None:
    model, atoms = model_of(name), molecules()
    together = answers(model, atoms)
    for place, one in enumerate(atoms):
        for kind, value in answers(model, [one]).items():
            torch.testing.assert_close(value[0], together[kind][place], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", backbones())
def test_extensive_adds_and_intensive_does_not(name: str) -> None:
    model = model_of(name)
    pair = molecule("H2O") + molecule("HCN")
    pair.positions[3:] += 50.0
    both, water, acid = answers(model, [pair]), answers(model, [molecule("H2O")]), answers(model, [molecule("HCN")])
    torch.testing.assert_close(both["extensive"], water["extensive"] + acid["extensive"], rtol=1e-9, atol=1e-11)
    mean = (3 * water["intensive"] + 3 * acid["intensive"]) / 6
    assert both["intensive"] - mean != water["intensive"]  # a network of the mean, not a mean of networks
    assert abs(float(both["classes"].sum()) - 1.0) < 1e-12


@pytest.mark.parametrize("name", backbones())
def test_every_parameter_that_trains_is_reached(name: str) -> None:
    model = model_of(name).train()
    graph = AtomsGraph.from_ase(molecules(), CUTOFF)
    raw = model(graph)
    sum(value.square().sum() for value in raw.values()).backward()
    without = [key for key, p in model.named_parameters() if p.requires_grad and p.grad is None]
    assert not without


@pytest.mark.parametrize("name", backbones())
def test_saved_and_loaded_answers_to_the_bit(name: str, tmp_path: Path) -> None:
    model = model_of(name)
    model.restrict_to([1, 6, 7, 8])
    checkpoint.save(tmp_path / "m.mlpot", model, {"note": "x"})
    loaded = mlpot.load(tmp_path / "m.mlpot")
    assert isinstance(loaded, PropertyModel)
    assert loaded.targets == model.targets
    assert loaded.elements == (1, 6, 7, 8)
    for kind, value in answers(loaded, molecules()).items():
        assert torch.equal(value, answers(model, molecules())[kind])


def test_charges_add_up_to_the_total() -> None:
    model = model_of("schnet")
    neutral, charged = (
        AtomsGraph.from_ase(atoms, CUTOFF)
        for atoms in (molecule("H2O"), Atoms("H2O", molecule("H2O").positions, info={"charge": 1.0}))
    )
    assert charged.charge is not None
    # A charge spread evenly over atoms at r_i adds Σ r_i / n, from the centre of mass.
    expected = from_centre_of_mass(neutral).mean(0)
    water = molecule("H2O")
    same_order = AtomsGraph.from_ase(Atoms(water.numbers, water.positions, info={"charge": 1.0}), CUTOFF)
    difference = predict_properties(model, same_order)["vector"] - predict_properties(model, neutral)["vector"]
    torch.testing.assert_close(difference[0], expected)


def test_scales_and_references_enter_the_value() -> None:
    scales = {"extensive": Scale(scale=2.0, references={1: -13.6, 8: -2000.25}), "intensive": Scale(scale=0.5, shift=7)}
    torch.manual_seed(3)
    model = build("schnet", TARGETS, cutoff=CUTOFF, scales=scales)
    graph = AtomsGraph.from_ase(molecule("H2O"), CUTOFF)
    raw = {name: value.detach() for name, value in model(graph).items()}
    found = predict_properties(model, graph)
    assert found["extensive"].dtype == torch.float64
    assert float(found["extensive"]) == pytest.approx(2.0 * float(raw["extensive"]) - 2 * 13.6 - 2000.25, abs=1e-9)
    assert float(found["intensive"]) == pytest.approx(0.5 * float(raw["intensive"]) + 7.0, abs=1e-12)
    assert float(found["binary"]) == pytest.approx(1 / (1 + math.exp(-float(raw["binary"]))), abs=1e-7)


def test_what_cannot_be_answered_is_refused() -> None:
    model = model_of("schnet")
    with pytest.raises(UserError, match="periodic"):
        predict_properties(model, AtomsGraph.from_ase(bulk("Si"), CUTOFF))
    with pytest.raises(UserError, match="embed it in 3D"):
        predict_properties(model, AtomsGraph.from_structure(from_smiles("CCO"), CUTOFF))
    with pytest.raises(UserError, match="gives no energies; it predicts extensive"):
        mlpot.predict(model, AtomsGraph.from_ase(molecule("H2O"), CUTOFF))
    with pytest.raises(UserError, match="not properties"):
        predict_properties(models.build("schnet"), AtomsGraph.from_ase(molecule("H2O"), 5.0))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="gives no energies"):
        mlpot.Calculator(model)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("targets", "settings", "message"),
    [
        ([{"name": "a", "kind": "intensiv"}], {}, "intensive"),
        ([{"name": "a", "kind": "classes"}], {}, "classes=2 or more"),
        ([{"name": "a"}, {"name": "a"}], {}, "each target once"),
        ([{"name": "a"}], {"readout": "meen"}, '"mean"'),
        ([{"name": "a"}], {"dropout": 1.0}, "dropout"),
    ],
)
def test_wrong_settings_are_named(targets: list[dict[str, str]], settings: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build("schnet", targets, **settings)


def test_a_model_without_features_is_refused() -> None:
    with pytest.raises(UserError, match="no features"):
        build("zbl", [{"name": "a"}])


# ---------------------------------------------------------------------------------------------------------- scores


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), min_size=2, max_size=30))
def test_roc_auc_counts_pairs(rows: list[tuple[bool, int]]) -> None:
    labels, scores = np.array([float(a) for a, _ in rows]), np.array([float(b) for _, b in rows])
    pairs = [(1.0 if p > n else 0.5 if p == n else 0.0) for p in scores[labels == 1] for n in scores[labels == 0]]
    if not pairs:
        assert math.isnan(roc_auc(labels, scores))
        return
    assert roc_auc(labels, scores) == pytest.approx(np.mean(pairs))
    x, y = roc_curve(labels, scores)
    assert np.trapezoid(y, x) == pytest.approx(np.mean(pairs))


def test_average_precision_and_enrichment_by_hand() -> None:
    labels, scores = np.array([1.0, 0.0, 1.0, 0.0]), np.array([0.9, 0.8, 0.7, 0.1])
    assert average_precision(labels, scores) == pytest.approx(0.5 * 1.0 + 0.5 * 2 / 3)
    assert average_precision(labels, np.ones(4)) == pytest.approx(0.5)  # ties tell nothing: the share of positives
    assert enrichment(labels, scores, 0.25) == pytest.approx(2.0)


def test_an_interval_holds_the_truth_as_often_as_it_says() -> None:
    random = np.random.default_rng(1)
    held = 0
    for trial in range(200):
        labels = random.normal(size=60)
        values = labels + random.normal(size=60)
        low, high = interval(lambda a, b: float((b - a).mean()), labels, values, 0.9, 300, trial)
        held += low <= 0.0 <= high
    assert 0.82 <= held / 200 <= 0.96


def test_targets_of_one_name_and_kind_are_equal() -> None:
    assert Target(name="gap", unit="eV") == Target(name="gap", unit="eV")
    assert Target(name="a", kind="tensor").shape == (3, 3)
