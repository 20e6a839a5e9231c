"""What each format says of its entries, and what becomes of damaged ones."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import ase.io
import numpy as np
import pytest
from ase.build import bulk, molecule
from rdkit import Chem
from rdkit.Chem import AllChem

import mlpot
from mlpot.errors import UserError
from mlpot.graph import AtomsGraph
from mlpot.property_model import predict_properties
from mlpot.screen.chunk import unpacked
from mlpot.screen.input import Input
from mlpot.screen.molecule import Treatment


def embedded(smiles: str, hydrogens: bool = True) -> Any:
    mol = Chem.AddHs(Chem.MolFromSmiles(smiles))
    AllChem.EmbedMolecule(mol, randomSeed=1)
    return mol if hydrogens else Chem.RemoveHs(mol)


def flat(smiles: str) -> Any:
    mol = Chem.MolFromSmiles(smiles)
    AllChem.Compute2DCoords(mol)
    return mol


def write_sdf(path: Path, mols: list[Any]) -> None:
    with Chem.SDWriter(str(path)) as writer:
        for number, mol in enumerate(mols):
            mol.SetProp("_Name", f"m{number}")
            mol.SetProp("CAS", f"c{number}")
            writer.write(mol)


def stretched(mol: Any, factor: float) -> Any:
    conformer = mol.GetConformer()
    for atom, place in enumerate(conformer.GetPositions() * factor):
        conformer.SetAtomPosition(atom, place.tolist())
    return mol


# -------------------------------------------------------------------------------------------------------------- SDF


def test_coordinates_of_an_sdf_are_kept_where_they_can_be(model: Path, tmp_path: Path, rows_of: Any) -> None:
    source = tmp_path / "a.sdf"
    salt = embedded("CC(=O)[O-].[Na+]")
    write_sdf(
        source, [embedded("CCO"), embedded("CCO", False), flat("C[C@H](O)N"), salt, stretched(embedded("CO"), 1.89)]
    )
    rows = rows_of(model, source)
    assert [row["id"] for row in rows] == ["m0", "m1", "m2", "m3", "m4"]
    assert [row["status"] for row in rows] == ["ok", "ok", "ok", "ok", "doubtful lengths"]
    assert [row["coordinates"] for row in rows[:4]] == ["own", "MMFF94", "MMFF94", "MMFF94"]
    assert [row["smiles"] for row in rows[:4]] == ["CCO", "CCO", Chem.CanonSmiles("C[C@H](O)N"), "CC(=O)[O-].[Na+]"]
    assert rows[3]["standardised"] == "CC(=O)O"
    assert "are the positions in Å" in rows[4]["reason"]
    loaded = mlpot.load(model)
    own = AtomsGraph.from_rdkit(Chem.SDMolSupplier(str(source), removeHs=False)[0], loaded.cutoff)
    assert rows[0]["gap"] == pytest.approx(float(predict_properties(loaded, own)["gap"]), abs=1e-6)  # type: ignore[arg-type]


def test_damaged_records_are_rows_of_their_own(bond_model: Path, tmp_path: Path, rows_of: Any) -> None:
    source = tmp_path / "a.sdf"
    write_sdf(source, [flat("CCO"), flat("CCN"), flat("CCF"), flat("CCC")])
    records = source.read_text().split("$$$$\n")
    records[1] = records[1].replace("V2000", "V9999")
    records[2] = (
        records[2].replace(" F ", " N ").replace("  1  2  1  0", "  1  2  1  0\n  1  2  1  0")
    )  # a bond too many
    source.write_text("$$$$\n".join([*records[:4], "", "no record\n", "x" * 3_000_000 + "\n"]))
    rows = rows_of(bond_model, source, id_column="CAS")
    status = [row["status"] for row in rows]
    assert status[0] == status[3] == "ok"
    assert set(status[1:3]) == set(status[4:]) == {"not a molecule"}
    assert all(row["reason"] for row in rows if row["status"] != "ok")
    assert [row["id"] for row in rows] == ["c0", "c1", "c2", "c3", "", "", ""]
    with pytest.raises(UserError, match='no record has a data field "cas"'):
        list(Input(source, id_column="cas"))


def test_compressed_records_of_published_files(bond_model: Path, shared: Path, tmp_path: Path, rows_of: Any) -> None:
    """QM9's molecules, whose SMILES rdkit's own reader finds too."""
    source = tmp_path / "qm9.sdf.gz"
    text = (shared / "data" / "qm9" / "qm9_mini.sdf").read_bytes()
    source.write_bytes(gzip.compress(b"$$$$\n".join(text.split(b"$$$$\n")[:10]) + b"$$$$\n"))
    rows = rows_of(bond_model, source)
    expected = [m and Chem.MolToSmiles(m) for m in Chem.SDMolSupplier(str(shared / "data" / "qm9" / "qm9_mini.sdf"))]
    assert [row["smiles"] or None for row in rows] == expected[: len(rows)]
    assert len(rows) == 10


# ----------------------------------------------------------------------------------------------------------- extxyz


def test_structures_are_taken_as_they_are(model: Path, tmp_path: Path, rows_of: Any) -> None:
    crystal = bulk("C", "diamond", a=3.57)
    frames = [molecule("CH3CH2OH"), crystal, molecule("CH3CH2OH"), molecule("CH3SH")]
    for number, atoms in enumerate(frames):
        atoms.info["id"] = f"s{number}"
    frames[2].positions *= 0.1  # nm
    source = tmp_path / "a.xyz"
    ase.io.write(source, frames, format="extxyz")
    rows = rows_of(model, source)
    assert [row["status"] for row in rows] == ["ok", "ok", "doubtful lengths", "unknown element"]
    assert [row["id"] for row in rows] == ["s0", "s1", "s2", "s3"]
    loaded = mlpot.load(model)
    expected = predict_properties(loaded, AtomsGraph.from_ase(frames[:2], loaded.cutoff))["gap"]  # type: ignore[arg-type]
    assert [row["gap"] for row in rows[:2]] == pytest.approx(expected.tolist(), abs=1e-6)
    assert np.allclose(unpacked(rows[1]["geometry"]).cell, crystal.cell)


def test_models_of_bonds_get_bonds_from_distances(bond_model: Path, tmp_path: Path, rows_of: Any) -> None:
    source = tmp_path / "a.xyz"
    ase.io.write(source, [molecule("CH3CH2OH"), bulk("Si")], format="extxyz")
    rows = rows_of(bond_model, source)
    assert [row["status"] for row in rows] == ["ok", "no bonds"]
    assert "periodic" in rows[1]["reason"]


def test_a_file_that_breaks_off_says_so(model: Path, tmp_path: Path, rows_of: Any) -> None:
    source = tmp_path / "a.xyz"
    good = "1\nname=a\nC 0 0 0\n"
    source.write_text(f"{good}2\nx\nC 0 0 0\nC 0 q 0\n0\nempty\n{good}three\n{good}")
    rows = rows_of(model, source)
    assert [row["status"] for row in rows] == ["ok", "not a structure", "not a structure", "ok", "not a structure"]
    assert "nothing is read beyond it" in rows[-1]["reason"]
    source.write_text(f"{good}3\nx\nC 0 0 0\n")
    assert "cut short" in rows_of(model, source)[1]["reason"]


# ---------------------------------------------------------------------------------------------------------- Parquet


def test_parquet_in_and_out(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="needs pyarrow: pip install mlpot[parquet]")
    from pyarrow import parquet

    from mlpot.screen.tables import table

    source = tmp_path / "a.parquet"
    columns = {"SMILES": ["CCO", None, "C" * 20_000], "ID": [1, 2, None], "y": [0.1, 0.2, 0.3]}
    parquet.write_table(pyarrow.table(columns), source)
    lines = list(Input(source))
    assert [line.number for line in lines] == [1, 2, 3]
    assert [line.id for line in lines] == ["1", "2", ""]
    assert [line.text[:5] for line in lines] == ["CCO", "", "CCCCC"]
    with pytest.raises(UserError, match='there is no column "smile"'):
        Input(source, "smile")
    with pytest.raises(UserError, match='the column "y" holds double, not text'):
        Input(source, "y")
    source.write_bytes(source.read_bytes()[:-10])
    with pytest.raises(UserError, match="cannot be read as Parquet"):
        Input(source)
    with table(tmp_path / "out.parquet", ["line", "id", "gap"]) as write:
        write({"line": 1, "id": "a", "gap": 0.5})
        write({"line": 2, "id": "b", "gap": None})
    read = parquet.read_table(tmp_path / "out.parquet").to_pylist()
    assert read == [{"line": 1, "id": "a", "gap": 0.5}, {"line": 2, "id": "b", "gap": None}]


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UserError, match=r"mlpot\[parquet\]"):
        Input(tmp_path / "a.parquet")


# -------------------------------------------------------------------------------------------------- standardisation


def test_treatments(bond_model: Path, tmp_path: Path, rows_of: Any) -> None:
    source = tmp_path / "a.smi"
    source.write_text("Oc1ccccn1\nO=c1cccc[nH]1\nCC(=O)[O-]\nC[N+](C)(C)C.[Cl-]\n")
    plain = rows_of(bond_model, source)
    assert [row["standardised"] for row in plain] == ["Oc1ccccn1", "O=c1cccc[nH]1", "CC(=O)O", "C[N+](C)(C)C"]
    assert plain[3]["changes"] == "largest fragment kept; a charge of +1 stays"
    changed = rows_of(bond_model, source, treatment=Treatment(neutralise=False, tautomers=True))
    assert changed[0]["standardised"] == changed[1]["standardised"]
    assert "canonical tautomer" in (changed[0]["changes"] + changed[1]["changes"])
    assert changed[2]["standardised"] == "CC(=O)[O-]"
    assert changed[2]["changes"] == "a charge of -1 stays"


def test_standardisation_is_that_of_rdkit() -> None:
    """The steps that are left out for speed change nothing: the same molecules as rdkit's Cleanup and after."""
    from rdkit.Chem.MolStandardize import rdMolStandardize

    from mlpot.screen.molecule import Standardiser, from_smiles

    standardise = Standardiser()
    for smiles in (
        *("CN(=O)=O", "C[S+]([O-])C", "[H]C([H])([H])O", "OC(=O)c1ccc(cc1)S(=O)(=O)[O-].[Na+]", "CC(=O)O[Na]"),
        *("[NH3+]CC([O-])=O", "C/C=C/[C@H](N)C(=O)O.Cl", "O=[N+]([O-])c1ccccc1", "c1cc[n+]([O-])cc1", "CN=[N+]=[N-]"),
        *("C[N+](C)(C)CC([O-])=O", "[O-]c1ccccc1.C[NH+](C)C", "CCO.O", "CC(C)=N[N+]#N", "OC1=CC=CN=C1"),
    ):
        whole = rdMolStandardize.Cleanup(Chem.MolFromSmiles(smiles))
        expected = rdMolStandardize.Uncharger().uncharge(rdMolStandardize.FragmentParent(whole, skipStandardize=True))
        assert from_smiles(smiles, standardise).smiles == Chem.CanonSmiles(Chem.MolToSmiles(expected)), smiles
