"""Training what is compared, run by run, and gathering what each left behind."""

from __future__ import annotations

import csv
import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mlpot.compare.config import Trial
from mlpot.data.dataset import Dataset
from mlpot.data.loader import Batch, Loader
from mlpot.errors import UserError
from mlpot.model import Model
from mlpot.potential import Potential
from mlpot.property_model import PropertyModel
from mlpot.train.objective import Objective
from mlpot.train.run import read_run, train, write_text

TIMED_ATOMS, TIMED_CALLS = 600, 7


@dataclass(frozen=True)
class Outcome:
    """One run of a comparison and what came of it.

    errors: main figures by name, e.g. {"forces MAE (meV/Å)": 18.3}, on the test frames, or the validation frames where
    there are none (`on`). seconds: of training. microseconds_per_atom: of one prediction of a batch. similarity: mean
    cosine between the features of two atoms of a structure after the last layer, 1 where all are alike.
    """

    trial: Trial
    on: str
    errors: dict[str, float]
    parameters: int
    seconds: float
    epochs: int
    microseconds_per_atom: float
    similarity: float
    rows: list[dict[str, float]]


def run_all(trials: Sequence[Trial], say: Callable[[str], None]) -> tuple[list[Outcome], dict[str, str]]:
    """Train what is not finished yet, one run after the other. Outcomes, and the reasons of runs that failed."""
    outcomes, failed = [], {}
    for number, trial in enumerate(trials, 1):
        done = trial.folder / "compared.json"
        if not done.is_file():
            say(f"run {number} of {len(trials)}: {trial.folder.name}")
            try:
                _train(trial, say)
            except UserError as error:
                failed[trial.folder.name] = str(error)
                say(f"failed: {error}")
                continue
        outcomes.append(_read(trial))
    return outcomes, failed


def _train(trial: Trial, say: Callable[[str], None]) -> None:
    resume = (trial.folder / "last.mlpot").is_file()
    config = read_run(trial.folder) if resume else trial.config
    finished = train(config, say, resume)
    prepared = finished.prepared
    shown = prepared.test if prepared.test is not None else prepared.valid
    model = finished.potential
    measured: dict[str, Any] = {"microseconds_per_atom": math.nan, "similarity": math.nan}
    if shown is not None:
        batch = _batch(shown, model)
        measured["microseconds_per_atom"] = microseconds_per_atom(model, batch, prepared.objective)
        measured["similarity"] = similarity(model, batch)
    write_text(trial.folder / "compared.json", json.dumps(measured))


def _batch(dataset: Dataset, model: Model) -> Batch:
    """The first frames of a set, up to some hundred atoms."""
    sizes = np.cumsum(dataset.n_atoms())
    n = max(1, int(np.searchsorted(sizes, TIMED_ATOMS)))
    return Loader(dataset, model.cutoff).batch(np.arange(min(n, len(dataset)))).to(next(model.parameters()).device)


def microseconds_per_atom(model: Model, batch: Batch, objective: Objective) -> float:
    """Median time of a prediction of a batch, an atom; edges are found beforehand, tables of edges are not."""
    model.eval()
    times = []
    for _ in range(TIMED_CALLS + 1):
        fresh = Batch(batch.graph.to(batch.graph.device), batch.labels)
        start = time.perf_counter()
        objective.predict(model, fresh, False)
        if batch.graph.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 1e6 * statistics.median(times[1:]) / batch.graph.n_atoms


@torch.no_grad()
def similarity(model: Model, batch: Batch) -> float:
    """Mean cosine between the features of two different atoms of a structure; NaN where a model shows no features.

    1 where all atoms are alike: what deep message passing without residuals tends to (Li et al., arXiv:1801.07606).
    """
    network = model.backbone if isinstance(model, PropertyModel) else _network(model)
    if network is None or not network.channels:
        return math.nan
    x = torch.nn.functional.normalize(network.features(batch.graph).scalars.double(), dim=1)
    n = torch.bincount(batch.graph.batch, minlength=batch.graph.n_structures)
    sums = x.new_zeros(len(n), x.shape[1]).index_add(0, batch.graph.batch, x)
    pairs = (n * (n - 1)).clamp(min=1)
    cosines = (sums.square().sum(1) - n) / pairs
    return float(cosines[n > 1].mean()) if bool((n > 1).any()) else math.nan


def _network(model: Model) -> Potential | None:
    """The first network with features inside a potential made of others."""
    for module in model.modules():
        if isinstance(module, Potential) and module.channels:
            return module
    return None


def _read(trial: Trial) -> Outcome:
    metrics = json.loads((trial.folder / "metrics.json").read_text(encoding="utf-8"))
    measured = json.loads((trial.folder / "compared.json").read_text(encoding="utf-8"))
    on = "test" if "test" in metrics else "valid"
    with (trial.folder / "log.csv").open(newline="") as file:
        rows = [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(file)]
    return Outcome(
        trial,
        on,
        main_errors(metrics.get(on, {})),
        metrics["parameters"],
        metrics["train_seconds"],
        metrics["epochs"],
        measured["microseconds_per_atom"],
        measured["similarity"],
        rows,
    )


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def main_errors(summary: dict[str, Any]) -> dict[str, float]:
    """The figures of a set that a comparison shows, by the words for them."""
    if "targets" in summary:
        found = {}
        for name, entry in summary["targets"].items():
            unit = f" ({entry['unit']})" if entry["unit"] else ""
            for figure in dict.fromkeys((entry["figure"], *(["rmse"] if "rmse" in entry else ["pr_auc"]))):
                if figure in entry:
                    found[f"{name} {figure.upper().replace('_', ' ')}{unit if 'auc' not in figure else ''}"] = entry[
                        figure
                    ]
        return found
    words = {
        "forces_mae_meV_per_A": "forces MAE (meV/Å)",
        "forces_rmse_meV_per_A": "forces RMSE (meV/Å)",
        "energy_mae_meV_per_atom": "energy MAE (meV/atom)",
        "stress_mae_meV_per_A3": "stress MAE (meV/Å³)",
    }
    return {text: summary[key] for key, text in words.items() if key in summary}


def folder_of(out: str) -> Path:
    """The folder of a comparison, made where it is not there."""
    folder = Path(out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot be made ({error.strerror}).") from None
    return folder
