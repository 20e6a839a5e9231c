"""Settings: what is refused, and what is said."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mlpot.compare.config import read_comparison, trials
from mlpot.errors import UserError
from mlpot.train.config import apply_overrides, model_names, read_recipe, resolve, to_yaml
from mlpot.train.schedule import learning_rate, ramp

DATA = {"data": {"train": "x.xyz"}}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"learning_rat": 1e-3, **DATA}, 'unknown setting "learning_rat".*"training.learning_rate"'),
        ({"trainer": {"max_epoch": 5}, **DATA}, 'unknown setting "trainer".*"training"'),
        ({"training": {"epoch": 5}, **DATA}, 'unknown setting "training.epoch".*"training.epochs"'),
        ({"model": {"name": "schent"}, **DATA}, 'unknown model "schent".*"schnet"'),
        ({"loss": {"forces": {"kind": "mea"}}, **DATA}, "loss.forces.kind = 'mea'.*'mae'"),
        ({"loss": {"force": {"kind": "mae"}}, **DATA}, 'unknown setting "loss.force".*"loss.forces"'),
        ({"training": {"budget": "3mn"}, **DATA}, "'3mn' is not a time"),
        ({"training": {"budget": "3min", "epochs": 3}, **DATA}, "either epochs or budget"),
        ({"training": {"batch_size": 3, "batch_atoms": 3}, **DATA}, "one of batch_size, batch_atoms and batch_edges"),
        ({"dtype": "float16", **DATA}, "dtype = 'float16'"),
        ({"model": {"name": "schnet"}}, "setting data is missing"),
        ({"data": {}}, "setting data.train is missing"),
    ],
)
def test_wrong_settings_are_named_with_the_nearest_right_one(values: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve(values, "recipe.yaml")


def test_overrides_reach_into_sections_and_may_be_short() -> None:
    values = apply_overrides(
        DATA, ["budget=30min", "model.channels=64", "loss.energy.weight=[[0, 1], [1, 10]]", "zbl=true"]
    )
    config = resolve(values, "recipe.yaml")
    assert config.training.budget == 1800.0
    assert config.model.settings == {"channels": 64}
    assert config.model.zbl
    assert config.loss.energy.weight == [(0.0, 1.0), (1.0, 10.0)]
    assert DATA == {"data": {"train": "x.xyz"}}


def test_ambiguous_and_malformed_overrides() -> None:
    with pytest.raises(UserError, match=r"ambiguous.*loss\.energy\.weight"):
        apply_overrides({}, ["weight=3"])
    with pytest.raises(UserError, match="expected key=value"):
        apply_overrides({}, ["budget"])


def test_resolved_settings_come_back_from_yaml(tmp_path: Path) -> None:
    config = resolve(apply_overrides(DATA, ["epochs=3", "loss.forces.weight=[[0,1],[1,2]]", "model.cutoff=4.5"]), "x")
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(config))
    assert resolve(read_recipe(path), str(path)) == config


def test_recipes_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "good.yaml").write_text("data: {train: a}")
    with pytest.raises(UserError, match=r'god\.yaml: there is no such file.*"good\.yaml"'):
        read_recipe(tmp_path / "god.yaml")
    (tmp_path / "bad.yaml").write_text("data: [")
    with pytest.raises(UserError, match="not valid YAML"):
        read_recipe(tmp_path / "bad.yaml")
    (tmp_path / "list.yaml").write_text("- a")
    with pytest.raises(UserError, match="found list"):
        read_recipe(tmp_path / "list.yaml")


def test_recipes_in_the_repository_are_valid(repository: Path) -> None:
    recipes = sorted((repository / "recipes").glob("*.yaml"))
    assert recipes
    for path in recipes:
        if path.stem.startswith("compare-"):
            assert trials(read_comparison(path, {}), str(path))
        else:
            resolve(read_recipe(path), str(path))


def test_models_are_known_without_importing_them() -> None:
    code = "import sys; from mlpot.train.config import model_names as f; print(f()); assert 'torch' not in sys.modules"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == str(model_names())
    assert "schnet" in model_names()


def test_a_ramp_joins_its_points() -> None:
    assert ramp(2.0, 0.7) == 2.0
    assert [ramp([(0.0, 1.0), (0.5, 3.0)], p) for p in (0.0, 0.25, 0.5, 1.0)] == [1.0, 2.0, 3.0, 3.0]


def test_the_learning_rate_rises_and_falls() -> None:
    training = resolve({**DATA, "training": {"learning_rate": 0.01, "warmup": 0.1, "final_rate": 0.1}}, "x").training
    rates = [learning_rate(training, p, 1.0) for p in (0.05, 0.1, 0.55, 1.0)]
    assert rates == pytest.approx([0.005, 0.01, 0.0055, 0.001])
    plateau = training.model_copy(update={"schedule": "plateau"})
    assert learning_rate(plateau, 0.5, 0.25) == pytest.approx(0.0025)


def test_names_of_labels_and_units_need_no_section() -> None:
    values = apply_overrides({"data": {"train": "a.xyz"}}, ["keys.energy=REF_energy", "units.energy=kcal/mol"])
    config = resolve(values, "command line")
    assert config.data.keys == {"energy": "REF_energy"}
    assert config.data.units == {"energy": "kcal/mol"}
    assert apply_overrides({}, ["model.channels=8", "targets=[gap]"]) == {
        "model": {"channels": 8},
        "properties": {"targets": ["gap"]},
    }
