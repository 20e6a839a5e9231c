"""DimeNet++'s energies and forces, and training steps on them, beside torch_geometric's class with the same settings.

    python benchmarks/dimenet_speed.py -o benchmarks/results/dimenet_speed_1_thread.json

Both sides are in one process and take turns. torch_geometric gets its edges and its triplets ready-made, for which it
has programs of its own (torch_cluster, torch_sparse); their time is left out. Ours gets its edges ready-made, and
works out what belongs to a batch anew in each training step, as a loader hands it over.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path

import torch
import torch_geometric
from ase import Atoms
from side_by_side import processor, times
from torch import Tensor, nn
from torch_geometric.nn.models import dimenet as pyg

import mlpot
from mlpot import models
from mlpot.allocator import keep_freed_memory
from mlpot.bench.systems import SYSTEMS
from mlpot.train.run import versions

CUTOFF = 5.0
Calls = tuple[Callable[[], object], Callable[[], object]]
WORKS = {
    "energy and forces, 8 ethanol": ("ethanol", 8, False),
    "energy and forces, aspirin": ("aspirin", 1, False),
    "energy and forces, 192-atom water": ("water192", 1, False),
    "training step, 8 ethanol": ("ethanol", 8, True),
    "training step, 8 aspirin": ("aspirin", 8, True),
}


class Peer(nn.Module):
    """torch_geometric's class at the defaults of the paper, on the edges of one of our graphs."""

    def __init__(self, graph: mlpot.AtomsGraph) -> None:
        super().__init__()
        self.network = pyg.DimeNetPlusPlus(128, 1, 4, 64, 8, 256, 7, 6, CUTOFF, output_initializer="glorot_orthogonal")
        self.graph = graph
        self.triplets = triplets(graph)

    def forward(self, create_graph: bool) -> tuple[Tensor, Tensor]:
        """Energies and forces."""
        pyg.radius_graph = lambda *_, **__: self.graph.edge_index
        pyg.triplets = lambda *_, **__: self.triplets
        positions = self.graph.positions.float().requires_grad_()
        energy = self.network(self.graph.numbers, positions, self.graph.batch)[:, 0]
        (gradient,) = torch.autograd.grad(energy.sum(), positions, create_graph=create_graph)
        return energy, -gradient


def triplets(graph: mlpot.AtomsGraph) -> tuple[Tensor, ...]:
    """As torch_geometric's: i, j of edges; i, j, k of triplets, and their edges k -> j and j -> i."""
    source, target = graph.edge_index
    parts = []
    for ji, (j, i) in enumerate(graph.edge_index.T.tolist()):
        kj = torch.nonzero((target == j) & (source != i))[:, 0]
        parts.append(torch.stack([torch.full_like(kj, ji), kj]))
    ji, kj = torch.cat(parts, 1)
    return target, source, target[ji], source[ji], source[kj], kj, ji


def fresh(graph: mlpot.AtomsGraph) -> mlpot.AtomsGraph:
    """The batch as a loader hands it over: with the pairs, which it joins, and nothing else worked out."""
    new = replace(graph)
    new.derived("pairs", lambda _: graph.pairs)
    return new


def step_of(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def calls(system: str, copies: int, train: bool) -> Calls:
    """What each side does."""
    one: Atoms = SYSTEMS[system]()
    one.pbc = False  # torch_geometric knows no periodicity
    graph = mlpot.AtomsGraph.from_ase([one] * copies, CUTOFF)
    _ = graph.pairs
    torch.manual_seed(0)
    ours, peer = models.build("dimenet", cutoff=CUTOFF), Peer(graph)

    def our_loss() -> Tensor:
        out = mlpot.predict(ours, fresh(graph), create_graph=True)
        assert out.forces is not None
        return out.energy.square().mean() + out.forces.square().mean()

    def peer_loss() -> Tensor:
        energy, forces = peer(True)
        return energy.square().mean() + forces.square().mean()

    if train:
        return step_of(ours, our_loss), step_of(peer, peer_loss)
    frozen = mlpot.Calculator(ours).potential
    peer.requires_grad_(False)
    return lambda: mlpot.predict(frozen, graph), lambda: peer(False)


def compared(ours: Callable[[], object], peer: Callable[[], object], rounds: int) -> dict[str, float]:
    """Medians and fastest of both, in turns, ms."""
    mine: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        mine += times(ours, 3, warm_up=1)
        theirs += times(peer, 3, warm_up=1)
    row = {"mlpot_ms": statistics.median(mine), "peer_ms": statistics.median(theirs)}
    row |= {"mlpot_min_ms": min(mine), "peer_min_ms": min(theirs)}
    return row | {
        "ratio": row["peer_ms"] / row["mlpot_ms"],
        "ratio_of_fastest": row["peer_min_ms"] / row["mlpot_min_ms"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--works", nargs="+", default=list(WORKS))
    parser.add_argument("--note", help="kept with the result: what else the machine did")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(options.threads)
    rows = {}
    for title in options.works:
        row = rows[title] = compared(*calls(*WORKS[title]), options.rounds)
        print(
            f"{title:34s} {row['mlpot_ms']:9.2f} ms   peer {row['peer_ms']:9.2f} ms   "
            f"{row['ratio']:.2f} times as fast ({row['ratio_of_fastest']:.2f} at best)",
            flush=True,
        )
    result = {
        "date": date.today().isoformat(),
        "command": f"python benchmarks/dimenet_speed.py --threads {options.threads}",
        "hardware": processor(),
        "threads": options.threads,
        "versions": {**versions(), "torch_geometric": torch_geometric.__version__},
        **({"note": options.note} if options.note else {}),
        "sizes": f"float32, the paper's defaults (128 channels, 4 blocks, 7 x 6 basis functions), {CUTOFF} Å",
        "rows": rows,
    }
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
