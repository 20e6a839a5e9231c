"""A small model of mace-torch with random weights, its numbers and its training gradients, as an oracle for ours.

    python benchmarks/mace_reference.py tests/reference

Run by the Python of an environment that holds mace-torch (0.3.16). Writes mace_small.model, as that package saves its
models, and mace_small.json: structures, energy in eV, forces in eV/Å, stress (3, 3) in eV/Å³, and for each of its
parameters the gradient of Σ E² + Σ F², all structures in one batch. All in float64.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # its e3nn keeps constants in a pickle

import ase.build
import numpy as np
import torch
from ase import Atoms
from e3nn import o3
from mace import data, modules
from mace.tools import AtomicNumberTable, torch_geometric

NUMBERS, CUTOFF = (1, 6, 8), 3.5
DENSITY = "RealAgnosticDensityInteractionBlock", "RealAgnosticDensityResidualInteractionBlock"


def structures() -> dict[str, Atoms]:
    """A molecule, and a skewed cell in which atoms see their own images."""
    cell = [[2.9, 0.0, 0.0], [0.7, 3.1, 0.0], [-0.4, 0.5, 3.3]]
    crystal = Atoms("CO", [[0.1, 0.0, 0.2], [1.3, 1.4, 1.7]], cell=cell, pbc=True)
    found = {"ethanol": ase.build.molecule("CH3CH2OH"), "crystal": crystal}
    for seed, atoms in enumerate(found.values()):
        atoms.rattle(0.05, seed=seed)
    return found


def random_model() -> torch.nn.Module:
    """Scalars and vectors, density-normalised, with the Agnesi transform and ZBL."""
    torch.manual_seed(3)
    return modules.ScaleShiftMACE(
        r_max=CUTOFF,
        num_bessel=5,
        num_polynomial_cutoff=6,
        max_ell=2,
        interaction_cls=modules.interaction_classes[DENSITY[1]],
        interaction_cls_first=modules.interaction_classes[DENSITY[0]],
        num_interactions=2,
        num_elements=len(NUMBERS),
        hidden_irreps=o3.Irreps("3x0e+3x1o"),
        MLP_irreps=o3.Irreps("4x0e"),
        atomic_energies=np.array([-13.6, -1029.5, -2041.8]),
        avg_num_neighbors=6.0,
        atomic_numbers=list(NUMBERS),
        correlation=3,
        gate=torch.nn.functional.silu,
        radial_MLP=[6, 7],
        radial_type="bessel",
        distance_transform="Agnesi",
        pair_repulsion=True,
        atomic_inter_scale=1.7,
        atomic_inter_shift=-0.3,
    )


def batch_of(atoms: list[Atoms]) -> dict[str, torch.Tensor]:
    table = AtomicNumberTable(list(NUMBERS))
    graphs = [data.AtomicData.from_config(data.config_from_atoms(one), z_table=table, cutoff=CUTOFF) for one in atoms]
    loader = torch_geometric.dataloader.DataLoader(graphs, batch_size=len(graphs))
    return next(iter(loader)).to_dict()


def main() -> None:
    torch.set_default_dtype(torch.float64)
    folder = Path(sys.argv[1])
    model, found = random_model(), structures()
    torch.save(model, folder / "mace_small.model")
    systems: dict[str, Any] = {}
    for name, atoms in found.items():
        out = model(batch_of([atoms]), compute_stress=True)
        systems[name] = {
            "numbers": atoms.numbers.tolist(),
            "positions": atoms.positions.tolist(),
            "cell": atoms.cell.tolist(),
            "pbc": atoms.pbc.tolist(),
            "energy": out["energy"].item(),
            "forces": out["forces"].tolist(),
            "stress": out["stress"][0].tolist() if atoms.pbc.all() else None,
        }
    out = model(batch_of(list(found.values())), training=True)
    (out["energy"].square().sum() + out["forces"].square().sum()).backward()
    gradients = {name: p.grad.tolist() for name, p in model.named_parameters() if p.grad is not None}
    versions = {name: version(name) for name in ("mace-torch", "e3nn", "torch")}
    result = {"versions": versions, "systems": systems, "gradients": gradients}
    (folder / "mace_small.json").write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
