"""The ASE calculator: properties, caching, conventions, failures (cases S02, S03, S07, C01, C02, C06, N09)."""

from __future__ import annotations

import copy
import itertools
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, fcc111, molecule
from ase.calculators.calculator import PropertyNotImplementedError
from ase.calculators.fd import calculate_numerical_stress
from ase.calculators.lj import LennardJones
from ase.calculators.mixing import SumCalculator
from ase.filters import FrechetCellFilter
from ase.optimize import BFGS

from mlpot import checkpoint, models
from mlpot.calculator import Calculator
from mlpot.compose import Ensemble
from mlpot.errors import PhysicsWarning, UserError
from mlpot.graph import AtomsGraph
from mlpot.potential import Potential, predict


def schnet(seed: int = 0, dtype: torch.dtype = torch.float64, cutoff: float = 4.0) -> Potential:
    torch.manual_seed(seed)
    return models.build("schnet", channels=16, cutoff=cutoff).to(dtype)


def ethanol() -> Atoms:
    return molecule("CH3CH2OH")


def copper(seed: int = 0) -> Atoms:
    atoms = bulk("Cu", a=3.6).repeat(2)
    atoms.rattle(0.08, seed=seed)
    return atoms


class ChargedSchNet(Potential):
    """Energy that depends on the charge, for the cache."""

    structure_inputs = ("charge",)

    def __init__(self) -> None:
        super().__init__()
        self.cutoff = 4.0
        self.calls = 0

    def atom_energies(self, graph: AtomsGraph) -> torch.Tensor:
        self.calls += 1
        charge = torch.zeros(1, dtype=torch.float64) if graph.charge is None else graph.charge
        return (graph.positions**2).sum(1) + charge[graph.batch]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_results_are_those_of_predict_in_ase_shape(dtype: str) -> None:
    potential, atoms = schnet(), copper()
    atoms.calc = Calculator(potential, dtype=dtype)
    out = predict(copy.deepcopy(potential).to(getattr(torch, dtype)), AtomsGraph.from_ase(atoms, 4.0), stress=True)
    stress = atoms.get_stress()
    assert stress.shape == (6,)
    assert stress.dtype == atoms.get_forces().dtype == np.float64
    assert out.forces is not None
    assert out.stress is not None
    tolerance = 1e-12 if dtype == "float64" else 1e-5
    np.testing.assert_allclose(atoms.get_potential_energy(), out.energy[0], rtol=tolerance)
    np.testing.assert_allclose(atoms.get_forces(), out.forces, atol=tolerance)
    np.testing.assert_allclose(atoms.get_stress(voigt=False), out.stress[0], atol=tolerance)
    np.testing.assert_allclose(atoms.calc.results["energies"].sum(), atoms.get_potential_energy(), rtol=1e-12)
    assert atoms.get_potential_energy(force_consistent=True) == atoms.get_potential_energy()


def test_stress_is_the_slope_of_the_energy() -> None:
    atoms = copper()
    atoms.calc = Calculator(schnet())
    np.testing.assert_allclose(atoms.get_stress(), calculate_numerical_stress(atoms, eps=1e-5), atol=1e-8)


def test_lennard_jones_stress_has_ases_sign_and_values() -> None:
    for a, expected in ((4.75, -3.2024), (5.0, -0.8655), (5.25, -0.0374), (5.5, 0.2199)):
        atoms = bulk("Ar", "fcc", a=a, cubic=True)
        atoms.calc = Calculator(models.build("lennard_jones"))
        np.testing.assert_allclose(atoms.get_stress()[:3] * 160.21766208, expected, atol=1e-4)


def test_sum_with_another_calculator() -> None:
    atoms = copper()
    ours, other = Calculator(schnet()), LennardJones(sigma=2.3, epsilon=0.4, rc=4.0, smooth=True)
    parts: dict[str, Any] = {"energy": 0.0, "forces": 0.0, "stress": 0.0}
    for calc in (ours, other):
        atoms.calc = calc
        parts["energy"] += atoms.get_potential_energy()
        parts["forces"] = parts["forces"] + atoms.get_forces()
        parts["stress"] = parts["stress"] + atoms.get_stress()
    atoms.calc = SumCalculator([ours, other])
    np.testing.assert_allclose(atoms.get_potential_energy(), parts["energy"], rtol=1e-12)
    np.testing.assert_allclose(atoms.get_forces(), parts["forces"], atol=1e-12)
    np.testing.assert_allclose(atoms.get_stress(), parts["stress"], atol=1e-12)


def test_conservative_without_net_force_or_torque() -> None:
    atoms = ethanol()
    atoms.rattle(0.1, seed=1)
    atoms.calc = Calculator(schnet())
    forces = atoms.get_forces()
    assert np.abs(forces.sum(0)).max() < 1e-8
    assert np.abs(np.cross(atoms.positions, forces).sum(0)).max() < 1e-8
    corners = np.array([[0, 0, 0], [0.1, 0, 0], [0.1, 0.1, 0], [0, 0.1, 0], [0, 0, 0]])
    path = np.concatenate([np.linspace(a, b, 10, endpoint=False) for a, b in itertools.pairwise(corners)])
    path = np.concatenate([path, path[:1]])
    start, along = atoms.positions[0].copy(), []
    for offset in path:
        atoms.positions[0] = start + offset
        along.append(atoms.get_forces()[0])
    work = sum(0.5 * (f + g) @ (b - a) for f, g, a, b in zip(along, along[1:], path, path[1:], strict=False))
    assert abs(work) < 1e-5


def test_only_what_is_asked_is_computed() -> None:
    atoms = copper()
    calc = atoms.calc = Calculator(schnet())
    atoms.get_potential_energy()
    assert "forces" not in calc.results
    assert "stress" not in calc.results
    atoms.get_forces()
    assert "stress" not in calc.results
    assert calc.n_evaluations == 2
    atoms.get_potential_energy()
    atoms.get_forces()
    assert calc.n_evaluations == 2
    atoms.get_stress()
    atoms.get_forces()
    assert calc.n_evaluations == 3


def test_a_property_asked_later_belongs_to_the_present_atoms() -> None:
    atoms = copper()
    atoms.calc = Calculator(schnet())
    atoms.get_forces()
    atoms.rattle(0.05, seed=3)
    atoms.get_potential_energy()
    fresh = atoms.copy()
    fresh.calc = Calculator(schnet())
    np.testing.assert_allclose(atoms.get_forces(), fresh.get_forces(), atol=1e-12)


@pytest.mark.parametrize("change", ["positions", "numbers", "cell", "pbc"])
def test_every_change_is_noticed(change: str) -> None:
    atoms = copper()
    atoms.calc = Calculator(schnet())
    before = atoms.get_potential_energy()
    if change == "positions":
        atoms.positions[0, 0] += 1e-7
    elif change == "numbers":
        atoms.numbers[0] = 47
    elif change == "cell":
        atoms.cell[0, 0] += 0.01
    else:
        atoms.pbc = [True, True, False]
    fresh = atoms.copy()
    fresh.calc = Calculator(schnet())
    assert atoms.get_potential_energy() != before
    np.testing.assert_allclose(atoms.get_potential_energy(), fresh.get_potential_energy(), rtol=1e-13)


def test_the_callers_array_is_not_the_results() -> None:
    atoms = ethanol()
    atoms.calc = Calculator(schnet())
    forces = atoms.get_forces()
    forces *= 2
    assert not np.allclose(atoms.get_forces(), forces)


def test_cache_sees_the_inputs_of_the_model_and_no_others() -> None:
    atoms = ethanol()
    calc = atoms.calc = Calculator(ChargedSchNet())
    atoms.info["charge"] = 0
    energy = atoms.get_potential_energy()
    calls = calc.potential.calls
    atoms.get_potential_energy()
    atoms.info["name"] = "unrelated"
    atoms.get_potential_energy()
    assert calc.potential.calls == calls
    atoms.info["charge"] = 100
    assert atoms.get_potential_energy() == pytest.approx(energy + 100 * len(atoms))
    assert calc.potential.calls == calls + 1


def test_an_ignored_charge_is_said_once_a_value() -> None:
    atoms = ethanol()
    atoms.calc = Calculator(schnet())
    atoms.info["charge"] = 1
    with pytest.warns(PhysicsWarning, match="does not take a charge"):
        atoms.get_potential_energy()
    atoms.rattle(0.01)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        atoms.get_potential_energy()
    atoms.info["charge"] = "minus one"
    with pytest.raises(UserError, match="expected a number"):
        atoms.get_potential_energy()


def test_stress_without_a_volume_is_refused() -> None:
    atoms = fcc111("Cu", (2, 2, 2), vacuum=8.0)
    atoms.calc = Calculator(schnet())
    with pytest.raises(UserError, match="periodic in three directions"):
        atoms.get_stress()
    with pytest.raises(PropertyNotImplementedError):
        atoms.get_stress()
    with pytest.raises(UserError, match="periodic in three directions"):
        BFGS(FrechetCellFilter(atoms), logfile=None).run(steps=1)
    with pytest.raises(PropertyNotImplementedError, match="dipole"):
        atoms.get_dipole_moment()


def test_default_dtype_is_left_alone_and_dtypes_alternate() -> None:
    default = torch.get_default_dtype()
    atoms = copper()
    single, double = Calculator(schnet(), dtype="float32"), Calculator(schnet(), dtype="float64")
    energies = []
    for calc in (double, single, double, single):
        calc.reset()
        atoms.calc = calc
        energies.append(atoms.get_potential_energy())
    assert torch.get_default_dtype() == default
    assert energies[0] == energies[2]
    assert energies[1] == energies[3]
    assert 0 < abs(energies[0] - energies[1]) < 1e-4


def test_no_state_is_carried_between_structures() -> None:
    calc, dense = Calculator(schnet()), copper()
    results = []
    for atoms in (dense, Atoms("O"), dense.copy()):
        atoms.calc = calc
        results.append((atoms.get_potential_energy(), atoms.get_forces()))
    assert results[0][0] == results[2][0]
    assert np.array_equal(results[0][1], results[2][1])
    np.testing.assert_array_equal(results[1][1], np.zeros((1, 3)))


@pytest.mark.parametrize("cell_changes", [False, True])
def test_skin_does_not_change_results(cell_changes: bool) -> None:
    walk = np.random.default_rng(0)
    atoms = bulk("Cu", a=3.6, cubic=True).repeat(2)
    skinny, plain = Calculator(schnet(), skin=1.5), Calculator(schnet(), skin=0.0)
    for _ in range(30):
        atoms.positions += walk.normal(scale=0.05, size=(len(atoms), 3))
        if cell_changes:
            atoms.set_cell(atoms.cell.array @ (np.eye(3) + walk.normal(scale=4e-3, size=(3, 3))), scale_atoms=True)
        answers = []
        for calc in (skinny, plain):
            atoms.calc = calc
            answers.append((atoms.get_potential_energy(), atoms.get_forces()))
        np.testing.assert_allclose(answers[0][0], answers[1][0], rtol=1e-12)
        np.testing.assert_allclose(answers[0][1], answers[1][1], atol=1e-11)
    assert 1 < skinny._neighbors.n_searches < 20


def test_copies_and_pickles_are_independent(tmp_path: Any) -> None:
    atoms = copper()
    calc = atoms.calc = Calculator(schnet())
    forces = atoms.get_forces()
    checkpoint.save(tmp_path / "model.mlpot", schnet())
    for other in (copy.deepcopy(calc), pickle.loads(pickle.dumps(calc)), Calculator(tmp_path / "model.mlpot")):
        twin = atoms.copy()
        twin.calc = other
        np.testing.assert_array_equal(twin.get_forces(), forces)
        twin.positions += 0.1 * np.arange(len(twin))[:, None]
        twin.get_forces()
        assert calc.calculation_required(atoms, ["forces"]) is False


def test_the_given_potential_is_not_touched() -> None:
    potential = schnet().train()
    calc = Calculator(potential, dtype="float32")
    assert potential.dtype == torch.float64
    assert potential.training
    assert all(p.requires_grad for p in potential.parameters())
    assert not any(p.requires_grad for p in calc.potential.parameters())


def test_committee_gives_mean_members_and_spread() -> None:
    members, atoms = [schnet(seed) for seed in range(3)], copper()
    singles: dict[str, list[Any]] = {"energy": [], "forces": [], "stress": []}
    for member in members:
        atoms.calc = Calculator(member)
        singles["energy"].append(atoms.get_potential_energy())
        singles["forces"].append(atoms.get_forces())
        singles["stress"].append(atoms.get_stress())
    calc = atoms.calc = Calculator(Ensemble(members))
    stress, forces = atoms.get_stress(), atoms.get_forces()
    np.testing.assert_allclose(atoms.get_potential_energy(), np.mean(singles["energy"]), rtol=1e-12)
    np.testing.assert_allclose(forces, np.mean(singles["forces"], axis=0), atol=1e-12)
    np.testing.assert_allclose(stress, np.mean(singles["stress"], axis=0), atol=1e-12)
    np.testing.assert_allclose(calc.results["energy_std"], np.std(singles["energy"]), rtol=1e-9)
    np.testing.assert_allclose(calc.results["forces_std"], np.std(singles["forces"], axis=0), atol=1e-12)
    assert calc.results["forces_members"].shape == (3, len(atoms), 3)
    assert calc.results["energy_members"].shape == (3,)
    assert calc.results["stress_members"].shape == (3, 6)
    same = atoms.copy()
    same.calc = Calculator(Ensemble([schnet(), schnet()]))
    same.get_forces()
    assert same.calc.results["energy_std"] == 0.0
    assert not same.calc.results["forces_std"].any()
    with pytest.raises(UserError, match="share one cutoff"):
        Ensemble([schnet(), schnet(cutoff=5.0)])


def test_unknown_elements_are_named() -> None:
    potential = schnet()
    potential.restrict_to([1, 8])
    atoms = ethanol()
    atoms.calc = Calculator(potential)
    with pytest.raises(UserError, match="not trained on C"):
        atoms.get_potential_energy()
    water = molecule("H2O")
    water.calc = atoms.calc
    water.get_forces()
    water.numbers[0] = 9
    with pytest.raises(UserError, match="not trained on F"):
        water.get_forces()


def test_bad_requests_are_one_message() -> None:
    with pytest.raises(UserError, match=r'unknown dtype "float16".*float32'):
        Calculator(schnet(), dtype="float16")
    with pytest.raises(UserError, match="not known"):
        Calculator(schnet(), device="gpu0")
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="no CUDA device"):
            Calculator(schnet(), device="cuda")
    atoms = ethanol()
    atoms.calc = Calculator(schnet())
    atoms.get_forces()
    atoms.positions[3, 1] = np.nan
    with pytest.raises(UserError, match="position of atom 3"):
        atoms.get_forces()


def test_results_that_are_not_finite_name_the_atom() -> None:
    atoms = Atoms("Ar3", [[0, 0, 0], [4, 0, 0], [4, 0, 0]])
    atoms.calc = Calculator(models.build("lennard_jones"))
    with pytest.raises(UserError, match=r"first at atom 1 \(Ar\).*atom 2 \(Ar\), is 0.000 Å"):
        atoms.get_forces()
    assert not atoms.calc.results


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("not enough memory")])
def test_out_of_memory_says_how_large_and_what_to_do(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    atoms = ethanol()
    atoms.calc = Calculator(schnet())

    def fail(graph: AtomsGraph) -> torch.Tensor:
        raise error

    monkeypatch.setattr(atoms.calc.potential, "atom_energies", fail)
    with pytest.raises(UserError, match=r"9 atoms, \d+ edges, .*float64.*float32"):
        atoms.get_forces()


@pytest.mark.gpu
def test_cuda_gives_what_the_cpu_gives() -> None:
    if not torch.cuda.is_available():
        pytest.skip("torch finds no CUDA device")
    atoms = copper()
    atoms.calc = Calculator(schnet())
    forces, stress = atoms.get_forces(), atoms.get_stress()
    atoms.calc = Calculator(schnet(), device="cuda")
    for _ in range(2):
        np.testing.assert_allclose(atoms.get_forces(), forces, atol=1e-10)
        np.testing.assert_allclose(atoms.get_stress(), stress, atol=1e-10)
        atoms.calc.reset()
