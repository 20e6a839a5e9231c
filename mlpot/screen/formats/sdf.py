"""Structure-data files: records that end with $$$$, with their own coordinates where these are three-dimensional."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mlpot.convert.rdkit import structure as structure_of
from mlpot.screen.lengths import refuse_doubtful
from mlpot.screen.lines import LONGEST_ENTRY, Columns, Line, opened, whole
from mlpot.screen.molecule import Molecule, Refused, Standardiser

FORMAT = "SDF"
SUFFIXES = (".sdf", ".sd", ".mol")


def lines(path: Path, columns: Columns) -> Iterator[Line]:
    """Every record, numbered from 1. Its name is its first line, or the data field that `columns.id` names."""
    from mlpot.errors import UserError

    if columns.smiles:
        raise UserError(f"{path}: an SDF has no column of SMILES; leave out --smiles-column.")
    named = False
    with opened(path) as file:
        for number, record in enumerate(_records(file), 1):
            identifier = record.partition("\n")[0].strip() if columns.id is None else _field(record, columns.id)
            named = named or columns.id is None or identifier is not None
            yield Line(number, (identifier or "")[:200], record)
    if not named:
        raise UserError(f'{path}: no record has a data field "{columns.id}".')


def _records(file: Any) -> Iterator[str]:
    kept: list[str] = []
    size = 0
    for text in whole(file):
        if text.startswith("$$$$"):
            yield "".join(kept)
            kept, size = [], 0
            continue
        size += len(text)
        if size <= LONGEST_ENTRY:
            kept.append(text.rstrip("\r\n") + "\n")
    if "".join(kept).strip():
        yield "".join(kept)


def _field(record: str, name: str) -> str | None:
    """The first line of a data field."""
    _, found, rest = record.partition(f"<{name}>")
    values = rest.splitlines()[1:2]
    return values[0].strip() if found and values else None


def molecule(text: str, standardise: Standardiser, coordinates: bool) -> Molecule:
    """The molecule of a record, standardised.

    Its own coordinates are kept where they are three-dimensional, with all hydrogens, and where standardisation
    changed nothing; otherwise it is treated as if it had come as a SMILES.
    """
    from rdkit import Chem, rdBase

    if len(text) >= LONGEST_ENTRY:
        raise Refused("too long", f"{LONGEST_ENTRY} characters or more")
    with rdBase.BlockLogs():
        mol = Chem.MolFromMolBlock(text, removeHs=False)
        if mol is None:
            raise Refused("not a molecule", _complaint(text))
        if mol.GetNumAtoms() == 0:
            raise Refused("empty", "the record has no atoms")
        found = standardise(Chem.RemoveHs(mol))
    written = Chem.MolToSmiles(Chem.RemoveHs(mol))
    if not coordinates or found.changes or not mol.GetConformer().Is3D() or _hidden(mol):
        return found._replace(written=written)
    own = structure_of(mol)
    refuse_doubtful(own)
    return found._replace(written=written, own=own)


def _hidden(mol: Any) -> int:
    """Hydrogens that are no atoms of the record."""
    return sum(atom.GetTotalNumHs() for atom in mol.GetAtoms())


def _complaint(text: str) -> str:
    from rdkit import Chem

    mol = Chem.MolFromMolBlock(text, sanitize=False, removeHs=False)
    if mol is None:
        return "rdkit cannot read the record: its counts, atoms or bonds are damaged"
    try:
        Chem.SanitizeMol(mol)
    except Chem.MolSanitizeException as error:
        return f"rdkit refuses the molecule: {str(error).strip()}"
    return "rdkit refuses the record"
