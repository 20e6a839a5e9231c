"""The store: what goes in comes out, whatever its size; and nothing is half-written."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from mlpot.commands.data_convert import convert
from mlpot.convert.smiles import from_smiles
from mlpot.data.dataset import MemoryDataset, Subset
from mlpot.data.frame import Frame
from mlpot.data.opening import open_dataset
from mlpot.data.options import ReadOptions
from mlpot.data.store import Store, _Writer, frames_of, write_store
from mlpot.errors import UserError
from mlpot.structure import Structure
from mlpot.target import Target

KCAL = 0.0433641039


def synthetic(n: int, atoms: int = 20) -> Iterator[Frame]:
    """Frames whose energy is minus their number."""
    generator = np.random.default_rng(0)
    numbers, places = generator.choice([1, 6, 8], atoms), 3 * generator.normal(size=(atoms, 3))
    for k in range(n):
        structure = Structure(numbers, places + 1e-6 * k, np.zeros((3, 3)), np.zeros(3, dtype=bool))
        yield Frame(structure, -float(k), places)


def varied() -> list[Frame]:
    cell = [[4, 0, 0], [1, 5, 0], [0, 2, 6]]
    crystal = Structure.of([11, 17], [[0, 0, 0], [2, 2, 2]], cell, [True, True, True])
    slab = Structure.of([29], [[0.5, 0, 0]], cell, [True, True, False])
    ion = Structure.of([118, 1], [[0, 0, 0], [0, 0, 1]], charge=-1.0, spin=2.0)
    stress = np.arange(9.0).reshape(3, 3)
    return [
        Frame(
            crystal,
            -59455.72540161,
            np.eye(3)[:2],
            stress + stress.T,
            2.5,
            "bulk",
            {"mp_id": "mp-1", "T": 300.5, "n": 3},
        ),
        Frame(slab, None, np.ones((1, 3)), None, 0.0, "slab", {"name": "Ångström, “β”"}),
        Frame(ion, -1.25, None, None),
        Frame(Structure.of([2], [[0, 0, 0]])),
    ]


def same(a: Frame, b: Frame) -> None:
    for name in ("numbers", "positions", "cell", "pbc"):
        np.testing.assert_array_equal(getattr(a.structure, name), getattr(b.structure, name))
    assert (a.structure.charge, a.structure.spin) == (b.structure.charge, b.structure.spin)
    assert (a.energy, a.weight, a.config_type, dict(a.info)) == (b.energy, b.weight, b.config_type, dict(b.info))
    for name in ("forces", "stress"):
        assert a.has(name) == b.has(name)
        if a.has(name):
            np.testing.assert_array_equal(getattr(a, name), getattr(b, name))


def test_all_that_a_frame_holds_comes_back(tmp_path: Path) -> None:
    path, frames = tmp_path / "s.h5", varied()
    assert write_store(path, frames, "PBE", ["energy: kcal/mol -> eV"], "x.npz") == 4
    store = open_dataset(path)
    for k, frame in enumerate(frames):
        same(store[k], frame)
    same(store[-1], frames[-1])
    assert store.counts() == {"energy": 2, "forces": 2, "stress": 1}
    np.testing.assert_array_equal(store.carries(), [[1, 1, 1], [0, 1, 0], [1, 0, 0], [0, 0, 0]])
    parts = open_dataset([path, path]), Subset(store, [1, 0, 1]), MemoryDataset(frames)
    assert [part.counts() for part in parts] == [
        {"energy": 4, "forces": 4, "stress": 2},
        {"energy": 1, "forces": 3, "stress": 1},
        {"energy": 2, "forces": 2, "stress": 1},
    ]
    np.testing.assert_array_equal(parts[0].carries()[4:], parts[2].carries())
    assert store.config_types() == ["bulk", "slab", "", ""]
    assert store.elements == (1, 2, 11, 17, 29, 118)
    assert (store.theory, store.notes) == ("PBE", ("energy: kcal/mol -> eV",))
    np.testing.assert_array_equal(store.n_atoms(), [2, 1, 2, 1])
    with pytest.raises(IndexError):
        store[4]
    with h5py.File(path) as file:
        assert file["energy"].attrs["units"] == "eV"
        assert file["positions"].attrs["units"] == "Å"
        assert file["forces"].attrs["units"] == "eV/Å"
        assert file["stress"].attrs["units"] == "eV/Å³"
        assert file.attrs["source"] == "x.npz"
    assert os.stat(path).st_mode & 0o044 == 0o044 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_the_hash_is_that_of_the_content(tmp_path: Path) -> None:
    frames = varied()
    hashes = []
    for name, chosen, theory in (("a", frames, ""), ("b", frames, ""), ("c", frames[:3], ""), ("d", frames, "PBE")):
        write_store(tmp_path / f"{name}.h5", chosen, theory)
        hashes.append(Store(tmp_path / f"{name}.h5").sha)
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3


def test_frames_of_many_blocks(tmp_path: Path) -> None:
    write_store(tmp_path / "s.h5", synthetic(4200, 3))
    store = Store(tmp_path / "s.h5")
    for k in (0, 4095, 4096, 4199):
        assert store[k].energy == -k
        assert len(store[k].structure) == 3


def test_options_for_a_store(tmp_path: Path) -> None:
    path = tmp_path / "s.h5"
    write_store(path, synthetic(10), "PBE")
    assert [frame.energy for frame in open_dataset(path, ReadOptions(index="2:8:3"))] == [-2, -5]
    for wrong, word in (
        ({"keys": {"energy": "E"}}, "leave out keys"),
        ({"units": {"energy": "Ry"}}, "leave out keys"),
        ({"theory": "CCSD"}, "PBE"),
        ({"index": "10:"}, "picks none"),
    ):
        with pytest.raises(UserError, match=word):
            open_dataset(path, ReadOptions(**wrong))
    write_store(path, [Frame(Structure.of([2], [[0, 0, 0]]))])
    with pytest.raises(UserError, match="no labels"):
        open_dataset(path)
    assert len(open_dataset(path, require_labels=False)) == 1


def test_a_unit_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.h5"
    write_store(path, varied())
    with h5py.File(path, "r+") as file:
        file["energy"].attrs["units"] = "kcal/mol"
    with pytest.raises(UserError, match="kcal/mol"):
        Store(path)


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.h5"
    write_store(path, varied())
    with h5py.File(path, "r+") as file:
        file.attrs["version"] = 99
    with pytest.raises(UserError, match="version 99"):
        open_dataset(path)


def test_a_damaged_store_is_one_message(tmp_path: Path) -> None:
    whole, path = tmp_path / "s.h5", tmp_path / "cut.h5"
    write_store(whole, synthetic(2000))
    content = whole.read_bytes()
    for share in (0.001, 0.05, 0.3, 0.6, 0.9, 0.999):
        path.write_bytes(content[: int(len(content) * share)])
        with pytest.raises(UserError, match=r"cut\.h5"):
            list(frames_of(open_dataset(path)))
    for name in ("energy", "offset"):
        path.write_bytes(content)
        with h5py.File(path, "r+") as file:
            del file[name]
        with pytest.raises(UserError, match=f"lacks {name}"):
            open_dataset(path)
    path.write_bytes(content)
    with h5py.File(path, "r+") as file:
        del file.attrs["sha"]
    with pytest.raises(UserError, match="header"):
        open_dataset(path)


def test_hdf5_of_others_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file["data"] = np.zeros(3)
    with pytest.raises(UserError, match="another layout"):
        open_dataset(tmp_path / "x.h5")
    with pytest.raises(UserError, match="not a store"):
        Store(tmp_path / "x.h5")


def test_nothing_is_half_written(tmp_path: Path) -> None:
    path = tmp_path / "s.h5"

    def breaking() -> Iterator[Frame]:
        yield from synthetic(5000)
        raise UserError("the source broke")

    with pytest.raises(UserError, match="the source broke"):
        write_store(path, breaking())
    assert list(tmp_path.iterdir()) == []
    write_store(path, synthetic(3))
    with pytest.raises(UserError, match="no frames"):
        write_store(path, [])
    with pytest.raises(UserError, match=r"frame 1.*not finite"):
        write_store(path, [*synthetic(1), Frame(Structure.of([1], [[0, 0, 0]]), float("inf"))])
    assert len(Store(path)) == 3
    assert [p.name for p in tmp_path.iterdir()] == ["s.h5"]
    with pytest.raises(UserError, match="cannot be written"):
        write_store(path / "inside" / "s.h5", synthetic(1))


def _first(store: Store, sender: multiprocessing.connection.Connection) -> None:
    sender.send([store[k].energy for k in (0, 9)])


def test_pickles_and_survives_a_fork(tmp_path: Path) -> None:
    write_store(tmp_path / "s.h5", synthetic(10))
    store = Store(tmp_path / "s.h5")
    assert store[9].energy == -9  # the file is open before the copies are made
    assert pickle.loads(pickle.dumps(store))[3].energy == -3
    for method in ("fork", "spawn"):
        context = multiprocessing.get_context(method)
        receiver, sender = context.Pipe(False)
        process = context.Process(target=_first, args=(store, sender))
        process.start()
        assert receiver.poll(60)
        assert receiver.recv() == [0, -9]
        process.join()
    assert store[5].energy == -5


def test_a_million_frames_open_at_once(tmp_path: Path) -> None:
    """The layout of a large set, its frames unwritten but for their places: opening must not depend on their number."""
    n, path = 1_000_000, tmp_path / "large.h5"
    with h5py.File(path, "w") as file:
        writer = _Writer(file)
        for frame in synthetic(2):
            writer.add(frame)
        writer.flush()
        for data in file.values():
            data.resize(n * (20 if data.shape[0] == 40 else 1), axis=0)
        file["offset"][:] = 20 * np.arange(n)
        file["info"][n - 1] = "{}"
        file["numbers"][-20:] = 6
        writer.n_frames = n
        file.attrs.update(writer.header("", [], ""))
    times = []
    for _ in range(3):
        start = time.perf_counter()
        store = Store(path)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.2
    assert len(store) == n
    start = time.perf_counter()
    assert len(store[n - 1].structure) == 20
    assert time.perf_counter() - start < 1.0


def test_any_order_is_quick(tmp_path: Path) -> None:
    """T08: shuffled access at a third of the speed of sequential access or better."""
    n = 2500
    write_store(tmp_path / "s.h5", synthetic(n))
    shuffled = np.random.default_rng(1).permutation(n)

    def seconds(order: np.ndarray) -> float:
        store = Store(tmp_path / "s.h5")
        store[0]
        start = time.process_time()
        for k in order[:800]:
            assert store[int(k)].energy == -k
        return time.process_time() - start

    sequential = min(seconds(np.arange(n)) for _ in range(2))
    assert min(seconds(shuffled) for _ in range(2)) < 3 * sequential


_MEMORY = """
import resource, sys
from mlpot.data.store import Store, write_store
from tests.data.test_store import synthetic
def used(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
path = sys.argv[1]
write_store(path, synthetic(4200))
before = used()
write_store(path, synthetic(9000))
store = Store(path)
total = sum(store[k].energy for k in range(0, 9000, 3))
print(used() - before, total)
"""


def test_memory_does_not_grow_with_the_set(tmp_path: Path, repository: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", _MEMORY, str(tmp_path / "s.h5")],
        cwd=repository,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    growth, total = (float(word) for word in run.stdout.split())
    assert growth < 12  # MB; the frames added are 6 MB on disk and 20 MB as objects
    assert total == -sum(range(0, 9000, 3))


def run(*words: object) -> str:
    app = typer.Typer()
    app.command()(convert)
    result = CliRunner().invoke(app, [str(word) for word in words])
    if isinstance(result.exception, UserError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_converting_twice_changes_nothing(shared: Path, tmp_path: Path) -> None:
    source, first, second = shared / "data/md17/ethanol_ccsd_t-train.npz", tmp_path / "a.h5", tmp_path / "b.h5"
    output = run(source, first, "theory=CCSD(T)")
    assert "1000 frames" in output
    assert "kcal/mol -> eV" in output
    run(first, second)
    raw = np.load(source)
    for store in (Store(first), Store(second)):
        assert store[17].energy == pytest.approx(float(raw["E"][17, 0]) * KCAL, rel=1e-8)
        np.testing.assert_allclose(store[17].forces, raw["F"][17] * KCAL, rtol=1e-7)
        assert store.theory == "CCSD(T)"
        assert any("kcal/mol -> eV" in note for note in store.notes)
    assert Store(first).sha == Store(second).sha


def test_convert_several_files(shared: Path, tmp_path: Path) -> None:
    folder, target = shared / "data/acac", tmp_path / "acac.h5"
    run(folder / "train_300K.xyz", folder / "isolated_atoms.xyz", target, "index=:100")
    store = Store(target)
    assert len(store) == 103
    same(store[42], open_dataset(folder / "train_300K.xyz")[42])
    keys = ["keys.energy=REF_energy", "keys.forces=REF_forces", "keys.stress=REF_stress"]
    boron = tmp_path / "boron.h5"
    run(shared / "data/boron/B_DFT_data.xyz", boron, *keys)
    assert Store(boron).counts() == {"energy": 39, "forces": 39, "stress": 30}


def test_convert_refuses(shared: Path, tmp_path: Path) -> None:
    source, target = shared / "data/acac/isolated_atoms.xyz", tmp_path / "s.h5"
    run(source, target)
    before = target.read_bytes()
    for words, message in (
        ((source, target), "--force"),
        ((target, target, "--force"), "same file"),
        ((source,), "the store to write"),
        ((source, tmp_path / "s.xyz"), r"ends in \.h5"),
        ((source, tmp_path / "new.h5", "keys.enrgy=E"), 'Did you mean "energy"'),
        ((source, tmp_path / "new.h5", "unit.energy=eV"), r"units\.energy"),
        ((source, tmp_path / "new.h5", "units.energy=evs"), "eV"),
        ((tmp_path / "none.xyz", tmp_path / "new.h5"), "no such file"),
        ((shared / "data/boron/B_DFT_data.xyz", target, "--force"), "no labels found"),
    ):
        with pytest.raises(UserError, match=message):
            run(*words)
    assert target.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["s.h5"]
    assert '"frames": 3' in run(source, target, "--force", "--json")


def test_properties_and_bonds_come_back_as_they_went_in(tmp_path: Path) -> None:
    targets = (Target(name="gap/eV", unit="eV"), Target(name="mu", kind="vector", unit="e·Å"))
    bonded = from_smiles("CC(=O)O")
    frames = [
        Frame(bonded, properties={"gap/eV": 5.5, "mu": np.array([1.0, 2.0, 3.0])}),
        Frame(Structure.of([2], [[0, 0, 0]]), properties={"gap/eV": 1.0}),
        Frame(from_smiles("C"), properties={}),
        Frame(from_smiles("C=C"), properties={"mu": np.zeros(3)}),
    ]
    for order in ([0, 1, 2, 3], [1, 2, 0, 3], [1, 1, 3]):
        path = tmp_path / f"{order}.h5"
        write_store(path, [frames[k] for k in order], targets=targets)
        store = pickle.loads(pickle.dumps(Store(path)))
        assert store.targets == targets
        for place, k in reversed(list(enumerate(order))):
            found, expected = store[place], frames[k]
            assert set(found.properties) == set(expected.properties)
            for name, value in expected.properties.items():
                np.testing.assert_array_equal(found.properties[name], value)
            assert (found.structure.bonds is None) == (expected.structure.bonds is None)
            if expected.structure.bonds is not None and found.structure.bonds is not None:
                for part in ("index", "features", "atom_features"):
                    ours, theirs = getattr(found.structure.bonds, part), getattr(expected.structure.bonds, part)
                    np.testing.assert_array_equal(ours, theirs)
    assert Store(tmp_path / "[0, 1, 2, 3].h5").sha != Store(tmp_path / "[1, 2, 0, 3].h5").sha


def test_a_property_that_no_target_describes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="property gap is none of the data set's: none"):
        write_store(tmp_path / "s.h5", [Frame(from_smiles("C"), properties={"gap": 1.0})])
    assert not list(tmp_path.iterdir())


def test_a_store_of_version_1_is_read(tmp_path: Path) -> None:
    """Version 1 had neither properties nor bonds; nothing else has changed."""
    write_store(tmp_path / "s.h5", synthetic(5))
    with h5py.File(tmp_path / "s.h5", "a") as file:
        assert not [name for name in file if name.startswith(("property_", "bond_"))]
        file.attrs["version"] = 1
    store = Store(tmp_path / "s.h5")
    assert store.targets == ()
    assert len(list(frames_of(store))) == 5
