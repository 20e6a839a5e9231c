"""DimeNet++ with torch_geometric's weights gives torch_geometric's numbers; in a crystal, those of a large cluster."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from scipy.special import eval_legendre, spherical_jn, sph_harm_y

from mlpot.graph import AtomsGraph
from mlpot.nn.spherical_bessel import SphericalBessel, ZonalHarmonics, envelope, zeros_of_bessel
from mlpot.nn.triplets import Triplets
from mlpot.potential import predict
from tests.core.pyg_dimenet import SETTINGS, exact_zeros, ours_of, peer_of, radius_graph, triplets

pytest.importorskip("torch_geometric")

NAMES = ["CH3CH2OH", "CO2", "C2H2", "O", "CO", "C6H6", "H2O", "bicyclobutane"]
CUTOFF = SETTINGS["cutoff"]


def theirs(peer, atoms: list[Atoms]) -> tuple[torch.Tensor, torch.Tensor]:
    """Energies (S,) and forces (N, 3) of the peer."""
    numbers = torch.tensor(np.concatenate([one.numbers for one in atoms]))
    positions = torch.tensor(np.concatenate([one.positions for one in atoms]), requires_grad=True)
    batch = torch.repeat_interleave(torch.arange(len(atoms)), torch.tensor([len(one) for one in atoms]))
    energies = peer(numbers, positions, batch)[:, 0]
    (gradient,) = torch.autograd.grad(energies.sum(), positions)
    return energies.detach(), -gradient


def molecules() -> list[Atoms]:
    """Straight ones stay exactly so."""
    found = [molecule(name) for name in NAMES]
    for one in found:
        if len(one) > 4:
            one.rattle(0.05, seed=len(one))
    return found


@pytest.fixture
def peer(monkeypatch):
    return peer_of(monkeypatch, SETTINGS)


def test_energies_and_forces_are_torch_geometrics(peer):
    atoms = molecules()
    energies, forces = theirs(peer, atoms)
    out = predict(ours_of(peer, SETTINGS), AtomsGraph.from_ase(atoms, CUTOFF))
    assert float(energies.abs().max()) > 0.1
    torch.testing.assert_close(out.energy, energies, rtol=0, atol=1e-10)
    # Its angle of exactly 180 degrees has no derivative: the square root of zero there gives NaN.
    finite = torch.isfinite(forces)
    assert int((~finite).any(1).sum()) <= 3 + 4
    torch.testing.assert_close(out.forces[finite], forces[finite], rtol=0, atol=1e-10)
    assert torch.isfinite(out.forces).all()


@pytest.mark.parametrize("name", ["CO2", "C2H2"])
def test_forces_of_straight_molecules_are_the_limit_of_bent_ones(peer, name):
    straight, bent = molecule(name), molecule(name)
    bent.positions[0, 0] += 1e-5
    model = ours_of(peer, SETTINGS)
    out = predict(model, AtomsGraph.from_ase(straight, CUTOFF))
    torch.testing.assert_close(out.forces, theirs(peer, [bent])[1], rtol=0, atol=1e-3)
    assert float(out.forces[:, :2].abs().max()) < 1e-12
    assert float(out.forces.abs().max()) > 1e-2


def test_the_class_as_it_is_rounds_zeros_to_float32(monkeypatch):
    peer = peer_of(monkeypatch, SETTINGS, exact=False)
    atoms = molecules()
    out = predict(ours_of(peer, SETTINGS), AtomsGraph.from_ase(atoms, CUTOFF), forces=False)
    torch.testing.assert_close(out.energy, theirs(peer, atoms)[0], rtol=1e-6, atol=1e-6)
