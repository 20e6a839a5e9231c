"""QM9 in the forms of other packages: the same numbers as the raw files, and the doubtful molecules left out."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from mlpot.data.opening import open_dataset
from mlpot.data.options import ReadOptions
from mlpot.data.sources import _qm9
from mlpot.errors import UserError
from mlpot.units import BOHR, HARTREE
from tests.data.test_molecules import METHANE, golden


def raw(shared: Path) -> dict[str, object]:
    frames = open_dataset(str(shared / "data/qm9/raw/*.xyz"))
    return {frames[k].info["name"]: frames[k] for k in range(len(frames))}


def same(found: object, expected: object, digits: float = 1e-6, but: str = "") -> None:
    assert {**found.properties, but: 0} == pytest.approx({**expected.properties, but: 0}, rel=digits)
    np.testing.assert_array_equal(found.structure.numbers, expected.structure.numbers)
    np.testing.assert_allclose(found.structure.positions, expected.structure.positions, atol=1e-4)


def test_the_list_of_doubtful_molecules_is_whole() -> None:
    listed = _qm9.uncharacterized()
    assert len(listed) == 3054
    assert len(set(range(1, 133886)) - listed) == 130831  # what published studies train and test on
    assert {58, 61, 80, 133866} <= listed
    assert not {1, 2, 3, 133885} & listed


def archive(folder: Path, numbers: list[int]) -> Path:
    path = folder / "some.tar.bz2"
    with tarfile.open(path, "w:bz2") as file:
        for number in numbers:
            text = METHANE.replace("gdb 1\t", f"gdb {number}\t").encode()
            member = tarfile.TarInfo(f"dsgdb9nsd_{number:06d}.xyz")
            member.size = len(text)
            file.addfile(member, io.BytesIO(text))
    return path


def test_doubtful_molecules_are_left_out_and_named(tmp_path: Path) -> None:
    path = archive(tmp_path, [1, 58, 2, 61, 80])
    data = open_dataset(path)
    assert [data[k].info["name"] for k in range(len(data))] == ["gdb_1", "gdb_2"]
    assert "3 of the set's 3,054 uncharacterised molecules are here (gdb_58, gdb_61, gdb_80): left out" in str(
        data.notes
    )
    kept = open_dataset(path, ReadOptions(uncharacterized=True))
    assert len(kept) == 5
    assert "kept" in str(kept.notes)
    assert "none of the set's 3,054" in str(open_dataset(archive(tmp_path, [1, 2])).notes)
    with pytest.raises(UserError, match="no molecule is left"):
        open_dataset(archive(tmp_path, [58]))


def test_uncharacterized_is_for_qm9_alone(tmp_path: Path) -> None:
    table = tmp_path / "a.csv"
    table.write_text("smiles,y\nCC,1\nCO,2\n")
    with pytest.raises(UserError, match="uncharacterized is for QM9"):
        open_dataset(table, ReadOptions(uncharacterized=True))


def test_sdf_with_its_table(shared: Path, tmp_path: Path) -> None:
    data, expected = open_dataset(shared / "data/qm9/qm9_mini.sdf"), raw(shared)
    assert len(data) == 21
    names = [data[k].info["name"] for k in range(21)]
    common = [k for k, name in enumerate(names) if name in expected]
    assert len(common) >= 10
    for k in common:
        same(data[k], expected[names[k]])
    golden(data[0].properties)
    assert data[0].info["smiles"] == "C"
    alone = tmp_path / "gdb9.sdf"
    alone.write_bytes((shared / "data/qm9/qm9_mini.sdf").read_bytes())
    with pytest.raises(UserError, match=r"expected gdb9\.sdf\.csv in the same folder"):
        open_dataset(alone)
    rows = (shared / "data/qm9/qm9_mini.sdf.csv").read_text().splitlines()
    table = tmp_path / "gdb9.sdf.csv"
    table.write_text("\n".join(rows[:15]) + "\n")
    with pytest.raises(UserError, match="molecule 14 is missing or cannot be read"):
        open_dataset(alone)
    table.write_text("\n".join([rows[0], rows[2], rows[1], *rows[3:]]) + "\n")
    with pytest.raises(UserError, match=r"molecule 0 is gdb_1, but in gdb9\.sdf\.csv gdb_2"):
        open_dataset(alone)


def test_database_of_schnetpack(shared: Path) -> None:
    data = open_dataset(shared / "data/qm9/schnetpack_test_qm9.db")
    golden(data[0].properties)
    assert data[0].energy is None
    assert [target.name for target in data.targets] == list(_qm9.FACTORS)
    expected = list(raw(shared).values())
    for k in range(10):
        same(data[k], expected[k])


def test_hdf5_of_modelforge(shared: Path) -> None:
    data, expected = open_dataset(shared / "data/qm9/qm9_dataset_v1.1_ntc_10.hdf5"), raw(shared)
    golden(data[0].properties)
    assert "said to be in Å³" in str(data.notes)
    for k in range(10):
        same(data[k], expected[data[k].info["name"]], 2e-6, but="lumo")  # its constants are a little other
        # homo + gap, each rounded to 1e-4 Hartree
        assert data[k].properties["lumo"] == pytest.approx(expected[data[k].info["name"]].properties["lumo"], abs=3e-3)


def test_units_that_are_right_are_left_alone(shared: Path, tmp_path: Path) -> None:
    path = tmp_path / "mended.hdf5"
    path.write_bytes((shared / "data/qm9/qm9_dataset_v1.1_ntc_10.hdf5").read_bytes())
    with h5py.File(path, "a") as file:
        for group in file.values():
            group["polarizability"][...] *= BOHR**3
            group["electronic_spatial_extent"][...] *= BOHR**2
    data, expected = open_dataset(path), raw(shared)
    assert "said to be" not in str(data.notes)
    for k in range(10):
        same(data[k], expected[data[k].info["name"]], 2e-6, but="lumo")


def processed(shared: Path, folder: Path) -> Path:
    """What torch_geometric makes of 21 molecules, two of them called doubtful ones."""
    datasets = pytest.importorskip("torch_geometric.datasets")
    (folder / "raw").mkdir()
    for ending in ("sdf", "sdf.csv"):
        text = (shared / f"data/qm9/qm9_mini.{ending}").read_text()
        (folder / "raw" / f"gdb9.{ending}").write_text(text.replace("gdb_20", "gdb_58"))
    # Its own list goes by place: nine lines of heading, and two after the end.
    (folder / "raw" / "uncharacterized.txt").write_text("\n" * 9 + "5 CO\n\n")
    datasets.QM9(str(folder))
    return folder / "processed" / "data_v3.pt"


def test_dataset_of_torch_geometric(shared: Path, tmp_path: Path) -> None:
    path = processed(shared, tmp_path)
    data, expected = open_dataset(path), raw(shared)
    names = [data[k].info["name"] for k in range(len(data))]
    assert "gdb_58" not in names
    assert "gdb_58" in str(data.notes)
    golden({**data[0].properties, "A": np.round(data[0].properties["A"], 4)})
    for k, name in enumerate(names):
        if name in expected:
            same(data[k], expected[name], 1e-6)
            # Single precision would round -1101.49 eV and more to 1e-4; the energies of atomisation do not.
            assert data[k].properties["u0"] == pytest.approx(expected[name].properties["u0"], abs=5e-5)
    assert abs(data[0].properties["u0"] - -40.47893 * HARTREE) < 2e-5


def test_other_files_of_torch_save_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "data.pt"
    torch.save({"edge_attr": torch.zeros(3), "smiles": ["C"]}, path)
    with pytest.raises(UserError, match="not the QM9 of torch_geometric"):
        open_dataset(path)
