"""A screening: chunks dealt to processes; what is done stays done, whatever is killed."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from mlpot.data.reading import file_hash
from mlpot.errors import UserError
from mlpot.screen.chunk import Job, Row, Worker, read_rows, start, work, write_rows
from mlpot.screen.lines import Input

CHUNK = 500  # lines
MANIFEST = "manifest.json"


class Screening:
    """Rows for every line of an input, chunk by chunk, in a work folder.

    Raises UserError where the folder belongs to another input, model or setting: its chunks would be mixed up.
    """

    def __init__(self, source: Input, worker: Worker, folder: Path, restart: bool = False) -> None:
        self.source, self.worker, self.folder = source, worker, folder
        self.settings = settings = worker.settings
        self.stages: Counter[str] = Counter()
        models = [file_hash(Path(path)) for path in settings.models]
        manifest = {
            "input": source.sha(),
            "models": models,
            "descriptors": list(settings.descriptors),
            "chunk": CHUNK,
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / MANIFEST
            if path.is_file() and json.loads(path.read_text()) != manifest:
                if not restart:
                    raise UserError(
                        f"{folder}: it holds the work on another input, model or filter. Go on with these as they "
                        f"were, or throw that work away with --restart."
                    )
                for old in folder.glob("*.jsonl"):
                    old.unlink()
            temporary = path.with_name(f".{path.name}.new")
            temporary.write_text(json.dumps(manifest))
            os.replace(temporary, path)
        except OSError as error:
            raise UserError(f"{folder}: cannot be written ({error.strerror}).") from None

    def _jobs(self) -> Iterator[Job]:
        """The chunks that are not done."""
        for number, lines in enumerate(self.source.chunks(CHUNK)):
            path = self.folder / f"{number:06d}.jsonl"
            if not path.exists():
                yield Job(number, lines, str(path))

    def run(self, processes: int, tell: Callable[[int], None]) -> None:
        """Work on all chunks that are not done; `tell` gets the number of lines of each that is."""
        while broken := self._pool(processes, tell):
            for job in broken:  # one of them brought a worker down: each gets a pool of its own
                self._alone(job)
                tell(len(job.lines))

    def _pool(self, processes: int, tell: Callable[[int], None]) -> list[Job]:
        """Deal chunks to a pool, few at a time. The chunks that were being worked on when a worker died."""
        running: dict[Future[dict[str, float]], Job] = {}
        last: Job | None = None
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, context, start, (self.settings,)) as pool:
            try:
                for last in self._jobs():
                    running[pool.submit(work, last)] = last
                    while len(running) >= 2 * processes:
                        self._collect(running, tell)
                while running:
                    self._collect(running, tell)
            except BrokenProcessPool:
                dealt = {job.number: job for job in (*running.values(), *([last] if last else []))}
                return [job for job in dealt.values() if not Path(job.path).exists()]
        return []

    def _collect(self, running: dict[Future[dict[str, float]], Job], tell: Callable[[int], None]) -> None:
        done, _ = wait(running, return_when=FIRST_COMPLETED)
        for future in done:
            self.stages.update(future.result())  # raises where a worker died, with the chunk still among the running
            tell(len(running.pop(future).lines))

    def _alone(self, job: Job) -> None:
        """Work on a chunk in a process of its own; where it dies, on its halves, down to the line that is to blame."""
        context = multiprocessing.get_context("spawn")
        try:
            with ProcessPoolExecutor(1, context, start, (self.settings,)) as pool:
                self.stages.update(pool.submit(work, job).result())
                return
        except BrokenProcessPool:
            pass
        if len(job.lines) == 1:
            line = job.lines[0]
            reason = "the process that worked on it died"
            row = {"line": line.number, "id": line.id, "smiles": line.smiles[:500], "status": "died", "reason": reason}
            write_rows(Path(job.path), [row])
            return
        middle, rows = len(job.lines) // 2, []
        for half, lines in enumerate((job.lines[:middle], job.lines[middle:])):
            part = Job(job.number, lines, f"{job.path}.{half}")
            self._alone(part)
            rows += read_rows(Path(part.path))
            Path(part.path).unlink()
        write_rows(Path(job.path), rows)

    def rows(self) -> Iterator[Row]:
        """All rows, in the order of the lines; a molecule that came before is marked as a duplicate of its line."""
        seen: dict[bytes, int] = {}
        for path in sorted(self.folder.glob("*.jsonl")):
            for row in read_rows(path):
                text = row.get("standardised")
                if text:
                    key = hashlib.blake2b(text.encode(), digest_size=16).digest()
                    first = seen.setdefault(key, row["line"])
                    row["duplicate_of"] = first if first != row["line"] else None
                yield row
