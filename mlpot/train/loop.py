"""The training loop: steps, validation, checkpoints; a run that is killed and resumed ends as if it never was."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mlpot.data.loader import Batch, Loader, plan_batches
from mlpot.errors import PhysicsWarning, UserError
from mlpot.model import Model
from mlpot.train import failures
from mlpot.train.config import Config
from mlpot.train.distributed import World
from mlpot.train.objective import Objective, Table
from mlpot.train.schedule import Plateau, learning_rate

APART = 5.0  # a validation loss this many times the best is no fluctuation


@dataclass
class Progress:
    """Where a run is. `batch` is the next batch of the epoch, `fraction` the part of the run that is done."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    seconds: float = 0.0
    fraction: float = 0.0
    validated: float = 0.0
    best: float = math.inf
    best_epoch: int = 0


@dataclass(frozen=True)
class Listener:
    """What the loop tells the outside; each is called by the first process only."""

    row: Callable[[dict[str, Any]], None]
    checkpoint: Callable[[Trainer, bool], None]
    tick: Callable[[Trainer], None]


class Average:
    """Exponential moving average of a potential's parameters, kept in a copy of it.

    The decay starts low, so that early averages forget the random start. (torch.optim.swa_utils walks the module tree
    at every update, a tenth of the time of a small model's step.)
    """

    def __init__(self, potential: Model, decay: float) -> None:
        self.potential = copy.deepcopy(potential).requires_grad_(False)
        self.decay, self.n = decay, 0
        self._current: list[Tensor] = list(potential.parameters())
        self._averaged: list[Tensor] = list(self.potential.parameters())

    @torch.no_grad()
    def update(self) -> None:
        """Take in the present parameters."""
        torch._foreach_lerp_(self._averaged, self._current, 1.0 - min(self.decay, (1.0 + self.n) / (10.0 + self.n)))
        self.n += 1

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""
        return {"n": self.n, "parameters": {k: v.cpu().clone() for k, v in self.potential.state_dict().items()}}

    def restore(self, state: dict[str, Any]) -> None:
        """From `state`."""
        self.n = state["n"]
        self.potential.load_state_dict(state["parameters"])


class Trainer:
    """Trains `potential` in place; `averaged` holds the parameters that are validated and kept.

    The order of the frames in an epoch depends on the seed and the epoch alone.
    """

    def __init__(
        self,
        config: Config,
        potential: Model,
        objective: Objective,
        train: Loader,
        valid: Loader | None,
        world: World,
        listener: Listener,
    ) -> None:
        self.config, self.settings = config, config.training
        self.potential, self.objective, self.train, self.valid = potential, objective, train, valid
        self.world, self.listener = world, listener
        self.device = next(potential.parameters()).device
        self.parameters = [p for p in potential.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=self.settings.learning_rate,
            weight_decay=self.settings.weight_decay,
            amsgrad=True,
            fused=True,
        )
        decay = self.settings.ema
        self._average = Average(potential, decay) if decay else None
        self.plateau = Plateau(self.settings)
        self.progress = Progress()
        self._sizes: NDArray[np.int64] | None = None
        self._sums = torch.zeros(len(objective.names) + 1, dtype=torch.float64)
        self._counts = torch.zeros(len(objective.names) + 1, dtype=torch.float64)
        self.last_row: dict[str, Any] = {}
        self._said_apart = False

    @property
    def averaged(self) -> Model:
        """The potential with averaged parameters, or the potential itself where there is no averaging."""
        return self.potential if self._average is None else self._average.potential

    def plan(self, epoch: int) -> list[NDArray[np.int64]]:
        """The batches of an epoch, each a list of frame numbers."""
        order = np.random.default_rng([self.config.seed, epoch]).permutation(len(self.train))
        settings = self.settings
        if settings.batch_atoms is not None:
            self._sizes = self.train.dataset.n_atoms() if self._sizes is None else self._sizes
            return plan_batches(order, None, self._sizes, settings.batch_atoms)
        if settings.batch_edges is not None:
            self._sizes = self.train.n_edges() if self._sizes is None else self._sizes
            return plan_batches(order, None, self._sizes, settings.batch_edges)
        return plan_batches(order, settings.batch_size)

    def fit(self) -> None:
        """Train to the end of the epochs or of the budget. Raises UserError for NaN and for want of memory."""
        progress, before = self.progress, time.perf_counter()
        while progress.fraction < 1.0:
            plan = self.plan(progress.epoch)
            while progress.batch < len(plan) and progress.fraction < 1.0:
                indices = plan[progress.batch]
                progress.batch += 1
                progress.step += 1
                now = time.perf_counter()
                progress.seconds, before = progress.seconds + now - before, now
                self._advance(len(plan))
                self.step(indices)
                epoch_over = progress.batch == len(plan)
                if epoch_over:
                    progress.epoch, progress.batch = progress.epoch + 1, 0
                if self._validation_due(epoch_over):
                    self.validate()
                elif self.world.first:
                    self.listener.tick(self)
                if epoch_over:
                    break

    def _advance(self, n_batches: int) -> None:
        """Set the fraction done: of the epochs, or of the time, on the first process's clock."""
        progress = self.progress
        if self.settings.budget is None:
            assert self.settings.epochs is not None
            progress.fraction = (progress.epoch + progress.batch / n_batches) / self.settings.epochs
        else:
            seconds = torch.tensor([progress.seconds if self.world.first else 0.0], dtype=torch.float64)
            progress.seconds = float(self.world.total(seconds.to(self.device)))
            progress.fraction = min(1.0, progress.seconds / self.settings.budget)

    def _validation_due(self, epoch_over: bool) -> bool:
        progress, every = self.progress, self.settings.valid_every
        if progress.fraction >= 1.0:
            return True
        if every is not None:
            return epoch_over and progress.epoch % every == 0
        since = progress.fraction - progress.validated
        return since >= (0.01 if epoch_over else 0.05)

    def step(self, indices: NDArray[np.int64]) -> None:
        """One optimiser step on a global batch, of which this process works on its share."""
        progress = self.progress
        share = indices[self.world.rank :: self.world.size]
        rate = learning_rate(self.settings, progress.fraction, self.plateau.factor)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        batch = self.train.batch(share).to(self.device) if len(share) else None
        n_terms = len(self.objective.names)
        total = torch.zeros(n_terms, dtype=torch.float64, device=self.device)
        if batch is not None:
            total = self.objective.totals(batch)
        self.world.total(total)
        values = torch.zeros(n_terms + 1, dtype=torch.float64, device=self.device)
        prediction = None
        if batch is not None:
            prediction = self._predict(batch)
            loss, parts = self.objective.loss(prediction, batch, progress.fraction, total)
            values = torch.cat([loss.detach()[None], parts])
            if loss.requires_grad:
                loss.backward()
        self.world.add_gradients(self.parameters)
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.clip or math.inf)
        # A share's terms are parts of the global batch's, so their sums over the processes are the whole.
        summed = self.world.total(values).cpu()
        if not math.isfinite(float(summed[0])) or not math.isfinite(float(norm)):
            wrong = None
            if batch is not None and prediction is not None:
                wrong = batch.labels.index[self.objective.wrong(prediction, batch)].cpu().numpy()
            why = failures.not_finite(self.train.dataset, indices, wrong, float(summed[0]), float(norm))
            raise UserError(f"training stopped at epoch {progress.epoch + 1}, step {progress.step}: {why}")
        self.optimizer.step()
        if self._average is not None:
            self._average.update()
        self._sums += summed
        self._counts += torch.cat([torch.ones(1, dtype=torch.float64), (total > 0).cpu()])

    def _predict(self, batch: Batch) -> Any:
        try:
            return self.objective.predict(self.potential, batch, True)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not failures.is_out_of_memory(error):
                raise
            raise UserError(failures.out_of_memory(batch, self.device, self.config.dtype)) from None

    def validate(self) -> None:
        """Errors of the averaged potential on the validation frames; a row in the log; a checkpoint."""
        progress = self.progress
        progress.validated = progress.fraction
        row: dict[str, Any] = {
            "epoch": progress.epoch,
            "step": progress.step,
            "seconds": round(progress.seconds, 3),
            "learning_rate": self.optimizer.param_groups[0]["lr"],
        }
        means = (self._sums / self._counts).tolist()
        ends = ("", *(f"_{name}" for name in self.objective.names))
        row.update({f"train_loss{end}": v for end, v in zip(ends, means, strict=True)})
        self._sums.zero_()
        self._counts.zero_()
        better = True
        if self.valid is not None:
            table, value = self.evaluate(self.valid)
            better = value < progress.best
            if better:
                progress.best, progress.best_epoch = value, progress.epoch
            elif value > APART * progress.best and not self._said_apart:
                self._said_apart = True
                warnings.warn(
                    f"epoch {progress.epoch}: the validation loss is {value:.3g}, {value / progress.best:.0f} times "
                    f"its best ({progress.best:.3g}, epoch {progress.best_epoch}): the run has come apart. "
                    f"best.mlpot is kept; start again with a learning_rate below {self.settings.learning_rate:g}.",
                    PhysicsWarning,
                    stacklevel=2,
                )
            self.plateau.saw(value)
            row["valid_loss"] = value
            row.update({f"valid_{key}": value for key, value in self.objective.row(table.summary()).items()})
        self.last_row = row
        if self.world.first:
            self.listener.row(row)
            self.listener.checkpoint(self, better)

    def evaluate(self, loader: Loader, potential: Model | None = None) -> tuple[Table, float]:
        """Errors of a model (the averaged one) on all frames of a loader, and its loss with the final weights."""
        model, objective = potential or self.averaged, self.objective
        limit = max(1, 4096 // max(1, int(loader.dataset.n_atoms().mean())))
        plan = plan_batches(np.arange(len(loader)), limit)[self.world.rank :: self.world.size]
        table = objective.table()
        sums, totals = torch.zeros(2, len(objective.names), dtype=torch.float64)
        was = model.training
        model.eval()
        for batch in (batch.to(self.device) for batch in loader.batches(plan)):
            prediction = objective.predict(model, batch, False)
            table.add(batch, prediction)
            count = objective.totals(batch)
            _, values = objective.loss(prediction, batch, 1.0, count)
            sums += (values * count).cpu()
            totals += count.cpu()
        model.train(was)
        merged = objective.table()
        for other in self.world.gather(table):
            merged.merge(other)
        sums, totals = (torch.stack(self.world.gather(part)).sum(0) for part in (sums, totals))
        return merged, objective.total(torch.where(totals > 0, sums / totals.clamp(min=1e-300), 0.0))

    def state(self) -> dict[str, Any]:
        """All that a resumed run needs to go on as this one would: tensors and plain values."""
        return {
            "progress": asdict(self.progress),
            "parameters": {k: v.detach().cpu().clone() for k, v in self.potential.state_dict().items()},
            "optimizer": self.optimizer.state_dict(),
            "averaged": None if self._average is None else self._average.state(),
            "plateau": self.plateau.state(),
            "sums": [self._sums.clone(), self._counts.clone()],
            "random": torch.get_rng_state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """From `state`."""
        self.progress = Progress(**state["progress"])
        self.potential.load_state_dict(state["parameters"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self._average is not None:
            self._average.restore(state["averaged"])
        self.plateau.restore(state["plateau"])
        self._sums, self._counts = (tensor.clone() for tensor in state["sums"])
        torch.set_rng_state(state["random"])
