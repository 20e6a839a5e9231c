"""mlpot compare: every run once, its figures those of the run, and a report that stands alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from typer.testing import CliRunner

from mlpot.cli import app
from mlpot.compare.config import Comparison, laid_over, read_comparison, trials, variants
from mlpot.compare.runs import similarity
from mlpot.data.dataset import MemoryDataset
from mlpot.data.frame import Frame
from mlpot.data.loader import Loader
from mlpot.errors import UserError
from mlpot.models import build
from mlpot.report.compare import front, spread
from mlpot.structure import Structure
from tests.train.conftest import cluster

BASE = {"training": {"epochs": 1, "batch_size": 4}, "model": {"name": "schnet", "channels": 8}, "threads": 1}


def recipe(folder: Path, data: Path, **more: object) -> Path:
    settings = {"base": {**BASE, "data": {"train": str(data), "valid": 4}}, "out": str(folder / "out"), **more}
    path = folder / "compare.yaml"
    path.write_text(yaml.safe_dump(settings, sort_keys=False))
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    import ase.io

    ase.io.write(tmp_path / "clusters.xyz", [cluster(k) for k in range(16)])
    return tmp_path / "clusters.xyz"


def test_every_variant_seed_and_size_is_a_run_of_its_own(tmp_path: Path, data: Path) -> None:
    path = recipe(
        tmp_path,
        data,
        variants={"schnet": {}, "painn": {"model": {"name": "painn"}}},
        grid={"model.n_interactions": [1, 2]},
        seeds=[0, 5],
        train_sizes=[6, 12],
    )
    found = trials(read_comparison(path, {}), str(path))
    assert len(found) == len({trial.folder for trial in found}) == 2 * 2 * 2 * 2
    assert {trial.config.seed for trial in found} == {0, 5}
    last = found[-1]
    assert last.variant == "painn, n_interactions 2"
    assert last.config.model.settings == {"channels": 8, "n_interactions": 2}
    assert last.config.data.train_size == 12


def test_settings_reach_into_sections_and_leave_the_base_alone() -> None:
    base = {"model": {"name": "schnet", "channels": 8}}
    assert laid_over(base, {"model.channels": 4, "seed": 1}) == {"model": {"name": "schnet", "channels": 4}, "seed": 1}
    assert laid_over(base, {"model": {"name": "painn"}})["model"] == {"name": "painn", "channels": 8}
    assert base == {"model": {"name": "schnet", "channels": 8}}
    assert list(variants(Comparison(base=base, grid={"model.channels": [4, 8]}))) == ["channels 4", "channels 8"]


def test_a_comparison_runs_reports_and_goes_on_where_it_stopped(tmp_path: Path, data: Path) -> None:
    path = recipe(
        tmp_path, data, grid={"model.n_interactions": [1, 2]}, seeds=[0, 1], plots=[{"over": "model.n_interactions"}]
    )
    first = CliRunner().invoke(app, ["compare", str(path), "--json"], catch_exceptions=False)
    assert first.exit_code == 0
    answer = json.loads(first.stdout.splitlines()[-1])
    assert len(answer["runs"]) == 4
    for run in answer["runs"]:
        folder = f"n_interactions-{run['variant'][-1]}_seed{run['seed']}"
        metrics = json.loads((tmp_path / "out" / "runs" / folder / "metrics.json").read_text())
        assert run["forces MAE (meV/Å)"] == metrics["valid"]["forces_mae_meV_per_A"]
        assert run["parameters"] == metrics["parameters"]
        assert run["microseconds_per_atom"] > 0
    text = (tmp_path / "out" / "report.html").read_text()
    assert "http://" not in text.replace("http://www.w3.org", "")
    for heading in ("Errors against cost", "Errors against seconds of training", "Errors against settings"):
        assert heading in text
    before = [(p, p.stat().st_mtime_ns) for p in (tmp_path / "out" / "runs").rglob("best.mlpot")]
    again = CliRunner().invoke(app, ["compare", str(path), "--json"], catch_exceptions=False)
    assert json.loads(again.stdout.splitlines()[-1])["runs"] == answer["runs"]
    assert before == [(p, p.stat().st_mtime_ns) for p in (tmp_path / "out" / "runs").rglob("best.mlpot")]


def test_a_run_that_fails_is_said_and_the_others_count(tmp_path: Path, data: Path) -> None:
    path = recipe(tmp_path, data, variants={"good": {}, "bad": {"data": {"train": str(tmp_path / "none.xyz")}}})
    result = CliRunner().invoke(app, ["compare", str(path), "--json"], catch_exceptions=False)
    answer = json.loads(result.stdout.splitlines()[-1])
    assert [run["variant"] for run in answer["runs"]] == ["good"]
    assert "no such file" in answer["failed"]["bad_seed0"]
    assert "no such file" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variant": {}}, 'unknown setting "variant". Did you mean "variants"'),
        ({}, "give variants, a grid, or both"),
        (
            {"variants": {"a": {"model": {"nam": "schnet", "name": "schnett"}}}},
            'variant a: model.name: unknown model "schnett"',
        ),
        ({"grid": {"training.epoks": [1]}}, "training.epochs"),
        ({"variants": {"a": {}}, "seeds": []}, "seeds"),
    ],
)
def test_wrong_settings_are_named(tmp_path: Path, data: Path, change: dict[str, object], message: str) -> None:
    path = recipe(tmp_path, data, **change)
    with pytest.raises(UserError) as caught:
        trials(read_comparison(path, {}), str(path))
    assert message in str(caught.value)


def test_similarity_is_the_mean_cosine_of_pairs() -> None:
    torch.manual_seed(0)
    model = build("schnet", cutoff=4.0, channels=8)
    structure = Structure.of([6, 1, 8], [[0, 0, 0], [1.1, 0, 0], [0, 1.2, 0.3]])
    alone = Structure.of([6], [[0, 0, 0]])
    batch = Loader(MemoryDataset([Frame(structure), Frame(alone)]), 4.0).batch([0, 1])
    x = model.features(batch.graph).scalars[:3].double()
    pairs = [torch.cosine_similarity(x[i], x[j], dim=0) for i in range(3) for j in range(3) if i != j]
    assert similarity(model, batch) == pytest.approx(torch.stack(pairs).mean().item(), abs=1e-9)


def test_the_front_holds_what_nothing_beats() -> None:
    points = {"a": (1.0, 5.0), "b": (2.0, 6.0), "c": (3.0, 2.0), "d": (4.0, 2.5)}
    assert front(points, False) == [(1.0, 5.0), (3.0, 2.0)]
    assert front(points, True) == [(1.0, 5.0), (2.0, 6.0)]
    assert spread([1.0, 3.0]) == "2.00 ± 1.4"
    assert spread([float("nan")]) == "–"
