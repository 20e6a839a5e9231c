"""Workers on this machine: a pool of processes."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait as wait_for

from mlpot.screen.chunk import Job, Settings, work

Seconds = dict[str, float]


class Processes:
    """`n` processes that work on chunks."""

    def __init__(self, settings: Settings, n: int) -> None:
        self.settings, self.n = settings, n

    def work(self, jobs: Iterator[Job], done: Callable[[Job, Seconds], None]) -> list[Job]:
        """Deal chunks, few at a time; those that were being worked on when a process died are given back.

        What a worker raises comes out here.
        """
        running: dict[Future[Seconds], Job] = {}
        dealt: Job | None = None
        pool = self._pool(self.n)
        try:
            for dealt in jobs:
                running[pool.submit(work, self.settings, dealt)] = dealt
                while len(running) >= 2 * self.n:
                    _collect(running, done)
            while running:
                _collect(running, done)
        except BrokenProcessPool:
            lost = {job.number: job for job in (*running.values(), *([dealt] if dealt else []))}
            return [job for job in lost.values() if not job.done()]
        finally:
            pool.shutdown(cancel_futures=True)
        return []

    def alone(self, job: Job) -> Seconds | None:
        """Work on a chunk in a process of its own; None where that dies."""
        try:
            with self._pool(1) as pool:
                return pool.submit(work, self.settings, job).result()
        except BrokenProcessPool:
            return None

    def close(self) -> None:
        """Nothing is left to end."""

    def _pool(self, n: int) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(n, multiprocessing.get_context("spawn"), leave_with_parent)


def _collect(running: dict[Future[Seconds], Job], done: Callable[[Job, Seconds], None]) -> None:
    finished, _ = wait(running, return_when=FIRST_COMPLETED)
    for future in finished:
        seconds = future.result()  # raises where a process died, with the chunk still among the running
        done(running.pop(future), seconds)


def leave_with_parent() -> None:
    """End this process when its parent is gone, which would otherwise leave it waiting for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        wait_for([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
