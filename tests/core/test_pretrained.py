"""Files of other packages that are damaged, unknown or hostile: one message, and nothing of them is run."""

from __future__ import annotations

import os
import pickle
import shutil
import zipfile

import pytest
import torch
from typer.testing import CliRunner

import mlpot
from mlpot import inert
from mlpot.cli import app
from mlpot.errors import UserError
from mlpot.pretrained import readers
from mlpot.pretrained.mace import _converted

PART = "data.pkl"


@pytest.fixture
def small(repository, tmp_path):
    return shutil.copy(repository / "tests/reference/mace_small.model", tmp_path / "small.model")


def rewritten(path, change):
    """The file with its pickle changed by change(bytes) -> bytes."""
    with zipfile.ZipFile(path) as old:
        content = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, data in content.items():
            new.writestr(name, change(data) if name.endswith(PART) else data)
    return path


def test_readers_are_found_by_name():
    assert [reader.__name__.rpartition(".")[2] for reader in readers()]
    assert all(callable(reader.recognises) and callable(reader.load) and reader.FORMAT for reader in readers())


def test_another_class_is_refused_by_name(small):
    path = rewritten(small, lambda data: data.replace(b"ScaleShiftMACE", b"AtomicDipoles1"))
    with pytest.raises(UserError, match=r"small\.model: class AtomicDipoles1 is not read; known: ScaleShiftMACE, MACE"):
        mlpot.load(path)


def test_another_interaction_is_refused_by_name(small):
    name = b"RealAgnosticDensityInteractionBlock"
    path = rewritten(small, lambda data: data.replace(name, name[:-5] + b"Mocks"))
    with pytest.raises(UserError, match="interaction RealAgnosticDensityInteractionMocks is not read; known"):
        mlpot.load(path)


def change(root, path, name, value):
    module = root.at(path) if path else root
    for section in ("_parameters", "_buffers", "_modules"):
        if name in (module.state.get(section) or {}):
            module.state[section][name] = value
            return
    module.state[name] = value


@pytest.mark.parametrize(
    ("path", "name", "value", "message"),
    [
        ("", "heads", ["pbe", "r2scan"], r"several heads \(pbe, r2scan\)"),
        ("", "use_so3", True, "use_so3=True is not read"),
        ("", "apply_cutoff", False, "apply_cutoff=False is not read"),
        ("", "joint_embedding", 1, "models with joint_embedding are not read"),
        ("interactions.1", "avg_num_neighbors", 7.5, "different numbers of neighbours"),
        ("radial_embedding.bessel_fn", "bessel_weights", torch.arange(5.0), "frequencies"),
        ("radial_embedding.distance_transform", "q", torch.tensor(2.0), "Agnesi transform were trained"),
        ("", "r_max", None, "not laid out as"),
    ],
)
def test_variants_that_would_give_other_numbers_are_refused(small, path, name, value, message):
    root = inert.read(str(small))
    change(root, path, name, value)
    with pytest.raises((UserError, KeyError), match=message if name != "r_max" else "r_max"):
        _converted(root, str(small))


@pytest.mark.parametrize("keep", [0.2, 0.9])
def test_a_file_cut_short(small, keep):
    data = small.read_bytes()
    small.write_bytes(data[: int(keep * len(data))])
    with pytest.raises(UserError, match=r"small\.model"):
        mlpot.load(small)


def test_a_flipped_byte_is_noticed(small):
    data = bytearray(small.read_bytes())
    data[len(data) // 3] ^= 0xFF
    small.write_bytes(data)
    with pytest.raises(UserError, match="damaged"):
        mlpot.load(small)


class Command:
    """What a hostile file may hold."""

    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


def test_code_in_a_file_is_never_run(tmp_path):
    from collections import OrderedDict

    marker = tmp_path / "ran"
    value = OrderedDict(name="mace.modules.models", trap=Command(marker))
    with zipfile.ZipFile(tmp_path / "trap.model", "w") as file:
        file.writestr("trap/data.pkl", pickle.dumps(value, protocol=2))
        file.writestr("trap/version", "3")
    with pytest.raises(UserError, match=r"trap\.model"):
        mlpot.load(tmp_path / "trap.model")
    assert not marker.exists()
    assert isinstance(inert.read(str(tmp_path / "trap.model"))["trap"], inert.Inert)
    assert not marker.exists()


def test_a_tensor_beyond_its_storage_is_refused():
    with pytest.raises(pickle.UnpicklingError, match="beyond its storage"):
        inert._tensor(torch.zeros(4), 2, (3,), (1,))


def test_the_command_line_takes_such_a_file(small, tmp_path, repository):
    xyz = tmp_path / "water.xyz"
    xyz.write_text("3\n\nO 0 0 0\nH 0.96 0 0\nH -0.24 0.93 0\n")
    result = CliRunner().invoke(app, ["predict", str(small), str(xyz), "-o", str(tmp_path / "out.xyz")])
    assert result.exit_code == 0, result.output
    assert "energy=" in (tmp_path / "out.xyz").read_text()
    missing = CliRunner().invoke(app, ["predict", str(tmp_path / "smal.model"), str(xyz), "-o", "x.xyz"])
    assert isinstance(missing.exception, UserError)
    assert 'Did you mean "small.model"?' in str(missing.exception)
