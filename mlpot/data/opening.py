"""Open any file of labelled structures: the source is found by what is in the file."""

from __future__ import annotations

import hashlib
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from mlpot.convert import pymatgen as convert_pymatgen
from mlpot.data import sources
from mlpot.data.dataset import Dataset, MemoryDataset
from mlpot.data.frame import Frame, checked
from mlpot.data.options import ReadOptions
from mlpot.data.store import Store, is_store
from mlpot.errors import UserError, suggestion

def source_modules() -> list[ModuleType]:
    """The sources there are, one a file in mlpot/data/sources."""
    names = sorted(m.name for m in pkgutil.iter_modules(sources.__path__) if not m.name.startswith("_"))
    return [importlib.import_module(f"{sources.__name__}.{name}") for name in names]


def formats() -> list[str]:
    """The formats that can be opened."""
    return ["mlpot store (.h5)", *(module.FORMAT for module in source_modules())]


def existing(path: str | Path) -> Path:
    """The path, if there is a file with something in it; UserError with the nearest name otherwise."""
    file = Path(path)
    if file.is_dir():
        raise UserError(f"{file}: is a folder; expected a file. It holds: {', '.join(_listing(file)) or 'nothing'}.")
    if not file.exists():
        near = _listing(file.parent) if file.parent.is_dir() else []
        raise UserError(f"{file}: there is no such file.{suggestion(file.name, near)}")
    if file.stat().st_size == 0:
        raise UserError(f"{file}: the file is empty.")
    return file


def _listing(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))[:30]


def file_hash(path: Path) -> str:
    """sha256 of a file's bytes, hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _source(file: Path) -> ModuleType:
    for module in source_modules():
        if module.recognises(file):
            return module
    raise UserError(f"{file}: not a format of labelled structures that is known here. Known: {'; '.join(formats())}.")


def open_dataset(path: str | Path, options: ReadOptions | None = None, require_labels: bool = True) -> Dataset:
    """The frames of a file, with labels in eV, eV/Å and eV/Å³.

    A store is opened where it lies and read as needed; other formats are read into memory. With `require_labels`, a
    file in which no energy, force or stress is seen is an error that lists what it holds instead.
    """
    file = existing(path)
    options = (options or ReadOptions()).validated(str(file))
    if is_store(file):
        if options.keys or options.units:
            raise UserError(f"{file}: a store knows its labels and units; leave out keys and units.")
        return Store(file)
    module = _source(file)
    frames, notes = [], []
    for number, (frame, note) in enumerate(_read(module, file, options)):
        frames.append(checked(frame, f"{file}: frame {number}"))
        notes.extend(text for text in note if text not in notes)
    if not frames:
        raise UserError(f"{file}: it holds no frames.")
    if require_labels and not any(frame.has(label) for frame in frames for label in ("energy", "forces", "stress")):
        raise UserError(f"{file}: no labels found in {len(frames)} frames. {module.explain_missing(file, options)}")
    kept = [frames[number] for number in options.frames(len(frames))]
    if not kept:
        raise UserError(f'{file}: index "{options.index}" picks none of its {len(frames)} frames.')
    notes = [*notes, *unmapped(module, file, options, kept)] if require_labels else notes
    return MemoryDataset(kept, str(file), file_hash(file), module.FORMAT, tuple(notes), options.theory)


def unmapped(module: ModuleType, file: Path, options: ReadOptions, frames: list[Frame]) -> list[str]:
    """A note where a file with energies holds forces under a name that nobody mapped."""
    if any(frame.has("forces") for frame in frames) or "forces" in options.keys:
        return []
    found: list[str] = module.hidden_forces(file) if hasattr(module, "hidden_forces") else []
    if not found:
        return []
    return [f'no forces are read, but each atom has "{found[0]}": if these are forces, say keys.forces={found[0]}']


def _read(module: ModuleType, file: Path, options: ReadOptions) -> Iterator[tuple[Frame, tuple[str, ...]]]:
    """The frames of a source; errors of the libraries beneath become one message."""
    try:
        yield from module.read(file, options)
    except UserError:
        raise
    except (ValueError, KeyError, OSError, IndexError, TypeError, EOFError, UnicodeDecodeError, RuntimeError) as error:
        detail = str(error).strip().splitlines()
        raise UserError(
            f"{file}: cannot be read as {module.FORMAT}: {detail[0] if detail else type(error).__name__}. "
            f"The file may be damaged or cut short."
        ) from None


def read_structures(path: str | Path, index: str = ":") -> list[Any]:
    """The structures of any file that ASE reads (and CIFs that pymatgen reads), as ``ase.Atoms`` without a calculator.

    Stored results are dropped, so that nobody takes them for a live calculator; constraints, momenta and info stay.
    """
    import ase.io
    from ase import Atoms

    file = existing(path)
    wanted = ReadOptions(index=index)
    try:
        found = ase.io.read(file, index=":")
    except Exception as error:  # ASE's readers raise whatever their parsers raise
        found = _second_reader(file, error)
    found = found if isinstance(found, list) else [found]
    if not found:
        raise UserError(f"{file}: it holds no structures.")
    structures: list[Atoms] = [found[number] for number in wanted.frames(len(found))]
    if not structures:
        raise UserError(f'{file}: index "{index}" picks none of its {len(found)} structures.')
    for number, atoms in enumerate(structures):
        _refuse_disorder(atoms, f"{file}: structure {number}")
        atoms.calc = None
    return structures


def _refuse_disorder(atoms: Any, where: str) -> None:
    for site, occupancy in (atoms.info.get("occupancy") or {}).items():
        if any(abs(part - 1.0) > 1e-3 for part in occupancy.values()) or len(occupancy) > 1:
            raise UserError(
                f"{where}: site {site} is partly occupied ({occupancy}). A potential needs whole atoms: "
                f"make an ordered structure first."
            )


def _second_reader(file: Path, error: Exception) -> list[Any]:
    reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if ".cif" in file.name.lower():
        try:
            from pymatgen.core import Structure as Crystal

            from mlpot.convert import ase as convert_ase

            return [convert_ase.atoms(convert_pymatgen.structure(Crystal.from_file(file)))]
        except UserError as refused:
            raise UserError(f"{file}: {refused}") from None
        except Exception as second:
            reason = f"{reason}; pymatgen: {(str(second).splitlines() or [type(second).__name__])[0]}"
    raise UserError(f"{file}: cannot be read as a structure ({reason}).") from None
