"""SchNet with schnetpack's weights gives schnetpack's numbers, which are kept in tests/reference."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from tests.core.schnetpack_numbers import SYSTEMS, Stored


@pytest.fixture(scope="module")
def stored(repository):
    return Stored(json.loads((repository / "tests/reference/schnet_schnetpack.json").read_text()))


@pytest.fixture(scope="module")
def model(stored):
    """Our SchNet with the stored weights; schnetpack's filters, block by block, are one stack here."""
    model, weight = stored.build("schnet"), stored.weight
    state = model.state_dict()
    stored.fill_ends(state)
    blocks = [f"representation.interactions.{k}" for k in range(stored.config["interactions"])]
    filters = [f"{block}.filter_network" for block in blocks]
    for ours, theirs in ((0, 0), (2, 1)):
        state[f"filters.{ours}.weight"] = torch.stack([weight(f"{name}.{theirs}.weight").T for name in filters])
        state[f"filters.{ours}.bias"] = torch.stack([weight(f"{name}.{theirs}.bias")[None] for name in filters])
    for k, block in enumerate(blocks):
        state[f"interactions.{k}.inward.weight"] = weight(f"{block}.in2f.weight")
        stored.fill_layers(state, f"interactions.{k}.outward", f"{block}.f2out")
    model.load_state_dict(state, strict=True)
    return model


def test_the_basis_is_the_same(stored, model):
    distances = torch.tensor([0.5, 1.1, 3.3], dtype=torch.float64)
    offsets, widths = (stored.weight(f"representation.radial_basis.{key}").numpy() for key in ("offsets", "widths"))
    expected = np.exp(-0.5 * ((distances.numpy()[:, None] - offsets) / widths) ** 2)
    assert np.allclose(model.basis(distances), expected, rtol=0, atol=1e-6)  # stored from float32 buffers


@pytest.mark.parametrize("name", SYSTEMS)
def test_energies_forces_and_stress_are_schnetpacks(stored, model, name):
    stored.compare(name, model)


def test_all_systems_are_tried(stored):
    assert sorted(stored.systems) == SYSTEMS
