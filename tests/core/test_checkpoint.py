"""Files of potentials: same bits back, every damage told, nothing in them executed."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from ase.build import molecule

import mlpot
from mlpot import checkpoint
from mlpot.compose import Ensemble, ReferenceEnergies, Scaled, Sum
from mlpot.errors import UserError
from mlpot.potential import Potential


def composed():
    torch.manual_seed(0)
    network = mlpot.models.build("schnet", channels=4, n_interactions=1)
    return Sum(
        [Scaled([network], scale=2.5), ReferenceEnergies(energies={1: -13.6, 8: -2041.84}), mlpot.models.build("zbl")]
    )


def answer(model):
    return mlpot.predict(model, mlpot.AtomsGraph.from_ase(molecule("H2O"), model.cutoff))


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "water.mlpot"
    mlpot.save(path, composed(), {"data": {"name": "water", "hash": "ab12"}, "errors": [0.1, 0.2]})
    return path


def rewrite(path: Path, change) -> Path:
    value = torch.load(path, weights_only=True)
    change(value)
    torch.save(value, path)
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_potential_comes_back(tmp_path, dtype):
    for number, model in enumerate(
        [composed(), Ensemble([composed(), composed()]), mlpot.models.build("lennard_jones")]
    ):
        model = model.to(dtype)
        model.restrict_to([1, 8])
        path = tmp_path / "new folder" / f"{number}.mlpot"
        mlpot.save(path, model, {"note": "Ångström"})
        loaded = mlpot.load(path)
        assert type(loaded) is type(model)
        assert (loaded.elements, loaded.cutoff, loaded.dtype) == ((1, 8), model.cutoff, model.dtype)
        assert loaded.metadata == {"note": "Ångström"}
        assert loaded.config == model.config
        assert not loaded.training
        for a, b in zip(answer(loaded)[:3], answer(model)[:3], strict=True):
            assert torch.equal(a, b)


def test_metadata_stays_with_a_potential_that_is_saved_again(saved, tmp_path):
    model = mlpot.load(saved)
    assert model.metadata["data"]["hash"] == "ab12"
    mlpot.save(tmp_path / "copy.mlpot", model)
    assert mlpot.load(tmp_path / "copy.mlpot").metadata == model.metadata


def test_version_1_still_loads(repository):
    model = mlpot.load(repository / "tests/reference/checkpoint_v1.mlpot")
    out = mlpot.predict(model, mlpot.AtomsGraph.from_ase(molecule("CH3CH2OH"), 4.0))
    assert model.metadata == {"note": "written by mlpot 0.1.0", "data": {"name": "none"}}
    assert model.elements == (1, 6, 8)
    assert float(out.energy) == pytest.approx(-4175.8821840478, abs=1e-5)


def test_p01_our_files_load_with_weights_only(saved):
    value = torch.load(saved, weights_only=True)
    assert value["format"] == checkpoint.FORMAT
    assert value["units"] == {"energy": "eV", "length": "Å"}


class Bomb:
    def __init__(self, target: str) -> None:
        self.target = target

    def __reduce__(self):
        return (os.system, (f"touch {self.target}",))


def test_p01_files_with_code_are_refused_and_not_run(tmp_path, saved):
    target = tmp_path / "touched"
    bomb = Bomb(str(target))
    plain, torch_file, hidden = tmp_path / "plain.mlpot", tmp_path / "torch.mlpot", saved
    plain.write_bytes(pickle.dumps(bomb))
    torch.save({"format": checkpoint.FORMAT, "version": 1, "potential": bomb}, torch_file)
    value = torch.load(saved, weights_only=True)
    torch.save({**value, "metadata": {"deep": [bomb]}}, hidden)
    for path in (plain, torch_file, hidden):
        with pytest.raises(UserError, match=path.name):
            mlpot.load(path)
        assert not target.exists()
    with pytest.raises(UserError, match="could run code"):
        mlpot.load(torch_file)
    pickle.loads(pickle.dumps(bomb))  # the bomb is live: run, it does make the file
    assert target.exists()


def test_p04_three_edits_three_messages(saved, tmp_path):
    whole = saved.read_bytes()
    messages = []
    edits = {
        "dropped": lambda v: v["potential"]["parts"][0]["parts"][0]["config"].pop("channels"),
        "later": lambda v: v.update(version=99, written_by="9.9"),
    }
    for name, edit in edits.items():
        path = tmp_path / f"{name}.mlpot"
        path.write_bytes(whole)
        rewrite(path, edit)
        with pytest.raises(UserError, match=name) as caught:
            mlpot.load(path)
        messages.append(str(caught.value))
    half = tmp_path / "half.mlpot"
    half.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="half") as caught:
        mlpot.load(half)
    messages.append(str(caught.value))
    assert "channels" in messages[0]
    assert "version 99, written by mlpot 9.9" in messages[1]
    assert "cut short" in messages[2]


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda v: v["potential"].update(model="schent"), 'unknown model "schent"'),
        (lambda v: v["potential"]["parts"][0]["parts"][0]["config"].update(chanels=3), 'Did you mean "channels"'),
        (lambda v: v["state_dict"].pop(next(iter(v["state_dict"]))), "do not fit"),
        (lambda v: v["state_dict"].update(extra=torch.zeros(1)), "do not fit"),
        (lambda v: v["potential"]["parts"][0]["parts"][0]["config"].update(channels=7), "do not fit"),
        (lambda v: v.pop("state_dict"), "lacks state_dict"),
        (lambda v: v.update(dtype="int8"), "int8"),
        (lambda v: v.update(version=0), "version 0"),
        (lambda v: v.update(version="one"), "version one"),
        (lambda v: v.update(potential=[1, 2]), "damaged"),
        (lambda v: v["potential"].pop("parts"), "damaged"),
        (lambda v: v["potential"].update(elements=["Zz"]), "do not exist: Zz"),
        (lambda v: v["potential"]["parts"][1]["config"].update(energies={300: 1.0}), "300"),
        (lambda v: v.pop("format"), "no format mark"),
    ],
)
def test_edited_files_are_told(saved, edit, message):
    with pytest.raises(UserError, match=message) as caught:
        mlpot.load(rewrite(saved, edit))
    assert str(saved) in str(caught.value)


def test_files_that_are_not_ours(tmp_path):
    empty = tmp_path / "empty.mlpot"
    empty.touch()
    foreign = tmp_path / "foreign.mlpot"
    with zipfile.ZipFile(foreign, "w") as archive:
        archive.writestr("hello.txt", "hello")
    tensor = tmp_path / "tensor.pt"
    torch.save(torch.zeros(3), tensor)
    whole = tmp_path / "module.pt"
    torch.save(torch.nn.Linear(2, 2), whole)
    for path in (empty, foreign, tensor, whole):
        with pytest.raises(UserError, match=path.name):
            mlpot.load(path)
    with pytest.raises(UserError, match=r"foriegn.*does not exist.*Did you mean \"foreign.mlpot\""):
        mlpot.load(tmp_path / "foriegn.mlpot")
    with pytest.raises(UserError, match="is a folder"):
        mlpot.load(tmp_path)


def test_any_flipped_byte_is_told_or_harmless(saved):
    whole, expected = bytearray(saved.read_bytes()), answer(mlpot.load(saved))
    rng = np.random.default_rng(0)
    messages = []
    for place in rng.integers(0, len(whole), 150):
        damaged = bytearray(whole)
        damaged[place] ^= int(rng.integers(1, 256))
        saved.write_bytes(damaged)
        try:
            model = mlpot.load(saved)
        except UserError as error:
            messages.append(str(error))
        else:  # padding, or a date in the archive's own tables
            assert torch.equal(answer(model).energy, expected.energy)
            assert torch.equal(answer(model).forces, expected.forces)
    assert len(messages) > 50
    assert not any("\n" in message for message in messages)


@pytest.mark.parametrize("part", [0.02, 0.3, 0.9, 0.999])
def test_truncated_files(saved, part):
    whole = saved.read_bytes()
    saved.write_bytes(whole[: int(part * len(whole))])
    with pytest.raises(UserError, match=r"water\.mlpot"):
        mlpot.load(saved)


def test_saving_is_whole_or_not_at_all(saved, tmp_path, monkeypatch):
    before = saved.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match="No space left"):
        mlpot.save(saved, composed())
    monkeypatch.undo()
    assert saved.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["water.mlpot"]
    blocker = tmp_path / "file"
    blocker.touch()
    with pytest.raises(UserError, match="cannot be written"):
        mlpot.save(blocker / "x.mlpot", composed())


def test_foreign_potentials_cannot_be_saved(tmp_path):
    class Mine(Potential):
        cutoff = 3.0

    with pytest.raises(UserError, match="Mine cannot be saved"):
        mlpot.save(tmp_path / "mine.mlpot", Mine())
    with pytest.raises(UserError, match="Mine cannot be saved"):
        mlpot.save(tmp_path / "mine.mlpot", Sum([Mine()]))
    assert list(tmp_path.iterdir()) == []


def test_dtypes_that_a_file_cannot_hold_are_told(tmp_path):
    with pytest.raises(UserError, match="float16"):
        mlpot.save(tmp_path / "half.mlpot", mlpot.models.build("schnet", channels=4).half())
    mixed = Sum([mlpot.models.build("schnet", channels=4).double(), mlpot.models.build("schnet", channels=4)])
    with pytest.raises(UserError, match=r"float32.*float64"):
        mlpot.save(tmp_path / "mixed.mlpot", mixed)


def test_loading_draws_no_random_numbers(saved):
    before = torch.get_rng_state()
    mlpot.load(saved)
    assert torch.equal(torch.get_rng_state(), before)
