"""The demonstration: a potential from the data that come along, its errors on unseen frames, dynamics, one report."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from mlpot.data.opening import open_dataset
from mlpot.errors import UserError
from mlpot.report.demo import write_demo_report
from mlpot.report.finished import training_result
from mlpot.report.inputs import Dynamics, Reference
from mlpot.structure import Structure
from mlpot.train.config import resolve
from mlpot.train.run import Finished, train, write_text

KELVIN = 500.0
TIMESTEP = 0.5  # fs
GOALS = {"forces_mae_meV_per_A": 25.0, "nve_drift_meV_per_atom_per_ps": 1.0}
SETTINGS: dict[str, Any] = {
    "model": {"name": "schnet", "cutoff": 5.0, "channels": 64, "n_interactions": 3, "n_basis": 20},
    "loss": {"energy": {"kind": "mae", "weight": 1.0}, "forces": {"kind": "mae"}},
    "training": {"batch_size": 10, "learning_rate": 1.5e-2, "ema": 0.995},
}
Say = Callable[[str], None]


def run_demo(out: Path, data: Path, budget: str, picoseconds: float, device: str, say: Say) -> dict[str, Any]:
    """Train for `budget`, run two dynamics of `picoseconds`, write metrics.json, report.html and the trajectories.

    Returns the figures of metrics.json. `data` holds ethanol_gfn2_500K_train.npz and ..._test.npz.
    """
    began = time.perf_counter()
    train_file, test_file = (data / f"ethanol_gfn2_500K_{part}.npz" for part in ("train", "test"))
    for file in (train_file, test_file):
        if not file.is_file():
            raise UserError(
                f"{file}: the data of the demonstration are not here. Run it from the repository, or give --data."
            )
    finished = _train(out, train_file, test_file, budget, device, say)
    say(f"two dynamics of {picoseconds:g} ps at {KELVIN:g} K, one without and one with a thermostat ...")
    start = open_dataset(test_file)[0].structure
    nve, nvt = _dynamics(finished.folder / "best.mlpot", start, out, picoseconds, device)
    test = finished.metrics["test"]
    metrics = {
        "force_mae_meV_per_A": test["forces_mae_meV_per_A"],
        "force_rmse_meV_per_A": test["forces_rmse_meV_per_A"],
        "energy_mae_meV_per_atom": test["energy_mae_meV_per_atom"],
        "nve_drift_meV_per_atom_per_ps": nve.drift(),
        "nvt_temperature_K": float(nvt.temperature[len(nvt.temperature) // 5 :].mean()),
        "train_seconds": finished.metrics["train_seconds"],
        "epochs": finished.metrics["epochs"],
        "total_seconds": time.perf_counter() - began,
        "run": finished.metrics,
    }
    labelled = open_dataset(train_file)
    reference = Reference(
        "GFN2-xTB, 500 K", start.numbers, np.array([labelled[i].structure.positions for i in range(len(labelled))])
    )
    write_demo_report(
        out / "report.html",
        title="mlpot: from data to dynamics",
        subtitle="SchNet trained on 1,000 frames of ethanol (GFN2-xTB, 500 K)",
        training=training_result(finished, GOALS),
        dynamics=(nve, nvt),
        reference=reference,
    )
    metrics["total_seconds"] = time.perf_counter() - began
    write_text(out / "metrics.json", json.dumps(metrics, indent=2))
    for line in _summary(metrics, out):
        say(line)
    return metrics


def _train(out: Path, train_file: Path, test_file: Path, budget: str, device: str, say: Say) -> Finished:
    if (out / "metrics.json").is_file():
        shutil.rmtree(out)  # an earlier demonstration
    elif out.exists() and any(out.iterdir()) and not (out / "run").is_dir():
        raise UserError(f"{out}: the folder holds other things; choose another with --out.")
    shutil.rmtree(out / "run", ignore_errors=True)
    values = {
        "data": {"train": str(train_file), "valid": 50, "test": str(test_file), "theory": "GFN2-xTB"},
        **SETTINGS,
        "training": {**SETTINGS["training"], "budget": budget},
        "out": str(out / "run"),
        "device": device,
    }
    return train(resolve(values, "demo"), say)


def _dynamics(model: Path, start: Structure, out: Path, picoseconds: float, device: str) -> list[Dynamics]:
    """NVE and NVT side by side, each in a process and on a core of its own."""
    jobs = [(ensemble, model, start, out / f"{ensemble}.xyz", picoseconds, device) for ensemble in ("nve", "langevin")]
    # Spawned, not forked: a fork would inherit torch's thread pools in a state of their own.
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(_one, jobs))


def _one(job: tuple[str, Path, Structure, Path, float, str]) -> Dynamics:
    import torch

    from mlpot.allocator import keep_freed_memory
    from mlpot.calculator import Calculator
    from mlpot.convert import ase as convert
    from mlpot.simulate.md import run_md

    ensemble, model, start, path, picoseconds, device = job
    keep_freed_memory()
    torch.set_num_threads(1)
    atoms = convert.atoms(start)
    atoms.calc = Calculator(model, device=device)
    steps = round(1000.0 * picoseconds / TIMESTEP)
    result = run_md(
        atoms,
        output=path,
        overwrite=True,
        ensemble=ensemble,
        steps=steps,
        timestep=TIMESTEP,
        temperature=KELVIN,
        every=10,
        seed=0 if ensemble == "nve" else 1,
    )
    thermostat = "no thermostat" if ensemble == "nve" else "a Langevin thermostat"
    return Dynamics(
        name="NVE" if ensemble == "nve" else f"NVT, {KELVIN:g} K",
        times_fs=result.times_fs,
        potential_energy=result.potential_energy,
        kinetic_energy=result.kinetic_energy,
        temperature=result.temperature,
        numbers=start.numbers,
        positions=result.positions,
        frame_times_fs=result.frame_times_fs,
        target_temperature=None if ensemble == "nve" else KELVIN,
        conserves_energy=ensemble == "nve",
        description=f"{steps} steps of {TIMESTEP:g} fs, {thermostat}; from a test frame, velocities of {KELVIN:g} K.",
    )


def _summary(metrics: dict[str, Any], out: Path) -> list[str]:
    return [
        f"forces: MAE {metrics['force_mae_meV_per_A']:.1f} meV/Å on frames never seen (goal: under 25)",
        f"energy: MAE {metrics['energy_mae_meV_per_atom']:.2f} meV/atom",
        f"NVE: drift {metrics['nve_drift_meV_per_atom_per_ps']:+.3f} meV/atom/ps (goal: within 1)",
        f"{metrics['total_seconds']:.0f} s in all, {metrics['train_seconds']:.0f} s of training",
        f"open {out / 'report.html'}",
    ]
