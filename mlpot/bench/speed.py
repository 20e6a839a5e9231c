"""Timings: energy and forces through the ASE calculator, and training steps, on standard systems."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from ase import Atoms

from mlpot import models
from mlpot.bench.systems import SYSTEMS
from mlpot.calculator import Calculator
from mlpot.graph import AtomsGraph
from mlpot.potential import Potential, predict
from mlpot.recording import AFTER

_MP: dict[str, Any] = {"cutoff": 6.0, "n_basis": 10, "average_neighbors": 60}
# Shapes of published models, by name: model and settings.
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "schnet": ("schnet", {"channels": 128, "n_interactions": 3, "cutoff": 5.0}),
    "painn": ("painn", {"channels": 128, "n_interactions": 3, "cutoff": 5.0}),
    "tensornet": ("tensornet", {"channels": 128, "n_interactions": 2, "cutoff": 5.0}),
    "mace-mp-0-small": (
        "mace",
        {"channels": 128, "l_hidden": 0, "cutoff": 6.0, "n_basis": 10, "average_neighbors": 60},
    ),
    "mace-mp-0-medium": (
        "mace",
        {"channels": 128, "l_hidden": 1, "cutoff": 6.0, "n_basis": 10, "average_neighbors": 60},
    ),
    "mace-off-small": ("mace", {"channels": 96, "l_hidden": 0, "cutoff": 4.5, "n_basis": 8, "average_neighbors": 18}),
}
BUDGET = 5.0  # seconds a row, after warming up
TRAINED = {"ethanol": 8, "aspirin": 8}  # copies in a batch


class Row(NamedTuple):
    """One timing."""

    shape: str
    system: str
    task: str  # "calculate" or "train"

    @property
    def name(self) -> str:
        """shape/system/task."""
        return "/".join(self)


def rows() -> list[Row]:
    """All there are."""
    calculated = [Row(shape, system, "calculate") for shape in SHAPES for system in SYSTEMS]
    return [*calculated, *(Row(shape, system, "train") for shape in SHAPES for system in TRAINED)]


def timed(row: Row) -> dict[str, float]:
    """Median and least milliseconds of a call, and the median by atom in µs."""
    name, settings = SHAPES[row.shape]
    torch.manual_seed(0)
    model, atoms = models.build(name, **settings), SYSTEMS[row.system]()
    if row.task == "train":
        work, n_atoms = training(model, atoms, TRAINED[row.system]), TRAINED[row.system] * len(atoms)
    else:
        work, n_atoms = calculating(model, atoms), len(atoms)
    for _ in range(AFTER + 2 if len(atoms) < 100 else 1):  # by then few atoms are played from a recording
        work()
    times: list[float] = []
    while sum(times) < 1e3 * BUDGET or len(times) < 3:
        start = time.perf_counter()
        work()
        times.append(1e3 * (time.perf_counter() - start))
    median = statistics.median(times)
    return {"ms": median, "least_ms": min(times), "us_per_atom": 1e3 * median / n_atoms, "calls": len(times)}


def calculating(model: Potential, atoms: Atoms) -> Callable[[], object]:
    """Forces by a calculator, of atoms that have moved a little."""
    atoms.calc = Calculator(model, dtype="float32")

    def work() -> None:
        atoms.positions += 1e-6
        atoms.get_forces()

    return work


def training(model: Potential, atoms: Atoms, batch: int) -> Callable[[], object]:
    """A step on energies and forces of so many copies."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    graph = AtomsGraph.from_ase([atoms] * batch, model.cutoff)

    def work() -> None:
        optimizer.zero_grad()
        out = predict(model, graph, create_graph=True)
        assert out.forces is not None
        (out.energy.pow(2).mean() + out.forces.pow(2).mean()).backward()
        optimizer.step()

    return work
