"""QM9 as MoleculeNet has it: gdb9.sdf with the coordinates, and gdb9.sdf.csv beside it with the properties."""

from __future__ import annotations

import csv
import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlpot.data.frame import Frame
from mlpot.data.options import ReadOptions
from mlpot.data.sources import _qm9
from mlpot.errors import UserError
from mlpot.structure import Structure
from mlpot.target import Target

FORMAT = "QM9, gdb9.sdf with gdb9.sdf.csv"
SUFFIXES = (".sdf",)
KEYS = ()
DOUBTFUL = True


def recognises(path: Path) -> bool:
    """An SDF file whose first molecule is called gdb_NUMBER."""
    with path.open("rb") as file:
        return path.suffix == ".sdf" and file.read(4) == b"gdb_"


def targets(path: Path, options: ReadOptions) -> tuple[Target, ...]:
    """All of the set's properties."""
    return _qm9.TARGETS


def _table(path: Path) -> Path:
    table = path.with_name(f"{path.name}.csv")
    if not table.is_file():
        raise UserError(f"{path}: its properties are not there; expected {table.name} in the same folder.")
    return table


def read(path: Path, options: ReadOptions) -> Iterator[tuple[Frame, tuple[str, ...]]]:
    """The molecules, with notes on units and on those that are left out."""
    return _qm9.characterized(_molecules(path), options)


def _molecules(path: Path) -> _qm9.Molecules:
    from rdkit import Chem

    note = f"QM9: GHz, D, a0³, Hartree, a0², cal/mol/K -> GHz, e·Å, Å³, eV, Å², eV/K; {_qm9.THEORY}"
    table = _table(path)
    with table.open(encoding="utf-8", newline="") as rows, path.open("rb") as file:
        reader = csv.DictReader(rows)
        missing = [name for name in ("mol_id", *_qm9.FACTORS) if name not in (reader.fieldnames or ())]
        if missing:
            raise UserError(f"{table}: expected the columns of QM9; there is no {', '.join(missing)}.")
        molecules = Chem.ForwardSDMolSupplier(file, sanitize=False, removeHs=False)
        for number, (mol, row) in enumerate(itertools.zip_longest(molecules, reader)):
            if mol is None or row is None:
                short, other = (path, table) if mol is None else (table, path)
                raise UserError(f"{short}: molecule {number} is missing or cannot be read; {other} has it.")
            name = mol.GetProp("_Name")
            if name != row["mol_id"]:
                raise UserError(f"{path}: molecule {number} is {name}, but in {table.name} {row['mol_id']}.")
            yield _frame(mol, row, name), (note,)


def _frame(mol: Any, row: dict[str, str], name: str) -> Frame:
    structure = Structure.of([atom.GetAtomicNum() for atom in mol.GetAtoms()], mol.GetConformer().GetPositions())
    properties = _qm9.converted({key: float(row[key]) for key in _qm9.FACTORS})
    return Frame(structure, info={"name": name, "smiles": _smiles(mol)}, properties=properties)


def _smiles(mol: Any) -> str:
    """Canonical SMILES without hydrogens; "" for the few molecules whose bonds rdkit does not accept."""
    from rdkit import Chem, rdBase

    try:
        with rdBase.BlockLogs():
            Chem.SanitizeMol(mol)
            return str(Chem.MolToSmiles(Chem.RemoveHs(mol)))
    except ValueError:
        return ""


def held(path: Path) -> tuple[Counter[str], Counter[str]]:
    """The columns, each of every molecule."""
    with _table(path).open(encoding="utf-8", newline="") as rows:
        reader = csv.DictReader(rows)
        n = sum(1 for _ in reader)
        return Counter(dict.fromkeys(reader.fieldnames or (), n)), Counter()
