"""A screening: chunks dealt to processes; what is done stays done, whatever is killed."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from mlpot import __version__
from mlpot.errors import UserError
from mlpot.screen.chunk import Job, Row, Settings, read_rows, write_rows
from mlpot.screen.input import Input

CHUNK = 500  # lines
MANIFEST = "manifest.json"
Seconds = dict[str, float]


class Workers(Protocol):
    """Whoever works on chunks."""

    def work(self, jobs: Iterator[Job], done: Callable[[Job, Seconds], None]) -> list[Job]:
        """Work on all of them; give back those that brought down the process that worked on them."""

    def alone(self, job: Job) -> Seconds | None:
        """Work on one with nothing else beside it; None where its process died."""


class Screening:
    """Rows for every line of an input, chunk by chunk, in a work folder.

    Raises UserError where the folder belongs to another input, model or setting: its chunks would be mixed up.
    """

    def __init__(self, source: Input, settings: Settings, folder: Path, restart: bool = False) -> None:
        self.source, self.folder, self.settings = source, folder.resolve(), settings
        self.stages: Counter[str] = Counter()
        paths = {"models": None, "relaxation": settings.relaxation and settings.relaxation[1:]}  # hashes tell the files
        manifest = {"input": source.sha(), "columns": source.columns, "chunk": CHUNK, "version": __version__}
        text = json.dumps(manifest | settings._asdict() | paths)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / MANIFEST
            if path.is_file() and path.read_text() != text:
                if not restart:
                    raise UserError(
                        f"{folder}: it holds the work on another input, model or setting, or that of another version. "
                        f"Go on with these as they were, or throw that work away with --restart."
                    )
                for old in (*folder.glob("*.jsonl"), *folder.glob(".*.new")):
                    old.unlink()
            temporary = path.with_name(f".{path.name}.new")
            temporary.write_text(text)
            os.replace(temporary, path)
        except OSError as error:
            raise self._unwritten(error) from None

    def _unwritten(self, error: OSError) -> UserError:
        detail = error.strerror or error
        return UserError(f"{self.folder}: cannot be written ({detail}). What is done is kept.")

    def _jobs(self) -> Iterator[Job]:
        """The chunks that are not done."""
        for number, lines in enumerate(self.source.chunks(CHUNK)):
            path = self.folder / f"{number:06d}.jsonl"
            if not path.exists():
                yield Job(number, lines, str(path))

    def run(self, workers: Workers, tell: Callable[[int], None]) -> None:
        """Work on all chunks that are not done; `tell` gets the number of lines of each that is."""

        def done(job: Job, seconds: Seconds) -> None:
            self.stages.update(seconds)
            tell(len(job.lines))

        try:
            while broken := workers.work(self._jobs(), done):
                for job in broken:
                    self._alone(workers, job)
                    tell(len(job.lines))
            for left in self.folder.glob(".*.new"):  # by processes that were killed as they wrote
                left.unlink(missing_ok=True)
        except OSError as error:
            raise self._unwritten(error) from None

    def _alone(self, workers: Workers, job: Job) -> None:
        """Work on a chunk by itself; where its process dies, on its halves, down to the line that is to blame."""
        seconds = workers.alone(job)
        if seconds is not None:
            self.stages.update(seconds)
            return
        if len(job.lines) == 1:
            line = job.lines[0]
            reason = "the process that worked on it died"
            row = {"line": line.number, "id": line.id, "smiles": line.text[:500], "status": "died", "reason": reason}
            write_rows(Path(job.path), [row])
            return
        middle, rows = len(job.lines) // 2, []
        for half, lines in enumerate((job.lines[:middle], job.lines[middle:])):
            part = Job(job.number, lines, f"{job.path}.{half}")
            self._alone(workers, part)
            rows += read_rows(Path(part.path))
            Path(part.path).unlink()
        write_rows(Path(job.path), rows)

    def rows(self) -> Iterator[Row]:
        """All rows, in the order of the lines.

        A molecule that came before is marked as a duplicate of its line, an identifier that did with that line.
        """
        molecules, identifiers = First(), First()
        for path in sorted(self.folder.glob("*.jsonl")):
            rows = read_rows(path)
            numbers = [row["line"] for row in rows]
            first = molecules.lines([_key(row) for row in rows], numbers)
            named = identifiers.lines([row["id"] for row in rows], numbers)
            for row, molecule, identifier in zip(rows, first, named, strict=True):
                yield row | {"duplicate_of": molecule, "same_id_as": identifier}


def _key(row: Row) -> str:
    """What tells a molecule from others; for one that came with coordinates these belong to it."""
    own = json.dumps(row.get("geometry", "")) if row.get("coordinates") == "own" else ""
    return row.get("standardised", "") + own


class First:
    """The first line that a text stood on; 16 bytes are kept of every text, in sorted runs of growing length."""

    def __init__(self) -> None:
        self._runs: list[tuple[NDArray[np.uint64], NDArray[np.int64]]] = []

    def lines(self, texts: Sequence[str], numbers: Sequence[int]) -> list[int | None]:
        """For each text of the next lines the line where it stood first; None for that line itself, and for no text."""
        digests = [hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts]
        keys = np.frombuffer(b"".join(digests), dtype=np.uint64)
        unique, place, inverse = np.unique(keys, return_index=True, return_inverse=True)
        first = np.array(numbers, dtype=np.int64)[place]
        new = np.ones(len(unique), dtype=bool)
        for known, lines in self._runs:
            where = np.searchsorted(known, unique).clip(max=len(known) - 1)
            hit = known[where] == unique
            first[hit], new[hit] = lines[where[hit]], False
        if new.any():
            self._runs.append((unique[new], first[new]))
        while len(self._runs) > 1 and len(self._runs[-2][0]) < 2 * len(self._runs[-1][0]):
            merged = [np.concatenate(parts) for parts in zip(self._runs.pop(), self._runs.pop(), strict=True)]
            order = np.argsort(merged[0])
            self._runs.append((merged[0][order], merged[1][order]))
        found = first[inverse].tolist()
        return [
            line if text and line != number else None for text, line, number in zip(texts, found, numbers, strict=True)
        ]
