"""QM9 as torch_geometric keeps it: processed/data_v3.pt, one tensor of all molecules for each quantity.

The file is read without torch_geometric and without running anything in it. Its numbers have single precision, in
which an energy of 10 keV is rounded to 1 meV; total energies come from the energies of atomisation instead, which are
small, and the free atoms.
"""

from __future__ import annotations

import itertools
import math
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from mlpot import inert
from mlpot.data.frame import Frame
from mlpot.data.options import ReadOptions
from mlpot.data.sources import _qm9
from mlpot.errors import UserError
from mlpot.structure import Structure
from mlpot.target import Target
from mlpot.units import HARTREE, KCAL_PER_MOL

FORMAT = "QM9 of torch_geometric (processed/data_v3.pt)"
SUFFIXES = (".pt",)
KEYS = ()
DOUBTFUL = True
# Columns of y, and the factors that torch_geometric put on the published numbers.
_COLUMNS = ("mu", "alpha", "homo", "lumo", "gap", "r2", "zpve", "u0", "u298", "h298", "g298", "cv")
_ATOMISATION = {"u0": 12, "u298": 13, "h298": 14, "g298": 15}
_CONSTANTS = {"A": 16, "B": 17, "C": 18}
_THEIR_HARTREE, _THEIR_KCAL_PER_MOL = 27.211386246, 0.04336414


def recognises(path: Path) -> bool:
    """A file of torch.save that names torch_geometric's Data and holds y and smiles."""
    if path.suffix != ".pt" or not zipfile.is_zipfile(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            name = next((name for name in archive.namelist() if name.endswith("/data.pkl")), None)
            head = b"" if name is None else archive.open(name).read(65536)
    except (OSError, zipfile.BadZipFile):
        return False
    return b"edge_attr" in head and b"smiles" in head


def targets(path: Path, options: ReadOptions) -> tuple[Target, ...]:
    """All of the set's properties."""
    return _qm9.TARGETS


def read(path: Path, options: ReadOptions) -> Iterator[tuple[Frame, tuple[str, ...]]]:
    """The molecules, with notes on units and on those that are left out."""
    return _qm9.characterized(_molecules(path), options)


def _contents(path: Path) -> tuple[dict[str, Any], list[int]]:
    """The tensors and lists of all molecules, and where the atoms of each begin and end."""
    found = inert.read(str(path))
    data, slices = found[:2] if isinstance(found, tuple) and len(found) >= 2 else (None, None)
    wanted = ("z", "pos", "y", "name", "smiles")
    if not (isinstance(data, dict) and isinstance(slices, dict) and all(key in data for key in wanted)):
        raise UserError(f"{path}: not the QM9 of torch_geometric; expected z, pos, y, name and smiles in it.")
    if data["y"].shape[1:] != (19,):
        raise UserError(f"{path}: y has shape {tuple(data['y'].shape)}; QM9 has 19 columns. Was it transformed?")
    return data, [int(k) for k in slices["z"]]


def _molecules(path: Path) -> _qm9.Molecules:
    note = (
        "QM9: single precision; total energies from those of atomisation; "
        f"D, a0³, a0², cal/mol/K -> e·Å, Å³, Å², eV/K; {_qm9.THEORY}"
    )
    data, first = _contents(path)
    numbers, positions, y = data["z"].numpy(), data["pos"].to(torch.float64).numpy(), data["y"].to(torch.float64)
    for k, (start, end) in enumerate(itertools.pairwise(first)):
        structure = Structure.of(numbers[start:end], positions[start:end])
        info = {"name": data["name"][k], "smiles": data["smiles"][k]}
        yield Frame(structure, info=info, properties=_properties(y[k].tolist(), numbers[start:end].tolist())), (note,)


def _properties(row: list[float], numbers: list[int]) -> dict[str, float]:
    """In our units, of 19 numbers in torch_geometric's."""
    found = {}
    for name, value in zip(_COLUMNS, row, strict=False):
        energy = math.isclose(_qm9.FACTORS[name], HARTREE)
        found[name] = value * (HARTREE / _THEIR_HARTREE if energy else _qm9.FACTORS[name])
    for name, column in _ATOMISATION.items():
        atoms = sum(_qm9.REFERENCES[name][z] for z in numbers)
        found[name] = atoms + row[column] * KCAL_PER_MOL / _THEIR_KCAL_PER_MOL
    return {**found, **{name: row[column] for name, column in _CONSTANTS.items()}}


def held(path: Path) -> tuple[Counter[str], Counter[str]]:
    """What the file has of each molecule, and of its atoms."""
    _, first = _contents(path)
    n = len(first) - 1
    return Counter({"y": n, "name": n, "smiles": n}), Counter({"z": n, "pos": n})
