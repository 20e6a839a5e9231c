"""mace-torch as the peer in timings and the source of its models: a process that reads commands, one a line.

It is run by the Python of an environment that holds mace-torch, and by nothing in mlpot:

    python benchmarks/peers/mace_peer.py structures.json FOLDER --threads 1

It first writes FOLDER/SHAPE.model for the shapes below, with random weights, as that package saves its models, and says
{"ready": true, ...}. The commands, each answered by {"ms": [...]}:

    calc SHAPE NAME REPEATS          energy and forces by its ASE calculator, moved atoms at each call
    train SHAPE NAME BATCH REPEATS   training step: zero_grad, forward, loss, backward, Adam; batch prepared
"""

# ruff: noqa: E402 (the settings come before the imports that they are for)

from __future__ import annotations

import argparse
import ctypes
import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # its e3nn keeps constants in a pickle
ANSWERS, sys.stdout = sys.stdout, sys.stderr  # the package prints, as soon as it is imported

import numpy as np
import torch
from ase import Atoms
from e3nn import o3
from mace import data, modules
from mace.calculators import MACECalculator
from mace.tools import AtomicNumberTable, torch_geometric

RESIDUAL, PLAIN = "RealAgnosticResidualInteractionBlock", "RealAgnosticInteractionBlock"
ORGANIC = (1, 5, 6, 7, 8, 9, 14, 15, 16, 17, 35, 53)
# hidden irreps, cutoff, Bessel functions, elements, first interaction: those of the published models
SHAPES: dict[str, tuple[str, float, int, tuple[int, ...], str]] = {
    "mp_small": ("128x0e", 6.0, 10, tuple(range(1, 90)), RESIDUAL),
    "mp_medium": ("128x0e+128x1o", 6.0, 10, tuple(range(1, 90)), RESIDUAL),
    "off_small": ("96x0e", 4.5, 8, ORGANIC, PLAIN),
}
WARM_UP = 2


def build(shape: str) -> torch.nn.Module:
    """A model of that shape with random weights, float32."""
    hidden, cutoff, n_bessel, numbers, first = SHAPES[shape]
    torch.manual_seed(0)
    return modules.ScaleShiftMACE(
        r_max=cutoff,
        num_bessel=n_bessel,
        num_polynomial_cutoff=5,
        max_ell=3,
        interaction_cls=modules.interaction_classes[RESIDUAL],
        interaction_cls_first=modules.interaction_classes[first],
        num_interactions=2,
        num_elements=len(numbers),
        hidden_irreps=o3.Irreps(hidden),
        MLP_irreps=o3.Irreps("16x0e"),
        atomic_energies=-np.arange(1.0, len(numbers) + 1),
        avg_num_neighbors=40.0,
        atomic_numbers=list(numbers),
        correlation=3,
        gate=torch.nn.functional.silu,
        radial_MLP=[64, 64, 64],
        radial_type="bessel",
        atomic_inter_scale=0.8,
        atomic_inter_shift=0.1,
    )


def keep_freed_memory() -> None:
    """As our own program does: it helps both sides."""
    if sys.platform.startswith("linux"):
        mallopt = ctypes.CDLL(None).mallopt
        for key, value in ((-3, 1 << 25), (-1, (1 << 31) - 1), (-2, 1 << 26)):
            mallopt(key, value)


def milliseconds(step: Callable[[], Any], repeats: int, between: Callable[[], Any] = lambda: None) -> list[float]:
    """Wall times of `step`, after a warm-up; `between` runs untimed before each."""
    times = []
    for _ in range(WARM_UP + repeats):
        between()
        start = time.perf_counter()
        step()
        times.append((time.perf_counter() - start) * 1000)
    return times[WARM_UP:]


class Peer:
    """The models of FOLDER and the structures by name."""

    def __init__(self, structures: dict[str, Any], folder: Path) -> None:
        self.folder = folder
        self.structures = {
            name: Atoms(s["numbers"], s["positions"], cell=s["cell"], pbc=s["pbc"]) for name, s in structures.items()
        }
        self.calculators: dict[str, MACECalculator] = {}

    def calculator(self, shape: str, name: str, repeats: int) -> list[float]:
        if shape not in self.calculators:
            path = self.folder / f"{shape}.model"
            self.calculators[shape] = MACECalculator(model_paths=str(path), device="cpu", default_dtype="float32")
        atoms = self.structures[name].copy()
        atoms.calc = self.calculators[shape]

        def move() -> None:
            atoms.positions += 1e-6

        return milliseconds(atoms.get_forces, repeats, move)

    def training(self, shape: str, name: str, size: int, repeats: int) -> list[float]:
        _, cutoff, _, numbers, _ = SHAPES[shape]
        table = AtomicNumberTable(list(numbers))
        configuration = data.config_from_atoms(self.structures[name])
        one = data.AtomicData.from_config(configuration, z_table=table, cutoff=cutoff)
        loader = torch_geometric.dataloader.DataLoader([one] * size, batch_size=size)
        batch = next(iter(loader)).to_dict()
        model = build(shape)
        adam = torch.optim.Adam(model.parameters(), lr=1e-4)

        def step() -> None:
            adam.zero_grad()
            out = model(batch, training=True)
            (out["energy"].pow(2).mean() + out["forces"].pow(2).mean()).backward()
            adam.step()

        return milliseconds(step, repeats)

    def answer(self, line: str) -> dict[str, Any]:
        kind, shape, name, *numbers = line.split()
        if kind == "calc":
            return {"ms": self.calculator(shape, name, int(numbers[0]))}
        return {"ms": self.training(shape, name, int(numbers[0]), int(numbers[1]))}


def main() -> None:
    """Read commands from standard input, write answers to standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("structures", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.set_default_dtype(torch.float32)
    keep_freed_memory()
    for shape in SHAPES:
        torch.save(build(shape), options.folder / f"{shape}.model")
    peer = Peer(json.loads(options.structures.read_text()), options.folder)
    known = {name: version(name) for name in ("mace-torch", "e3nn", "torch")}
    print(json.dumps({"ready": True, "versions": known}), file=ANSWERS, flush=True)
    for line in sys.stdin:
        try:
            answer = peer.answer(line)
        except Exception as error:  # the process lives on: the driver decides what an error means
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=ANSWERS, flush=True)


if __name__ == "__main__":
    main()
