"""PaiNN's messages: by hand, by chunks and as a whole, with first and second derivatives."""

from __future__ import annotations

import pytest
import torch
from ase import Atoms
from ase.build import bulk, molecule
from torch.autograd import gradcheck, gradgradcheck

from mlpot import AtomsGraph, models
from mlpot.models import painn
from mlpot.nn import convolution
from mlpot.nn.messages import Surroundings, messages
from mlpot.potential import predict

F64 = torch.float64
CHANNELS, N_BASIS = 2, 3


@pytest.fixture(params=["one chunk", "many chunks"])
def surroundings(request, monkeypatch):
    """Of a molecule, an atom alone, a crystal in which atoms see their own images, and another atom alone."""
    if request.param == "many chunks":
        monkeypatch.setitem(convolution.CHUNK, "cpu", 1)
    frames = [molecule("H2O"), Atoms("H"), bulk("Cu"), Atoms("O2", [[0, 0, 0], [9, 9, 9]])]
    found = Surroundings(AtomsGraph.from_ase(frames, 2.7), CHANNELS)
    assert (len(found.around.chunks) > 1) == (request.param == "many chunks")
    return found


def inputs(surroundings, n_blocks):
    """u, r̂, F and features, random; what every slot holds is zero in padding and r̂ odd, as `messages` asks."""
    torch.manual_seed(1)
    around = surroundings.around
    sign = around.sign(F64)
    per_pair = torch.randn(int(around.pairs.atom.max()) + 1, N_BASIS + 3, dtype=F64)[around.pairs.atom]
    u, unit = per_pair[:, :N_BASIS] * sign.abs(), per_pair[:, N_BASIS:] * sign
    filters = torch.randn(3, N_BASIS, CHANNELS, dtype=F64)
    return u, unit, filters, torch.randn(n_blocks, len(around.order), CHANNELS, dtype=F64)


def by_hand(u, unit, filters, features, around):
    x, *y, z = features
    ds, dv = torch.zeros_like(x), torch.zeros(3, *x.shape, dtype=F64)
    for slot in torch.nonzero(around.sign(F64)[:, 0])[:, 0]:
        i, j = around.targets.atom[slot], around.sources.atom[slot]
        w = u[slot] @ filters
        ds[i] += w[0] * x[j]
        for m in range(3):
            dv[m, i] += unit[slot, m] * w[1] * z[j] + (w[2] * y[m][j] if y else 0)
    return ds, dv


@pytest.mark.parametrize("n_blocks", [2, 5])
@pytest.mark.parametrize("learns", [True, False])
def test_messages_by_hand(surroundings, n_blocks, learns):
    given = inputs(surroundings, n_blocks)
    expected = by_hand(*given, surroundings.around)
    given[2].requires_grad_(learns)
    for ours, theirs in zip(messages(*given, surroundings), expected, strict=True):
        assert torch.allclose(ours, theirs, rtol=0, atol=1e-13)


@pytest.mark.parametrize("n_blocks", [2, 5])
@pytest.mark.parametrize("learns", [True, False])
def test_derivatives(surroundings, n_blocks, learns):
    """With u and r̂ made of what each pair holds, as in a model: the way back relies on each edge having its reverse."""
    u, unit, filters, features = inputs(surroundings, n_blocks)
    around = surroundings.around
    pairs, sign = around.pairs, around.sign(F64)
    first = pairs.order[pairs.first]
    radial = u[first].clone().requires_grad_()
    direction = (unit * sign)[first].clone().requires_grad_()

    def function(radial, direction, features, filters=filters):
        made = radial[pairs.atom] * sign.abs(), direction[pairs.atom] * sign
        ds, dv = messages(*made, filters, features, surroundings)
        return ds.sin(), dv.sin()

    given = [radial, direction, features.requires_grad_(), *([filters.requires_grad_()] if learns else [])]
    assert gradcheck(function, given)
    assert gradgradcheck(function, given)


def test_species_summed_first_change_nothing(monkeypatch):
    torch.manual_seed(0)
    model = models.build("painn", channels=8, n_interactions=2, n_basis=5).double()
    graph = AtomsGraph.from_ase([molecule("CH3CONH2"), bulk("Cu"), Atoms("He")], model.cutoff)
    results = []
    for many in (0, 100):
        monkeypatch.setattr(painn, "MANY", many)
        results.append(predict(model, graph, stress=True))
    for a, b in zip(*results, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12, equal_nan=True)


def test_a_frozen_models_forces_are_those_of_one_that_learns():
    torch.manual_seed(0)
    model = models.build("painn", channels=8, n_interactions=3, n_basis=5).double()
    graph = AtomsGraph.from_ase([molecule("CH3CONH2"), bulk("Cu"), Atoms("He")], model.cutoff)
    learning = predict(model, graph, stress=True)
    frozen = predict(model.requires_grad_(False), graph, stress=True)
    for a, b in zip(learning, frozen, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12, equal_nan=True)
