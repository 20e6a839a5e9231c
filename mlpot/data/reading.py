"""Find the source of a file and read its frames, one pass at a time."""

from __future__ import annotations

import hashlib
import importlib
import itertools
import pkgutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from mlpot.data import sources
from mlpot.data.foreign import look
from mlpot.data.frame import LABELS, Frame, checked
from mlpot.data.hints import explain_missing, refuse_absent_keys, unread_labels
from mlpot.data.options import ReadOptions
from mlpot.errors import PhysicsWarning, UserError, suggestion
from mlpot.target import Target


def source_modules() -> list[ModuleType]:
    """The sources there are, one a file in mlpot/data/sources."""
    names = sorted(m.name for m in pkgutil.iter_modules(sources.__path__) if not m.name.startswith("_"))
    return [importlib.import_module(f"{sources.__name__}.{name}") for name in names]


def formats() -> list[str]:
    """The formats that can be opened."""
    return ["mlpot store (.h5)", *(module.FORMAT for module in source_modules())]


def existing(path: str | Path) -> Path:
    """The path, if there is a readable file with something in it; UserError with the nearest name otherwise."""
    file = Path(path)
    try:
        if file.is_dir():
            raise UserError(
                f"{file}: is a folder; expected a file. It holds: {', '.join(_listing(file)) or 'nothing'}."
            )
        if not file.exists():
            near = _listing(file.parent) if file.parent.is_dir() else []
            raise UserError(f"{file}: there is no such file.{suggestion(file.name, near)}")
        with file.open("rb") as opened:
            if not opened.read(1):
                raise UserError(f"{file}: the file is empty.")
    except (OSError, ValueError) as error:
        raise UserError(f"{file}: cannot be opened ({getattr(error, 'strerror', None) or error}).") from None
    return file


def _listing(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir() if not p.name.startswith("."))[:30]


def file_hash(path: Path) -> str:
    """sha256 of a file's bytes, hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def source_of(file: Path) -> ModuleType:
    """The source that recognises a file; UserError that says what it looks like instead."""
    modules = source_modules()
    for module in modules:
        if module.recognises(file):
            return module
    seen = look(file)
    likeness = (
        "the format is not known"
        if seen is None
        else f"it looks like {seen.name}, which is not read as labelled structures"
    )
    endings = sorted(module.FORMAT for module in modules if file.suffix in module.SUFFIXES)
    ending = (
        f" By its ending it would be {' or '.join(endings)}: it may be damaged or cut short."
        if endings and not (seen and seen.advice)
        else ""
    )
    advice = f" {seen.advice}" if seen and seen.advice else ""
    raise UserError(f"{file}: {likeness}.{ending}{advice} Formats known: {'; '.join(formats())}.")


class Reading:
    """One pass over the frames of a file, each checked, in eV, Å, eV/Å, eV/Å³; nothing is kept in memory.

    `notes` (what was assumed) and `counts` are complete at the end of the pass, where missing labels become an error.
    """

    def __init__(self, path: str | Path, options: ReadOptions | None = None, require_labels: bool = True) -> None:
        self.file = existing(path)
        self.require_labels = require_labels
        self.module = source_of(self.file)
        own_names = bool(getattr(self.module, "OWN_KEYS", False))
        self.options = (options or ReadOptions()).validated(str(self.file), own_names)
        if self.options.embed and not own_names:
            raise UserError(f"{self.file}: embed is for tables of molecules; {self.module.FORMAT} has positions.")
        if self.options.uncharacterized and not getattr(self.module, "DOUBTFUL", False):
            raise UserError(f"{self.file}: uncharacterized is for QM9; this file is {self.module.FORMAT}.")
        self.targets: tuple[Target, ...] = self._targets()
        self.notes: list[str] = []
        self.counts = dict.fromkeys(LABELS, 0)
        self.n_frames = 0
        self._seen = {"config_type": 0, "weight": 0}
        for key in self.options.keys:
            if key not in self.module.KEYS and not own_names:
                raise UserError(
                    f"{self.file}: keys.{key} means nothing for {self.module.FORMAT}."
                    f"{suggestion(key, self.module.KEYS)}"
                )

    def _targets(self) -> tuple[Target, ...]:
        """The properties of a source that states any."""
        find = getattr(self.module, "targets", None)
        try:
            return find(self.file, self.options) if find is not None else ()
        except UserError:
            raise
        except Exception as error:  # as below
            raise UserError(
                f"{self.file}: cannot be read as {self.module.FORMAT} ({error}). The file may be damaged or cut short."
            ) from error

    def __iter__(self) -> Iterator[Frame]:
        for frame in self._chosen():
            self.n_frames += 1
            for label in LABELS:
                self.counts[label] += frame.has(label)
            self._seen["config_type"] += bool(frame.config_type)
            self._seen["weight"] += frame.weight != 1.0
            yield frame
        self._finish()

    def _chosen(self) -> Iterator[Frame]:
        wanted = self.options.slice()
        parts = (wanted.start or 0, 0 if wanted.stop is None else wanted.stop, wanted.step or 1)
        if min(parts) >= 0:  # the file is read no further than asked
            yield from itertools.islice(self._frames(), wanted.start, wanted.stop, wanted.step)
        else:
            yield from list(self._frames())[wanted]

    def _frames(self) -> Iterator[Frame]:
        frames = self.module.read(self.file, self.options)
        for number in itertools.count():
            try:
                frame, notes = next(frames)
            except StopIteration:
                break
            except UserError:
                raise
            except MemoryError as error:  # also what a garbled size in a binary file comes to
                raise UserError(
                    f"{self.file}: frame {number} does not fit into memory; the file may be damaged."
                ) from error
            except Exception as error:  # the libraries beneath raise whatever their parsers raise
                detail = (str(error).strip().splitlines() or [type(error).__name__])[0]
                raise UserError(
                    f"{self.file}: cannot be read as {self.module.FORMAT} after {number} frames ({detail}). "
                    f"The file may be damaged or cut short."
                ) from error
            self.notes.extend(note for note in notes if note not in self.notes)
            where = f"{self.file}: frame {number}"
            frame = checked(frame, where)
            pair = frame.structure.coincident()
            if pair is not None:
                raise UserError(f"{where}: atoms {pair[0]} and {pair[1]} are at the same place.")
            yield frame

    def _held(self) -> tuple[dict[str, int], dict[str, int]]:
        try:
            of_frame, of_atoms = self.module.held(self.file)
            return {str(key): n for key, n in of_frame.items()}, {str(key): n for key, n in of_atoms.items()}
        except UserError:
            raise
        except Exception as error:
            raise UserError(
                f"{self.file}: its contents cannot be listed ({error}). The file may be damaged."
            ) from error

    def _finish(self) -> None:
        if not self.n_frames:
            picked = "" if self.options.index == ":" else f' that index "{self.options.index}" picks'
            raise UserError(f"{self.file}: it holds no frames{picked}.")
        if self.targets:
            return
        seen = {**self.counts, **self._seen, "virial": self.counts["stress"]}
        unseen = not all(seen[key] for key in self.options.keys)
        partial = self.require_labels and not (self.counts["energy"] and self.counts["forces"])
        if not (unseen or partial):
            return
        of_frame, of_atoms = self._held()
        if unseen:
            refuse_absent_keys(str(self.file), self.options, self.counts, of_frame, of_atoms)
        if self.require_labels and not any(self.counts.values()):
            found = explain_missing(of_frame, of_atoms, self.options)
            raise UserError(f"{self.file}: no labels found in {self.n_frames} frames. {found}")
        if partial:
            for text in unread_labels(self.options, self.counts, of_frame, of_atoms):
                warnings.warn(f"{self.file}: {text}", PhysicsWarning, stacklevel=3)
