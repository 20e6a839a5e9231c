"""Molecular properties from files: QM9 in its forms, tables with SMILES; the right units, and nothing lost silently."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from mlpot.convert.conformers import embedded
from mlpot.convert.smiles import from_smiles
from mlpot.data.dataset import MemoryDataset
from mlpot.data.frame import Frame
from mlpot.data.inspection import inspect
from mlpot.data.opening import open_dataset
from mlpot.data.options import ReadOptions
from mlpot.data.sources import _qm9
from mlpot.errors import UserError
from mlpot.target import Target
from mlpot.units import HARTREE

METHANE = """5
gdb 1\t157.7118\t157.70997\t157.70699\t0.\t13.21\t-0.3877\t0.1171\t0.5048\t35.3641\t0.044749\t-40.47893\t\
-40.476062\t-40.475117\t-40.498597\t6.469\t
C\t-0.0126981359\t 1.0858041578\t 0.0080009958\t-0.535689
H\t 0.002150416\t-0.0060313176\t 0.0019761204\t 0.133921
H\t 1.0117308433\t 1.4637511618\t 2.765748*^-4\t 0.133922
H\t-0.540815069\t 1.4475266138\t-0.8766437152\t 0.133923
H\t-0.5238136345\t 1.4379326443\t 0.9063972942\t 0.133923
1341.307\t1341.3284\t1341.365\t1562.6731\t1562.7453\t3038.3205\t3151.6034\t3151.6788\t3151.7078
C\tC\t
InChI=1S/CH4/h1H4\tInChI=1S/CH4/h1H4
"""


def golden(properties: dict[str, float]) -> None:
    """Methane, gdb_1: U0 -1101.4878 eV, atomisation -17.1722 eV, as checked against other readers."""
    assert properties["u0"] == pytest.approx(-1101.4878, abs=1e-4)
    atoms = _qm9.REFERENCES["u0"]
    assert properties["u0"] - atoms[6] - 4 * atoms[1] == pytest.approx(-17.1722, abs=1e-4)
    assert properties["gap"] == pytest.approx(0.5048 * HARTREE)
    assert properties["alpha"] == pytest.approx(13.21 * 0.14818471, rel=1e-6)
    assert properties["cv"] / 6.469 == pytest.approx(4.3364e-5, rel=1e-4)
    assert properties["mu"] == 0.0
    assert properties["A"] == 157.7118


def test_methane_from_a_raw_file(tmp_path: Path) -> None:
    path = tmp_path / "dsgdb9nsd_000001.xyz"
    path.write_text(METHANE)
    data = open_dataset(path)
    golden(data[0].properties)
    assert data[0].structure.positions[2, 2] == 2.765748e-4
    assert data[0].info == {"name": "gdb_1", "smiles": "C"}
    assert [target.name for target in data.targets][3:5] == ["mu", "alpha"]


def test_methane_from_the_archive(tmp_path: Path) -> None:
    path = tmp_path / "dsgdb9nsd.xyz.tar.bz2"
    with tarfile.open(path, "w:bz2") as archive:
        for name in ("dsgdb9nsd_000001.xyz", "../outside.xyz"):
            info = tarfile.TarInfo(name)
            info.size = len(METHANE)
            archive.addfile(info, io.BytesIO(METHANE.encode()))
    data = open_dataset(path)
    assert len(data) == 2
    golden(data[1].properties)
    assert sorted(p.name for p in tmp_path.iterdir()) == [path.name]


def test_a_raw_file_cut_short_is_said(tmp_path: Path) -> None:
    path = tmp_path / "dsgdb9nsd_000001.xyz"
    path.write_text("\n".join(METHANE.splitlines()[:6]))
    with pytest.raises(UserError, match="cut short: 6 lines of a molecule of 5 atoms; expected 10"):
        open_dataset(path)


def test_every_form_of_qm9_says_the_same(shared: Path) -> None:
    raw = {f.info["name"]: f for f in _frames(open_dataset(str(shared / "data/qm9/raw/*.xyz")))}
    packed = {f.info["name"]: f for f in _frames(open_dataset(shared / "data/qm9/qm9pack_every33rd.csv.gz"))}
    assert len(packed) == 3965
    common = set(raw) & set(packed)
    assert common
    for name in common:
        np.testing.assert_allclose(raw[name].structure.positions, packed[name].structure.positions)
        assert raw[name].properties == pytest.approx(packed[name].properties)
    golden(raw["gdb_1"].properties)
    golden(packed["gdb_1"].properties)
    atoms = _qm9.REFERENCES["u0"]
    atomisation = [f.properties["u0"] - sum(atoms[int(z)] for z in f.structure.numbers) for f in packed.values()]
    assert np.std(atomisation) == pytest.approx(10.33, abs=0.3)  # of the whole set: 10.33 eV


def _frames(data: object) -> list[object]:
    return [data[k] for k in range(len(data))]  # type: ignore[arg-type, index]


# ----------------------------------------------------------------------------------------------------------- tables


def table(folder: Path, text: str, name: str = "molecules.csv") -> Path:
    (folder / name).write_text(text)
    return folder / name


def test_columns_of_numbers_are_properties_with_units(tmp_path: Path) -> None:
    path = table(tmp_path, "name,smiles,boiling point (K),soluble\na,CCO,351.4,1\nb,CC,184.6,0\nc,C,,0\n")
    data = open_dataset(path)
    assert [(t.name, t.unit, t.kind) for t in data.targets] == [
        ("boiling point", "K", "intensive"),
        ("soluble", "", "binary"),
    ]
    assert data[0].properties == {"boiling point": 351.4, "soluble": 1.0}
    assert data[2].properties == {"soluble": 0.0}
    assert data[0].info == {"line": 2, "name": "a", "smiles": "CCO"}
    assert not data[0].structure.has_positions
    assert data[0].structure.bonds is not None


def test_keys_pick_and_name_columns(tmp_path: Path) -> None:
    path = table(tmp_path, "SMILES\tlogS\tother\tclass\nCCO\t0.5\t3\tActive\nCC\t-1\t4\tInactive\n", "m.tsv")
    options = ReadOptions(keys={"solubility": "logS", "hit": "class"}, units={"solubility": "log(mol/L)"})
    data = open_dataset(path, options)
    assert [(t.name, t.unit, t.kind) for t in data.targets] == [
        ("solubility", "log(mol/L)", "intensive"),
        ("hit", "", "binary"),
    ]
    assert data[0].properties == {"solubility": 0.5, "hit": 1.0}
    assert data[1].info["other"] == "4"


def test_refused_molecules_are_named_with_their_lines(tmp_path: Path) -> None:
    rows = [f"{'C' * k},{k}" for k in range(1, 30)]
    path = table(tmp_path, "\n".join(["smiles,y", *rows, "C(C,1", "c1cccc1C,2", ""]))
    data = open_dataset(path)
    assert len(data) == 29
    note = next(text for text in data.notes if "left out" in text)
    assert note.startswith('2 of 31 molecules left out: line 31: "C(C"')
    assert "line 32" in note
    with pytest.raises(UserError, match="2 of 3 molecules are refused"):
        open_dataset(table(tmp_path, "smiles,y\nC(C,1\nC(,2\nC,3\n"))


def test_labels_that_contradict_each_other_are_said(tmp_path: Path) -> None:
    data = open_dataset(table(tmp_path, "smiles,y\nCC,1\nCC,2.5\nCCC,3\nCCC,3\n"))
    assert any(note.startswith("1 molecules come more than once with different labels, e.g. CC") for note in data.notes)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("smiles,y\nC,1\n", {"keys": {"z": "yy"}}, 'there is no column "yy". Did you mean "y"'),
        ("smiles,y\nC,1\nCC,abc\n", {"keys": {"z": "y"}}, 'line 3 holds "abc", which is no number'),
        ("smiles,y\nC,1\n", {"units": {"q": "eV"}}, "units.q: there is no such property"),
        ("smiles,y,y\nC,1,2\n", {}, "stand over several columns: y"),
        ("smiles,y\n", {}, "it holds no frames"),
    ],
)
def test_wrong_tables_are_refused_by_name(tmp_path: Path, text: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as caught:
        open_dataset(table(tmp_path, text), ReadOptions(**options))  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_molecules_of_a_table_get_coordinates(tmp_path: Path) -> None:
    data = open_dataset(table(tmp_path, "smiles,y\nCCO,1\nC,2\n"), ReadOptions(embed=True))
    again = open_dataset(table(tmp_path, "smiles,y\nCCO,1\nC,2\n"), ReadOptions(embed=True))
    assert [len(frame.structure) for frame in _frames(data)] == [9, 5]  # type: ignore[attr-defined]
    assert data[0].structure.has_positions
    np.testing.assert_array_equal(data[0].structure.positions, again[0].structure.positions)
    distances = np.linalg.norm(data[1].structure.positions[1:] - data[1].structure.positions[0], axis=1)
    np.testing.assert_allclose(distances, 1.09, atol=0.02)  # C-H of methane


def test_fragments_of_a_salt_do_not_overlap() -> None:
    structure = embedded("Cl.N=C(N)n1cccn1.[Na+]")
    distances = np.linalg.norm(structure.positions[:, None] - structure.positions[None], axis=2)
    assert distances[np.triu_indices(len(structure), 1)].min() > 0.9


def test_real_tables(shared: Path) -> None:
    esol = open_dataset(shared / "data/screening/delaney-processed.csv")
    assert len(esol) == 1128
    assert esol[0].properties["measured log solubility in mols per litre"] == -0.77
    free = open_dataset(shared / "data/screening/freesolv_database.txt")
    assert len(free) == 642
    assert {t.name: t.unit for t in free.targets}["experimental value"] == "kcal/mol"
    assert free[0].properties["experimental value"] == -2.49
    coli = open_dataset(shared / "data/screening/ecoli_stokes2020_raw.csv")
    assert sum(frame.properties["Activity"] for frame in _frames(coli)) == 120  # type: ignore[attr-defined]
    assert any("line 2246" in note for note in coli.notes)


def test_inspection_tells_of_properties(tmp_path: Path) -> None:
    rows = [f"{'C' * k}O,{10.0 + 0.1 * k},{k % 2}" for k in range(1, 30)]
    data = open_dataset(table(tmp_path, "\n".join(["smiles,y (eV),yes", *rows, "CN,900,0", "CCN,,1", ""])))
    found = inspect(data)
    assert found.labels["y"]["frames"] == 30
    assert found.labels["y"]["unit"] == "eV"
    assert found.labels["y"]["max"] == 900.0
    checks = {check.name: check for check in found.checks}
    assert checks["property outliers"].message == "y: 1 frames, the furthest 29 with 900 eV."
    assert checks["missing properties"].message == "y in 1."
    assert checks["rare classes"].status == "ok"


def test_an_extensive_outlier_is_one_beside_its_elements() -> None:
    frames = [
        Frame(from_smiles("C" * k), properties={"u": -40.0 * k + 0.01 * (k % 3) + (5.0 if k == 7 else 0.0)})
        for k in range(1, 40)
    ]
    found = inspect(MemoryDataset(frames, targets=(Target(name="u", kind="extensive", unit="eV"),)))
    message = next(check.message for check in found.checks if check.name == "property outliers")
    assert message.startswith("u: 1 frames, the furthest 6")
