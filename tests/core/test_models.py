"""Energies, forces and stresses against independent codes and numbers worked out by hand."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from ase.calculators.lj import LennardJones as AseLennardJones
from ase.units import GPa

from mlpot import AtomsGraph, models, predict
from mlpot.potential import Potential


def seeded(name, **config) -> Potential:
    torch.manual_seed(0)
    return models.build(name, **config).double()


def answer(model, atoms, **wanted):
    return predict(model, AtomsGraph.from_ase(atoms, model.cutoff), **wanted)


def test_names_and_defaults():
    assert {"schnet", "lennard_jones", "zbl"} <= set(models.names())
    for name in models.names():
        model = models.build(name)
        assert isinstance(model, Potential)
        assert model.cutoff > 0
        assert model.config == models.config_class(name)()
        assert all(field.description for field in models.config_class(name).model_fields.values())


def test_building_is_seeded_by_torch():
    for name in models.names():
        torch.manual_seed(3)
        first = models.build(name)
        torch.manual_seed(3)
        second = models.build(name)
        for a, b in zip(first.parameters(), second.parameters(), strict=True):
            assert torch.equal(a, b)


def rattled_argon():
    atoms = bulk("Ar", "fcc", a=5.2, cubic=True).repeat((2, 1, 1))
    atoms.set_cell(atoms.cell.array @ [[1, 0.05, 0], [0, 0.97, 0.02], [0.1, 0, 1.02]], scale_atoms=True)
    atoms.rattle(0.2, seed=1)
    return atoms


def lennard_jones_cases():
    rng = np.random.default_rng(0)
    free = Atoms("Ar8", 3.9 * np.array(list(np.ndindex(2, 2, 2))) + rng.normal(scale=0.2, size=(8, 3)))
    slab = bulk("Ar", "fcc", a=5.2, cubic=True)
    slab.pbc = [True, True, False]
    return {"crystal": rattled_argon(), "primitive": bulk("Ar", "fcc", a=5.0), "free": free, "slab": slab}


@pytest.mark.parametrize("name", lennard_jones_cases())
def test_lennard_jones_is_that_of_ase(name):
    atoms = lennard_jones_cases()[name]
    model = models.build("lennard_jones")
    oracle = AseLennardJones(epsilon=0.0104, sigma=3.4, rc=8.0, ro=0.66 * 8.0, smooth=True)
    atoms.calc = oracle
    out = answer(model, atoms, stress=True)
    assert float(out.energy) == pytest.approx(atoms.get_potential_energy(), abs=1e-11)
    assert np.allclose(out.atom_energies, atoms.get_potential_energies(), rtol=0, atol=1e-12)
    assert np.allclose(out.forces, atoms.get_forces(), rtol=0, atol=1e-11)
    if atoms.pbc.all():
        assert np.allclose(out.stress[0], atoms.get_stress(voigt=False), rtol=0, atol=1e-12)
    else:
        assert bool(out.stress.isnan().all())


@pytest.mark.parametrize(("a", "pressure"), [(4.75, -3.2024), (5.0, -0.8655), (5.25, -0.0374), (5.5, 0.2199)])
def test_s01_compression_is_negative(a, pressure):
    stress = answer(models.build("lennard_jones"), bulk("Ar", "fcc", a=a, cubic=True), stress=True).stress[0] / GPa
    assert torch.diagonal(stress).tolist() == pytest.approx([pressure] * 3, abs=1e-4)
    assert float((stress - torch.diag(torch.diagonal(stress))).abs().max()) < 1e-10


@pytest.mark.parametrize(
    ("symbols", "r", "energy"),
    [("HH", 0.5, 5.888678049312), ("OSi", 1.0, 29.4290888008359), ("SiSi", 1.5, 3.0901774652541554), ("UU", 2.0, 0.0)],
)
def test_zbl_by_hand(symbols, r, energy):
    """E = 14.3996 Z Z'/r φ(r/a) (1 - 28 x⁶ + 48 x⁷ - 21 x⁸), x = r / 2 Å, worked out with ASE's constants."""
    pair = Atoms(symbols, [[0, 0, 0], [0, 0, r]])
    out = answer(models.build("zbl"), pair)
    assert float(out.energy) == pytest.approx(energy, rel=1e-9)
    assert out.atom_energies[0] == out.atom_energies[1]
    assert float(out.forces[1, 2]) >= 0.0


def test_n01_energy_far_from_the_origin():
    for dtype in (torch.float64, torch.float32):
        model = seeded("schnet", channels=16).to(dtype)
        energies = []
        for offset in (0, -6, 100, 5000):
            atoms = molecule("H2O")
            atoms.positions += offset
            energies.append(float(answer(model, atoms).energy))
        assert np.ptp(energies) < (1e-8 if dtype == torch.float64 else 1e-6)


def test_n02_energy_does_not_see_the_open_direction():
    model = seeded("schnet", channels=16)
    for cutoff_free in ([3, 3, c] for c in (1, 10, 1000)):
        atoms = Atoms("Cu2", [[0, 0, -0.5], [0, 0, 1.5]], cell=cutoff_free, pbc=[1, 1, 0])
        energy = float(answer(model, atoms).energy)
        assert energy == pytest.approx(float(answer(model, Atoms(atoms, cell=[3, 3, 10])).energy), abs=1e-10)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-8), (torch.float32, 1e-5)])
def test_n04_supercells(dtype, tolerance):
    model = seeded("schnet", channels=16, cutoff=6.0).to(dtype)
    primitive = bulk("Cu", "fcc", a=3.6)
    out = [answer(model, primitive.repeat(n), stress=True) for n in (1, 2, 3)]
    per_atom = [float(one.energy) / n**3 for one, n in zip(out, (1, 2, 3), strict=True)]
    assert np.ptp(per_atom) < tolerance
    for one in out[1:]:
        assert torch.allclose(one.stress, out[0].stress, rtol=0, atol=tolerance)


def test_n05_nothing_happens_at_the_cutoff():
    model = seeded("schnet", channels=16, cutoff=2.5)
    energies = [
        float(answer(model, Atoms("Cu2", [[0, 0, 0], [d, 0, 0]])).energy) for d in (2.5 - 1e-6, 2.5, 2.5 + 1e-6)
    ]
    assert np.ptp(energies) < 1e-9


def test_n08_isolated_atoms_in_any_box_and_in_a_batch():
    model = seeded("schnet", channels=16)
    boxes = [
        Atoms("H"),
        Atoms("H", cell=[100] * 3),
        Atoms("H", cell=[20] * 3, pbc=True),
        Atoms("H", cell=[20] * 3, pbc=[1, 0, 0]),
    ]
    for atoms in boxes:
        out = answer(model, atoms, stress=True)
        assert float(out.energy) == float(answer(model, boxes[0]).energy)
        assert out.forces.tolist() == [[0.0, 0.0, 0.0]]
    water = molecule("H2O")
    out = predict(model, AtomsGraph.from_ase([Atoms("H"), water, Atoms("H")], 5.0), create_graph=True)
    assert float(out.energy[1].detach()) == pytest.approx(float(answer(model, water).energy), abs=1e-12)
    (out.energy.square().sum() + out.forces.square().sum()).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_n10_coordinates_that_are_almost_zero():
    model = seeded("schnet", channels=16)
    energies = []
    for tiny in (-4.4e-52, 0.0, 4.4e-52):
        atoms = bulk("SiC", "zincblende", a=4.5274, cubic=True)
        atoms.positions[:, 0][atoms.positions[:, 0] == 0] = tiny
        energies.append(float(answer(model, atoms).energy))
        atoms.wrap()
        energies.append(float(answer(model, atoms).energy))
    assert np.ptp(energies) < 1e-10


def test_s06_the_answer_does_not_depend_on_the_batch():
    model = seeded("schnet", channels=16)
    frames = [molecule(name) for name in ("H2O", "CH4", "NH3", "CH3OH", "CO2", "C2H6", "HCN")]
    whole = answer(model, frames)
    assert torch.allclose(
        whole.energy,
        torch.zeros(7, dtype=torch.float64).index_add(0, AtomsGraph.from_ase(frames, 5.0).batch, whole.atom_energies),
    )
    for size in (1, 2):
        energies = torch.cat([answer(model, frames[k : k + size]).energy for k in range(0, 7, size)])
        assert torch.allclose(energies, whole.energy, rtol=0, atol=1e-9)


def test_s07_no_work_around_a_closed_loop():
    model = seeded("schnet", channels=16)
    atoms = molecule("CH3CH2OH")
    corners = np.array([[0, 0, 0], [0.1, 0, 0], [0.1, 0.1, 0], [0, 0.1, 0], [0, 0, 0]])
    work, start = 0.0, atoms.positions[4].copy()
    for a, b in itertools.pairwise(corners):
        for t in (np.arange(10) + 0.5) / 10:
            atoms.positions[4] = start + a + t * (b - a)
            work += float(answer(model, atoms).forces[4] @ torch.from_numpy((b - a) / 10))
    assert abs(work) < 1e-5


def test_p03_ghost_atoms_and_the_receptive_field():
    """Two interaction blocks see two cutoffs: with ghosts out to both, free copies give the periodic answer."""
    cutoff, blocks = 4.2, 2
    model = seeded("schnet", channels=16, cutoff=cutoff, n_interactions=blocks)
    atoms = bulk("Ar", "fcc", a=5.3, cubic=True)
    atoms.rattle(0.1, seed=0)
    periodic = answer(model, atoms)
    n = len(atoms)

    def with_ghosts(reach):
        big = atoms.repeat(7)
        big.positions -= 3 * atoms.cell.array.sum(0)
        owner = np.tile(np.arange(n), 343)
        nearest = np.linalg.norm(big.positions[:, None] - atoms.positions, axis=2).min(1)
        real = nearest < 1e-6
        keep = nearest < reach
        graph = AtomsGraph.from_ase(Atoms(big.numbers[keep], big.positions[keep]), cutoff)
        positions = graph.positions.clone().requires_grad_()
        energy = model.atom_energies(graph.moved(positions))[torch.from_numpy(real[keep])].sum()
        (gradient,) = torch.autograd.grad(energy, positions)
        folded = torch.zeros(n, 3, dtype=torch.float64).index_add(0, torch.from_numpy(owner[keep]), -gradient)
        return float(energy.detach()), folded

    energy, forces = with_ghosts(blocks * cutoff + 1e-3)
    assert energy == pytest.approx(float(periodic.energy), abs=1e-6)
    assert torch.allclose(forces, periodic.forces, rtol=0, atol=1e-6)
    energy, _ = with_ghosts(cutoff + 1e-3)
    assert abs(energy - float(periodic.energy)) > 1e-6


def test_u03_elements_are_a_set():
    model = seeded("schnet", channels=4)
    model.restrict_to([8, 1, 8])
    assert model.elements == (1, 8)


def test_without_create_graph_nothing_is_kept():
    model = seeded("schnet", channels=4).train()
    out = answer(model, molecule("H2O"), stress=True)
    assert not any(value.requires_grad for value in out)
    out = answer(model.eval(), molecule("H2O"), create_graph=True)
    assert out.energy.requires_grad
    assert out.forces.requires_grad


def test_stress_without_forces():
    model = seeded("schnet", channels=4)
    atoms = bulk("Cu", cubic=True)
    both, alone = answer(model, atoms, stress=True), answer(model, atoms, forces=False, stress=True)
    assert alone.forces is None
    assert torch.allclose(alone.stress, both.stress, rtol=0, atol=1e-14)
    assert answer(model, atoms, forces=False).stress is None
