"""mlpot bench: systems that are what they say, rows by name, recipes beside what was recorded for them."""

from __future__ import annotations

import json
from pathlib import Path

import ase.io
import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from mlpot.bench import speed
from mlpot.bench.systems import SYSTEMS
from mlpot.cli import app
from mlpot.errors import UserError
from tests.train.conftest import cluster


@pytest.mark.parametrize(("name", "n"), [("ethanol", 9), ("aspirin", 21), ("water192", 192), ("si216", 216)])
def test_systems_are_sound(name: str, n: int) -> None:
    atoms, again = SYSTEMS[name](), SYSTEMS[name]()
    assert len(atoms) == n
    np.testing.assert_array_equal(atoms.positions, again.positions)
    distances = atoms.get_all_distances(mic=bool(atoms.pbc.any()))
    assert distances[np.triu_indices(n, 1)].min() > 0.9
    if name == "water192":
        density = atoms.get_masses().sum() / atoms.get_volume() * 1.66054
        assert density == pytest.approx(1.0, abs=0.01)


def test_a_row_is_timed_and_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "BUDGET", 0.01)
    out = tmp_path / "speed.json"
    words = ["bench", "speed", "schnet", "ethanol", "-o", str(out), "--json"]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    value = json.loads(result.stdout.splitlines()[-1])
    assert set(value["rows"]) == {"schnet/ethanol/calculate", "schnet/ethanol/train"}
    for row in value["rows"].values():
        assert 0 < row["least_ms"] <= row["ms"]
    assert json.loads(out.read_text())["rows"] == value["rows"]
    assert {"date", "command", "hardware", "versions", "threads"} <= set(value)


def test_an_unknown_row_is_named() -> None:
    with pytest.raises(UserError, match=r'unknown row "watr192"\. Did you mean "water192"'):
        CliRunner().invoke(app, ["bench", "speed", "watr192"], catch_exceptions=False)
    with pytest.raises(UserError, match="no row is all of si216, train"):
        CliRunner().invoke(app, ["bench", "speed", "si216", "train"], catch_exceptions=False)


def test_a_recipe_is_run_again_beside_its_record(tmp_path: Path) -> None:
    ase.io.write(tmp_path / "clusters.xyz", [cluster(k) for k in range(12)])
    recipe = tmp_path / "small.yaml"
    settings = {
        "data": {"train": str(tmp_path / "clusters.xyz"), "valid": 4},
        "model": {"name": "schnet", "channels": 8},
        "training": {"epochs": 1},
        "threads": 1,
    }
    recipe.write_text(yaml.safe_dump(settings))
    out = tmp_path / "results" / "small.json"
    words = ["bench", "accuracy", str(recipe), f"out={tmp_path / 'run'}"]
    CliRunner().invoke(app, [*words, "-o", str(out)], catch_exceptions=False)
    kept = json.loads(out.read_text())
    assert kept["errors"]["valid"]["forces MAE (meV/Å)"] > 0
    assert kept["curve"][-1]["epoch"] == 1
    again = CliRunner().invoke(app, [*words[:3], f"out={tmp_path / 'again'}", "--json"], catch_exceptions=False)
    value = json.loads(again.stdout.splitlines()[-1])
    assert value["errors"] == kept["errors"]  # the same seed, the same epochs
    assert f"{kept['errors']['valid']['forces MAE (meV/Å)']:.4g}" in again.stderr
