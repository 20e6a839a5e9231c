"""DimeNet++ with torch_geometric's weights gives torch_geometric's numbers, in a crystal those of a large cluster."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import molecule
from torch import Tensor, nn

from mlpot import models
from mlpot.graph import AtomsGraph
from mlpot.potential import predict
from tests.core.pyg_dimenet import SETTINGS, ours_of, peer_of

pytest.importorskip("torch_geometric")

NAMES = ["CH3CH2OH", "CO2", "C2H2", "O", "CO", "C6H6", "H2O", "bicyclobutane"]
CUTOFF = SETTINGS["cutoff"]


@pytest.fixture(scope="module")
def peer() -> Iterator[nn.Module]:
    with pytest.MonkeyPatch.context() as patch:
        yield peer_of(patch, SETTINGS)


def theirs(peer: nn.Module, atoms: list[Atoms]) -> tuple[Tensor, Tensor]:
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


def test_energies_and_forces_are_torch_geometrics(peer: nn.Module) -> None:
    atoms = molecules()
    energies, forces = theirs(peer, atoms)
    out = predict(ours_of(peer, SETTINGS), AtomsGraph.from_ase(atoms, CUTOFF))
    assert float(energies.abs().max()) > 0.1
    assert float(forces.abs().max()) > 0.1
    torch.testing.assert_close(out.energy, energies, rtol=0, atol=1e-10)
    torch.testing.assert_close(out.forces, forces, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", ["CO2", "C2H2"])
def test_straight_molecules_have_the_forces_and_curvature_of_bent_ones(peer: nn.Module, name: str) -> None:
    """A linear molecule's bending force grows in proportion to the bend, from zero on."""
    model = ours_of(peer, SETTINGS)
    found = []
    for bend in (0.0, 1e-4, 2e-4):
        atoms = molecule(name)
        atoms.positions[0, 0] += bend
        found.append(predict(model, AtomsGraph.from_ase(atoms, CUTOFF)).forces)
        assert found[-1] is not None
        if bend:
            torch.testing.assert_close(found[-1], theirs(peer, [atoms])[1], rtol=0, atol=1e-9)
    straight, once, twice = (forces[:, 0] for forces in found)
    assert float(straight.abs().max()) < 1e-12
    assert float(once.abs().max()) > 1e-6
    torch.testing.assert_close(twice, 2.0 * once, rtol=1e-4, atol=0)


def test_the_class_as_it_is_rounds_zeros_to_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {**SETTINGS, "n_spherical": 3, "n_basis": 3}
    peer = peer_of(monkeypatch, settings, exact=False)
    atoms = molecules()
    out = predict(ours_of(peer, settings), AtomsGraph.from_ase(atoms, CUTOFF), forces=False)
    torch.testing.assert_close(out.energy, theirs(peer, atoms)[0], rtol=1e-5, atol=1e-5)


def crystal() -> Atoms:
    """Two atoms in a skewed cell so small that each is among its own neighbours."""
    cell = [[2.6, 0.0, 0.0], [0.4, 2.8, 0.0], [0.2, -0.3, 3.0]]
    return Atoms("CuZn", scaled_positions=[[0.02, 0.0, 0.1], [0.47, 0.55, 0.5]], cell=cell, pbc=True)


def test_atoms_of_a_crystal_have_the_energies_of_those_in_the_middle_of_a_cluster(peer: nn.Module) -> None:
    atoms, model = crystal(), ours_of(peer, SETTINGS)
    graph = AtomsGraph.from_ase(atoms, CUTOFF)
    source, target = graph.edge_index
    assert bool((source == target).any())
    energies = predict(model, graph, forces=False).atom_energies
    # An atom hears of edges at most as many cutoffs away as there are blocks, and one for the output.
    reach = (SETTINGS["n_interactions"] + 1) * CUTOFF
    large = atoms * (11, 11, 11)
    for k in range(2):
        middle = atoms.positions[k] + np.array([5, 5, 5]) @ atoms.cell.array
        near = large[np.linalg.norm(large.positions - middle, axis=1) < reach + 0.01]
        where = int(np.argmin(np.linalg.norm(near.positions - middle, axis=1)))
        near.pbc = False
        got = predict(model, AtomsGraph.from_ase(near, CUTOFF), forces=False).atom_energies[where]
        torch.testing.assert_close(got, energies[k], rtol=0, atol=1e-10)
        if k == 0:  # the peer tells sums alone: what an atom far from all others adds is the energy of a lone atom
            total, _ = theirs(peer, [near])
            ours = predict(model, AtomsGraph.from_ase(near, CUTOFF), forces=False).energy
            torch.testing.assert_close(ours, total, rtol=1e-12, atol=1e-9)


def test_one_image_as_a_neighbour_twice_is_two_triplets(peer: nn.Module) -> None:
    """In a chain of one atom a cell, k -> j -> i with k an image of i is straight on, and is not left out."""
    chain = Atoms("C", cell=[2.0, 20.0, 20.0], pbc=[True, False, False])
    model = ours_of(peer, SETTINGS)
    one = predict(model, AtomsGraph.from_ase(chain, CUTOFF), forces=False).energy
    eight = predict(model, AtomsGraph.from_ase(chain * (8, 1, 1), CUTOFF), forces=False).energy
    torch.testing.assert_close(8.0 * one, eight, rtol=0, atol=1e-10)


def test_angles_are_seen_where_distances_within_the_cutoff_are_the_same() -> None:
    """Water, bent and straight, with a cutoff between O-H and H-H."""
    angles = np.radians([104.5, 180.0])
    waters = [Atoms("OHH", [[0, 0, 0], [0.96, 0, 0], [0.96 * np.cos(a), 0.96 * np.sin(a), 0]]) for a in angles]
    difference = {}
    for name in ("schnet", "dimenet"):
        torch.manual_seed(1)
        model = models.build(name, cutoff=1.3).double()
        bent, straight = predict(model, AtomsGraph.from_ase(waters, 1.3), forces=False).energy.tolist()
        difference[name] = abs(bent - straight)
    assert difference["schnet"] < 1e-12
    assert difference["dimenet"] > 1e-4
