"""Messages for mistakes: they name the wrong word, the place and the nearest right one."""

from __future__ import annotations

import pytest
import torch
from ase import Atoms
from ase.build import molecule

import mlpot
from mlpot.device import device_of
from mlpot.errors import UserError, suggestion, unknown


def test_unknown_names_the_nearest_and_all():
    message = str(unknown("model", "schent", ["zbl", "schnet"], "recipe.yaml"))
    assert message == 'recipe.yaml: unknown model "schent". Did you mean "schnet"? Known: schnet, zbl.'


def test_suggestion_without_a_near_one_or_any():
    assert suggestion("qqqqq", ["schnet"]) == " Known: schnet."
    assert suggestion("anything", []) == ""
    assert 'Did you mean "SchNet"' in suggestion("SCHNET", ["SchNet"])


def test_misspelt_models_and_settings():
    with pytest.raises(UserError, match=r'unknown model "schent".*Did you mean "schnet"'):
        mlpot.models.build("schent")
    with pytest.raises(UserError, match=r'unknown setting "chanels".*Did you mean "channels"'):
        mlpot.models.build("schnet", chanels=3)
    with pytest.raises(UserError, match=r"cutoff = -1.*greater than 0"):
        mlpot.models.build("schnet", cutoff=-1)
    with pytest.raises(UserError) as caught:
        mlpot.models.build("schnet", cutoff="far", chanels=2)
    assert "cutoff" in str(caught.value)
    assert "chanels" in str(caught.value)


def test_public_names_only():
    with pytest.raises(AttributeError, match="AtomGraph"):
        _ = mlpot.AtomGraph


def test_elements_outside_the_model_are_named():
    model = mlpot.models.build("schnet", channels=4)
    model.restrict_to([8, 1])
    graph = mlpot.AtomsGraph.from_ase([molecule("H2O"), molecule("CH3OH"), Atoms("Cl")], model.cutoff)
    with pytest.raises(UserError, match="not trained on C, Cl; it knows H, O"):
        mlpot.predict(model, graph)
    model.restrict_to(None)
    assert mlpot.predict(model, graph).energy.shape == (3,)


def test_a_graph_with_too_short_a_cutoff_is_refused():
    model = mlpot.models.build("schnet", channels=4, cutoff=5.0)
    with pytest.raises(UserError, match=r"4\.5 Å.*needs 5\.0 Å"):
        mlpot.predict(model, mlpot.AtomsGraph.from_ase(molecule("H2O"), 4.5))


def test_devices():
    assert device_of("cpu") == torch.device("cpu")
    with pytest.raises(UserError, match='device "gpu"'):
        device_of("gpu")
    if not torch.cuda.is_available():
        assert device_of("auto") == torch.device("cpu")
        with pytest.raises(UserError, match="no CUDA device"):
            device_of("cuda")
