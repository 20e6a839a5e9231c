"""QM9 as the table of the package qm9pack: a CSV, gzipped or not, a molecule a row with its coordinates as text."""

from __future__ import annotations

import ast
import csv
import gzip
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from mlpot.data.frame import Frame
from mlpot.data.options import ReadOptions
from mlpot.data.sources import _qm9
from mlpot.structure import Structure, number_of
from mlpot.target import Target

FORMAT = "QM9 of qm9pack (.csv, .csv.gz)"
SUFFIXES = (".csv", ".gz")
KEYS = ()
DOUBTFUL = True  # some of its molecules are
COLUMNS = {
    "A": "RotA_GHz",
    "B": "RotB_GHz",
    "C": "RotC_GHz",
    "mu": "Dipole_debye",
    "alpha": "Polarizability_bohr3",
    "homo": "HOMO_au",
    "lumo": "LUMO_au",
    "gap": "HOMO_LUMO_gap_au",
    "r2": "R2_bohr2",
    "zpve": "ZPVE_au",
    "u0": "InternalEnergy_0K_au",
    "u298": "InternalEnergy_298K_au",
    "h298": "Enthalphy_298K_au",  # spelt so there
    "g298": "GibbsFreeEnergy_298K_au",
    "cv": "Heatcapacity_Cv_cal_mol_K",
}


def _opened(path: Path) -> IO[str]:
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    return gzip.open(path, "rt", encoding="utf-8") if zipped else path.open(encoding="utf-8", newline="")


def recognises(path: Path) -> bool:
    """A table with that package's columns."""
    try:
        with _opened(path) as file:
            return {"XYZ_Ang", "Elements", *COLUMNS.values()} <= set(file.readline(4096).strip().split(","))
    except (OSError, EOFError, UnicodeDecodeError):
        return False


def targets(path: Path, options: ReadOptions) -> tuple[Target, ...]:
    """All of the set's properties."""
    return _qm9.TARGETS


def read(path: Path, options: ReadOptions) -> Iterator[tuple[Frame, tuple[str, ...]]]:
    """The molecules, with notes on units and on those that are left out."""
    return _qm9.characterized(_molecules(path), options)


def _molecules(path: Path) -> _qm9.Molecules:
    note = f"QM9: GHz, D, a0³, Hartree, a0², cal/mol/K -> GHz, e·Å, Å³, eV, Å², eV/K; {_qm9.THEORY}"
    with _opened(path) as file:
        for row in csv.DictReader(file):
            numbers = [number_of(symbol) for symbol in ast.literal_eval(row["Elements"])]
            structure = Structure.of(numbers, ast.literal_eval(row["XYZ_Ang"]))
            values = {name: _qm9.number(row[column]) for name, column in COLUMNS.items()}
            info = {"name": f"gdb_{row['Index']}", "smiles": row["SMILES"]}
            yield Frame(structure, info=info, properties=_qm9.converted(values)), (note,)


def held(path: Path) -> tuple[Counter[str], Counter[str]]:
    """The columns, each of every molecule."""
    with _opened(path) as file:
        reader = csv.DictReader(file)
        n = sum(1 for _ in reader)
        return Counter(dict.fromkeys(reader.fieldnames or (), n)), Counter()
