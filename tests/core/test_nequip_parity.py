"""NequIP with the nequip package's weights gives its energies, forces, stresses and training gradients."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from mlpot import AtomsGraph, models, predict
from mlpot.errors import UserError
from mlpot.nn.angular import Irrep
from mlpot.structure import SYMBOLS, Structure

MODELS = ["parity", "natural"]


@pytest.fixture(scope="module")
def stored(repository):
    return json.loads((repository / "tests/reference/nequip.json").read_text())


def build(stored, name):
    """Our model of the same settings with the stored weights."""
    settings = stored["models"][name]["settings"]
    model = models.build(
        "nequip",
        cutoff=settings["r_max"],
        channels=settings["num_features"],
        l_max=settings["l_max"],
        parity=settings["parity"],
        n_interactions=settings["num_layers"],
        n_basis=settings["num_bessels"],
        trainable_basis=settings.get("bessel_trainable", False),
        envelope=settings.get("polynomial_cutoff_p", 6),
        radial_channels=[settings["radial_mlp_width"]] * settings["radial_mlp_depth"],
        readout_channels=[settings.get("readout_mlp_hidden_layers_width", 0)]
        * settings.get("readout_mlp_hidden_layers_depth", 0),
        average_neighbors=settings["avg_num_neighbors"],
        elements=[SYMBOLS.index(symbol) for symbol in stored["types"]],
    ).double()
    model.load_state_dict(laid_out(model, stored["models"][name]["weights"]), strict=True)
    return model


def laid_out(model, weights):
    """Numbers under the package's names as our state: what our model leaves out is left out."""
    state = {"embedding": weights["embedding"]}
    if weights["bessel"] is not None:
        state["basis.order"] = weights["bessel"]
    state |= {f"readout.layers.{k}.weight": matrix for k, matrix in enumerate(weights["readout"])}
    for number, (block, layer) in enumerate(zip(model.blocks, weights["layers"], strict=True)):
        stem, channels = f"blocks.{number}", model.config.channels
        gated = [str(irrep) for irrep in block.made if irrep.degree]
        columns = {"0e": [0, *(1 + layer["gated"].index(irrep) for irrep in gated)]}

        def kept(matrix, irrep, axis, columns=columns, channels=channels):
            """The columns of what our block makes."""
            parts = torch.tensor(matrix, dtype=torch.float64).split(channels, axis)
            return torch.cat([parts[part] for part in columns.get(irrep, [0])], axis)

        for k, irrep in enumerate(map(str, block.given)):
            state[f"{stem}.up.{k}.weight"] = layer["linear_1"][irrep]
        for k, irrep in enumerate(map(str, block.made)):
            # Paths that lead to one irrep follow each other in the package's order there and here.
            state[f"{stem}.mix.{k}.weight"] = kept(layer["linear_2"][irrep], irrep, 1)
            if irrep in layer["self_connection"]:
                product = kept(layer["self_connection"][irrep], irrep, 2)
                state[f"{stem}.own.{irrep}.weight"] = product.transpose(0, 1)
        *hidden, last = layer["radial"]
        state |= {f"{stem}.radial.layers.{k}.weight": matrix for k, matrix in enumerate(hidden)}
        parts = torch.tensor(last, dtype=torch.float64).split(channels, 1)
        order = [layer["paths"].index(path) for path in paths(block)]
        state[f"{stem}.radial.layers.{len(hidden)}.weight"] = torch.cat([parts[place] for place in order], 1)
    return {key: torch.as_tensor(value, dtype=torch.float64) for key, value in state.items()}


def paths(block):
    """[irrep of the source, degree of the harmonic, irrep that is made], in the order of our filters."""
    steps = zip(block.convolution.paths, block.convolution.sources, block.places, strict=True)
    return [[str(block.given[source]), path.l_edge, str(block.made[place])] for path, source, place in steps]


def structures(stored):
    return {n: Structure.of(s["numbers"], s["positions"], s["cell"], s["pbc"]) for n, s in stored["structures"].items()}


@pytest.mark.parametrize("system", ["ethanol", "crystal"])
@pytest.mark.parametrize("name", MODELS)
def test_energies_forces_and_stress(stored, name, system):
    model, expected = build(stored, name), stored["models"][name]["systems"][system]
    graph = AtomsGraph.from_structure(structures(stored)[system], model.cutoff)
    out = predict(model, graph, stress=True)
    assert np.abs(expected["forces"]).max() > 0.02
    assert abs(float(out.energy) - expected["energy"]) < 1e-12 * graph.n_atoms
    assert np.abs(out.forces.numpy() - expected["forces"]).max() < 1e-11
    if "stress" in expected:
        assert np.abs(out.stress[0].numpy() - expected["stress"]).max() < 1e-12


@pytest.mark.parametrize("name", MODELS)
def test_training_gradients_parameter_by_parameter(stored, name):
    model = build(stored, name)
    graph = AtomsGraph.from_structure(list(structures(stored).values()), model.cutoff)
    out = predict(model, graph, create_graph=True)
    (out.energy.square().sum() + out.forces.square().sum()).backward()
    expected = laid_out(model, stored["models"][name]["gradients"])
    assert sorted(expected) == sorted(key for key, _ in model.named_parameters())
    for key, parameter in model.named_parameters():
        theirs = expected[key].view_as(parameter)
        assert theirs.abs().max() > 0, key
        assert torch.allclose(parameter.grad, theirs, rtol=1e-9, atol=1e-11 * theirs.abs().max()), key


@pytest.mark.parametrize("name", MODELS)
def test_what_is_left_out_has_no_gradient_in_the_package(stored, name):
    """Every gradient that is not zero there belongs to a weight that we have."""

    def numbers(entry):
        if isinstance(entry, dict):
            return [x for part in entry.values() for x in numbers(part)]
        if isinstance(entry, list):
            return [x for part in entry for x in numbers(part)]
        return [entry] if isinstance(entry, float) else []

    gradients = stored["models"][name]["gradients"]
    model = build(stored, name)
    theirs = sum(x != 0 for x in numbers(gradients))
    assert theirs == sum(int((value != 0).sum()) for value in laid_out(model, gradients).values())
    assert theirs == sum(parameter.numel() for parameter in model.parameters())


def test_layouts_keep_what_leads_to_the_energy():
    layouts = models.build("nequip", n_interactions=6, channels=1).config.layouts()
    assert [" ".join(map(str, irreps)) for irreps in layouts] == [
        "0e",
        "0e 1o 2e",
        "0e 1e 1o 2e 2o",
        "0e 0o 1e 1o 2e 2o",
        "0e 1e 1o 2e 2o",
        "0e 1o 2e",
        "0e",
    ]
    assert str(Irrep(1, -1)) == "1o"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"chanels": 16}, r'unknown setting "chanels".*channels'),
        ({"elements": [1, 1]}, "each atomic number once"),
        ({"elements": [0]}, r"elements\.0 = 0"),
        ({"radial_channels": []}, "radial_channels"),
        ({"l_max": 5}, "l_max = 5"),
        ({"envelope": 2}, "envelope = 2"),
    ],
)
def test_settings_that_make_no_model_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        models.build("nequip", **settings)
