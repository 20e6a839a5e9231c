"""PaiNN with schnetpack's weights gives schnetpack's numbers, which are kept in tests/reference."""

from __future__ import annotations

import json

import pytest
import torch

from tests.core.schnetpack_numbers import SYSTEMS, Stored


@pytest.fixture(scope="module")
def stored(repository):
    return Stored(json.loads((repository / "tests/reference/painn_schnetpack.json").read_text()))


@pytest.fixture(scope="module")
def model(stored):
    """Our PaiNN with the stored weights; schnetpack's wide layers are stacks of square ones here."""
    model, weight, channels = stored.build("painn"), stored.weight, stored.config["channels"]
    state = model.state_dict()
    stored.fill_ends(state)

    def stack(name):
        wide = weight(f"{name}.weight")
        return {
            "weight": wide.view(-1, channels, wide.shape[1]).mT,
            "bias": weight(f"{name}.bias").view(-1, 1, channels),
        }

    def fill(ours, entries):
        state.update({f"{ours}.{kind}": value for kind, value in entries.items()})

    fill("filters", stack("representation.filter_net"))
    for k in range(stored.config["interactions"]):
        phi = f"representation.interactions.{k}.interatomic_context_net"
        fill(f"messages.{k}.phi.0", {kind: weight(f"{phi}.0.{kind}") for kind in ("weight", "bias")})
        fill(f"messages.{k}.phi.2", stack(f"{phi}.1"))
        mixing = f"representation.mixing.{k}"
        a = f"{mixing}.intraatomic_context_net"
        fill(f"updates.{k}.a.0", {kind: weight(f"{a}.0.{kind}") for kind in ("weight", "bias")})
        # In the order ss, vv, sv there.
        fill(f"updates.{k}.a.2", {kind: value[[0, 2, 1]] for kind, value in stack(f"{a}.1").items()})
        v, u = weight(f"{mixing}.mu_channel_mix.weight").split(channels)
        fill(f"updates.{k}.v", {"weight": v})
        fill(f"updates.{k}.u", {"weight": u})
    model.load_state_dict(state, strict=True)
    return model


def test_the_basis_is_the_same(stored, model):
    distances = torch.tensor([0.5, 1.1, 3.3], dtype=torch.float64)
    frequencies = stored.weight("representation.radial_basis.freqs")
    expected = torch.sin(distances[:, None] * frequencies) / distances[:, None]
    assert torch.allclose(model.basis(distances), expected, rtol=0, atol=1e-6)  # stored from float32 buffers


@pytest.mark.parametrize("name", SYSTEMS)
def test_energies_forces_and_stress_are_schnetpacks(stored, model, name):
    stored.compare(name, model)


def test_all_systems_are_tried(stored):
    assert sorted(stored.systems) == SYSTEMS
