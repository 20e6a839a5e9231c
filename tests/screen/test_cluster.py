"""A real scheduler and real workers of Dask distributed, on this machine."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mlpot.cli import app
from mlpot.errors import UserError
from mlpot.screen.chunk import Settings
from mlpot.screen.cluster import Cluster

N = 6000


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes that a test starts; all are ended after it."""
    running: list[subprocess.Popen[bytes]] = []
    yield running
    for process in running:
        process.kill()
        process.wait()


def dask(*words: str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "dask", *words], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def chunks(folder: Path) -> dict[str, int]:
    """The chunks that are done, and when they were written."""
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("*.jsonl")}


def until(condition: Any, seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_a_killed_worker_and_a_killed_run_lose_nothing(
    bond_model: Path, tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    pytest.importorskip("distributed", reason="needs Dask distributed: pip install mlpot[dask]")
    source, file = tmp_path / "many.smi", tmp_path / "scheduler.json"
    source.write_text("".join(f"{'C' * (1 + k % 40)}{'O' if k % 2 else 'N'} m{k}\n" for k in range(N)))
    quiet = ("--no-dashboard", "--scheduler-file", str(file))
    started.append(dask("scheduler", "--host", "127.0.0.1", "--port", "0", *quiet))
    for _ in range(2):
        started.append(dask("worker", "--nthreads", "1", "--no-nanny", *quiet))
    out, parts = source.with_suffix(".out.csv"), tmp_path / "many.out.csv.parts"
    arguments = ["screen", str(bond_model), str(source), "-o", str(out), "--scheduler", str(file)]
    until(file.exists)
    running = subprocess.Popen([sys.executable, "-m", "mlpot", *arguments])
    started.append(running)
    until(lambda: len(chunks(parts)) >= 2)
    os.kill(started[1].pid, signal.SIGKILL)  # a worker, in the middle
    until(lambda: len(chunks(parts)) >= 4)
    assert running.poll() is None
    running.kill()  # the whole run
    running.wait()
    kept = chunks(parts)
    assert len(kept) < N // 500
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    assert started[2].poll() is None
    with (tmp_path / "many.out.csv").open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    assert [row["id"] for row in rows] == [f"m{k}" for k in range(N)]
    assert {row["status"] for row in rows} == {"ok"}
    again = chunks(parts)
    assert {name: again[name] for name in kept} == kept


def test_schedulers_that_are_none(bond_model: Path, tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="needs Dask distributed: pip install mlpot[dask]")
    settings = Settings.of("smiles_list", [str(bond_model)])
    with pytest.raises(UserError, match="there is no such file"):
        Cluster(settings, str(tmp_path / "none.json"), print)
    (tmp_path / "other.json").write_text(json.dumps({"address": "tcp://127.0.0.1:9"}))
    with pytest.raises(UserError, match="no scheduler answers there"):
        Cluster(settings, str(tmp_path / "other.json"), print, patience=1.0)


def test_without_dask_the_extra_is_named(bond_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(UserError, match=r"mlpot\[dask\]"):
        Cluster(Settings.of("smiles_list", [str(bond_model)]), "tcp://127.0.0.1:9", print)
