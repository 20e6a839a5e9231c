"""TensorNet with torchmd-net's weights gives torchmd-net's numbers, which are kept in tests/reference."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from mlpot import AtomsGraph, models, predict
from mlpot.models.tensornet import coordinates, matrices, product, squares
from mlpot.structure import Structure
from mlpot.testing import check_potential

SYSTEMS = ["carbon_monoxide", "ethanol", "nacl", "oxygen_atom"]
F64 = torch.float64


@pytest.fixture(scope="module")
def reference(repository):
    return json.loads((repository / "tests/reference/tensornet_torchmdnet.json").read_text())


@pytest.fixture(scope="module")
def model(reference):
    """Our TensorNet with the stored weights; what is three linear layers there is often one stack here."""
    config, stored = reference["config"], reference["weights"]
    channels = config["embedding_dimension"]
    model = models.build(
        "tensornet",
        channels=channels,
        n_basis=config["num_rbf"],
        n_interactions=config["num_layers"],
        cutoff=config["cutoff_upper"],
    ).double()
    state = model.state_dict()

    def weight(name):
        return torch.tensor(stored[name], dtype=F64)

    def layer(ours, theirs):
        for kind in ("weight", "bias"):
            state[f"{ours}.{kind}"] = weight(f"{theirs}.{kind}")

    def mix(ours, theirs, first=0):
        state[f"{ours}.weight"] = torch.stack([weight(f"{theirs}.{first + k}.weight").T for k in range(3)])

    def three_in_one(ours, theirs):
        matrix = weight(f"{theirs}.weight").view(3, channels, -1)
        state[f"{ours}.weight"], state[f"{ours}.bias"] = matrix.mT, weight(f"{theirs}.bias").view(3, 1, channels)

    root = "representation_model"
    theirs = f"{root}.tensor_embedding"
    for number, row in stored[f"{theirs}.emb.weight"].items():
        state["embedding.embedding.weight"][int(number)] = torch.tensor(row, dtype=F64)
    own, other = weight(f"{theirs}.emb2.weight").split(channels, 1)
    state["embedding.own.weight"], state["embedding.other.weight"] = own, other
    state["embedding.own.bias"] = weight(f"{theirs}.emb2.bias")
    projections = [f"{theirs}.distance_proj{k}" for k in (1, 2, 3)]
    state["embedding.filters.weight"] = torch.stack([weight(f"{name}.weight").T for name in projections])
    state["embedding.filters.bias"] = torch.stack([weight(f"{name}.bias")[None] for name in projections])
    mix("embedding.mix", f"{theirs}.linears_tensor")
    layer("embedding.scales.0", f"{theirs}.init_norm")
    layer("embedding.scales.1", f"{theirs}.linears_scalar.0")
    three_in_one("embedding.scales.3", f"{theirs}.linears_scalar.1")
    for k in range(config["num_layers"]):
        ours, theirs = f"interactions.{k}", f"{root}.layers.{k}"
        layer(f"{ours}.filters.0", f"{theirs}.linears_scalar.0")
        layer(f"{ours}.filters.2", f"{theirs}.linears_scalar.1")
        three_in_one(f"{ours}.filters.4", f"{theirs}.linears_scalar.2")
        mix(f"{ours}.inward", f"{theirs}.linears_tensor")
        mix(f"{ours}.outward", f"{theirs}.linears_tensor", 3)
    layer("invariants.0", f"{root}.out_norm")
    layer("invariants.1", f"{root}.linear")
    layer("readout.1", "output_model.output_network.layers.0")
    layer("readout.3", "output_model.output_network.layers.2")
    model.load_state_dict(state, strict=True)
    return model


@pytest.mark.parametrize("name", SYSTEMS)
def test_energies_and_forces_are_torchmdnets(reference, model, name):
    system = reference["systems"][name]
    structure = Structure.of(system["numbers"], system["positions"], system["cell"], system["pbc"])
    out = predict(model, AtomsGraph.from_structure(structure, model.cutoff))
    assert float(out.energy) == pytest.approx(system["energy"], abs=1e-9)
    assert np.allclose(out.forces, system["forces"], rtol=0, atol=1e-8)


def test_all_systems_are_tried(reference):
    assert sorted(reference["systems"]) == SYSTEMS


def test_coordinates_are_orthonormal_and_in_parts():
    x = torch.randn(9, 4, 2, dtype=F64, generator=torch.Generator().manual_seed(1))
    matrix = matrices(x)
    assert torch.allclose(coordinates(matrix), x)
    assert torch.allclose(squares(x), matrix.square().sum((0, 1)))
    parts = torch.tensor([0] + [1] * 3 + [2] * 5)[:, None, None]
    scalar, skew, tensor = (matrices(x * (parts == part)) for part in range(3))
    assert torch.allclose(scalar, scalar[0, 0] * torch.eye(3, dtype=F64)[:, :, None, None])
    assert torch.allclose(skew, -skew.transpose(0, 1))
    assert torch.allclose(tensor, tensor.transpose(0, 1))
    assert torch.allclose(tensor.diagonal().sum(-1), torch.zeros(4, 2, dtype=F64))


def test_products_are_those_of_matrices():
    a, b = torch.randn(2, 3, 3, 4, 2, dtype=F64, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(product(a, b), torch.einsum("ijnc,jknc->iknc", a, b))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_the_variant_of_matgl_is_sound_too(dtype):
    torch.manual_seed(0)
    settings = {"basis": "smooth_sinc", "self_message": False, "readout": "gated"}
    check_potential(models.build("tensornet", channels=8, n_interactions=2, n_basis=3, **settings), dtype=dtype)
