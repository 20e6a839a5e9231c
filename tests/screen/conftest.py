"""A small model, and a worker of this process: most of a screening can be looked at without starting others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mlpot import checkpoint
from mlpot.property_model import build
from mlpot.screen.chunk import Job, Settings, Worker, read_rows
from mlpot.screen.input import Input

Rows = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reads positions; knows H, C, N, O."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model") / "model.mlpot"
    made = build("schnet", [{"name": "gap", "unit": "eV"}, {"name": "toxic", "kind": "binary"}], channels=8, cutoff=4.0)
    made.restrict_to([1, 6, 7, 8])
    checkpoint.save(path, made)
    return path


@pytest.fixture(scope="session")
def bond_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reads bonds alone; knows every element."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("model") / "bonds.mlpot"
    checkpoint.save(path, build("gat", [{"name": "gap", "unit": "eV"}], channels=8, n_layers=2, edges="bonds"))
    return path


@pytest.fixture
def rows_of(tmp_path: Path) -> Rows:
    """The rows that a worker makes of all entries of a file."""

    def found(model: Path, source: Path, id_column: str | None = None, **settings: Any) -> list[dict[str, Any]]:
        given = Input(source, id_column=id_column)
        worker = Worker(Settings.of(given.format, [str(model)], **settings))
        worker(Job(0, list(given), str(tmp_path / "rows.jsonl")))
        return read_rows(tmp_path / "rows.jsonl")

    return found
