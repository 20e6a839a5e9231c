"""Structures without labels, for predicting, relaxing and dynamics: what ASE reads, checked for misreadings."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mlpot.convert import ase as convert
from mlpot.convert import pymatgen as convert_pymatgen
from mlpot.data.foreign import look
from mlpot.data.frame import Frame
from mlpot.data.options import ReadOptions
from mlpot.data.reading import Reading, existing, source_modules
from mlpot.data.sources import extxyz
from mlpot.data.store import Store, frames_of, is_store
from mlpot.errors import UserError
from mlpot.structure import number_of, symbols_of

# Sources whose files ASE does not read, or reads less well.
_OURS = ("md17", "ani", "spice", "modelforge", "qm9_raw", "qm9_pack")


def read_structures(path: str | Path, index: str = ":") -> list[Any]:
    """The structures of a file as ``ase.Atoms`` without a calculator: what ASE reads, our formats, CIFs by pymatgen.

    Stored results are dropped, so that nobody takes them for a live calculator; constraints, momenta and info stay.
    Raises UserError for what no potential can take (partly occupied sites, missing atoms, NaN, a flat cell) and for
    formats that name neither elements nor units (LAMMPS types, RuNNer).
    """
    file = existing(path)
    wanted = ReadOptions(index=index).validated(str(file))
    found = _read(file)
    if not found:
        raise UserError(f"{file}: it holds no structures.{_likeness(file)}")
    structures = [found[number] for number in wanted.frames(len(found))]
    if not structures:
        raise UserError(f'{file}: index "{index}" picks none of its {len(found)} structures.')
    for number, atoms in enumerate(structures):
        where = f"{file}: structure {number}"
        _refuse_disorder(atoms, where)
        try:
            structure = convert.structure(atoms)
        except UserError as error:
            raise UserError(f"{where}: {str(error).removeprefix('structure: ')}") from None
        pair = structure.coincident()
        if pair is not None:
            raise UserError(f"{where}: atoms {pair[0]} and {pair[1]} are at the same place.")
        atoms.calc = None
    return structures


def _read(file: Path) -> list[Any]:
    import ase.io

    if is_store(file) or any(m.__name__.endswith(_OURS) and m.recognises(file) for m in source_modules()):
        return _from_dataset(file)
    name = file.name.lower()
    if name.endswith((".sdf", ".mol")):
        return _molfiles(file)
    _refuse_untold(file)
    cif = ".cif" in name
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # readers warn of their own affairs
            found = ase.io.read(file, index=":", do_not_split_by_at_sign=True)
    except Exception as error:  # ASE's readers raise whatever their parsers raise
        found = _crystal(file, error) if cif else _second_reader(file, error)
    if cif:
        _refuse_missing_elements(file, found)
    return found if isinstance(found, list) else [found]


def _from_dataset(file: Path) -> list[Any]:
    # Labels are dropped, so that their unit does not matter; that of positions is known to each format.
    positions_only = ReadOptions(units={"energy": "eV", "forces": "eV/Å", "stress": "eV/Å^3"})
    frames: Iterable[Frame] = (
        frames_of(Store(file)) if is_store(file) else Reading(file, positions_only, require_labels=False)
    )
    made = []
    for frame in frames:
        atoms = convert.atoms(frame.structure)
        atoms.info.update(frame.info)
        made.append(atoms)
    return made


def _molfiles(file: Path) -> list[Any]:
    """Every record of an SDF or MOL file (ASE reads the first alone), with the sum of its formal charges."""
    import ase.io

    records = re.split(r"^\$\$\$\$.*\n?", file.read_text(errors="replace"), flags=re.MULTILINE)
    made = []
    for number, record in enumerate(record for record in records if record.strip()):
        try:
            atoms: Any = ase.io.read(io.StringIO(record), format="sdf")
        except Exception as error:
            raise UserError(
                f"{file}: record {number} cannot be read as an MDL molecule ({_first_line(error)})."
            ) from error
        pairs = [line.split()[3:] for line in record.splitlines() if line.startswith("M  CHG")]
        if pairs:
            atoms.info["charge"] = float(sum(int(charge) for words in pairs for charge in words[1::2]))
        made.append(atoms)
    return made


def _refuse_untold(file: Path) -> None:
    """UserError for formats that do not tell the elements or the unit of length, where ASE guesses."""
    seen = look(file)
    name = "" if seen is None else seen.name
    with file.open(errors="replace") as opened:
        head = opened.read(4096)
    columns = re.search(r"^ITEM: ATOMS(.*)$", head, re.MULTILINE)
    if columns and "element" not in columns[1].split():
        raise UserError(
            f"{file}: the LAMMPS dump has numbers of atom types and no elements. Write it again with "
            f'"dump_modify ... element O H" and an element column, or convert it to extxyz.'
        )
    if name.startswith(("RuNNer", "a LAMMPS data file")):
        raise UserError(f"{file}: looks like {name}. {seen.advice if seen else ''}")


def _second_reader(file: Path, error: Exception) -> list[Any]:
    """Our own extxyz reader, which takes some files that ASE refuses and says where one is broken."""
    if extxyz.recognises(file):
        return _from_dataset(file)
    raise UserError(f"{file}: cannot be read as a structure ({_first_line(error)}).{_likeness(file)}") from error


def _crystal(file: Path, error: Exception) -> list[Any]:
    reason = _first_line(error)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pymatgen.core.structure import Structure as Crystal

            return [convert.atoms(convert_pymatgen.structure(Crystal.from_file(file)))]
    except UserError as refused:
        raise UserError(f"{file}: {refused}") from None
    except ImportError:
        raise UserError(
            f"{file}: ASE cannot read this CIF ({reason}). With pymatgen installed, that is tried too."
        ) from error
    except Exception as second:
        raise UserError(f"{file}: cannot be read as a CIF ({reason}; pymatgen: {_first_line(second)}).") from error


def _refuse_disorder(atoms: Any, where: str) -> None:
    for site, occupancy in (atoms.info.get("occupancy") or {}).items():
        if len(occupancy) > 1 or any(abs(part - 1.0) > 1e-3 for part in occupancy.values()):
            raise UserError(
                f"{where}: site {site} is partly occupied ({', '.join(f'{k} {v}' for k, v in occupancy.items())}). "
                f"A potential needs whole atoms: make an ordered structure first."
            )


def _refuse_missing_elements(file: Path, found: Any) -> None:
    """UserError for elements in a CIF's formula that no site holds, and for two elements on one site."""
    from ase.io.formats import open_with_compression

    with open_with_compression(str(file), "rt") as opened:
        text = opened.read()
    mixed = re.search(r"'\s*\d*\.\d+(\(\d+\))?\s*[A-Z][a-z]?\s*\+[^'\n]*'", text)
    if mixed:
        raise UserError(f"{file}: the structure is disordered (site {mixed[0]}). A potential needs whole atoms.")
    formulas = re.findall(r"^_chemical_formula_sum\s+(?:'([^'\n]*)'|\"([^\"\n]*)\"|(\S+))", text, re.MULTILINE)
    named: set[int] = set()
    for symbol in re.findall(r"[A-Z][a-z]?", " ".join("".join(groups) for groups in formulas)):
        named.add(number_of("H" if symbol in ("D", "T") else symbol))
    present = {int(z) for atoms in (found if isinstance(found, list) else [found]) for z in atoms.numbers}
    if named - present:
        raise UserError(
            f"{file}: the formula names {', '.join(symbols_of(sorted(named - present)))}, but no site holds it "
            f"(such as hydrogens left out). Add the missing atoms first."
        )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _likeness(file: Path) -> str:
    seen = look(file)
    return (
        ""
        if seen is None
        else f" It looks like {seen.name}. {'' if seen.advice.startswith('It holds') else seen.advice}".rstrip()
    )
