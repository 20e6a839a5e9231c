"""Training through the command line and the loop: resuming, processes, labels, failures."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch
import yaml

import mlpot
from mlpot import checkpoint
from mlpot.data.opening import open_dataset
from mlpot.data.store import frames_of, write_store
from mlpot.errors import UserError
from mlpot.models.mace import MACE
from mlpot.neighbors import neighbor_list
from mlpot.train.config import apply_overrides, resolve
from mlpot.train.run import Finished, Run, train

SMALL = ["model.channels=8", "model.n_basis=6", "model.n_interactions=2", "model.cutoff=5.5", "threads=1"]


def silent(text: str) -> None:
    """Take a line and say nothing."""


def run(data: Path, out: Path, *overrides: str) -> Finished:
    values = apply_overrides({"data": {"train": str(data)}, "out": str(out)}, [*SMALL, *overrides])
    return train(resolve(values, "test"), silent)


def parameters(folder: Path) -> dict[str, torch.Tensor]:
    return checkpoint.read(folder / "last.mlpot")["training"]["parameters"]


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(a[key], b[key]) for key in a)


def command(*words: str, **environment: str) -> list[str]:
    return [sys.executable, "-m", "mlpot", *words]


def test_training_lowers_the_errors_and_leaves_a_full_folder(clusters: Path, tmp_path: Path) -> None:
    run(clusters, tmp_path / "run", "epochs=30", "batch_size=4", "learning_rate=0.01", f"data.test={clusters}")
    assert {"config.yaml", "split.json", "log.csv", "best.mlpot", "last.mlpot", "metrics.json"} <= {
        path.name for path in (tmp_path / "run").iterdir()
    }
    rows = list(csv.DictReader((tmp_path / "run" / "log.csv").open()))
    first, last = (float(row["valid_forces_mae_meV_per_A"]) for row in (rows[0], rows[-1]))
    assert last < 0.5 * first
    assert int(rows[-1]["epoch"]) == 30
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["test"]["n_frames"] == 20
    model = mlpot.load(tmp_path / "run" / "best.mlpot")
    assert model.elements == (18,)
    assert model.metadata["data"]["sha256"] == open_dataset(clusters).sha
    assert set(model.metadata["versions"]) >= {"mlpot", "torch", "numpy"}


def test_same_seed_same_parameters_other_seed_others(clusters: Path, tmp_path: Path) -> None:
    options = ("epochs=2", "batch_size=4")
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        run(clusters, tmp_path / name, *options, f"seed={seed}")
    assert same(parameters(tmp_path / "a"), parameters(tmp_path / "b"))
    assert not same(parameters(tmp_path / "a"), parameters(tmp_path / "c"))


@pytest.mark.parametrize("schedule", ["cosine", "plateau"])
def test_a_killed_run_resumes_to_the_same_bits(clusters: Path, tmp_path: Path, schedule: str) -> None:
    options = ["epochs=40", "batch_size=3", f"schedule={schedule}", "plateau_patience=1", "valid_every=3", *SMALL]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run(
        command("train", str(clusters), f"out={whole}", *options), check=True, capture_output=True, env=environment
    )
    words = ["train", str(clusters), f"out={killed}", *options, "training.checkpoint_every=0.001"]
    process = subprocess.Popen(command(*words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    deadline = time.time() + 120
    while not (killed / "last.mlpot").exists() and time.time() < deadline:
        time.sleep(0.02)
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    done = checkpoint.read(killed / "last.mlpot")["training"]["progress"]
    assert done["fraction"] < 1.0, "the run was over before it was killed; the test shows nothing"
    subprocess.run(command("train", str(killed), "--resume"), check=True, capture_output=True, env=environment)
    assert same(parameters(whole), parameters(killed))
    a, b = checkpoint.read(whole / "last.mlpot"), checkpoint.read(killed / "last.mlpot")
    assert same(a["state_dict"], b["state_dict"])
    kept = ("epoch", "step", "learning_rate", "train_loss", "valid_loss", "valid_forces_mae_meV_per_A")
    logs = [[[row[key] for key in kept] for row in csv.DictReader((f / "log.csv").open())] for f in (whole, killed)]
    assert logs[0] == logs[1]


def test_two_processes_equal_one(mixed: Path, tmp_path: Path) -> None:
    options = ["epochs=3", "batch_size=5", "dtype=float64", "ema=0.9", *SMALL]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    one, two = tmp_path / "one", tmp_path / "two"
    subprocess.run(
        command("train", str(mixed), f"out={one}", *options), check=True, capture_output=True, env=environment
    )
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "mlpot"]
    result = subprocess.run(
        [*launcher, "train", str(mixed), f"out={two}", *options], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr
    a, b = parameters(one), parameters(two)
    for key in a:
        torch.testing.assert_close(b[key], a[key], rtol=0, atol=1e-6)
    rows = [list(csv.DictReader((folder / "log.csv").open()))[-1] for folder in (one, two)]
    for key in ("train_loss", "valid_loss", "valid_forces_mae_meV_per_A", "valid_stress_mae_meV_per_A3"):
        assert float(rows[1][key]) == pytest.approx(float(rows[0][key]), rel=1e-6)


def test_stress_and_config_types_of_a_mixed_set(mixed: Path, tmp_path: Path) -> None:
    finished = run(mixed, tmp_path / "run", "epochs=25", "batch_size=4", "learning_rate=0.01", f"data.test={mixed}")
    test = finished.metrics["test"]
    assert set(test["per_config_type"]) == {"cluster", "bulk"}
    assert "stress" in test["per_config_type"]["bulk"]
    assert "stress" not in test["per_config_type"]["cluster"]
    assert test["stress"]["n"] == 8 * 9
    assert set(test["per_element"]) == {"Ar"}


def test_stress_of_a_trained_model_has_the_sign_of_the_labels(tmp_path: Path) -> None:
    from ase.build import bulk

    from tests.train.conftest import labelled

    frames = [labelled(bulk("Ar", "fcc", a=a, cubic=True), stress=True) for a in np.linspace(4.9, 5.6, 16)]
    ase.io.write(tmp_path / "fcc.xyz", frames)
    options = ["epochs=150", "batch_size=4", "learning_rate=0.01", "data.valid=2", "loss.stress.weight=1000"]
    finished = run(tmp_path / "fcc.xyz", tmp_path / "run", *options)
    compressed, stretched = frames[0].copy(), frames[-1].copy()
    for atoms, label in ((compressed, frames[0]), (stretched, frames[-1])):
        atoms.calc = mlpot.Calculator(finished.potential)
        assert np.sign(atoms.get_stress()[:3]).tolist() == np.sign(label.get_stress()[:3]).tolist()
    assert compressed.get_stress()[0] < 0 < stretched.get_stress()[0]


def test_energies_alone_train_without_a_force_being_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlpot.train import energies
    from tests.train.conftest import cluster

    frames = [cluster(k) for k in range(8)]
    for atoms in frames:
        del atoms.calc.results["forces"]
    ase.io.write(tmp_path / "energies.xyz", frames)
    asked = []
    real = energies.predict
    monkeypatch.setattr(energies, "predict", lambda *a, **k: asked.append(k.get("forces")) or real(*a, **k))
    run(tmp_path / "energies.xyz", tmp_path / "run", "epochs=2")
    assert asked
    assert not any(asked)


def test_a_force_weight_of_zero_leaves_forces_out(
    clusters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlpot.train import energies

    asked = []
    real = energies.predict
    monkeypatch.setattr(energies, "predict", lambda *a, **k: asked.append(k.get("forces")) or real(*a, **k))
    run(clusters, tmp_path / "run", "epochs=1", "loss.forces.weight=0")
    assert not any(asked)


def test_a_batch_larger_than_the_set_is_said(clusters: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    values = apply_overrides(
        {"data": {"train": str(clusters)}, "out": str(tmp_path / "run")}, [*SMALL, "epochs=1", "batch_size=1000"]
    )
    train(resolve(values, "test"), lines.append)
    assert any("batch_size: 18, all the training frames (1000 were asked for)" in line for line in lines)


@pytest.mark.parametrize("size", ["batch_atoms=11", "batch_edges=60"])
def test_batches_by_size_see_every_frame(clusters: Path, tmp_path: Path, size: str) -> None:
    values = apply_overrides(
        {"data": {"train": str(clusters)}, "out": str(tmp_path / "run")}, [*SMALL, "epochs=1", size]
    )
    plan = Run(resolve(values, "test"), silent).trainer.plan(0)
    assert sorted(np.concatenate(plan).tolist()) == list(range(18))
    assert len(plan) > 2


def test_a_budget_ends_on_time_with_the_schedule_at_its_end(clusters: Path, tmp_path: Path) -> None:
    began = time.perf_counter()
    finished = run(clusters, tmp_path / "run", "budget=3s", "batch_size=4")
    assert 3.0 <= finished.metrics["train_seconds"] < 6.0
    assert time.perf_counter() - began < 30
    rows = list(csv.DictReader((tmp_path / "run" / "log.csv").open()))
    assert float(rows[-1]["learning_rate"]) < 1e-5
    assert max(float(row["learning_rate"]) for row in rows) > 3e-4


def test_nan_stops_the_run_and_names_the_frames(clusters: Path, tmp_path: Path) -> None:
    frames = ase.io.read(clusters, ":")
    frames[7].calc.results["energy"] = 1e200  # its square overflows
    ase.io.write(tmp_path / "bad.xyz", frames)
    out = tmp_path / "run"
    options = [
        "epochs=3",
        "batch_size=2",
        "data.valid=0",
        "data.reference_energies=none",
        "loss.energy.kind=mse",
        "training.checkpoint_every=0.0001",
    ]
    with pytest.raises(UserError, match=r"training stopped at epoch 1, step \d+: the loss is inf.* frames \[.*7.*\]"):
        run(tmp_path / "bad.xyz", out, *options)
    if (out / "last.mlpot").exists():  # from before the step
        assert all(torch.isfinite(value).all() for value in parameters(out).values())


def test_a_store_trains_as_its_source_does(clusters: Path, tmp_path: Path) -> None:
    write_store(tmp_path / "clusters.h5", frames_of(open_dataset(clusters)))
    for name, source in (("xyz", clusters), ("h5", tmp_path / "clusters.h5")):
        run(source, tmp_path / name, "epochs=2", "batch_size=4")
    assert same(parameters(tmp_path / "xyz"), parameters(tmp_path / "h5"))


def test_elements_in_another_order_train_the_same_model(tmp_path: Path) -> None:
    from ase.build import molecule
    from ase.calculators.emt import EMT

    frames = []
    for k in range(8):
        atoms = molecule("H2O")
        atoms.rattle(0.05, seed=k)
        atoms.calc = EMT()
        atoms.get_forces()
        frames.append(atoms)
    ase.io.write(tmp_path / "a.xyz", frames)
    turned = []
    for atoms in frames:
        other = atoms[[2, 0, 1]]
        other.calc = EMT()
        other.get_forces()
        turned.append(other)
    ase.io.write(tmp_path / "b.xyz", turned)
    energies = []
    for name in ("a", "b"):
        finished = run(tmp_path / f"{name}.xyz", tmp_path / name, "epochs=2", "dtype=float64")
        graph = mlpot.AtomsGraph.from_ase(frames[0], 5.5)
        energies.append(float(mlpot.predict(finished.potential, graph).energy[0]))
    assert energies[0] == pytest.approx(energies[1], abs=1e-9)


def test_weights_of_config_types_reach_the_loss(mixed: Path, tmp_path: Path) -> None:
    options = ["epochs=2", "batch_size=16", "data.valid=0", "loss.stress.weight=0", "data.reference_energies=none"]
    frames = ase.io.read(mixed, ":")
    for atoms in frames[1::2]:  # spoil what has weight zero
        atoms.calc.results["energy"] += 7.0
        atoms.calc.results["forces"] *= -3.0
    ase.io.write(tmp_path / "spoilt.xyz", frames)
    model = []
    for name, source in (("a", mixed), ("b", tmp_path / "spoilt.xyz")):
        # The scale of the network comes from all frames, so it is taken from the first run's data for both.
        values = apply_overrides({"data": {"train": str(source)}, "out": str(tmp_path / name)}, [*SMALL, *options])
        values["data"] = {**values["data"], "config_weights": {"bulk": 0.0}}
        started = Run(resolve(values, "test"), silent)
        started.start()
        started.potential.parts[0].config = started.potential.parts[0].config.model_copy(update={"scale": 0.1})
        started.trainer.fit()
        model.append(parameters(tmp_path / name))
    assert same(*model)


def test_tensorboard_logs_are_written_when_asked_for(clusters: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the package tensorboard")
    run(clusters, tmp_path / "run", "epochs=1", "tensorboard=true")
    assert list((tmp_path / "run" / "tensorboard").glob("events.*"))


def test_want_of_memory_gives_the_levers(clusters: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlpot.train import energies

    def no_memory(*arguments: object, **more: object) -> None:
        raise RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory")

    monkeypatch.setattr(energies, "predict", no_memory)
    with pytest.raises(
        UserError, match=r"out of memory on cpu with a batch of 4 frames, \d+ atoms and \d+ edges.*batch_size"
    ):
        run(clusters, tmp_path / "run", "epochs=1", "batch_size=4")


def test_a_term_that_was_asked_for_and_has_no_labels_is_refused(clusters: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"loss\.stress\.weight is 5.*no training frame has stress"):
        run(clusters, tmp_path / "run", "epochs=1", "loss.stress.weight=5")
    assert not (tmp_path / "run").exists()
    finished = run(clusters, tmp_path / "run", "epochs=1")
    assert finished.prepared.config.loss.stress.weight == 0.0


def test_what_the_command_line_refuses(clusters: Path, tmp_path: Path) -> None:
    def refused(*words: str) -> str:
        result = subprocess.run(command(*words), capture_output=True, text=True, cwd=tmp_path)
        assert result.returncode == 2, result.stdout + result.stderr
        assert "Traceback" not in result.stderr
        return " ".join(result.stderr.split())

    (tmp_path / "empty.xyz").write_text("")
    assert "the file is empty" in refused("train", "empty.xyz")
    assert 'Did you mean "training.learning_rate"' in refused("train", str(clusters), "learning_rat=1")
    assert 'Did you mean "clusters.xyz"' in refused("train", str(clusters.parent / "cluster.xyz"))
    assert "no such run folder" in refused("train", "nowhere", "--resume")
    assert "no CUDA device" in refused("train", str(clusters), "device=cuda", "epochs=1") or torch.cuda.is_available()
    assert 'unknown setting "chanels"' in refused("train", str(clusters), "model.chanels=3", "epochs=1")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thing").write_text("x")
    assert "there is a run in this folder" in refused("train", str(clusters), "out=other", "epochs=1")
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").iterdir())


def test_a_run_that_comes_apart_says_so_once(clusters: Path, tmp_path: Path) -> None:
    wild = ["learning_rate=10", "training.warmup=0.5", "training.clip=null", "training.ema=null"]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(clusters, tmp_path / "run", "epochs=40", "batch_size=4", "training.valid_every=1", *wild)
    said = [str(one.message) for one in caught if "come apart" in str(one.message)]
    assert len(said) == 1
    assert "learning_rate below 10" in said[0]


def test_a_model_is_told_the_elements_and_the_neighbours_of_its_data(mixed: Path, tmp_path: Path) -> None:
    small = ["model.name=mace", "model.channels=4", "model.l_max=1", "model.correlation=2", "model.cutoff=4.5"]
    values = {"data": {"train": str(mixed)}, "out": str(tmp_path / "run")}
    train(resolve(apply_overrides(values, [*small, "epochs=2", "batch_size=4", "threads=1"]), "test"), silent)
    potential = mlpot.load(tmp_path / "run" / "best.mlpot")
    network = next(module for module in potential.modules() if isinstance(module, MACE))
    assert network.config.elements == (18,)
    frames = open_dataset(mixed)
    counts = [neighbor_list(frames[k].structure, 4.5)[0].shape[1] for k in range(len(frames))]
    assert network.config.average_neighbors == pytest.approx(sum(counts) / frames.n_atoms().sum(), rel=0.15)
    saved = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["model"]
    assert saved["elements"] == [18]
    assert saved["average_neighbors"] == network.config.average_neighbors


@pytest.mark.parametrize("wrong", ["model.cutoff=abc", "model.cutoff=-1", "model.chanels=4"])
def test_settings_that_do_not_fit_the_model_are_one_message(mixed: Path, tmp_path: Path, wrong: str) -> None:
    values = {"data": {"train": str(mixed)}, "out": str(tmp_path / "run")}
    with pytest.raises(UserError, match="model mace: "):
        train(resolve(apply_overrides(values, ["model.name=mace", "epochs=1", wrong]), "test"), silent)
