"""Splits: disjoint, random over the whole set, and never silently applied to other data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mlpot.data.dataset import MemoryDataset
from mlpot.data.frame import Frame
from mlpot.data.opening import open_dataset
from mlpot.data.options import ReadOptions
from mlpot.data.scaffold import scaffold
from mlpot.data.split import load_split, save_split, split
from mlpot.data.store import frames_of, write_store
from mlpot.errors import UserError
from mlpot.structure import Structure


def rows(n: int, isolated: tuple[int, ...] = (), sha: str = "abc") -> MemoryDataset:
    """n helium atoms whose energy is their row number."""
    frames = [
        Frame(Structure.of([2], [[0, 0, 0]]), float(row), config_type="IsolatedAtom" if row in isolated else "")
        for row in range(n)
    ]
    return MemoryDataset(frames, path="rows.xyz", sha=sha)


def test_drawn_from_the_whole_set() -> None:
    chosen = split(rows(100), 10, 10, 10, seed=1)
    parts = [chosen.train, chosen.valid, chosen.test]
    everything = np.concatenate(parts)
    assert [len(part) for part in parts] == [10, 10, 10]
    assert len(np.unique(everything)) == 30
    assert everything.max() > 29
    again, other = split(rows(100), 10, 10, 10, seed=1), split(rows(100), 10, 10, 10, seed=2)
    assert again.hash == chosen.hash != other.hash


def test_fractions_take_what_is_left_for_training() -> None:
    chosen = split(rows(40), valid=0.1, test=0.25)
    assert (len(chosen.train), len(chosen.valid), len(chosen.test)) == (26, 4, 10)


def test_isolated_atoms_stay_in_training() -> None:
    for seed in range(5):
        chosen = split(rows(12, isolated=(0, 7)), valid=4, test=4, seed=seed)
        assert {0, 7} <= set(chosen.train.tolist())
        assert len(chosen.train) == 4


def test_blocks_are_stretches_with_a_gap() -> None:
    chosen = split(rows(400), valid=40, test=40, seed=3, method="blocks", gap=5)
    assert np.count_nonzero(np.diff(chosen.valid) > 1) <= 2  # at most three stretches
    held_out = np.concatenate([chosen.valid, chosen.test])
    assert np.abs(chosen.train[:, None] - held_out[None]).min() >= 5
    assert np.abs(chosen.test[:, None] - chosen.valid[None]).min() >= 5
    assert len(chosen.train) >= 400 - 80 - 2 * 5 * 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"train": 90, "valid": 20}, "90 training, 20 validation"),
        ({"valid": 200}, "asks for 200 frames; the set has 100"),
        ({"method": "blcks"}, 'Did you mean "blocks"'),
        ({"gap": 3}, "blocks"),
    ],
)
def test_what_cannot_be_is_refused(arguments: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        split(rows(100), **arguments)


def test_a_split_file_fits_its_own_data_only(tmp_path: Path) -> None:
    file = tmp_path / "split.json"
    chosen = split(rows(100), valid=10, test=10)
    save_split(file, chosen)
    loaded = load_split(file, rows(100))
    assert loaded.hash == chosen.hash
    np.testing.assert_array_equal(loaded.test, chosen.test)
    with pytest.raises(UserError, match="made for a set of 100 frames"):
        load_split(file, rows(95))
    with pytest.raises(UserError, match="other frames"):
        load_split(file, rows(100, sha="other"))


def test_damaged_split_files(tmp_path: Path) -> None:
    file = tmp_path / "split.json"
    with pytest.raises(UserError, match="no such split file"):
        load_split(file, rows(5))
    file.write_text('{"train": [0')
    with pytest.raises(UserError, match="not a split file"):
        load_split(file, rows(5))
    save_split(file, split(rows(50), valid=5))
    value = json.loads(file.read_text())
    value["valid"][0] = value["train"][0]
    file.write_text(json.dumps(value))
    with pytest.raises(UserError, match="do not match the hash"):
        load_split(file, rows(50))


@pytest.mark.parametrize("name", ["atoms.xyz", "atoms.h5"])
def test_a_split_of_some_frames_does_not_fit_others_of_the_same_file(tmp_path: Path, name: str) -> None:
    lines = [f"1\nProperties=species:S:1:pos:R:3 energy={k}\nH 0 0 0\n" for k in range(20)]
    (tmp_path / "atoms.xyz").write_text("".join(lines))
    write_store(tmp_path / "atoms.h5", frames_of(open_dataset(tmp_path / "atoms.xyz")))
    first, second = (open_dataset(tmp_path / name, ReadOptions(index=index)) for index in (":10", "10:"))
    save_split(tmp_path / "split.json", split(first))
    assert load_split(tmp_path / "split.json", first).n_frames == 10
    with pytest.raises(UserError, match="other frames"):
        load_split(tmp_path / "split.json", second)


def test_no_scaffold_is_in_two_parts(shared: Path) -> None:
    data = open_dataset(shared / "data/screening/delaney-processed.csv")
    seen = []
    for seed in (0, 1):
        chosen = split(data, None, 0.1, 0.1, seed=seed, method="scaffold")
        parts = [chosen.train, chosen.valid, chosen.test]
        assert sorted(np.concatenate(parts)) == list(range(1128))
        scaffolds = [{scaffold(str(data[int(row)].info["smiles"])) for row in part} - {""} for part in parts]
        assert not scaffolds[0] & scaffolds[1]
        assert not scaffolds[0] & scaffolds[2]
        assert not scaffolds[1] & scaffolds[2]
        assert [len(part) for part in parts] == [902, 113, 113]
        seen.append(chosen.hash)
    assert seen[0] != seen[1]
    assert split(data, None, 0.1, 0.1, seed=0, method="scaffold").hash == seen[0]


def test_scaffolds_are_rings_and_what_joins_them() -> None:
    assert scaffold("Cc1ccccc1CCc1ccccc1O") == "c1ccc(CCc2ccccc2)cc1"
    assert scaffold("CCCO") == ""


def test_a_scaffold_split_needs_smiles(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="frame 0 has no SMILES"):
        split(MemoryDataset([Frame(Structure.of([2], [[0, 0, 0]]))] * 9), method="scaffold")
