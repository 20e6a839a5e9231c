"""Training steps of the classic graph networks beside plain torch_geometric networks of the same layers.

    python benchmarks/gnn_speed.py MOLECULES.csv -o benchmarks/results/gnn_speed.json

Both sides are in one process and take turns: a property of 64 drug-size molecules by their bonds (the largest of the
column "smiles"), and forces of 8 copies of ethanol. Both get the same edges ready-made, and every step a batch that
has not been seen before, as in training: what a batch needs besides its tensors is worked out within the step.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from pathlib import Path

import torch
import torch_geometric
from ase.build import molecule
from side_by_side import processor, times
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric import nn as pyg
from torch_geometric.utils import add_self_loops

import mlpot
from mlpot import models
from mlpot.allocator import keep_freed_memory
from mlpot.convert.smiles import from_smiles
from mlpot.nn.edges import N_ATOM, N_BOND
from mlpot.nn.radial import SincBasis, polynomial_cutoff
from mlpot.property_model import build
from mlpot.train.run import versions

CHANNELS, LAYERS, HEADS, BASIS, CUTOFF, HIDDEN = 64, 3, 4, 20, 5.0, 32
COMMON = {"channels": CHANNELS, "n_layers": LAYERS, "cutoff": CUTOFF, "residual": "none"}
OURS: dict[str, tuple[str, dict[str, object]]] = {
    "gat": ("gat", {"variant": "gat", "heads": HEADS, "slope": "leaky_relu"}),
    "gatv2": ("gat", {"variant": "gatv2", "heads": HEADS, "slope": "leaky_relu"}),
    "gcn": ("gcn", {}),
    "transformer": ("transformer", {"heads": HEADS}),
    "transformer with loops": ("transformer", {"heads": HEADS}),  # as ours has: each atom hears itself, too
    "mpnn": ("mpnn", {"edge_channels": HIDDEN}),
    "ggnn": ("ggnn", {}),
}
SMOOTH = {"slope": "smooth"}  # as potentials must have it


class Peer(nn.Module):
    """Input, layers with an activation between them, readout: as in torch_geometric's examples."""

    def __init__(self, name: str, n_edge: int, bonds: bool) -> None:
        super().__init__()
        self.name, self.loops = name.removesuffix(" with loops"), name.endswith(" with loops")
        name = self.name
        width = CHANNELS // 2 if name == "ggnn" else CHANNELS
        self.embedding = nn.Embedding(119, width)
        self.atom = nn.Linear(N_ATOM, width, bias=False) if bonds else None
        self.basis = SincBasis(BASIS, CUTOFF)
        attention = {"gat": pyg.GATConv, "gatv2": pyg.GATv2Conv, "transformer": pyg.TransformerConv}
        if name in attention:
            more = {} if name == "transformer" else {"fill_value": 0.0}
            self.convs = nn.ModuleList(
                attention[name](CHANNELS, CHANNELS // HEADS, HEADS, edge_dim=n_edge, **more)
                if k < LAYERS - 1
                else attention[name](CHANNELS, CHANNELS, HEADS, concat=False, edge_dim=n_edge, **more)
                for k in range(LAYERS)
            )
        elif name == "gcn":
            self.convs = nn.ModuleList(pyg.GCNConv(CHANNELS, CHANNELS) for _ in range(LAYERS))
        elif name == "ggnn":
            self.conv = pyg.GatedGraphConv(CHANNELS, LAYERS)
        else:
            edge = nn.Sequential(nn.Linear(n_edge, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, CHANNELS * CHANNELS))
            self.conv = pyg.NNConv(CHANNELS, CHANNELS, edge, root_weight=False, bias=False)
            self.gru = nn.GRUCell(CHANNELS, CHANNELS)
        self.readout = nn.Sequential(nn.Linear(CHANNELS, CHANNELS // 2), nn.SiLU(), nn.Linear(CHANNELS // 2, 1))

    def features(self, x: Tensor, index: Tensor, attributes: Tensor, weight: Tensor | None) -> Tensor:
        if self.name == "ggnn":
            return self.conv(x, index, weight)
        if self.loops:
            index, attributes = add_self_loops(index, attributes, 0.0, len(x))
        for k in range(LAYERS):
            if self.name == "mpnn":
                x = self.gru(self.conv(x, index, attributes), x)
                continue
            x = self.convs[k](x, index, weight if self.name == "gcn" else attributes)
            x = F.silu(x) if k < LAYERS - 1 else x
        return x

    def property(self, graph: mlpot.AtomsGraph) -> Tensor:
        bonds = graph.bonds
        x = self.embedding(graph.numbers) + self.atom(bonds.atom_features.float())
        x = self.features(x, bonds.index, bonds.features.float(), None)  # weights of 1
        return self.readout(pyg.global_mean_pool(x, graph.batch, graph.n_structures))[:, 0]

    def forces(self, graph: mlpot.AtomsGraph) -> tuple[Tensor, Tensor]:
        positions = graph.positions.float().requires_grad_()
        source, target = graph.edge_index
        distances = (positions[source] - positions[target]).norm(dim=1)
        envelope = polynomial_cutoff(distances, CUTOFF)
        weighted = self.name in ("gcn", "ggnn")  # which read the envelope alone
        attributes = None if weighted else self.basis(distances) * envelope[:, None]
        x = self.features(self.embedding(graph.numbers), graph.edge_index, attributes, envelope)
        energy = pyg.global_add_pool(self.readout(x), graph.batch, graph.n_structures)[:, 0]
        (gradient,) = torch.autograd.grad(energy.sum(), positions, create_graph=True)
        return energy, -gradient


def fresh(graph: mlpot.AtomsGraph) -> mlpot.AtomsGraph:
    """The batch as a loader hands it over: with the pairs, which it joins, and nothing else worked out."""
    new = replace(graph)
    new.derived("pairs", lambda _: graph.pairs)
    return new


def step_of(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], None]:
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=1e-4)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def property_steps(name: str, graph: mlpot.AtomsGraph) -> tuple[Callable[[], None], Callable[[], None]]:
    kind, settings = OURS[name]
    ours = build(kind, [{"name": "logS"}], **COMMON, **settings, edges="bonds")
    peer = Peer(name, N_BOND, bonds=True)
    label = torch.zeros(graph.n_structures)
    return (
        step_of(ours, lambda: F.mse_loss(ours(fresh(graph))["logS"], label)),
        step_of(peer, lambda: F.mse_loss(peer.property(graph), label)),
    )


def force_steps(name: str, graph: mlpot.AtomsGraph) -> tuple[Callable[[], None], Callable[[], None]]:
    kind, settings = OURS[name]
    ours = models.build(kind, **COMMON, n_basis=BASIS, **{**settings, **(SMOOTH if kind == "gat" else {})})
    peer = Peer(name, BASIS, bonds=False)

    def our_loss() -> Tensor:
        out = mlpot.predict(ours, fresh(graph), create_graph=True)
        return out.energy.square().mean() + out.forces.square().mean()

    def peer_loss() -> Tensor:
        energy, forces = peer.forces(graph)
        return energy.square().mean() + forces.square().mean()

    return step_of(ours, our_loss), step_of(peer, peer_loss)


def compared(ours: Callable[[], None], peer: Callable[[], None], rounds: int, calls: int) -> dict[str, float]:
    """Medians and fastest of both, in turns, ms."""
    mine: list[float] = []
    theirs: list[float] = []
    for _ in range(rounds):
        mine += times(ours, calls)
        theirs += times(peer, calls)
    row = {"mlpot_ms": statistics.median(mine), "peer_ms": statistics.median(theirs)}
    row |= {"mlpot_min_ms": min(mine), "peer_min_ms": min(theirs)}
    return row | {
        "ratio": row["peer_ms"] / row["mlpot_ms"],
        "ratio_of_fastest": row["peer_min_ms"] / row["mlpot_min_ms"],
    }


def drugs(path: Path, n: int) -> mlpot.AtomsGraph:
    """The n molecules with most atoms of a table's column "smiles"."""
    with path.open(newline="") as file:
        structures = [from_smiles(row["smiles"]) for row in csv.DictReader(file)]
    return mlpot.AtomsGraph.from_structure(sorted(structures, key=len)[-n:], CUTOFF)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("molecules", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--models", nargs="+", default=list(OURS))
    parser.add_argument("--note", help="kept with the result: what else the machine did")
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    works = {
        "property of 64 molecules": (property_steps, drugs(options.molecules, 64)),
        "forces of 8 ethanol": (force_steps, mlpot.AtomsGraph.from_ase([molecule("CH3CH2OH")] * 8, CUTOFF)),
    }
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for title, (steps, graph) in works.items():
        rows[title] = {}
        for name in options.models:
            row = compared(*steps(name, graph), options.rounds, options.calls)
            rows[title][name] = row
            print(
                f"{title:26s} {name:23s} {row['mlpot_ms']:8.2f} ms   peer {row['peer_ms']:8.2f} ms   "
                f"{row['ratio']:.2f} times as fast ({row['ratio_of_fastest']:.2f} at best)",
                flush=True,
            )
    result = {
        "date": date.today().isoformat(),
        "command": f"python benchmarks/gnn_speed.py {options.molecules.name} --threads {options.threads}",
        "hardware": processor(),
        "threads": options.threads,
        "versions": {**versions(), "torch_geometric": torch_geometric.__version__},
        **({"note": options.note} if options.note else {}),
        "sizes": f"float32, {CHANNELS} channels, {LAYERS} layers, {HEADS} heads, {BASIS} radial functions, {CUTOFF} Å",
        "rows": rows,
    }
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
