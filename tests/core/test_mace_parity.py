"""MACE with mace-torch's weights gives mace-torch's numbers and training gradients, kept in tests/reference."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import mlpot
from mlpot import inert
from mlpot.convert.ase import to_voigt
from mlpot.errors import UserError
from mlpot.models import mace
from mlpot.nn.symmetric import symmetric_basis
from mlpot.pretrained.mace import parameters
from mlpot.structure import Structure


def structure_of(system):
    return Structure.of(system["numbers"], system["positions"], system["cell"], system["pbc"])


@pytest.fixture(scope="module")
def small(repository):
    folder = repository / "tests/reference"
    return mlpot.load(folder / "mace_small.model"), json.loads((folder / "mace_small.json").read_text())


def agreement(model, system):
    """The largest differences in energy per atom, forces and stress."""
    graph = mlpot.AtomsGraph.from_structure(structure_of(system), model.cutoff)
    out = mlpot.predict(model, graph, stress=all(system["pbc"]))
    energy = abs(float(out.energy[0]) - system["energy"]) / graph.n_atoms
    forces = np.abs(out.forces.numpy() - np.array(system["forces"])).max()
    stress = 0.0
    if system.get("stress") is not None and out.stress is not None:
        theirs = np.array(system["stress"])
        stress = np.abs(to_voigt(out.stress[0].numpy()) - (to_voigt(theirs) if theirs.ndim == 2 else theirs)).max()
    return energy, forces, stress


@pytest.mark.parametrize("name", ["ethanol", "crystal"])
def test_energy_forces_stress(small, name):
    model, reference = small
    system = reference["systems"][name]
    assert np.abs(np.array(system["forces"])).max() > 0.01
    energy, forces, stress = agreement(model, system)
    assert energy < 1e-12 * 2100
    assert forces < 1e-10
    assert stress < 1e-11


def test_training_gradients_parameter_by_parameter(small, repository):
    model, reference = small
    graph = mlpot.AtomsGraph.from_structure(
        [structure_of(s) for s in reference["systems"].values()], cutoff=model.cutoff
    )
    network = next(module for module in model.modules() if isinstance(module, mace.MACE))
    network.requires_grad_(True)
    out = mlpot.predict(model, graph, create_graph=True)
    (out.energy.square().sum() + out.forces.square().sum()).backward()
    root = inert.read(str(repository / "tests/reference/mace_small.model"))
    theirs = {name: torch.tensor(value, dtype=torch.float64) for name, value in reference["gradients"].items()}
    in_place_of_weights(root, theirs)
    laid_out = dict(parameters(network, root, products=False))
    compared = 0
    for name, parameter in network.named_parameters():
        ours = parameter.grad
        if ".contractions." in name:
            check_contraction(network, name, ours, theirs)
        else:
            expected = laid_out[name].reshape(ours.shape)
            assert torch.allclose(ours, expected, rtol=1e-9, atol=1e-11 * expected.abs().max()), name
        assert ours.abs().max() > 0, name
        compared += 1
    assert compared == len(list(network.parameters())) > 20


def in_place_of_weights(module, gradients, prefix=""):
    """Puts each gradient where the weight of that name is, so that what maps the ones maps the others."""
    weights = module.state.get("_parameters") or {}
    for name in list(weights):
        if prefix + name in gradients:
            weights[name] = gradients[prefix + name]
    for name, child in (module.state.get("_modules") or {}).items():
        if isinstance(child, inert.Inert):
            in_place_of_weights(child, gradients, f"{prefix}{name}.")


def check_contraction(network, name, ours, theirs):
    """Our weights are a linear map of theirs, w = P W; so the gradient in W is Pᵀ times that in w."""
    _, block, _, _, degree, _ = name.split(".")
    stem = f"products.{block}.symmetric_contractions.contractions.{degree}"
    l_max, correlation = network.config.l_max, network.config.correlation
    first = 0
    for order in range(1, correlation + 1):
        basis = torch.from_numpy(symmetric_basis(l_max, int(degree), order)).flatten(1)
        own = ours[:, first : first + len(basis)]
        first += len(basis)
        key = "weights_max" if order == correlation else f"weights.{correlation - 1 - order}"
        couplings = _couplings(stem, order)
        expected = torch.einsum("ex,xp,zec->zpc", basis, couplings, own)
        assert torch.allclose(expected, theirs[f"{stem}.{key}"], rtol=1e-9, atol=1e-9 * expected.abs().max())


def _couplings(stem, order):
    from tests.conftest import REPOSITORY

    root = inert.read(str(REPOSITORY / "tests/reference/mace_small.model"))
    u = root.at(f"{stem}.U_matrix_{order}")
    return u.reshape(-1, u.shape[-1])


@pytest.mark.parametrize("letter", "abcd")
def test_published_layouts(shared, letter):
    """Scalars only; scalars and vectors; first block not residual; density, Agnesi transform and ZBL."""
    model = mlpot.load(shared / f"reference/mace/mace_{letter}.model")
    reference = json.loads((shared / f"reference/mace_{letter}.json").read_text())
    for name, system in reference["systems"].items():
        energy, forces, stress = agreement(model, system)
        assert energy < 1e-12, name
        assert forces < 1e-12, name
        assert stress < 1e-13, name


def test_a_loaded_model_saves_and_loads_as_ours(small, tmp_path):
    model, reference = small
    mlpot.save(tmp_path / "ours.mlpot", model)
    again = mlpot.load(tmp_path / "ours.mlpot")
    graph = mlpot.AtomsGraph.from_structure(structure_of(reference["systems"]["ethanol"]), model.cutoff)
    assert torch.equal(mlpot.predict(model, graph).forces, mlpot.predict(again, graph).forces)
    assert again.elements == (1, 6, 8)
    with pytest.raises(UserError, match="not trained on N"):
        mlpot.predict(again, mlpot.AtomsGraph.from_structure(Structure.of([7], [[0, 0, 0]]), model.cutoff))


def test_no_class_of_the_file_is_imported_or_run(repository):
    root = inert.read(str(repository / "tests/reference/mace_small.model"))
    kinds = set()

    def walk(module):
        kinds.add(type(module).__mro__[1].__name__ if isinstance(module, inert.Inert) else "")
        for child in (module.state.get("_modules") or {}).values():
            if isinstance(child, inert.Inert):
                walk(child)

    walk(root)
    assert kinds == {"Inert"}
    assert root.kind == "mace.modules.models.ScaleShiftMACE"
