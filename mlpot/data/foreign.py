"""What a file of an unknown format looks like, so that an error can say it and what to do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

_ELEMENTS = "Convert it to extxyz, naming the elements of its atom types."
_MLEARN = "Write it as extxyz with pymatgen's AseAtomsAdaptor; mind that VASP's stress has the other sign."
_STRUCTURES = "It holds structures without labels: predict, relax and md read it, training cannot."
_RESULTS = 'Its results become training data with ASE: ase.io.write("data.xyz", ase.io.read(FILE, ":")).'
_DPDATA = 'The dpdata package reads it, with its units: dpdata.LabeledSystem(...).to("extxyz", ...).'
_RUNNER = f"The format states no units. {_DPDATA}"
_PICKLE = "Opening it could run code that somebody put there; it is not opened."
_UNPACK = "Unpack it first."
_TABLE = "Training needs positions: give a file of structures."


class Look(NamedTuple):
    """What a file looks like, and advice."""

    name: str
    advice: str = ""


_BYTES = (
    (b"\x93NUMPY", Look("an array of numpy (.npy), as in a DeePMD-kit set (type.raw, set.000/coord.npy)", _DPDATA)),
    (b"\x1f\x8b", Look("a gzip file", _UNPACK)),
    (b"\xfd7zXZ", Look("an xz file", _UNPACK)),
    (b"BZh", Look("a bzip2 file", _UNPACK)),
    (b"PAR1", Look("a Parquet table", _TABLE)),
    (b"\x89HDF", Look("an HDF5 file with another layout, or a damaged one")),
    (b"SQLite", Look("an SQLite file that is no ASE database")),
    (b"\x80\x02", Look("a pickle of Python objects", _PICKLE)),
    (b"\x80\x03", Look("a pickle of Python objects", _PICKLE)),
    (b"\x80\x04", Look("a pickle of Python objects", _PICKLE)),
    (b"\x80\x05", Look("a pickle of Python objects", _PICKLE)),
    (b"PK\x03\x04", Look("a zip archive (or what is left of one) without numpy arrays")),
)
_TEXTS = (
    (r"^\s*begin\s*$[\s\S]*^\s*atom\s", Look("RuNNer or n2p2 data (input.data)", _RUNNER)),
    (r"^ITEM: TIMESTEP", Look("a LAMMPS dump", _ELEMENTS)),
    (r"^\s*\d+\s+atoms\b[\s\S]*^\s*\d+\s+atom types", Look("a LAMMPS data file", _ELEMENTS)),
    (r"^\s*\d+\s+atom types[\s\S]*^\s*\d+\s+atoms\b", Look("a LAMMPS data file", _ELEMENTS)),
    (r"^(data_|loop_|_cell_length)", Look("a CIF", _STRUCTURES)),
    (r"\bV[23]000\b|^\$\$\$\$", Look("an SDF or MOL file", _STRUCTURES)),
    (r"^(ATOM  |HETATM|CRYST1)", Look("a PDB file", _STRUCTURES)),
    (r"\A\s*vasp\.\d", Look("a VASP OUTCAR", _RESULTS)),
    (r"\A\s*<\?xml[\s\S]*modeling", Look("a VASP vasprun.xml", _RESULTS)),
    (r'\A\s*\[?\{[\s\S]*"@module": "pymatgen', Look("JSON of pymatgen objects, as in mlearn", _MLEARN)),
    (r"\A\s*[\[{]", Look("JSON")),
    (r"\A.*\bsmiles\b", Look("a table of molecules (SMILES)", _TABLE)),
)
_NAMES = (
    (r"(POSCAR|CONTCAR|XDATCAR|\.vasp)", Look("a VASP structure", _STRUCTURES)),
    (r"(^type(_map)?\.raw$)", Look("part of a DeePMD-kit set (type.raw, set.000/coord.npy)", _DPDATA)),
    (r"\.(mdb|lmdb)$", Look("an LMDB database", _PICKLE)),
    (r"\.(csv|tsv|smi)$", Look("a table", _TABLE)),
    (r"(README|\.md$|\.rst$)", Look("a text for readers")),
)


def look(path: Path) -> Look | None:
    """What a file looks like; None where nothing is known of it."""
    with path.open("rb") as file:
        head = file.read(65536)
    for magic, found in _BYTES:
        if head.startswith(magic):
            return found
    if path.name == "data.mdb" or b"\0" in head:
        return next((found for pattern, found in _NAMES if re.search(pattern, path.name)), Look("binary data"))
    text = head.decode("utf-8", errors="replace")
    for pattern, found in _TEXTS:
        if re.search(pattern, text, re.MULTILINE | (re.IGNORECASE if "smiles" in pattern else 0)):
            return found
    return next((found for pattern, found in _NAMES if re.search(pattern, path.name, re.IGNORECASE)), None)
