"""What a calculator call costs beyond the model and the neighbour list, for ethanol: goal under 0.3 ms.

    python benchmarks/calculator_overhead.py [--device cuda]

Positions change at every call, as in dynamics. Times are the processor's on the CPU, so that other programs count
little, and the clock's on a GPU. They are taken in turns. overhead_ms is that of calls whose predict gives a stored
answer, less the neighbour list; outside_ms is what passes, in a real call, outside of predict and the neighbour list
(by the clock); difference_ms is call - predict - neighbour list, with the noise of the model's time.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
from datetime import date
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import ase
import numpy as np
import torch
from ase.build import molecule

from mlpot import calculator, models, predict
from mlpot.calculator import Calculator
from mlpot.convert.ase import structure
from mlpot.neighbors import SkinList

ROUNDS, CALLS = 200, 5


def timed(work: Any, device: str) -> float:
    """Milliseconds a call."""
    clock = process_time if device == "cpu" else perf_counter
    start = clock()
    for number in range(CALLS):
        work(number)
    if device != "cpu":
        torch.cuda.synchronize()
    return 1e3 * (clock() - start) / CALLS


def measure(dtype: str, device: str) -> dict[str, float]:
    """Medians in ms of a call, of predict on the same graph, of the neighbour list, and of the difference."""
    torch.manual_seed(0)
    atoms = molecule("CH3CH2OH")
    calc = atoms.calc = Calculator(models.build("schnet", channels=64, cutoff=5.0), dtype=dtype, device=device)
    rng = np.random.default_rng(0)
    geometries = [atoms.positions + rng.normal(scale=0.02, size=atoms.positions.shape) for _ in range(CALLS)]
    structures, neighbors = [], SkinList(calc.potential.cutoff, calc.skin)
    for positions in geometries:
        atoms.positions[:] = positions
        structures.append(structure(atoms))
    atoms.get_forces()
    graph = calc._graph
    assert graph is not None
    _ = graph.pairs

    def call(number: int) -> None:
        atoms.positions[:] = geometries[number]
        atoms.get_forces()

    answer = predict(calc.potential, graph)

    def without_model(number: int) -> None:
        calculator.predict = lambda *_, **__: answer
        call(number)
        calculator.predict = predict

    spent = [0.0]

    def clocked(work: Any) -> Any:
        def inner(*arguments: Any, **more: Any) -> Any:
            start = perf_counter()
            try:
                return work(*arguments, **more)
            finally:
                spent[0] += perf_counter() - start

        return inner

    def outside(number: int) -> float:
        """Milliseconds of one real call that pass outside predict and the neighbour list."""
        listing = calc._neighbors
        calculator.predict, calc._neighbors, spent[0] = clocked(predict), clocked(listing), 0.0  # type: ignore[assignment]
        start = perf_counter()
        call(number)
        whole = perf_counter() - start
        calculator.predict, calc._neighbors = predict, listing
        return 1e3 * (whole - spent[0])

    rows = [
        (
            timed(call, device),
            timed(lambda number: predict(calc.potential, graph), device),
            timed(lambda number: neighbors(structures[number]), device),
            timed(without_model, device),
        )
        for _ in range(ROUNDS)
    ][ROUNDS // 5 :]
    names = ("call_ms", "predict_ms", "neighbour_list_ms", "call_without_model_ms")
    result = {
        name: round(statistics.median(column), 4) for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }
    result["overhead_ms"] = round(statistics.median(d - c for _, _, c, d in rows), 4)
    result["outside_ms"] = round(statistics.median(outside(k % CALLS) for k in range(ROUNDS * CALLS)), 4)
    result["difference_ms"] = round(statistics.median(a - b - c for a, b, c, _ in rows), 4)
    return result


def main() -> None:
    """Measure both dtypes and write the figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "calculator_overhead.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = {
        "what": "ethanol, SchNet 64 channels, 5 Å, energy and forces, a new geometry at every call; medians in ms",
        **{dtype: measure(dtype, options.device) for dtype in ("float32", "float64")},
        "device": torch.cuda.get_device_name() if options.device != "cpu" else f"CPU, 1 thread, {platform.machine()}",
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "ase": ase.__version__,
            "numpy": np.__version__,
        },
        "date": date.today().isoformat(),
        "command": " ".join(["python", "benchmarks/calculator_overhead.py", *sys.argv[1:]]),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n")
    print(json.dumps(figures, indent=2, ensure_ascii=False))


if __name__ == "__main__":
    main()
