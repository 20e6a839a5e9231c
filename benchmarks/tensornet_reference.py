"""Energies and forces of torchmd-net's TensorNet with random weights, as an oracle for ours.

    python benchmarks/tensornet_reference.py tests/reference/tensornet_torchmdnet.json

Run by the Python of an environment that holds torchmd-net (`pip install torchmd-net --no-deps`, and what it imports:
ase, h5py, lightning, torch_geometric, tqdm, warp-lang). All in float64. The file holds the settings, the weights under
torchmd-net's names (of the embedding only the rows of the elements used, by atomic number), the structures and the
results: energy in eV, forces in eV/Å. Its boxes must be at least twice as wide as the cutoff. torchmd-net makes the
centres of its radial functions in float32; here they are set to the same numbers in float64, and are in the file. Its
kernels in warp round a constant to float32 even in float64 (1e-9 eV per atom); here its own plain torch takes their
place.
"""

from __future__ import annotations

import json
import math
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ase.build
import torch
from ase import Atoms
from torchmdnet.models import tensornet
from torchmdnet.models.model import create_model

CONFIG = {
    "model": "tensornet",
    "embedding_dimension": 8,
    "num_layers": 2,
    "num_rbf": 12,
    "cutoff_upper": 4.5,
    "cutoff_lower": 0.0,
    "rbf_type": "expnorm",
    "trainable_rbf": False,
    "activation": "silu",
    "equivariance_invariance_group": "O(3)",
    "max_z": 100,
    "max_num_neighbors": 64,
    "precision": 64,
    "atom_filter": -1,
    "prior_model": None,
    "output_model": "Scalar",
    "reduce_op": "sum",
    "derivative": True,
}
SEED = 7
EMBEDDING = "representation_model.tensor_embedding.emb.weight"


def use_plain_torch() -> None:
    """The functions that torchmd-net itself uses where it finds no warp."""
    tensornet.OPT = False
    for name in ("compose_tensor", "decompose_tensor", "tensor_matmul_o3", "tensor_matmul_so3"):
        setattr(tensornet, name, getattr(tensornet, f"_{name}"))


def structures() -> dict[str, Atoms]:
    """A molecule, an atom alone, two atoms on an axis, and a periodic cell of two elements."""
    found = {
        "ethanol": ase.build.molecule("CH3CH2OH"),
        "oxygen_atom": Atoms("O"),
        "carbon_monoxide": Atoms("CO", [[0, 0, 0], [0, 0, 1.128]]),
        "nacl": ase.build.bulk("NaCl", "rocksalt", a=5.6, cubic=True).repeat((2, 2, 2)),
    }
    for seed, name in enumerate(("ethanol", "nacl")):
        found[name].rattle(0.05, seed=seed)
    return found


def random_model() -> torch.nn.Module:
    """Float64, all weights random, biases and the weights of norms too (a wrong one would not show else)."""
    torch.manual_seed(SEED)
    model = create_model(dict(CONFIG)).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.2)
            elif "norm" in name:
                parameter.normal_(mean=1.0, std=0.2)
        basis, cutoff = model.representation_model.distance_expansion, CONFIG["cutoff_upper"]
        first = math.exp(-cutoff)
        basis.means.copy_(torch.linspace(first, 1.0, CONFIG["num_rbf"], dtype=torch.float64))
        basis.betas.fill_((2 / CONFIG["num_rbf"] * (1 - first)) ** -2)
    return model


def record(model: torch.nn.Module, atoms: Atoms) -> dict[str, Any]:
    """The structure and what the model gives for it."""
    box = torch.tensor(atoms.cell.array) if atoms.pbc.all() else None
    energy, forces = model(torch.tensor(atoms.numbers), torch.tensor(atoms.positions), box=box)
    return {
        "numbers": atoms.numbers.tolist(),
        "positions": atoms.positions.tolist(),
        "cell": atoms.cell.array.tolist(),
        "pbc": atoms.pbc.tolist(),
        "energy": energy.item(),
        "forces": forces.tolist(),
    }


def main() -> None:
    """Write the file named on the command line."""
    path = Path(sys.argv[1])
    use_plain_torch()
    model, systems = random_model(), structures()
    weights: dict[str, Any] = {name: tensor.tolist() for name, tensor in model.state_dict().items()}
    used = sorted({int(number) for atoms in systems.values() for number in atoms.numbers})
    weights[EMBEDDING] = {str(number): weights[EMBEDDING][number] for number in used}
    content = {
        "model": "torchmd-net TensorNet + Scalar, in plain torch",
        "config": CONFIG,
        "seed": SEED,
        "units": {"energy": "eV", "forces": "eV/Å"},
        "versions": {name: version(name) for name in ("torchmd-net", "warp-lang", "torch", "ase", "numpy")},
        "weights": weights,
        "systems": {name: record(model, atoms) for name, atoms in systems.items()},
    }
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, ensure_ascii=False) + "\n")
    os.replace(temporary, path)


if __name__ == "__main__":
    main()
