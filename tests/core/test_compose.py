"""Potentials made of potentials."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule

from mlpot import AtomsGraph, models, predict
from mlpot.compose import Ensemble, ReferenceEnergies, Scaled, Sum, predict_members
from mlpot.errors import UserError


def schnet(seed=0, **config):
    torch.manual_seed(seed)
    return models.build("schnet", **{"channels": 8, **config})


def answer(model, atoms, **wanted):
    return predict(model, AtomsGraph.from_ase(atoms, model.cutoff), **wanted)


def test_a_sum_is_the_sum():
    parts = [schnet().double(), models.build("zbl"), ReferenceEnergies(energies={1: -13.6, 6: -1029.0, 8: -2041.84})]
    frames = [molecule("CH3CH2OH"), molecule("H2O"), Atoms("O")]
    whole = answer(Sum(parts), frames)
    each = [predict(part, AtomsGraph.from_ase(frames, 5.0)) for part in parts]
    for name in ("energy", "atom_energies", "forces"):
        assert torch.allclose(getattr(whole, name), sum(getattr(one, name) for one in each), rtol=0, atol=1e-9)


def test_stress_of_a_sum():
    atoms = bulk("Cu", a=3.5, cubic=True)
    parts = [models.build("lennard_jones", sigma=2.3), schnet().double()]
    graph = AtomsGraph.from_ase(atoms, 8.0)
    expected = sum(predict(part, graph, stress=True).stress for part in parts)
    assert torch.allclose(predict(Sum(parts), graph, stress=True).stress, expected, rtol=0, atol=1e-12)


def test_scaled():
    part = schnet().double()
    a, b = answer(part, molecule("H2O")), answer(Scaled([part], scale=-2.5), molecule("H2O"))
    assert torch.allclose(b.energy, -2.5 * a.energy)
    assert torch.allclose(b.forces, -2.5 * a.forces)


def test_cutoff_and_elements_of_a_composition():
    a, b = schnet(), models.build("lennard_jones")
    a.restrict_to([1, 6, 8])
    whole = Sum([a, b, ReferenceEnergies(energies={8: -1.0, 1: -2.0})])
    assert whole.cutoff == 8.0
    assert whole.elements == (1, 8)
    with pytest.raises(UserError, match="not trained on C"):
        answer(whole, molecule("CH4"))
    assert Sum([b]).elements is None


def test_s05_reference_energies_stay_in_float64():
    references = {8: -2041.8396123456789}
    for model in (ReferenceEnergies(energies=references).float(), Sum([ReferenceEnergies(energies=references)]).half()):
        out = answer(model, Atoms("O" * 1000, np.arange(3000.0).reshape(-1, 3)))
        assert out.energy.dtype == torch.float64
        assert float(out.energy) == pytest.approx(-2041839.6123456789, abs=1e-6)


def test_s05_energy_differences_at_large_totals():
    atoms = Atoms("O512", 2.2 * np.array(list(np.ndindex(8, 8, 8))), cell=[17.6] * 3, pbc=True)
    atoms.rattle(0.1, seed=0)
    moved = atoms.copy()
    moved.positions[7, 0] += 0.001
    network = Scaled([schnet(cutoff=4.0)], scale=20.0)
    single = Sum([network, ReferenceEnergies(energies={8: -2041.84})])
    differences = []
    for model in (single.float(), single.double()):
        a, b = answer(model, [atoms, moved], forces=False).energy
        differences.append(float(b - a))
        assert abs(float(a)) > 1e6
    assert abs(differences[1]) > 1e-6
    assert abs(differences[0] - differences[1]) < 1e-4


def test_reference_energies_alone():
    model = ReferenceEnergies(energies={1: -13.5, 8: -2041.0})
    out = answer(model, [molecule("H2O"), bulk("O", "fcc", a=4.0)], stress=True)
    assert out.energy.tolist() == [-2068.0, -2041.0]
    assert float(out.forces.abs().max()) == 0.0
    assert float(out.stress[1].abs().max()) == 0.0
    with pytest.raises(UserError, match="not trained on C"):
        answer(model, molecule("CH4"))


def test_c06_committee_is_mean_and_spread():
    members = [schnet(seed).double() for seed in range(3)]
    model = Ensemble(members)
    frames = [molecule("H2O"), bulk("Cu"), Atoms("H")]
    graph = AtomsGraph.from_ase(frames, model.cutoff)
    each = [predict(member, graph, stress=True) for member in members]
    out, stack = predict(model, graph, stress=True), predict_members(model, graph, stress=True)
    assert stack.forces.shape == (3, graph.n_atoms, 3)
    assert stack.stress.shape == (3, 3, 3, 3)
    for name in ("energy", "atom_energies", "forces", "stress"):
        values = torch.stack([getattr(one, name) for one in each])
        assert torch.equal(getattr(stack, name).nan_to_num(), values.nan_to_num())
        assert torch.allclose(getattr(out, name), values.mean(0), rtol=0, atol=1e-12, equal_nan=True)
    twins = predict_members(Ensemble([members[0], members[0]]), graph, forces=False)
    assert twins.forces is None
    assert float(twins.energy.std(0, correction=0).max()) == 0.0


def test_committees_share_a_cutoff():
    with pytest.raises(UserError, match=r"\[4\.0, 5\.0\] Å"):
        Ensemble([schnet(cutoff=4.0), schnet(cutoff=5.0)])
    with pytest.raises(UserError, match="at least one"):
        Ensemble([])
