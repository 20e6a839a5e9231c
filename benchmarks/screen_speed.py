"""`mlpot screen` beside a plain loop of rdkit and torch_geometric's DataLoader on the same list of SMILES.

    python benchmarks/screen_speed.py TABLES... --lines 100000 -o benchmarks/results/screen_speed.json

TABLES are files with SMILES of real molecules (.csv with a column "smiles", .csv.gz, or FreeSolv's .txt). Where they
hold fewer than --lines, analogues are made: a hydrogen at a carbon is replaced by a small group, molecule by molecule,
until there are enough distinct ones. Both sides standardise (rdkit: Cleanup, largest fragment, neutral), read bonds,
predict with three layers of graph attention of the same size with random parameters, and write a table. Each runs in a
process of its own, one after the other; memory is that of all their processes together, looked at every half second.

The peers are the loop as it is commonly written, standardising with rdkit's functions and reading bonds with
torch_geometric's `from_smiles`; and the same in the workers of a DataLoader, one for each core.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import psutil
import torch
import torch_geometric
from rdkit import Chem, RDLogger, rdBase
from rdkit.Chem import AllChem
from rdkit.Chem.MolStandardize import rdMolStandardize
from side_by_side import processor
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import IterableDataset, get_worker_info
from torch_geometric import nn as pyg
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.utils import from_smiles
from torch_geometric.utils.smiles import e_map, x_map

from mlpot import checkpoint
from mlpot.property_model import build
from mlpot.train.run import versions

CHANNELS, LAYERS, HEADS, BATCH = 64, 3, 4, 128
GROUPS = ("F", "Cl", "C", "O", "N", "OC", "C#N", "C(F)(F)F", "CC", "C(=O)N", "S(=O)(=O)C", "Br")


# ------------------------------------------------------------------------------------------------------ the molecules


def real(paths: list[Path]) -> Iterator[str]:
    """The SMILES of the tables, as they stand there."""
    csv.field_size_limit(10**9)
    for path in paths:
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
            if path.suffix == ".txt":
                yield from (line.split(";")[1].strip() for line in file if not line.startswith("#"))
                continue
            for row in csv.DictReader(file):
                yield next(value for name, value in row.items() if name.lower() == "smiles")


def enumerated(paths: list[Path], n: int) -> tuple[list[str], int]:
    """n distinct SMILES, and how many of them are from the tables."""
    found = dict.fromkeys(real(paths))
    n_real = len(found)
    places: list[tuple[Any, int]] = [(mol, 0) for s in found if (mol := Chem.MolFromSmiles(s)) is not None]
    reactions = [AllChem.ReactionFromSmarts(f"[#6;!H0:1]>>[#6:1]{group}") for group in GROUPS]
    for reaction in reactions:
        for mol, _ in places:
            for (product,) in reaction.RunReactants((mol,)):
                if len(found) >= n:
                    return list(found)[:n], min(n_real, n)
                found[Chem.MolToSmiles(product)] = None
    return list(found)[:n], min(n_real, n)


# ---------------------------------------------------------------------------------------------------------- the peer


class Peer(nn.Module):
    """GATConv with SiLU between the layers on torch_geometric's own features of atoms and bonds."""

    def __init__(self) -> None:
        super().__init__()
        self.atoms = nn.ModuleList(nn.Embedding(len(values), CHANNELS) for values in x_map.values())
        self.width = sum(len(values) for values in e_map.values())
        self.layers = nn.ModuleList(
            pyg.GATConv(CHANNELS, CHANNELS // HEADS, HEADS, edge_dim=self.width)
            if layer < LAYERS - 1
            else pyg.GATConv(CHANNELS, CHANNELS, HEADS, concat=False, edge_dim=self.width)
            for layer in range(LAYERS)
        )
        self.readout = nn.Sequential(nn.Linear(CHANNELS, CHANNELS // 2), nn.SiLU(), nn.Linear(CHANNELS // 2, 1))

    def forward(self, data: Data) -> Tensor:
        x = sum(embedding(data.x[:, column]) for column, embedding in enumerate(self.atoms))
        sizes = [len(values) for values in e_map.values()]
        edges = torch.cat([F.one_hot(data.edge_attr[:, k], n) for k, n in enumerate(sizes)], 1).float()
        for number, layer in enumerate(self.layers):
            x = layer(x, data.edge_index, edges)
            x = F.silu(x) if number < LAYERS - 1 else x
        return self.readout(pyg.global_mean_pool(x, data.batch))[:, 0]


class Molecules(IterableDataset):
    """The list as `Data`, one molecule after the other; what cannot be read is left out."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines
        self.seconds = {"standardise": 0.0, "featurise": 0.0}

    def __iter__(self) -> Iterator[Data]:
        RDLogger.DisableLog("rdApp.*")
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for smiles in self.lines[first::step]:
            start = time.perf_counter()
            try:
                mol = rdMolStandardize.Cleanup(Chem.MolFromSmiles(smiles))
                mol = rdMolStandardize.FragmentParent(mol, skipStandardize=True)
                standard = Chem.MolToSmiles(rdMolStandardize.Uncharger().uncharge(mol))
            except Exception:
                continue
            middle = time.perf_counter()
            data = from_smiles(standard)
            self.seconds["standardise"] += middle - start
            self.seconds["featurise"] += time.perf_counter() - middle
            yield data


@torch.no_grad()
def loop(source: Path, output: Path, workers: int) -> None:
    """The peer; prints its seconds by stage."""
    torch.set_num_threads(1)  # more only wait for each other where the cores are shared
    torch.manual_seed(0)
    begin = time.perf_counter()
    model = Peer().eval()
    dataset = Molecules([line.split()[0] for line in source.read_text().splitlines()])
    rows: list[tuple[str, float]] = []
    predicting = 0.0
    for batch in DataLoader(dataset, batch_size=BATCH, num_workers=workers):
        start = time.perf_counter()
        rows += zip(batch.smiles, model(batch).tolist(), strict=True)
        predicting += time.perf_counter() - start
    with output.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    total = time.perf_counter() - begin
    stages = {} if workers else {**dataset.seconds, "predict": predicting}
    print(json.dumps({"predicted": len(rows), "seconds": total, "stages": stages}))


# ------------------------------------------------------------------------------------------------------- both of them


def measured(words: list[str]) -> tuple[dict[str, Any], str]:
    """Run a command: seconds by the clock and of the processors, memory at its height and on the way; its output."""
    memory: list[float] = []
    begin = time.perf_counter()
    before = os.times()
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)

    def watch() -> None:
        while process.poll() is None:
            total = 0
            try:
                parent = psutil.Process(process.pid)
                for one in (parent, *parent.children(recursive=True)):
                    total += one.memory_info().rss
            except psutil.NoSuchProcess:
                pass
            memory.append(total / 2**20)
            time.sleep(0.5)

    watcher = threading.Thread(target=watch)
    watcher.start()
    text, _ = process.communicate()
    watcher.join()
    if process.returncode:
        sys.exit(f"{words} ended with {process.returncode}")
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    tenths = [memory[min(len(memory) - 1, k * len(memory) // 10)] for k in range(1, 11)]
    return {
        "seconds": time.perf_counter() - begin,
        "processor_seconds": used,
        "peak_memory_MiB": max(memory),
        "memory_MiB_at_tenths": [round(value) for value in tenths],
    }, text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", type=Path, nargs="+")
    parser.add_argument("--lines", type=int, default=100_000)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--note", help="kept with the result: what else the machine did")
    parser.add_argument("--peer", type=int, help=argparse.SUPPRESS)  # be the peer, with so many workers
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    if options.peer is not None:
        loop(options.tables[0], options.output, options.peer)
        return
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as name, rdBase.BlockLogs():
        folder = Path(name)
        source, model = folder / "list.smi", folder / "model.mlpot"
        lines, n_real = enumerated(options.tables, options.lines)
        source.write_text("".join(f"{smiles} m{number}\n" for number, smiles in enumerate(lines)))
        settings = {"variant": "gat", "channels": CHANNELS, "n_layers": LAYERS, "heads": HEADS, "residual": "none"}
        checkpoint.save(model, build("gat", [{"name": "y"}], edges="bonds", slope="leaky_relu", **settings))
        words = ["-m", "mlpot", "screen", str(model), str(source), "-o", str(folder / "out.csv"), "--json"]
        ours, text = measured([sys.executable, *words, "--processes", str(options.cores)])
        answer = json.loads(text.splitlines()[-1])
        ours |= {
            "predicted": answer["status"]["ok"],
            "rates_of_one_process": {k: len(lines) / s for k, s in answer["seconds_by_stage"].items() if s > 0},
        }
        peers = {}
        for title, workers in (("plain loop", 0), (f"DataLoader with {options.cores} workers", options.cores)):
            words = [__file__, str(source), "--peer", str(workers)]
            row, text = measured([sys.executable, *words, "-o", str(folder / "peer.csv")])
            answer = json.loads(text.splitlines()[-1])
            row |= {"predicted": answer["predicted"]}
            row |= {"rates": {k: len(lines) / s for k, s in answer["stages"].items()}} if answer["stages"] else {}
            peers[title] = row
    for row in (ours, *peers.values()):
        row["molecules_per_second"] = len(lines) / row["seconds"]
        row["molecules_per_processor_second"] = len(lines) / row["processor_seconds"]
    for title, row in peers.items():
        row["ratio"] = row["seconds"] / ours["seconds"]
        row["ratio_of_processor_time"] = row["processor_seconds"] / ours["processor_seconds"]
        print(
            f"{title}: {row['molecules_per_second']:.0f} molecules a second; mlpot {ours['molecules_per_second']:.0f}, "
            f"{row['ratio']:.2f} times as fast ({row['ratio_of_processor_time']:.2f} by processor time)"
        )
    print(json.dumps(ours, indent=1))
    result = {
        "date": date.today().isoformat(),
        "command": f"python benchmarks/screen_speed.py {' '.join(p.name for p in options.tables)} --lines {len(lines)}",
        "hardware": processor(),
        "cores": options.cores,
        "versions": {**versions(), "torch_geometric": torch_geometric.__version__, "rdkit": rdBase.rdkitVersion},
        **({"note": options.note} if options.note else {}),
        "lines": len(lines),
        "from the tables": n_real,
        "analogues": len(lines) - n_real,
        "model": f"GAT on bonds, {CHANNELS} channels, {LAYERS} layers, {HEADS} heads, float32",
        "mlpot": ours,
        "peers": peers,
    }
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
