"""QM9 as published: dsgdb9nsd_*.xyz, one molecule a file, a text of several, or the tar.bz2 of all of them."""

from __future__ import annotations

import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from mlpot.data.frame import Frame
from mlpot.data.options import ReadOptions
from mlpot.data.sources import _qm9
from mlpot.errors import UserError
from mlpot.structure import Structure, number_of
from mlpot.target import Target

FORMAT = "QM9, raw (dsgdb9nsd_*.xyz or their .tar.bz2)"
SUFFIXES = (".xyz", ".bz2")
KEYS = ()
DOUBTFUL = True  # some of its molecules are
_HEAD = re.compile(r"\A\s*\d+\s*\ngdb \d+")


def recognises(path: Path) -> bool:
    """Text that begins as the raw files do, or a tar archive whose first member does."""
    try:
        if path.suffix in (".bz2", ".tar", ".gz") and tarfile.is_tarfile(path):
            with tarfile.open(path) as archive:
                first = next((member for member in archive if member.isfile()), None)
                file = archive.extractfile(first) if first is not None else None
                return file is not None and bool(_HEAD.match(file.read(200).decode("utf-8", "replace")))
        with path.open("rb") as opened:
            return bool(_HEAD.match(opened.read(200).decode("utf-8", "replace")))
    except (OSError, tarfile.TarError, EOFError):
        return False


def targets(path: Path, options: ReadOptions) -> tuple[Target, ...]:
    """All of the set's properties."""
    return _qm9.TARGETS


def _texts(path: Path) -> Iterator[tuple[str, str]]:
    """(name, text) of every file; members of an archive are read as streams and never written anywhere."""
    if path.suffix in (".bz2", ".tar", ".gz"):
        with tarfile.open(path) as archive:
            for member in archive:
                file = archive.extractfile(member) if member.isfile() else None
                if file is not None:
                    yield f"{path}: {member.name}", file.read().decode("utf-8")
    else:
        yield str(path), path.read_text(encoding="utf-8")


def read(path: Path, options: ReadOptions) -> Iterator[tuple[Frame, tuple[str, ...]]]:
    """The molecules, with notes on units and on those that are left out."""
    return _qm9.characterized(_molecules(path), options)


def _molecules(path: Path) -> _qm9.Molecules:
    note = f"QM9: GHz, D, a0³, Hartree, a0², cal/mol/K -> GHz, e·Å, Å³, eV, Å², eV/K; {_qm9.THEORY}"
    for where, text in _texts(path):
        lines = text.splitlines()
        start = 0
        while start < len(lines) and lines[start].strip():
            n = int(lines[start])
            block = lines[start : start + n + 5]
            if len(block) < n + 5:
                raise UserError(f"{where}: cut short: {len(block)} lines of a molecule of {n} atoms; expected {n + 5}.")
            yield _molecule(block, n, where), (note,)
            start += n + 5


def _molecule(block: list[str], n: int, where: str) -> Frame:
    tag, index, *values = block[1].split()
    if tag != "gdb":
        raise UserError(f'{where}: the second line begins with "{tag}"; expected "gdb".')
    atoms = [line.split() for line in block[2 : n + 2]]
    structure = Structure.of(
        [number_of(atom[0]) for atom in atoms], [[_qm9.number(x) for x in atom[1:4]] for atom in atoms]
    )
    names = block[n + 3].split()
    info = {"name": f"gdb_{index}", "smiles": names[-1] if names else ""}
    return Frame(structure, info=info, properties=_qm9.converted([_qm9.number(value) for value in values]))


def held(path: Path) -> tuple[Counter[str], Counter[str]]:
    """The properties, each of every molecule."""
    n = sum(1 for _ in _molecules(path))
    return Counter(dict.fromkeys(_qm9.FACTORS, n)), Counter()
