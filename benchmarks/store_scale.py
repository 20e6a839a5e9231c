"""A store of a million frames: how long it takes to open, and a training step beside that of a small store.

    python benchmarks/store_scale.py [--frames 1000000] -o benchmarks/results/store_scale.json

Frames are synthetic (argon, five atoms, labels by Lennard-Jones), written to a temporary folder.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import numpy as np
import torch

from mlpot import models
from mlpot.data.frame import Frame
from mlpot.data.loader import Loader
from mlpot.data.store import Store, write_store
from mlpot.graph import AtomsGraph
from mlpot.potential import predict
from mlpot.structure import Structure
from mlpot.train.run import versions

CORNERS = 3.7 * np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]], dtype=np.float64)


def frames(n: int) -> Iterator[Frame]:
    potential, random = models.build("lennard_jones"), np.random.default_rng(0)
    numbers, cell, pbc = np.full(5, 18), np.zeros((3, 3)), np.zeros(3, dtype=bool)
    some = [Structure(numbers, CORNERS + random.normal(scale=0.1, size=(5, 3)), cell, pbc) for _ in range(1000)]
    out = predict(potential, AtomsGraph.from_structure(some, potential.cutoff))
    forces = out.forces.numpy().reshape(-1, 5, 3)
    labelled = [Frame(one, float(e), f) for one, e, f in zip(some, out.energy, forces, strict=True)]
    for k in range(n):  # a thousand frames over and over; what is timed does not depend on their being distinct
        yield labelled[k % 1000]


def step_ms(store: Store, n_steps: int) -> float:
    """Median of a whole training step: reading sixteen frames in random order, graphs, forward, backward, update."""
    torch.manual_seed(0)
    model = models.build("schnet")
    optimizer = torch.optim.AdamW(model.parameters())
    loader, random = Loader(store, model.cutoff, cache_bytes=0), np.random.default_rng(1)
    times = []
    for _ in range(n_steps):
        start = time.perf_counter()
        batch = loader.batch(random.integers(0, len(store), 16))
        optimizer.zero_grad()
        out = predict(model, batch.graph, create_graph=True)
        (out.forces - batch.labels.forces).pow(2).mean().backward()
        optimizer.step()
        times.append(1e3 * (time.perf_counter() - start))
    return statistics.median(times[10:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        small, large = Path(folder) / "small.h5", Path(folder) / "large.h5"
        write_store(small, frames(1000))
        start = time.perf_counter()
        write_store(large, frames(options.frames))
        written = time.perf_counter() - start
        start = time.perf_counter()
        store = Store(large)
        opened = time.perf_counter() - start
        start = time.perf_counter()
        first = store[len(store) // 2].energy
        first_frame = time.perf_counter() - start
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        rows = [(step_ms(Store(small), 60), step_ms(store, 60)) for _ in range(3)]
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        result = {
            "date": date.today().isoformat(),
            "command": f"python benchmarks/store_scale.py --frames {options.frames}",
            "versions": versions(),
            "frames": options.frames,
            "bytes": large.stat().st_size,
            "write_seconds": written,
            "open_seconds": opened,
            "first_frame_seconds": first_frame,
            "first_frame_energy_eV": first,
            "step_ms_small": statistics.median(row[0] for row in rows),
            "step_ms_large": statistics.median(row[1] for row in rows),
            "memory_growth_MiB": after - before,
        }
    text = json.dumps(result, indent=2)
    print(text)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
