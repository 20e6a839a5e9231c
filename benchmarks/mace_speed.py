"""MACE's energy and forces, and training steps, beside mace-torch's: the same weights, interleaved in one run, medians.

    python benchmarks/mace_speed.py STRUCTURES.json --peer PYTHON -o benchmarks/results/mace_speed.json

STRUCTURES.json: {name: {numbers, positions, cell, pbc}}. The peer runs in a process of its own environment (see
benchmarks/peers/mace_peer.py) with as many threads; it writes the models, and mlpot reads them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ase
import torch
from side_by_side import Peer, compare, header, training

import mlpot
from mlpot.allocator import keep_freed_memory
from mlpot.recording import AFTER

CALLS = {"ethanol": 20, "aspirin": 20, "water192": 3, "si216": 3, "si1000": 1}
SHAPES = ("mp_small", "mp_medium", "off_small")


def calling(model: Path, atoms: ase.Atoms) -> Callable[[], object]:
    """A calculator's forces of atoms that move a little, without a skin, as the peer."""
    atoms = atoms.copy()
    atoms.calc = mlpot.Calculator(model, dtype="float32", skin=0.0)

    def call() -> None:
        atoms.positions += 1e-6
        atoms.get_forces()

    for _ in range(AFTER + 2 if len(atoms) < 100 else 0):  # as in the midst of dynamics: molecules are recorded by then
        call()
    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("structures", type=Path)
    parser.add_argument("--peer", required=True)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES))
    parser.add_argument("--names", nargs="+", default=list(CALLS))
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(options.threads)
    structures: dict[str, Any] = json.loads(options.structures.read_text())
    atoms = {n: ase.Atoms(s["numbers"], s["positions"], cell=s["cell"], pbc=s["pbc"]) for n, s in structures.items()}
    with tempfile.TemporaryDirectory() as folder:
        threads = ("--threads", str(options.threads))
        peer = Peer(options.peer, "mace_peer.py", str(options.structures), folder, *threads)
        rows = {}
        for shape in options.shapes:
            model = Path(folder) / f"{shape}.model"
            for name in options.names:
                if name.startswith("si") and shape == "off_small":
                    continue  # molecules only
                command = f"calc {shape} {name} {CALLS[name]}"
                rows[command] = compare(calling(model, atoms[name]), peer, command, options.rounds)
            for name, batch in (("aspirin", 8), ("water192", 1)):
                if name in options.names and (shape, name) != ("mp_medium", "water192"):  # minutes a step for the peer
                    command = f"train {shape} {name} {batch} 2"
                    rows[command] = compare(
                        training(mlpot.load(model).float(), atoms[name], batch), peer, command, options.rounds
                    )
        spelled = f"python benchmarks/mace_speed.py {options.structures.name} --threads {options.threads}"
        result = {**header(spelled, options.threads, peer), "float": "float32, random weights", "rows": rows}
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
