"""Energies, forces and training gradients of the nequip package's models with random weights, as an oracle for ours.

    python benchmarks/nequip_reference.py tests/reference/nequip.json

Run by the Python of an environment that holds nequip (0.19.1) and ase. All in float64. For each model the file holds
its settings, its weights by the place they have in the equations (see `named`), for each structure the energy in eV,
forces in eV/Å and stress (3, 3) in eV/Å³, and the gradient of Σ E² + Σ F², all structures in one batch, in each weight.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ase.build
import torch
from ase import Atoms
from nequip.data import AtomicDataDict, from_ase
from nequip.data.transforms import ChemicalSpeciesToAtomTypeMapper, NeighborListTransform
from nequip.model import NequIPGNNModel
from nequip.utils.global_state import set_global_state
from torch import Tensor

TYPES, CUTOFF = ["H", "C", "O"], 3.5
SHARED = {"r_max": CUTOFF, "radial_mlp_width": 6, "num_bessels": 5, "avg_num_neighbors": 3.0}
# Six layers are the fewest in which odd scalars count.
MODELS: dict[str, dict[str, Any]] = {
    "parity": {"num_layers": 6, "l_max": 2, "parity": True, "num_features": 3, "radial_mlp_depth": 2},
    "natural": {
        "num_layers": 3,
        "l_max": 3,
        "parity": False,
        "num_features": 4,
        "radial_mlp_depth": 1,
        "bessel_trainable": True,
        "polynomial_cutoff_p": 5,
        "readout_mlp_hidden_layers_depth": 1,
        "readout_mlp_hidden_layers_width": 7,
    },
}


def structures() -> dict[str, Atoms]:
    """A molecule, and a skewed cell in which atoms see their own images."""
    cell = [[2.9, 0.0, 0.0], [0.7, 3.1, 0.0], [-0.4, 0.5, 3.3]]
    crystal = Atoms("CO", [[0.1, 0.0, 0.2], [1.3, 1.4, 1.7]], cell=cell, pbc=True)
    found = {"ethanol": ase.build.molecule("CH3CH2OH"), "crystal": crystal}
    for seed, atoms in enumerate(found.values()):
        atoms.rattle(0.05, seed=seed)
    return found


def random_model(settings: dict[str, Any]) -> torch.nn.Module:
    model = NequIPGNNModel(seed=3, model_dtype="float64", type_names=TYPES, **SHARED, **settings)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bessel_weights"):
                parameter.add_(0.1 * torch.randn_like(parameter))
            if "readout" in name:
                parameter.mul_(10.0)  # so that forces come to some eV/Å
    return model


def input_of(atoms: Atoms) -> AtomicDataDict.Type:
    data = from_ase(atoms)
    for transform in (ChemicalSpeciesToAtomTypeMapper(TYPES), NeighborListTransform(CUTOFF)):
        data = transform(data)
    return data


def named(model: torch.nn.Module) -> dict[str, Any]:
    """The weights: a matrix for each pair of irreps that they join, where e3nn keeps them in one row.

    Of a layer: "linear_1" and "linear_2" {irrep: (inputs, outputs)}, "self_connection" {irrep: (inputs, features of
    the embedding, outputs)}, "radial" [(inputs, outputs)], "paths" [(irrep, degree, irrep)] in the order of the last
    radial layer's columns, and "gated", the irreps in the order of the gates, which follow the scalars among 0e.
    """
    network, layers = model.model.func, []
    bessel = network.bessel_encode.bessel_weights
    for layer in (module for name, module in network.named_children() if name.startswith("layer")):
        block, product = layer.conv, layer.conv.tp_scatter.tp
        linears = {
            name: {
                str(linear.irreps_in[i.i_in].ir): weight.tolist()
                for _, i, weight in linear.weight_views(yield_instruction=True)
            }
            for name, linear in (("linear_1", block.linear_1), ("linear_2", block.linear_2))
        }
        connection = block.sc.weight_views(yield_instruction=True) if block.sc is not None else ()
        layers.append(
            {
                **linears,
                "self_connection": {str(block.sc.irreps_in1[i.i_in1].ir): w.tolist() for _, i, w in connection},
                "radial": [linear.weight.tolist() for linear in block.edge_mlp.mlp if hasattr(linear, "weight")],
                "paths": [
                    (str(product.irreps_in1[i.i_in1].ir), i.i_in2, str(product.irreps_out[i.i_out].ir))
                    for i in product.instructions
                ],
                "gated": [str(ir) for _, ir in layer.equivariant_nonlin.irreps_gated],
            }
        )
    readout = network.per_atom_energy_readout.mlp_module.mlp
    return {
        "embedding": network.type_embed.embed_module.weight.tolist(),
        "bessel": bessel.flatten().tolist() if bessel.requires_grad else None,
        "layers": layers,
        "readout": [linear.weight.tolist() for linear in readout if hasattr(linear, "weight")],
    }


def gradients(model: torch.nn.Module, inputs: list[AtomicDataDict.Type]) -> dict[str, Any]:
    """Those of Σ E² + Σ F², named as the weights are."""
    out = model.train()(AtomicDataDict.batched_from_list(inputs))
    (out["total_energy"].square().sum() + out["forces"].square().sum()).backward()
    in_place = copy.deepcopy(model)
    with torch.no_grad():
        for theirs, parameter in zip(in_place.parameters(), model.parameters(), strict=True):
            theirs.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    return named(in_place)


def record(model: torch.nn.Module, settings: dict[str, Any], found: dict[str, Atoms]) -> dict[str, Any]:
    """What one model gives for all structures."""
    systems = {}
    for name, atoms in found.items():
        out: dict[str, Tensor] = model.eval()(input_of(atoms))
        systems[name] = {
            "energy": out["total_energy"].item(),
            "forces": out["forces"].tolist(),
            **({"stress": out["stress"][0].tolist()} if atoms.pbc.all() else {}),
        }
    inputs = [input_of(atoms) for atoms in found.values()]
    return {
        "settings": SHARED | settings,
        "weights": named(model),
        "gradients": gradients(model, inputs),
        "systems": systems,
    }


def main() -> None:
    warnings.simplefilter("ignore")
    set_global_state()
    path, found = Path(sys.argv[1]), structures()
    content = {
        "versions": {package: version(package) for package in ("nequip", "e3nn", "torch", "ase")},
        "types": TYPES,
        "units": {"energy": "eV", "forces": "eV/Å", "stress": "eV/Å³, dE/dstrain / volume"},
        "structures": {
            name: {
                "numbers": atoms.numbers.tolist(),
                "positions": atoms.positions.tolist(),
                "cell": atoms.cell.tolist(),
                "pbc": atoms.pbc.tolist(),
            }
            for name, atoms in found.items()
        },
        "models": {name: record(random_model(settings), settings, found) for name, settings in MODELS.items()},
    }
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(content, ensure_ascii=False) + "\n")
    os.replace(temporary, path)


if __name__ == "__main__":
    main()
