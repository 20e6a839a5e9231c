"""schnetpack's SchNet or PaiNN as the peer in timings: a process that reads commands and answers with a line of JSON.

It is run by the Python of an environment that holds schnetpack, and by nothing in mlpot, so that two programs can be
timed in turns, in one run on one machine:

    python benchmarks/peers/schnetpack_peer.py structures.json --model schnet --threads 1

structures.json: {name: {"numbers": (n,), "positions": (n, 3) Å, "cell": (3, 3) Å, "pbc": (3,)}}. The commands:

    time NAME ef REPEATS      energy and forces by the model alone, inputs and neighbour list prepared beforehand
    time NAME calc REPEATS    energy and forces by SpkCalculator, moved atoms and a new neighbour list (matscipy) a call
    time NAME skin REPEATS    the same with schnetpack's skin list (0.5 Å), reused while no atom moves far
    train NAME BATCH REPEATS  training step: zero_grad, forward, loss, backward, Adam, of BATCH copies, batch prepared
    quit

An answer: {"peer", "command", "n_atoms", "n_edges", "ms", "threads", "versions"}, "ms" a list of times and for `time`
also "energy" (eV), or {"error": what}. The first line, before any command, is {"ready": true, ...}.

schnetpack 2.1.1 with a current torch: install torch first, then schnetpack without its dependencies (it asks for an
old sympy, which torch refuses) and those it imports by hand. Its data/loader.py imports the type variable T_co, which
torch's dataloader module no longer has: define one there with typing.TypeVar in place of the import.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import schnetpack.atomistic
import schnetpack.model
import schnetpack.nn
import schnetpack.representation
import torch
from ase import Atoms
from schnetpack import properties
from schnetpack.interfaces import AtomsConverter, SpkCalculator
from schnetpack.nn.activations import shifted_softplus
from schnetpack.transform import MatScipyNeighborList, SkinNeighborList

WARM_UP = 5
SKIN = 0.5  # Å
MOVE = 1e-3  # Å, between two calls of a calculator


# The representation, its radial basis, and its activation, which the readout shares.
MODELS = {
    "schnet": (schnetpack.representation.SchNet, schnetpack.nn.GaussianRBF, shifted_softplus),
    "painn": (schnetpack.representation.PaiNN, schnetpack.nn.BesselRBF, torch.nn.functional.silu),
}


def build(
    model: str, channels: int, interactions: int, n_rbf: int, cutoff: float, stress: bool = False
) -> schnetpack.model.NeuralNetworkPotential:
    """One of MODELS with a cosine cutoff and a two-layer readout; weights from torch's seed."""
    representation, basis, activation = MODELS[model]
    return schnetpack.model.NeuralNetworkPotential(
        representation=representation(
            n_atom_basis=channels,
            n_interactions=interactions,
            radial_basis=basis(n_rbf=n_rbf, cutoff=cutoff),
            cutoff_fn=schnetpack.nn.CosineCutoff(cutoff),
            activation=activation,
        ),
        input_modules=[
            *([schnetpack.atomistic.Strain()] if stress else []),
            schnetpack.atomistic.PairwiseDistances(),
        ],
        output_modules=[
            schnetpack.atomistic.Atomwise(
                n_in=channels, n_layers=2, activation=activation, output_key=properties.energy
            ),
            schnetpack.atomistic.Forces(calc_stress=stress),
        ],
    )


def milliseconds(step: Callable[[], Any], repeats: int, between: Callable[[], Any] = lambda: None) -> list[float]:
    """Wall times of `step`, after a warm-up; `between` runs untimed before each."""
    times = []
    for _ in range(WARM_UP + repeats):
        between()
        start = time.perf_counter()
        step()
        times.append((time.perf_counter() - start) * 1000)
    return times[WARM_UP:]


class InMemory(SpkCalculator):
    """SpkCalculator of a model that is at hand: files of whole models are refused by torch.load as it is today."""

    def _load_model(self, model_file: torch.nn.Module) -> torch.nn.Module:
        return model_file


class Peer:
    """The model in float32 and the structures by name."""

    def __init__(self, structures: dict[str, Any], options: argparse.Namespace) -> None:
        self.structures = {
            name: Atoms(s["numbers"], s["positions"], cell=s["cell"], pbc=s["pbc"]) for name, s in structures.items()
        }
        self.cutoff = options.cutoff
        torch.manual_seed(options.seed)
        self.model = build(options.model, options.channels, options.interactions, options.rbf, options.cutoff).eval()
        # To its advantage: without gradients of the weights, autograd keeps less. Training has a copy with them.
        self.model.requires_grad_(False)
        self.converter = AtomsConverter(MatScipyNeighborList(cutoff=options.cutoff), dtype=torch.float32)

    def model_only(self, atoms: Atoms, repeats: int) -> tuple[list[float], float]:
        """Times in ms, energy in eV."""
        inputs = self.converter(atoms)
        energy = self.model(dict(inputs))[properties.energy].item()
        # The model writes into the dictionary that it is given, so each call has a shallow copy.
        return milliseconds(lambda: self.model(dict(inputs)), repeats), energy

    def calculator(self, atoms: Atoms, repeats: int, skin: bool) -> tuple[list[float], float]:
        """Times in ms, energy in eV, with atoms that move a little before each call."""
        neighbors = MatScipyNeighborList(cutoff=self.cutoff)
        if skin:
            neighbors = SkinNeighborList(neighbors, cutoff_skin=SKIN)
        atoms = atoms.copy()
        calculator = InMemory(self.model, neighbors, energy_unit="eV", dtype=torch.float32)
        wanted = ["energy", "forces"]
        calculator.calculate(atoms, wanted)
        energy = float(calculator.results["energy"])
        random = np.random.default_rng(0)
        start = atoms.get_positions()

        def move() -> None:
            atoms.positions = start + random.normal(scale=MOVE, size=start.shape)

        return milliseconds(lambda: calculator.calculate(atoms, wanted), repeats, move), energy

    def training(self, atoms: Atoms, size: int, repeats: int) -> tuple[list[float], int]:
        """Times of a step in ms, and the edges of the batch."""
        batch = []
        for index in range(size):
            batch.append(atoms.copy())
            batch[-1].rattle(0.05, seed=index)
        inputs = self.converter(batch)
        energies, forces = torch.randn(size), torch.randn(size * len(atoms), 3)
        model = copy.deepcopy(self.model).requires_grad_(True).train()
        adam = torch.optim.Adam(model.parameters(), lr=1e-4)

        def step() -> None:
            adam.zero_grad()
            out = model(dict(inputs))
            loss = torch.nn.functional.mse_loss(out[properties.energy], energies)
            loss = loss + torch.nn.functional.mse_loss(out[properties.forces], forces)
            loss.backward()
            adam.step()

        return milliseconds(step, repeats), len(inputs[properties.idx_i])

    def answer(self, line: str) -> dict[str, Any]:
        """What a command gives, without the fields common to all."""
        words = line.split()
        if len(words) != 4 or words[0] not in ("time", "train"):
            raise ValueError(f'unknown command "{line}"; known: time NAME PATH REPEATS, train NAME BATCH REPEATS')
        if words[1] not in self.structures:
            raise ValueError(f'unknown structure "{words[1]}"; known: {", ".join(self.structures)}')
        atoms, repeats = self.structures[words[1]], int(words[3])
        if words[0] == "train":
            times, n_edges = self.training(atoms, int(words[2]), repeats)
            return {"n_atoms": int(words[2]) * len(atoms), "n_edges": n_edges, "ms": times}
        if words[2] == "ef":
            times, energy = self.model_only(atoms, repeats)
        elif words[2] in ("calc", "skin"):
            times, energy = self.calculator(atoms, repeats, skin=words[2] == "skin")
        else:
            raise ValueError(f'unknown path "{words[2]}"; known: ef, calc, skin')
        n_edges = len(self.converter(atoms)[properties.idx_i])
        return {"n_atoms": len(atoms), "n_edges": n_edges, "energy": energy, "ms": times}


def answers(peer: Peer, lines: Iterator[str], common: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """An answer a line, until `quit` or the end of the input."""
    for line in lines:
        command = line.strip()
        if command == "quit":
            return
        try:
            yield {**common, "command": command, **peer.answer(command)}
        except Exception as error:  # the process lives on: the driver decides what an error means
            yield {**common, "command": command, "error": f"{type(error).__name__}: {error}"}


def main() -> None:
    """Read commands from standard input, write answers to standard output."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("structures", type=Path)
    parser.add_argument("--model", choices=MODELS, default="schnet")
    parser.add_argument("--channels", type=int, default=128)
    parser.add_argument("--interactions", type=int, default=3)
    parser.add_argument("--rbf", type=int, default=20)
    parser.add_argument("--cutoff", type=float, default=5.0, help="Å")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    peer = Peer(json.loads(options.structures.read_text()), options)
    common = {
        "peer": "schnetpack",
        "threads": torch.get_num_threads(),
        "versions": {name: version(name) for name in ("schnetpack", "torch", "ase", "matscipy")},
    }
    print(json.dumps({**common, "ready": True, "structures": list(peer.structures)}), flush=True)
    for answer in answers(peer, sys.stdin, common):
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
