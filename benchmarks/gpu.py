"""Run and time the GPU path: conformance, predictions, training steps and dynamics on cuda beside the CPU.

    python benchmarks/gpu.py -o benchmarks/results/gpu.json

It ends with a clear word where torch finds no CUDA device.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from ase.build import bulk, molecule

import mlpot
from mlpot.testing import check_potential
from mlpot.train.run import versions


def median_ms(work: Callable[[], object], repeats: int = 20) -> float:
    times = []
    for _ in range(3):
        work()
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        work()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def rows(device: str) -> dict[str, float]:
    torch.manual_seed(0)
    potential = mlpot.models.build("schnet").to(device)
    found = {}
    structures = {"ethanol": molecule("CH3CH2OH"), "silicon 216": bulk("Si", cubic=True).repeat(3)}
    structures["silicon 8000"] = bulk("Si", cubic=True).repeat(10)
    for name, atoms in structures.items():
        graph = mlpot.AtomsGraph.from_ase(atoms, potential.cutoff).to(device)
        found[f"energy and forces, {name}"] = median_ms(lambda graph=graph: mlpot.predict(potential, graph))
        atoms.calc = mlpot.Calculator(potential, device=device)

        def move(atoms=atoms) -> None:
            atoms.rattle(1e-3, seed=int(time.perf_counter_ns() % 2**31))
            atoms.get_forces()

        found[f"ASE call, {name}"] = median_ms(move)
    batch = mlpot.AtomsGraph.from_ase([molecule("CH3CH2OH")] * 64, potential.cutoff).to(device)

    def step() -> None:
        potential.zero_grad()
        out = mlpot.predict(potential, batch, create_graph=True)
        (out.forces.pow(2).mean() + out.energy.pow(2).mean()).backward()

    found["training step, 64 ethanol"] = median_ms(step)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("torch finds no CUDA device here: nothing was run.")
    potential = mlpot.models.build("schnet", channels=16, cutoff=4.0)
    checks = check_potential(potential.to("cuda"))
    result = {
        "date": date.today().isoformat(),
        "command": " ".join(sys.argv),
        "hardware": [platform.processor(), torch.cuda.get_device_name()],
        "versions": versions(),
        "conformance": checks,
        "milliseconds": {device: rows(device) for device in ("cpu", "cuda")},
    }
    text = json.dumps(result, indent=2)
    print(text)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
