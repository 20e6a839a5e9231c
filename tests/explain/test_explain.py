"""mlpot explain: contributions that obey their own laws, and a check that knows a good one from a bad one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from mlpot import checkpoint, models
from mlpot.cli import app
from mlpot.compose import ReferenceEnergies, Scaled, Sum
from mlpot.convert.smiles import from_smiles
from mlpot.errors import UserError
from mlpot.explain.attributions import METHODS, matrices, rollout, traced
from mlpot.explain.faithful import deletion
from mlpot.explain.subject import Subject, without
from mlpot.property_model import PropertyModel, Scale, build

TARGETS = [{"name": "a", "kind": "extensive"}, {"name": "b"}, {"name": "c", "kind": "classes", "classes": 3}]


def model_of(name: str = "gat", **settings: object) -> PropertyModel:
    torch.manual_seed(0)
    return build(name, TARGETS, edges="bonds", channels=16, **settings).double()


def counting_oxygen() -> PropertyModel:
    """A model whose answer is the number of oxygen atoms, by construction."""
    torch.manual_seed(0)
    scales = {"a": Scale(references={8: 1.0})}
    model = build("gcn", TARGETS[:1], edges="bonds", channels=8, scales=scales).double()
    for parameter in model.heads.parameters():
        torch.nn.init.zeros_(parameter)
    return model


def test_occlusion_finds_what_the_answer_is_made_of() -> None:
    subject = Subject(counting_oxygen(), from_smiles("CC(=O)OC"))
    np.testing.assert_allclose(METHODS["occlusion"](subject), [0, 0, 1, 1, 0], atol=1e-12)
    assert deletion(subject, METHODS["occlusion"](subject)).score > 0.8
    worst = deletion(subject, np.array([3.0, 3.0, 0.0, 0.0, 3.0]))
    assert worst.score < 0.2
    assert deletion(subject, np.zeros(5), seed=1).random.shape == (20, 5)


@pytest.mark.parametrize("target", ["a", "b", "c"])
@pytest.mark.parametrize("name", ["gat", "transformer", "gcn"])
def test_integrated_gradients_add_up(name: str, target: str) -> None:
    subject = Subject(model_of(name), from_smiles("NCC(=O)O"), target)
    with torch.no_grad(), subject.embedded(0.0):
        nothing = float(subject.value(subject.graph(subject.structure)))
    whole = subject.values([subject.structure])[0]
    assert METHODS["integrated"](subject).sum() == pytest.approx(whole - nothing, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("method", [m for m in METHODS if m != "energies"])
def test_equivalent_atoms_contribute_alike(method: str) -> None:
    subject = Subject(model_of(), from_smiles("OCCCO"), "b")
    found = METHODS[method](subject)
    np.testing.assert_allclose(found, found[::-1], atol=1e-9)
    assert np.ptp(found) > 0


def test_rollout_by_hand() -> None:
    first = np.array([[0.5, 0.5], [0.0, 1.0]])
    second = np.array([[1.0, 0.0], [0.5, 0.5]])
    half = np.eye(2) / 2
    expected = (second / 2 + half) @ (first / 2 + half)
    np.testing.assert_allclose(rollout(np.stack([first, second])[:, None]), expected)


def test_rows_of_attention_add_up_to_one() -> None:
    subject = Subject(model_of(heads=2), from_smiles("CC(=O)O"))
    found = matrices(traced(subject))
    assert found.shape == (3, 2, 4, 4)
    np.testing.assert_allclose(found.sum(-1), 1.0)
    assert found[0, 0, 0, 2] == 0.0  # atoms that are not bonded do not hear each other


def test_gradient_weighted_attention_depends_on_the_question() -> None:
    model, structure = model_of(), from_smiles("CC(=O)N")
    of_b = METHODS["weighted-attention"](Subject(model, structure, "b"))
    of_c = METHODS["weighted-attention"](Subject(model, structure, "c", 1))
    assert not np.allclose(of_b / of_b.max(), of_c / of_c.max(), rtol=1e-3)
    np.testing.assert_array_equal(
        METHODS["attention"](Subject(model, structure, "b")), METHODS["attention"](Subject(model, structure, "c", 1))
    )


def test_energies_are_above_the_free_atoms_and_add_up() -> None:
    from ase.build import molecule

    from mlpot.convert import ase as convert

    torch.manual_seed(0)
    network = models.build("schnet", channels=8)
    potential = Sum([Scaled([network], scale=1.0), ReferenceEnergies(energies={1: -13.6, 8: -2040.0})])
    subject = Subject(potential, convert.structure(molecule("H2O")))
    found = METHODS["energies"](subject)
    assert found.sum() == pytest.approx(subject.values([subject.structure])[0])
    assert np.abs(found).max() < 100
    assert METHODS["occlusion"](subject).shape == (3,)


def test_atoms_are_taken_away_with_their_bonds() -> None:
    structure = without(from_smiles("CC(=O)O"), [1])
    assert structure.numbers.tolist() == [6, 8, 8]
    assert structure.bonds is not None
    assert structure.bonds.index.shape == (2, 0)
    assert len(structure.bonds.atom_features) == 3


@pytest.mark.parametrize(
    ("target", "one_class", "message"),
    [
        ("bb", None, 'unknown target "bb"'),
        ("c", 3, "has the classes 0 to 2"),
        ("b", 1, "is not one of several classes"),
    ],
)
def test_wrong_questions_are_named(target: str, one_class: int | None, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Subject(model_of(), from_smiles("CCO"), target, one_class)


def test_what_does_not_apply_says_so() -> None:
    with pytest.raises(UserError, match="has no attention"):
        METHODS["attention"](Subject(model_of("gcn"), from_smiles("CCO")))
    with pytest.raises(UserError, match="one atom"):
        METHODS["occlusion"](Subject(model_of(), from_smiles("C")))
    with pytest.raises(UserError, match="potentials"):
        METHODS["energies"](Subject(model_of(), from_smiles("CC")))


def test_the_command_writes_a_page_and_numbers(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "m.mlpot", model_of().float())
    words = [
        "explain",
        str(tmp_path / "m.mlpot"),
        "CC(=O)O",
        "-o",
        str(tmp_path / "page.html"),
        "--target",
        "b",
        "--json",
    ]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    value = json.loads(result.stdout.splitlines()[-1])
    assert set(value["attributions"]) == set(METHODS) - {"energies"}
    assert all(len(found) == 4 for found in value["attributions"].values())
    text = (tmp_path / "page.html").read_text()
    for word in (
        "occlusion",
        "weighted-attention",
        "Layer 3, head 4",
        "arXiv:1902.10186",
        "energies of atoms are what",
    ):
        assert word in text
    assert "http://" not in text.replace("http://www.w3.org", "")
    with pytest.raises(UserError, match='unknown method "ocllusion"'):
        CliRunner().invoke(app, [*words, "--method", "ocllusion"], catch_exceptions=False)
    with pytest.raises(UserError, match="not a SMILES"):
        CliRunner().invoke(app, [*words[:2], "C1CC(", *words[3:]], catch_exceptions=False)
