"""SchNet's energy and forces, and training steps, beside schnetpack's: interleaved in one run, medians.

    python benchmarks/schnet_speed.py STRUCTURES.json --peer PYTHON -o benchmarks/results/schnet_speed.json

STRUCTURES.json: {name: {numbers, positions, cell, pbc}}. The peer runs in a process of its own environment (see
benchmarks/peers/schnetpack_peer.py) with as many threads; the two take turns.
"""

from __future__ import annotations

import argparse
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
from mlpot import models
from mlpot.allocator import keep_freed_memory
from mlpot.train.run import versions

PEER = Path(__file__).parent / "peers" / "schnetpack_peer.py"


class Ours:
    """The same sizes as the peer's, float32."""

    def __init__(self, structures: dict[str, Any]) -> None:
        torch.manual_seed(0)
        self.model = models.build("schnet", channels=128, n_interactions=3, n_basis=20, cutoff=5.0)
        self.atoms = {
            name: ase.Atoms(s["numbers"], s["positions"], cell=s["cell"], pbc=s["pbc"])
            for name, s in structures.items()
        }

    def work(self, command: str) -> Callable[[], object]:
        words = command.split()
        atoms = self.atoms[words[1]].copy()
        if words[0] == "train":
            return self.training(atoms, int(words[2]))
        if words[2] == "ef":
            frozen = mlpot.Calculator(self.model).potential
            graph = mlpot.AtomsGraph.from_ase(atoms, 5.0)
            return lambda: mlpot.predict(frozen, graph)
        atoms.calc = mlpot.Calculator(self.model, skin=0.5 if words[2] == "skin" else 0.0)

        def call() -> None:
            atoms.positions += 1e-6
            atoms.get_forces()

        return call

    def training(self, atoms: ase.Atoms, batch: int) -> Callable[[], object]:
        model = models.build("schnet", channels=128, n_interactions=3, n_basis=20, cutoff=5.0)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
        graph = mlpot.AtomsGraph.from_ase([atoms] * batch, 5.0)
        _ = graph.pairs

        def step() -> None:
            optimizer.zero_grad()
            out = mlpot.predict(model, graph, create_graph=True)
            (out.energy.pow(2).mean() + out.forces.pow(2).mean()).backward()
            optimizer.step()

        return step


class Peer:
    """schnetpack, a command a line."""

    def __init__(self, python: str, structures: Path, threads: int) -> None:
        self.process = subprocess.Popen(
            [python, "-W", "ignore", str(PEER), str(structures), "--threads", str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.hello = self.answer()

    def answer(self) -> dict[str, Any]:
        line = self.process.stdout.readline()
        if not line:
            sys.exit("the peer has ended; see its message above")
        return json.loads(line)

    def ask(self, command: str) -> dict[str, Any]:
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        answer = self.answer()
        if "error" in answer:
            sys.exit(f"peer: {answer}")
        return answer


def times(work: Callable[[], object], n: int) -> list[float]:
    for _ in range(3):
        work()
    found = []
    for _ in range(n):
        start = time.perf_counter()
        work()
        found.append(1e3 * (time.perf_counter() - start))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("structures", type=Path)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(options.threads)
    structures = json.loads(options.structures.read_text())
    ours, peer = Ours(structures), Peer(options.peer, options.structures, options.threads)
    commands = ["time aspirin ef 20", "time water192 ef 5", "time aspirin calc 20", "time water192 calc 5"]
    commands += ["time aspirin skin 20", "time water192 skin 5", "train ethanol 8 10", "train ethanol 32 5"]
    rows = {}
    for command in commands:
        n = int(command.split()[-1])
        work = ours.work(command)
        mine, theirs = [], []
        for _ in range(options.rounds):
            mine += times(work, n)
            theirs.append(peer.ask(command)["median_ms"])
        row = {"mlpot_ms": statistics.median(mine), "schnetpack_ms": statistics.median(theirs)}
        row |= {"mlpot_min_ms": min(mine), "ratio": row["schnetpack_ms"] / row["mlpot_ms"]}
        rows[command] = row
        print(f"{command:24s} mlpot {row['mlpot_ms']:8.2f} ms   schnetpack {row['schnetpack_ms']:8.2f} ms   "
              f"{row['ratio']:.2f} times as fast", flush=True)  # fmt: skip
    result = {
        "date": date.today().isoformat(),
        "command": f"python benchmarks/schnet_speed.py {options.structures.name} --threads {options.threads}",
        "hardware": processor(),
        "threads": options.threads,
        "versions": {**versions(), **{f"peer {k}": v for k, v in peer.hello["versions"].items()}},
        "float": "float32, 128 channels, 3 interactions, 20 basis functions, cutoff 5 Å, random weights",
        "rows": rows,
    }
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(result, indent=2) + "\n")


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{name or platform.machine()}, {sum(line.startswith('processor') for line in lines)} logical cores"


if __name__ == "__main__":
    main()
