"""matgl's published TensorNet gives the predictions of matgl; folders that hold something else are refused by name."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import mlpot
from mlpot.cli import app
from mlpot.convert.ase import to_voigt
from mlpot.errors import UserError
from mlpot.pretrained import matgl_tensornet
from mlpot.structure import Structure

NAME = "TensorNet-MatPES-PBE-v2025.1-PES"


@pytest.fixture(scope="module")
def folder(shared):
    found = shared / "weights/matgl" / NAME
    if not found.is_dir():
        pytest.skip(f"needs matgl's {NAME}, looked for at {found}")
    return found


@pytest.fixture(scope="module")
def reference(shared):
    found = shared / f"reference/matgl-{NAME}.json"
    if not found.is_file():
        pytest.skip(f"needs matgl's predictions, looked for at {found}")
    return json.loads(found.read_text())["systems"]


@pytest.fixture(scope="module")
def model(folder):
    return mlpot.load(folder)


@pytest.mark.parametrize(
    ("dtype", "energy_error", "force_error"), [(torch.float64, 1e-6, 1e-5), (torch.float32, 1e-4, 1e-3)], ids=str
)
def test_published_predictions(model, reference, dtype, energy_error, force_error):
    model.to(dtype)
    assert len(reference) >= 6
    for name, system in reference.items():
        structure = Structure.of(system["numbers"], system["positions"], system["cell"], system["pbc"])
        graph = mlpot.AtomsGraph.from_structure(structure, model.cutoff)
        out = mlpot.predict(model, graph, stress=True)
        assert abs(float(out.energy) - system["energy"]) / graph.n_atoms < energy_error, name
        assert np.abs(out.forces.numpy() - np.array(system["forces"])).max() < force_error, name
        if all(system["pbc"]):
            assert np.abs(to_voigt(out.stress[0].numpy()) - np.array(system["stress"])).max() < 1e-6, name


def test_saved_as_ours_and_restricted_to_its_elements(model, folder, tmp_path):
    assert len(model.elements) == 89
    mlpot.save(tmp_path / "ours.mlpot", model)
    again = mlpot.load(tmp_path / "ours.mlpot")
    water = Structure.of([8, 1, 1], [[0, 0, 0], [0.96, 0, 0], [-0.24, 0.93, 0]])
    graph = mlpot.AtomsGraph.from_structure(water, model.cutoff)
    assert torch.equal(mlpot.predict(model, graph).forces, mlpot.predict(again, graph).forces)
    with pytest.raises(UserError, match="not trained on Po"):
        mlpot.predict(again, mlpot.AtomsGraph.from_structure(Structure.of([84], [[0, 0, 0]]), model.cutoff))


def settings(**changes):
    """model.json of such a folder."""
    arguments = dict(matgl_tensornet._NETWORK, element_types=["H"], cutoff=5.0, units=2, nblocks=1, max_n=3)
    inner = {"@class": "TensorNet", "@model_version": 1, "init_args": {**arguments, **changes}}
    return {"kwargs": {"model": inner, "calc_repuls": False}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rbf_type": "Gaussian"}, "rbf_type=Gaussian is not read, only SphericalBessel"),
        ({"equivariance_invariance_group": "SO(3)"}, r"equivariance_invariance_group=SO\(3\) is not read"),
        ({"is_intensive": True}, "is_intensive=True is not read"),
        ({}, r"state\.pt"),
    ],
)
def test_what_is_not_read_is_refused_by_name(tmp_path, changes, message):
    (tmp_path / "model.json").write_text(json.dumps(settings(**changes)))
    for path in (tmp_path, tmp_path / "model.json"):
        with pytest.raises(UserError, match=message):
            mlpot.load(path)


def test_another_version_is_refused(tmp_path):
    content = settings()
    content["kwargs"]["model"]["@model_version"] = 2
    (tmp_path / "model.json").write_text(json.dumps(content))
    with pytest.raises(UserError, match="version 2 of matgl's TensorNet is not read, only 1"):
        mlpot.load(tmp_path)


def test_other_folders_are_not_recognised(tmp_path):
    assert not matgl_tensornet.recognises(tmp_path)
    for text in ("{}", "[1]", "no json", json.dumps({"kwargs": {"model": {"@class": "M3GNet"}}})):
        (tmp_path / "model.json").write_text(text)
        assert not matgl_tensornet.recognises(tmp_path)


def test_damaged_weights(folder, tmp_path):
    shutil.copy(folder / "model.json", tmp_path / "model.json")
    data = (folder / "state.pt").read_bytes()
    (tmp_path / "state.pt").write_bytes(data[: len(data) // 2])
    with pytest.raises(UserError, match=r"state\.pt"):
        mlpot.load(tmp_path)


def test_the_command_line_takes_the_folder(folder, tmp_path):
    (tmp_path / "water.xyz").write_text("3\n\nO 0 0 0\nH 0.96 0 0\nH -0.24 0.93 0\n")
    words = ["predict", str(folder), str(tmp_path / "water.xyz"), "-o", str(tmp_path / "out.xyz")]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    assert "energy=-14.117" in (tmp_path / "out.xyz").read_text()
