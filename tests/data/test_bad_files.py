"""Broken, empty, foreign and malicious files: one message that says what and where, and no other exception."""
# ruff: noqa: E501 (one line a file in the table)

from __future__ import annotations

import os
import pickle
import sqlite3
from collections.abc import Callable
from pathlib import Path

import ase.io
import h5py
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

from mlpot.data.opening import open_dataset, read_structures
from mlpot.data.options import ReadOptions
from mlpot.errors import UserError

GOOD = "2\nenergy=-1 Properties=species:S:1:pos:R:3:forces:R:3\nH 0 0 0 1 2 3\nH 0 0 1 -1 -2 -3\n"
CELL = 'Lattice="4 0 0 0 4 0 0 0 4" energy=-1'

EXTXYZ = {
    "cut after an atom": (GOOD + GOOD[: GOOD.rindex("H")], r"frame 1 \(line 5\).*1 of 2 atoms.*cut short"),
    "cut within a row": (GOOD + GOOD[:-6], r"frame 1 \(line 5\).*atom 1 has 5 columns"),
    "cut after the count": (GOOD + "2\n", r"frame 1 \(line 5\).*0 of 2"),
    "a count that no file holds": ("999999999999\nenergy=1\nH 0 0 0\n", "1 of 999999999999"),
    "a word for the count": (GOOD + "two\n", r"frame 1 \(line 5\): expected the number of atoms, found 'two'"),
    "too many atoms": (GOOD + "H 1 1 1\n", r"line 5.*expected the number of atoms"),
    "no atoms": ("0\nenergy=1\n", "frame 0.*no atoms"),
    "an element that is none": ("1\nenergy=1\nXx 0 0 0\n", 'unknown element "Xx"'),
    "a misspelt element": ("1\nenergy=1\nHee 0 0 0\n", 'Did you mean "He"'),
    "dummy atoms": ("1\nenergy=1 Properties=Z:I:1:pos:R:3\n0 0 0 0\n", 'unknown element|atomic number 0|element "X"'),
    "a word for a number": ("1\nenergy=1\nH 0 zero 0\n", "column pos.*zero"),
    "NaN in a position": (GOOD + "1\nenergy=1\nH 0 nan 0\n", "frame 1: the position of atom 0"),
    "NaN in some forces": (GOOD.replace("1 2 3", "nan 2 3"), "frame 0: forces is not finite in 1 of 2 rows"),
    "an infinite energy": (GOOD.replace("energy=-1", "energy=inf"), "frame 0: energy is not finite"),
    "a word for the energy": (GOOD.replace("energy=-1", "energy=low"), "frame 0.*\"energy\" is 'low'; expected a number"),
    "atoms at the same place": ("2\nenergy=1\nH 1 1 1\nO 1 1 1\n", "frame 0: atoms 0 and 1 are at the same place"),
    "atoms at the same place by periodicity": (f"2\n{CELL}\nH 0 1 1\nO 4 1 1\n", "atoms 0 and 1 are at the same place"),
    "a flat cell": ('1\nLattice="4 0 0 4 0 0 0 0 4" energy=1\nH 0 0 0\n', "zero volume"),
    "no cell but periodic": ('1\npbc="T T T" energy=1\nH 0 0 0\n', "lattice vector a.*zero length"),
    "a cell of eight numbers": ('1\nLattice="4 0 0 0 4 0 0 0" energy=1\nH 0 0 0\n', "cannot be read.*9-long"),
    "a periodicity that is none": (f'1\n{CELL} pbc="T maybe F"\nH 0 0 0\n', "pbc is"),
    "a stress of five numbers": (f'1\n{CELL} stress="1 2 3 4 5"\nH 0 0 0\n', "6 or 9 numbers; this one has 5"),
    "a stress in words": (f'1\n{CELL} stress="a b c d e f"\nH 0 0 0\n', "comment line cannot be read|stress"),
    "forces of two columns": ("1\nenergy=1 Properties=species:S:1:pos:R:3:forces:R:2\nH 0 0 0 1 2\n", "forces has shape"),
    "no positions": ("1\nenergy=1 Properties=species:S:1:forces:R:3\nH 0 0 0\n", "no column of positions"),
    "no elements": ("1\nenergy=1 Properties=pos:R:3\n0 0 0\n", "no column of elements"),
    "properties that are none": ("1\nenergy=1 Properties=species:S:pos\nH 0 0 0\n", "not a list of name:type:count"),
    "a negative weight": ("1\nenergy=1 config_weight=-2\nH 0 0 0\n", "weight -2"),
    "all energies NaN": ("1\nenergy=nan\nH 0 0 0\n", "no labels found"),
}  # fmt: skip


@pytest.mark.parametrize("what", EXTXYZ)
def test_extxyz(tmp_path: Path, what: str) -> None:
    text, message = EXTXYZ[what]
    path = tmp_path / "bad.xyz"
    path.write_text(text)
    with pytest.raises(UserError, match=message) as error:
        open_dataset(path)
    assert "bad.xyz" in str(error.value)


def test_near_atoms_are_no_mistake(tmp_path: Path) -> None:
    path = tmp_path / "near.xyz"
    path.write_text(f'2\n{CELL} pbc="T T F"\nH 0 1 0\nO 2 1 4\n2\n{CELL}\nH 0 1 0\nO 0.1 1 0\n')
    assert len(open_dataset(path)) == 2
    rows = [f"H {x} {y} {z}" for x in range(5) for y in range(5) for z in range(5)]
    box = 'Lattice="5 0 0 0 5 0 0 0 5" energy=1'
    path.write_text("\n".join(["125", box, *rows, ""]))
    assert len(open_dataset(path)) == 1
    path.write_text("\n".join(["126", box, *rows, "He 5 10 -5", ""]))
    with pytest.raises(UserError, match="atoms 0 and 125 are at the same place"):
        open_dataset(path)
    path.write_text("\n".join(["126", "energy=1", *rows, "He 0 0 0", ""]))
    with pytest.raises(UserError, match="atoms 0 and 125 are at the same place"):
        open_dataset(path)


def whole_files(folder: Path) -> dict[str, Path]:
    """One sound file of each format."""
    atoms = Atoms("H2", [[0, 0, 0], [0, 0, 1]])
    atoms.calc = SinglePointCalculator(atoms, energy=-1.0, forces=np.ones((2, 3)))
    paths = {name: folder / f"whole.{name}" for name in ("xyz", "traj", "db", "npz", "ani.h5", "spice.h5")}
    for name in ("xyz", "traj", "db"):
        ase.io.write(paths[name], [atoms] * 5)
    places = np.tile(atoms.positions, (5, 1, 1))
    np.savez(paths["npz"], E=np.ones(5), F=np.ones((5, 2, 3)), R=places, z=[1, 1])
    with h5py.File(paths["ani.h5"], "w") as file:
        group = file.create_group("H2")
        group["atomic_numbers"], group["coordinates"], group["wb97x_dz.energy"] = [1, 1], places, np.ones(5)
    with h5py.File(paths["spice.h5"], "w") as file:
        group = file.create_group("H2")
        group["atomic_numbers"], group["conformations"], group["dft_total_energy"] = [1, 1], places, np.ones(5)
    return paths


FORMATS = ("xyz", "traj", "db", "npz", "ani.h5", "spice.h5")


def outcome(read: Callable[[Path], object], path: Path) -> str:
    """ "read", or the name of the file where the error names it."""
    try:
        read(path)
    except UserError as error:
        return path.name if path.name in str(error) else f"an error that does not name the file: {error}"
    return "read"


@pytest.mark.parametrize("name", FORMATS)
def test_cut_and_garbled_files(tmp_path: Path, name: str) -> None:
    """A file cut anywhere, or with a stretch of it overwritten, opens, or is a UserError; never another exception."""
    path = whole_files(tmp_path)[name]
    assert len(open_dataset(path)) == 5
    content = path.read_bytes()
    bad = tmp_path / f"bad.{name}"
    generator = np.random.default_rng(0)
    outcomes: list[str] = []
    for trial in range(24):
        place = int(len(content) * (trial % 12 + 0.5) / 12)
        if trial < 12:
            bad.write_bytes(content[:place])
        else:
            bad.write_bytes(content[:place] + generator.bytes(40) + content[place + 40 :])
        outcomes.append(outcome(open_dataset, bad))
        assert outcome(read_structures, bad) in ("read", bad.name)
    assert set(outcomes) <= {"read", bad.name}
    assert outcomes[:6].count(bad.name) >= 5  # at most a cut between two frames of a text cannot be seen


@pytest.mark.parametrize("ending", ["xyz", "extxyz", "npz", "h5", "hdf5", "traj", "db", "cif", "POSCAR", "json", "dat"])
def test_empty_and_random_files(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"file.{ending}"
    path.touch()
    for read in (open_dataset, read_structures):
        with pytest.raises(UserError, match="empty"):
            read(path)
    generator = np.random.default_rng(0)
    for content in (
        b"\0" * 300,
        generator.bytes(3000),
        b"hello\nworld\n",
        b"\n\n\n",
        b"\x89HDF\r\n\x1a\n" + generator.bytes(500),
    ):
        path.write_bytes(content)
        for read in (open_dataset, read_structures):
            with pytest.raises(UserError, match="file"):
                read(path)


def test_missing_files_and_folders(tmp_path: Path) -> None:
    (tmp_path / "train.xyz").write_text(GOOD)
    for read in (open_dataset, read_structures):
        with pytest.raises(UserError, match=r'no such file.*Did you mean "train\.xyz"'):
            read(tmp_path / "trian.xyz")
        with pytest.raises(UserError, match=r"is a folder.*train\.xyz"):
            read(tmp_path)
        with pytest.raises(UserError, match="no such file"):
            read(tmp_path / "nowhere" / "x.xyz")
    with pytest.raises(UserError, match="picks"):
        open_dataset(tmp_path / "train.xyz", ReadOptions(index="5:"))
    with pytest.raises(UserError, match="picks"):
        read_structures(tmp_path / "train.xyz", "5:")


@pytest.mark.skipif(os.getuid() == 0 if hasattr(os, "getuid") else True, reason="root may read everything")
def test_a_file_one_may_not_read(tmp_path: Path) -> None:
    path = tmp_path / "secret.xyz"
    path.write_text(GOOD)
    path.chmod(0)
    with pytest.raises(UserError, match="Permission"):
        open_dataset(path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": {"enrgy": "E"}}, 'Did you mean "energy"'),
        ({"units": {"energy": "kcal/mole"}}, 'Did you mean "kcal/mol"'),
        ({"units": {"force": "eV/Å"}}, 'Did you mean "forces"'),
        ({"keys": {"stress": "S"}}, "keys.stress means nothing for MD17"),
        ({"keys": {"energy": "EE"}}, "expected EE. It holds: E, F, R, z"),
    ],
)
def test_options(tmp_path: Path, options: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        open_dataset(whole_files(tmp_path)["npz"], ReadOptions(**options))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"E": np.ones(5), "F": np.ones((5, 2, 3)), "z": [1, 1]}, "no array of positions; expected R or coords"),
        ({"E": np.ones(4), "R": np.ones((5, 2, 3)), "z": [1, 1]}, "energy of shape"),
        ({"E": np.ones(5), "F": np.ones((5, 3, 3)), "R": np.ones((5, 2, 3)), "z": [1, 1]}, "forces of shape"),
        ({"E": np.ones(5), "R": np.ones((5, 2, 3)), "z": [1, 1, 1]}, "atomic numbers of shape"),
        ({"E": np.ones(5), "R": np.ones((5, 2, 3)), "z": [1, 1]}, "frame 0: atoms 0 and 1 are at the same place"),
        ({"a": np.ones(5)}, "It holds: a"),
    ],
)
def test_npz(tmp_path: Path, arrays: dict, message: str) -> None:
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(UserError, match=message):
        open_dataset(tmp_path / "bad.npz")


class Malicious:
    """A pickle of it touches a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return (Path.touch, (self.path,))


def test_no_file_runs_code(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    evil = Malicious(touched)
    array = np.empty(1, dtype=object)
    array[0] = evil
    np.savez(tmp_path / "evil.npz", z=[1], R=array, E=array)
    for name in ("evil.pkl", "evil.traj", "evil.db", "evil.h5", "evil.xyz", "evil.npz2"):
        (tmp_path / name).write_bytes(pickle.dumps(evil))
    with h5py.File(tmp_path / "evil.hdf5", "w") as file:
        file.create_group("a")["atomic_numbers"] = np.frombuffer(pickle.dumps(evil), dtype=np.uint8)
    for path in sorted(tmp_path.glob("evil.*")):
        for read in (open_dataset, read_structures):
            with pytest.raises(UserError):
                read(path)
    assert not touched.exists()
    with pytest.raises(UserError, match="pickle"):
        open_dataset(tmp_path / "evil.npz")


def test_a_database_of_something_else(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "other.db") as database:
        database.execute("create table songs (name text)")
    database.close()
    for read in (open_dataset, read_structures):
        with pytest.raises(UserError, match=r"other\.db"):
            read(tmp_path / "other.db")
