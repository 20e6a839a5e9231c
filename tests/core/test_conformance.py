"""The conformance suite on every model and composition, and proof that it catches what it should."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import mlpot
from mlpot.compose import Ensemble, ReferenceEnergies, Scaled, Sum
from mlpot.nn.radial import cosine_cutoff, norm
from mlpot.nn.segment import segment_sum
from mlpot.potential import Potential
from mlpot.testing import check_potential

DTYPES = [torch.float64, torch.float32]
SMALL = {"channels": 8, "n_interactions": 2, "n_basis": 8}
ENERGIES = {1: -13.6, 6: -1029.5, 7: -1485.3, 8: -2041.84}


def build(name):
    """A small seeded model: settings that it does not have are left out."""
    torch.manual_seed(0)
    fields = mlpot.models.config_class(name).model_fields
    return mlpot.models.build(name, **{key: value for key, value in SMALL.items() if key in fields})


def sum_of_all():
    return Sum([Scaled([build("schnet")], scale=2.5), ReferenceEnergies(energies=ENERGIES), build("zbl")])


COMPOSITIONS = {
    "sum": sum_of_all,
    "ensemble": lambda: Ensemble([build("schnet"), build("schnet")]),
    "reference energies": lambda: ReferenceEnergies(energies=ENERGIES),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", mlpot.models.names())
def test_every_model(name, dtype):
    run = check_potential(build(name), dtype=dtype)
    assert len(run) >= 24


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_compositions(name, dtype):
    check_potential(COMPOSITIONS[name](), dtype=dtype)


def test_a_restricted_model_is_tried_on_its_own_elements():
    model = build("schnet")
    model.restrict_to([11, 17])
    check_potential(model, dtype="float64", seed=3)
    model.restrict_to(None)
    check_potential(model, dtype="float32", elements=[29], seed=5)


def test_the_potential_given_is_not_touched():
    model = build("schnet").train()
    before = copy.deepcopy(model.state_dict())
    state, default = torch.get_rng_state(), torch.get_default_dtype()
    names = check_potential(model)
    assert model.training
    assert model.dtype == torch.float32
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_default_dtype() == default
    assert len(names) == len(set(names))
    assert {"float64: force is slope", "float32: supercell", "float64: save and load"} <= set(names)


def test_what_is_not_a_potential_is_refused():
    with pytest.raises(TypeError, match="Linear"):
        check_potential(nn.Linear(2, 2))
    with pytest.raises(mlpot.errors.UserError, match="float16"):
        check_potential(build("zbl"), dtype="float16")


class Pairs(Potential):
    """A sound pair potential by an outsider: it cannot be saved, so that check is left out."""

    def __init__(self):
        super().__init__()
        self.cutoff = 3.0
        self.strength = nn.Parameter(torch.tensor(0.7))

    def envelope(self, r):
        return cosine_cutoff(r, self.cutoff)

    def pair_energies(self, graph):
        r = norm(graph.edge_vectors())
        return self.strength * torch.exp(-r) * self.envelope(r)

    def atom_energies(self, graph):
        return segment_sum(self.pair_energies(graph), graph.edge_index[1], graph.n_atoms)


class LinearEnvelope(Pairs):
    def envelope(self, r):
        return (1 - r / self.cutoff) * (r < self.cutoff)


class NoEnvelope(Pairs):
    def envelope(self, r):
        return torch.ones_like(r)


class Directed(Pairs):
    def pair_energies(self, graph):
        return super().pair_energies(graph) * (1 + graph.edge_vectors()[:, 2] ** 2)


class Handed(Pairs):
    def pair_energies(self, graph):
        return super().pair_energies(graph) * (1 + 1e-4 * graph.edge_vectors()[:, 0] ** 3)


class AcrossTheBatch(Pairs):
    def atom_energies(self, graph):
        energies = super().atom_energies(graph)
        return energies - energies.mean()


class ByIndex(Pairs):
    def atom_energies(self, graph):
        energies = super().atom_energies(graph)
        return energies * torch.linspace(1.0, 1.001, len(energies), dtype=energies.dtype)


class Detached(Pairs):
    def atom_energies(self, graph):
        return super().atom_energies(graph) * (1 + super().atom_energies(graph).detach())


class SinglePrecision(Pairs):
    def atom_energies(self, graph):
        return super().atom_energies(graph).float()


class AtTheOrigin(Pairs):
    def atom_energies(self, graph):
        return super().atom_energies(graph) + 1e-6 * norm(graph.positions)


class Squeezed(Pairs):
    def atom_energies(self, graph):
        return super().atom_energies(graph)[:, None].squeeze()


class ChangesItsInput(Pairs):
    def atom_energies(self, graph):
        energies = super().atom_energies(graph)
        graph.numbers.add_(1)
        return energies


class DrawsRandomNumbers(Pairs):
    def atom_energies(self, graph):
        torch.rand(1)
        return super().atom_energies(graph)


class Remembers(Pairs):
    calls = 0

    def atom_energies(self, graph):
        self.calls += 1
        return super().atom_energies(graph) * (1 + 1e-6 * self.calls)


class UnusedParameter(Pairs):
    def __init__(self):
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(3))


class NormOfZero(Pairs):
    def atom_energies(self, graph):
        weighted = graph.edge_vectors() * self.pair_energies(graph)[:, None]
        dipole = self.strength * segment_sum(weighted, graph.edge_index[1], graph.n_atoms)
        return super().atom_energies(graph) + dipole.square().sum(1).sqrt()


class SignedVolume(Pairs):
    def atom_energies(self, graph):
        handedness = torch.linalg.det(graph.cell).sign().detach()
        return super().atom_energies(graph) * (2 + handedness)[graph.batch]


FAULTS = {
    LinearEnvelope: "smooth at cutoff",
    NoEnvelope: "smooth at cutoff",
    Directed: "turning",
    Handed: "reflection",
    AcrossTheBatch: "batch equals singles",
    ByIndex: "permutation",
    Detached: "force is slope",
    SinglePrecision: "force is slope",
    AtTheOrigin: "translation",
    Squeezed: "shapes",
    ChangesItsInput: "input is not changed",
    DrawsRandomNumbers: "input is not changed",
    Remembers: "nothing is remembered",
    UnusedParameter: "training reaches every parameter",
    NormOfZero: "zero vectors train",
    SignedVolume: "equivalent cells",
}


def test_an_outsiders_potential_passes():
    run = check_potential(Pairs())
    assert not any("save" in name for name in run)
    assert any("training" in name for name in run)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_faults_are_caught_by_name_with_their_figures(fault):
    with pytest.raises(AssertionError) as caught:
        check_potential(fault(), dtype=torch.float64)
    lines = str(caught.value).splitlines()
    assert fault.__name__ in lines[0]
    assert any(line.startswith(f"float64: {FAULTS[fault]}:") for line in lines[1:])
    assert len(lines) - 1 == int(lines[0].split()[2])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")
class TestOnGpu:
    @pytest.mark.parametrize("name", mlpot.models.names())
    def test_every_model(self, name):
        check_potential(build(name).cuda())

    def test_a_composition(self):
        check_potential(sum_of_all().cuda())

    @pytest.mark.parametrize("name", mlpot.models.names())
    def test_predict_on_cpu_and_gpu(self, name):
        from ase.build import bulk, molecule

        model = build(name).double()
        graph = mlpot.AtomsGraph.from_ase([molecule("CH3CH2OH"), bulk("Cu"), molecule("H2O")], model.cutoff)
        on_cpu = mlpot.predict(model, graph, stress=True)
        on_gpu = mlpot.predict(model.cuda(), graph.to("cuda"), stress=True)
        for a, b in zip(on_cpu, on_gpu, strict=True):
            assert b.device.type == "cuda"
            assert torch.allclose(a, b.cpu(), rtol=1e-9, atol=1e-9, equal_nan=True)
