"""SchNet's or PaiNN's energy and forces, and training steps, beside schnetpack's: interleaved in one run, medians.

    python benchmarks/schnet_speed.py STRUCTURES.json --peer PYTHON -o benchmarks/results/schnet_speed.json
    python benchmarks/schnet_speed.py STRUCTURES.json --peer PYTHON --model painn -o ...

STRUCTURES.json: {name: {numbers, positions, cell, pbc}}. The peer runs in a process of its own environment (see
benchmarks/peers/schnetpack_peer.py) with as many threads; the two take turns.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase
import torch
from side_by_side import Peer, compare, header, training

import mlpot
from mlpot import models
from mlpot.allocator import keep_freed_memory
from mlpot.recording import AFTER

SIZES = {"channels": 128, "n_interactions": 3, "n_basis": 20, "cutoff": 5.0}
COMMANDS = [
    *("time aspirin ef 20", "time water192 ef 5", "time aspirin calc 20", "time water192 calc 5"),
    *("time ethanol calc 20", "time aspirin skin 20", "time water192 skin 5"),
    *("train ethanol 8 10", "train ethanol 32 5"),
]


class Ours:
    """The same sizes as the peer's, float32."""

    def __init__(self, name: str, structures: dict[str, Any]) -> None:
        torch.manual_seed(0)
        self.name = name
        self.model = models.build(name, **SIZES)
        self.atoms = {
            name: ase.Atoms(s["numbers"], s["positions"], cell=s["cell"], pbc=s["pbc"])
            for name, s in structures.items()
        }

    def work(self, command: str) -> Callable[[], object]:
        words = command.split()
        atoms = self.atoms[words[1]].copy()
        if words[0] == "train":
            return training(models.build(self.name, **SIZES), atoms, int(words[2]))
        if words[2] == "ef":
            frozen = mlpot.Calculator(self.model).potential
            graph = mlpot.AtomsGraph.from_ase(atoms, self.model.cutoff)
            return lambda: mlpot.predict(frozen, graph)
        atoms.calc = mlpot.Calculator(self.model, skin=0.5 if words[2] == "skin" else 0.0)

        def call() -> None:
            atoms.positions += 1e-6
            atoms.get_forces()

        for _ in range(AFTER + 2 if len(atoms) < 100 else 0):  # as in the midst of dynamics: molecules are recorded
            call()
        return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("structures", type=Path)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--model", choices=("schnet", "painn"), default="schnet")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--commands", nargs="+", default=COMMANDS)
    parser.add_argument("--note", help="kept with the result: what else the machine did")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(options.threads)
    ours = Ours(options.model, json.loads(options.structures.read_text()))
    arguments = ("--model", options.model, "--threads", str(options.threads))
    peer = Peer(options.peer, "schnetpack_peer.py", str(options.structures), *arguments)
    rows = {command: compare(ours.work(command), peer, command, options.rounds) for command in options.commands}
    spelled = f"python benchmarks/schnet_speed.py {options.structures.name} {' '.join(arguments)}"
    result = {
        **header(spelled, options.threads, peer),
        **({"note": options.note} if options.note else {}),
        "float": "float32, 128 channels, 3 interactions, 20 basis functions, cutoff 5 Å, random weights",
        "rows": rows,
    }
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
