"""SchNet with schnetpack's weights gives schnetpack's numbers, which are kept in tests/reference."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from mlpot import AtomsGraph, models, predict
from mlpot.structure import Structure

SYSTEMS = ["ethanol", "nacl_cubic", "nacl_primitive"]


@pytest.fixture(scope="module")
def reference(repository):
    return json.loads((repository / "tests/reference/schnet_schnetpack.json").read_text())


def carried_over(reference):
    """Our SchNet with the stored weights; schnetpack's filters, block by block, are one stack here."""
    config = reference["config"]
    model = models.build(
        "schnet",
        channels=config["channels"],
        n_basis=config["n_rbf"],
        n_interactions=config["interactions"],
        cutoff=config["cutoff"],
    ).double()
    stored = reference["weights"]

    def weight(name):
        return torch.tensor(stored[name], dtype=torch.float64)

    state = model.state_dict()
    for number, row in stored["representation.embedding.weight"].items():
        state["embedding.weight"][int(number)] = torch.tensor(row, dtype=torch.float64)
    blocks = [f"representation.interactions.{k}" for k in range(config["interactions"])]
    filters = [f"{block}.filter_network" for block in blocks]
    for ours, theirs in ((0, 0), (2, 1)):
        state[f"filters.{ours}.weight"] = torch.stack([weight(f"{name}.{theirs}.weight").T for name in filters])
        state[f"filters.{ours}.bias"] = torch.stack([weight(f"{name}.{theirs}.bias")[None] for name in filters])
    for k, block in enumerate(blocks):
        state[f"interactions.{k}.inward.weight"] = weight(f"{block}.in2f.weight")
        for ours, theirs in ((0, 0), (2, 1)):
            for kind in ("weight", "bias"):
                state[f"interactions.{k}.outward.{ours}.{kind}"] = weight(f"{block}.f2out.{theirs}.{kind}")
    for ours, theirs in ((0, 0), (2, 1)):
        for kind in ("weight", "bias"):
            state[f"readout.{ours}.{kind}"] = weight(f"output_modules.0.outnet.{theirs}.{kind}")
    model.load_state_dict(state, strict=True)
    return model


def test_the_basis_is_the_same(reference):
    weights, model = reference["weights"], carried_over(reference)
    distances = torch.tensor([0.5, 1.1, 3.3], dtype=torch.float64)
    offsets, widths = (np.array(weights[f"representation.radial_basis.{key}"]) for key in ("offsets", "widths"))
    expected = np.exp(-0.5 * ((distances.numpy()[:, None] - offsets) / widths) ** 2)
    assert np.allclose(model.basis(distances), expected, rtol=0, atol=1e-6)  # stored from float32 buffers


@pytest.mark.parametrize("name", SYSTEMS)
def test_energies_forces_and_stress_are_schnetpacks(reference, name):
    system, model = reference["systems"][name], carried_over(reference)
    structure = Structure.of(system["numbers"], system["positions"], system["cell"], system["pbc"])
    graph = AtomsGraph.from_structure(structure, model.cutoff)
    out = predict(model, graph, stress=True)
    assert graph.n_edges == system["n_edges"]
    assert float(out.energy) == pytest.approx(system["energy"], abs=1e-10)
    assert np.allclose(out.atom_energies, system["atom_energies"], rtol=0, atol=1e-10)
    assert np.allclose(out.forces, system["forces"], rtol=0, atol=1e-9)
    if "stress" in system:
        assert np.allclose(out.stress[0], system["stress"], rtol=0, atol=1e-9)
    else:
        assert bool(out.stress.isnan().all())


def test_all_systems_are_tried(reference):
    assert sorted(reference["systems"]) == SYSTEMS
