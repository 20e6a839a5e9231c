"""Energies, forces and stresses of schnetpack's SchNet or PaiNN with random weights, as an oracle for ours.

    python benchmarks/schnetpack_reference.py schnet tests/reference/schnet_schnetpack.json
    python benchmarks/schnetpack_reference.py painn tests/reference/painn_schnetpack.json

Run by the Python of an environment that holds schnetpack (peers/schnetpack_peer.py says how to make one). All in
float64. The file holds the settings, the weights under schnetpack's names (of the embedding only the rows of the
elements used, by atomic number), the structures and the results: energy in eV, atom_energies in eV, forces in eV/Å,
stress (3, 3) in eV/Å³ with ASE's sign (dE/dstrain / volume). schnetpack makes the constants of its radial functions
in float32; here they are set to the same numbers in float64, and are in the file.
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
from peers.schnetpack_peer import build
from schnetpack import properties
from schnetpack.interfaces import AtomsConverter
from schnetpack.nn import GaussianRBF
from schnetpack.transform import ASENeighborList

CONFIGS = {
    "schnet": {"channels": 16, "interactions": 3, "n_rbf": 20, "cutoff": 5.0},
    "painn": {"channels": 8, "interactions": 3, "n_rbf": 20, "cutoff": 5.0},
}
DESCRIPTIONS = {
    "schnet": "schnetpack SchNet + Atomwise(n_layers=2) + Forces, shifted softplus, GaussianRBF, CosineCutoff",
    "painn": "schnetpack PaiNN + Atomwise(n_layers=2) + Forces, silu, BesselRBF, CosineCutoff",
}
SEED = 7
EMBEDDING = "representation.embedding.weight"


def structures() -> dict[str, Atoms]:
    """A molecule, a cell larger than the cutoff, and a skewed one in which atoms see their own images."""
    found = {
        "ethanol": ase.build.molecule("CH3CH2OH"),
        "nacl_cubic": ase.build.bulk("NaCl", "rocksalt", a=5.6, cubic=True),
        "nacl_primitive": ase.build.bulk("NaCl", "rocksalt", a=5.6),
    }
    for seed, atoms in enumerate(found.values()):
        atoms.rattle(0.05, seed=seed)
    return found


def in_double(basis: torch.nn.Module, cutoff: float) -> None:
    """Set the constants of radial functions anew, in float64."""
    if isinstance(basis, GaussianRBF):
        basis.offsets.copy_(torch.linspace(0.0, cutoff, basis.n_rbf, dtype=torch.float64))
        basis.widths.fill_(cutoff / (basis.n_rbf - 1))
    else:
        basis.freqs.copy_(torch.arange(1, basis.n_rbf + 1, dtype=torch.float64) * (math.pi / cutoff))


def random_model(name: str) -> torch.nn.Module:
    """Float64, all weights random, biases too (they start as zero, and a wrong one would not show)."""
    torch.manual_seed(SEED)
    model = build(name, **CONFIGS[name], stress=True).double().eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if key.endswith("bias"):
                parameter.normal_(std=0.2)
        in_double(model.representation.radial_basis, CONFIGS[name]["cutoff"])
    model.output_modules[0].per_atom_output_key = "energy_per_atom"
    model.output_modules[0].model_outputs.append("energy_per_atom")
    model.collect_outputs()
    return model


def record(model: torch.nn.Module, cutoff: float, atoms: Atoms) -> dict[str, Any]:
    """The structure and what the model gives for it; stress only for a periodic one."""
    convert = AtomsConverter(ASENeighborList(cutoff=cutoff), dtype=torch.float64)
    inputs = convert(atoms)
    out = {key: value.detach() for key, value in model(dict(inputs)).items()}
    periodic = bool(atoms.pbc.all())
    return {
        "numbers": atoms.numbers.tolist(),
        "positions": atoms.positions.tolist(),
        "cell": atoms.cell.array.tolist(),
        "pbc": atoms.pbc.tolist(),
        "n_edges": len(inputs[properties.idx_i]),
        "energy": out[properties.energy].item(),
        "atom_energies": out["energy_per_atom"].squeeze(-1).tolist(),
        "forces": out[properties.forces].tolist(),
        **({"stress": out[properties.stress][0].tolist()} if periodic else {}),
    }


def main() -> None:
    """Write the file named on the command line."""
    name, path = sys.argv[1], Path(sys.argv[2])
    config, model, systems = CONFIGS[name], random_model(name), structures()
    weights: dict[str, Any] = {key: tensor.tolist() for key, tensor in model.state_dict().items()}
    used = sorted({int(number) for atoms in systems.values() for number in atoms.numbers})
    weights[EMBEDDING] = {str(number): weights[EMBEDDING][number] for number in used}
    content = {
        "model": DESCRIPTIONS[name],
        "config": config,
        "seed": SEED,
        "units": {"energy": "eV", "forces": "eV/Å", "stress": "eV/Å³, dE/dstrain / volume"},
        "versions": {package: version(package) for package in ("schnetpack", "torch", "ase", "numpy")},
        "weights": weights,
        "systems": {key: record(model, config["cutoff"], atoms) for key, atoms in systems.items()},
    }
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, ensure_ascii=False) + "\n")
    os.replace(temporary, path)


if __name__ == "__main__":
    main()
