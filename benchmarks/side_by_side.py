"""What the comparisons with other packages share: a peer in a process of its own, taking turns with us in one run."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import ase
import torch

import mlpot
from mlpot.potential import Potential
from mlpot.train.run import versions


class Peer:
    """A program under peers/, run by the Python of its own environment: a command a line, a line of JSON back."""

    def __init__(self, python: str, script: str, *arguments: str) -> None:
        path = Path(__file__).parent / "peers" / script
        self.process = subprocess.Popen(
            [python, "-W", "ignore", str(path), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.hello = self.answer()

    def answer(self) -> dict[str, Any]:
        """The next line; the end of this program where the peer has ended or met an error."""
        line = self.process.stdout.readline()
        if not line:
            sys.exit("the peer has ended; see its message above")
        answer = json.loads(line)
        if "error" in answer:
            sys.exit(f"peer: {answer}")
        return answer

    def ask(self, command: str) -> dict[str, Any]:
        """The answer to a command."""
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        return self.answer()


def times(work: Callable[[], object], n: int, warm_up: int = 2) -> list[float]:
    """Milliseconds of n calls, after a warm-up."""
    for _ in range(warm_up):
        work()
    found = []
    for _ in range(n):
        start = time.perf_counter()
        work()
        found.append(1e3 * (time.perf_counter() - start))
    return found


def compare(work: Callable[[], object], peer: Peer, command: str, rounds: int) -> dict[str, float]:
    """Medians of both, in turns; the last word of the command is the number of calls in a turn."""
    mine: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        mine += times(work, int(command.split()[-1]))
        theirs += peer.ask(command)["ms"]
    row = {"mlpot_ms": statistics.median(mine), "peer_ms": statistics.median(theirs)}
    row |= {"mlpot_min_ms": min(mine), "peer_min_ms": min(theirs)}
    row["ratio"] = row["peer_ms"] / row["mlpot_ms"]
    print(
        f"{command:32s} mlpot {row['mlpot_ms']:9.2f} ms   peer {row['peer_ms']:9.2f} ms   "
        f"{row['ratio']:.2f} times as fast",
        flush=True,
    )
    return row


def training(model: Potential, atoms: ase.Atoms, batch: int) -> Callable[[], object]:
    """A training step on copies of one structure, whose graph is prepared."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    graph = mlpot.AtomsGraph.from_ase([atoms] * batch, model.cutoff)
    _ = graph.pairs

    def step() -> None:
        optimizer.zero_grad()
        out = mlpot.predict(model, graph, create_graph=True)
        (out.energy.pow(2).mean() + out.forces.pow(2).mean()).backward()
        optimizer.step()

    return step


def header(command: str, threads: int, peer: Peer) -> dict[str, Any]:
    """Date, hardware and versions of both sides."""
    return {
        "date": date.today().isoformat(),
        "command": command,
        "hardware": processor(),
        "threads": threads,
        "versions": {**versions(), **{f"peer {k}": v for k, v in peer.hello["versions"].items()}},
    }


def processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{name or platform.machine()}, {sum(line.startswith('processor') for line in lines)} logical cores"
