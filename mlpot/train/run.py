"""A training run in its folder: config.yaml, split.json, log.csv, best.mlpot, last.mlpot, metrics.json, report.html."""

from __future__ import annotations

import csv
import json
import os
import platform
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
import yaml

from mlpot import __version__, checkpoint
from mlpot.data.loader import Loader
from mlpot.data.split import save_split
from mlpot.device import device_of
from mlpot.errors import UserError
from mlpot.model import Model
from mlpot.structure import SYMBOLS
from mlpot.train.config import Config, resolve, to_yaml
from mlpot.train.distributed import World
from mlpot.train.loop import Listener, Trainer
from mlpot.train.objective import Table
from mlpot.train.setup import Prepared, prepare

Say = Callable[[str], None]


@dataclass(frozen=True)
class Finished:
    """What a run leaves: its folder, the metrics of metrics.json, the best model, and the errors of each set."""

    folder: Path
    metrics: dict[str, Any]
    potential: Model
    prepared: Prepared
    rows: list[dict[str, Any]]
    tables: dict[str, Table]


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    found = {"mlpot": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "ase", "vesin", "h5py"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "?"
    return found


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


class Log:
    """log.csv: a row a validation. On resuming, rows after the checkpoint are dropped, so that each appears once."""

    def __init__(self, path: Path, board: Callable[[], Any] | None) -> None:
        self.path, self._make_board = path, board
        self.rows: list[dict[str, Any]] = []
        self._board: Any = None

    def keep_until(self, step: int) -> None:
        """Read the rows of an earlier part of the run up to a step."""
        if self.path.is_file():
            with self.path.open(newline="") as file:
                rows = [{k: _value(v) for k, v in row.items()} for row in csv.DictReader(file)]
            self.rows = [row for row in rows if isinstance(row.get("step"), int) and row["step"] <= step]
            self._write()

    def add(self, row: dict[str, Any]) -> None:
        """Append a row."""
        self.rows.append(row)
        self._write()
        if self._make_board is not None:
            self._board = self._board or self._make_board()
            for key, value in row.items():
                self._board.add_scalar(key, value, row["step"])
            self._board.flush()

    def _write(self) -> None:
        columns = list(dict.fromkeys(key for row in self.rows for key in row))
        temporary = self.path.with_name(f".{self.path.name}.new")
        with temporary.open("w", newline="") as file:
            writer = csv.DictWriter(file, columns)
            writer.writeheader()
            writer.writerows(self.rows)
        os.replace(temporary, self.path)


def _value(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except (TypeError, ValueError):
            continue
    return text


def _board(folder: Path) -> Callable[[], Any]:
    """What makes the TensorBoard writer at the first row; UserError now where the package is not there."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise UserError("tensorboard=true needs the package tensorboard: pip install 'mlpot[logging]'.") from None
    return lambda: SummaryWriter(str(folder / "tensorboard"))


class Run:
    """One run and its folder."""

    def __init__(
        self, config: Config, say: Say, resume: bool = False, watch: Callable[[float], None] | None = None
    ) -> None:
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self.device = device_of(config.device)
        self.world = World(self.device)
        if self.device.type == "cuda" and self.device.index is None and self.world.size > 1:
            self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(self.device)
        self.say: Say = say if self.world.first else lambda text: None
        self._watch = watch or (lambda fraction: None)
        self.folder = Path(config.out or f"runs/{Path(config.data.train).stem}")
        self._check_folder(resume)
        self.prepared = prepare(config)
        if self.prepared.config.threads is not None:
            torch.set_num_threads(self.prepared.config.threads)
        self.config = self.prepared.config.model_copy(update={"out": str(self.folder)})
        self.potential = self.prepared.potential.to(self.device)
        self.log = Log(
            self.folder / "log.csv", _board(self.folder) if config.tensorboard and self.world.first else None
        )
        self._saved = time.perf_counter()
        self._trainer = self._make_trainer()

    def _check_folder(self, resume: bool) -> None:
        if resume or not self.world.first:
            return
        if self.folder.exists() and any(self.folder.iterdir()):
            raise UserError(
                f"{self.folder}: there is a run in this folder. Go on with it: mlpot train {self.folder} --resume. "
                f"Or choose another: out=FOLDER."
            )

    def _make_trainer(self) -> Trainer:
        prepared, cutoff = self.prepared, self.potential.cutoff
        listener = Listener(self._row, self._checkpoint, self._tick)
        train = Loader(prepared.train, cutoff, self.config.data.config_weights)
        valid = None if prepared.valid is None else Loader(prepared.valid, cutoff)
        return Trainer(self.config, self.potential, prepared.objective, train, valid, self.world, listener)

    @property
    def trainer(self) -> Trainer:
        """The loop."""
        return self._trainer

    def metadata(self) -> dict[str, Any]:
        """What goes with the potential: data, hashes, settings, versions."""
        prepared = self.prepared
        return {
            "data": {
                "path": prepared.train.path,
                "sha256": prepared.train.sha,
                "split_hash": prepared.split.hash if prepared.split else None,
                "theory": prepared.train.theory,
                "n_train": len(prepared.train),
            },
            "elements": [SYMBOLS[z] for z in prepared.train.elements],
            "reference_energies": prepared.references.origin if prepared.references else None,
            "config": self.config.model_dump(mode="json"),
            "versions": versions(),
            "seed": self.config.seed,
        }

    def _row(self, row: dict[str, Any]) -> None:
        self.log.add(row)
        parts = [f"epoch {row['epoch']:5d}", f"{row['seconds']:7.1f} s", f"loss {row['train_loss']:.3e}"]
        parts.append(self.prepared.objective.told(row))
        parts.append(f"{100 * self.trainer.progress.fraction:3.0f} %, {_left(self.trainer)} left")
        self.say("  ".join(parts))

    def _checkpoint(self, trainer: Trainer, better: bool) -> None:
        """last.mlpot with all that resuming needs; best.mlpot where the validation loss is the lowest so far."""
        metadata = {**self.metadata(), "metrics": trainer.last_row}
        value = checkpoint.content(trainer.averaged, metadata)
        if better:
            checkpoint.write(self.folder / "best.mlpot", value)
        checkpoint.write(self.folder / "last.mlpot", {**value, "training": trainer.state()})
        self._saved = time.perf_counter()

    def _tick(self, trainer: Trainer) -> None:
        self._watch(trainer.progress.fraction)
        if time.perf_counter() - self._saved > self.config.training.checkpoint_every:
            self._checkpoint(trainer, False)

    def start(self) -> None:
        """Write what the run starts from."""
        if self.world.first:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"{self.folder}: cannot be made ({error.strerror}).") from None
            write_text(self.folder / "config.yaml", to_yaml(self.config))
            if self.prepared.split is not None:
                save_split(self.folder / "split.json", self.prepared.split)
        for note in self.prepared.notes:
            self.say(note)
        n = sum(p.numel() for p in self.trainer.parameters)
        name = self.config.model.start or self.config.model.name
        self.say(f"model: {name}, {n} parameters, {self.config.dtype}, on {self.device}")
        self.say(f"folder: {self.folder}")

    def restore(self) -> None:
        """Go on from last.mlpot."""
        value = checkpoint.read(self.folder / "last.mlpot")
        if "training" not in value:
            raise UserError(f"{self.folder / 'last.mlpot'}: it holds no state of training to resume from.")
        if value["metadata"]["data"]["sha256"] != self.prepared.train.sha:
            raise UserError(
                f"{self.prepared.train.path}: the file has changed since the run began; it cannot be resumed."
            )
        self.trainer.restore(value["training"])
        if self.world.first:
            self.log.keep_until(self.trainer.progress.step)
        self.say(f"resumed at epoch {self.trainer.progress.epoch}, step {self.trainer.progress.step}")

    def finish(self) -> Finished:
        """Errors of the best potential on validation and test frames, and metrics.json."""
        best = checkpoint.load(self.folder / "best.mlpot").to(self.device)
        trainer = self.trainer
        progress = trainer.progress
        metrics: dict[str, Any] = {
            "train_seconds": progress.seconds,
            "epochs": progress.epoch,
            "steps": progress.step,
            "best_epoch": progress.best_epoch,
            "n_train": len(self.prepared.train),
            "parameters": sum(p.numel() for p in trainer.parameters),
        }
        tables: dict[str, Table] = {}
        for name, dataset in (("valid", self.prepared.valid), ("test", self.prepared.test)):
            if dataset is not None:
                tables[name], _ = trainer.evaluate(Loader(dataset, best.cutoff), best)
                metrics[name] = tables[name].summary()
        metrics["data"] = self.metadata()["data"]
        metrics["versions"] = versions()
        metrics["hardware"] = f"{platform.machine()}, {os.cpu_count()} cores, device {self.device}"
        if self.world.first:
            write_text(self.folder / "metrics.json", json.dumps(metrics, indent=2))
        return Finished(self.folder, metrics, best, self.prepared, self.log.rows, tables)


def _left(trainer: Trainer) -> str:
    progress = trainer.progress
    seconds = progress.seconds * (1.0 - progress.fraction) / max(progress.fraction, 1e-9)
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def read_run(folder: Path) -> Config:
    """The resolved settings of an earlier run; UserError where the folder holds none or nothing to resume."""
    if not (folder / "config.yaml").is_file():
        raise UserError(f"{folder}: there is no run to resume (no config.yaml).")
    if not (folder / "last.mlpot").is_file():
        raise UserError(f"{folder}: the run has no checkpoint yet (no last.mlpot). Remove the folder and start again.")
    return resolve(yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")), str(folder / "config.yaml"))


def train(config: Config, say: Say, resume: bool = False, watch: Callable[[float], None] | None = None) -> Finished:
    """Train to the end, from the start or from the last checkpoint.

    `say` gets a line at a time, `watch` the part of the run that is done, after every step.
    """
    run = Run(config, say, resume, watch)
    try:
        if resume:
            run.restore()
        else:
            run.start()
        run.trainer.fit()
        return run.finish()
    except BaseException:
        if not resume and run.world.first and not (run.folder / "last.mlpot").exists():
            shutil.rmtree(run.folder, ignore_errors=True)  # nothing half-written
        raise
    finally:
        run.world.close()
