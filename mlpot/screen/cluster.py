"""Workers on many machines: a scheduler of Dask distributed (the extra `dask`).

The scheduler and its workers are started elsewhere. The model files and the folder of the output must be seen by all
of them under the same paths, and they need the same version of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from mlpot.errors import UserError
from mlpot.screen.chunk import Job, Settings, work

Seconds = dict[str, float]


class Cluster:
    """The workers of a scheduler, named by its address (tcp://host:port) or by the file that it wrote.

    patience: seconds that its answer is waited for, and between looks at whether it is still there.
    """

    def __init__(
        self, settings: Settings, scheduler: str, notice: Callable[[str], None], patience: float = 10.0
    ) -> None:
        try:
            from distributed import Client
        except ImportError:
            raise UserError(
                '--scheduler needs Dask distributed, which is not installed: pip install "mlpot[dask]".'
            ) from None
        self.settings, self.scheduler, self._notice, self._patience = settings, scheduler, notice, patience
        file = Path(scheduler)
        if "://" not in scheduler and not file.is_file():
            raise UserError(
                f"--scheduler {scheduler}: expected an address such as tcp://host:8786, or the file that "
                f"`dask scheduler --scheduler-file` wrote; there is no such file."
            )
        where: dict[str, Any] = {"scheduler_file": scheduler} if file.is_file() else {"address": scheduler}
        try:
            self._client = Client(**where, timeout=self._patience, set_as_default=False)
        except (OSError, TimeoutError, ValueError) as error:
            raise UserError(f"--scheduler {scheduler}: no scheduler answers there ({error}).") from None

    def close(self) -> None:
        """Leave the cluster; what was dealt and is not done is dropped."""
        self._client.close(timeout=self._patience)

    def work(self, jobs: Iterator[Job], done: Callable[[Job, Seconds], None]) -> list[Job]:
        """Deal chunks, few at a time. Those of a worker that died go to another one; after several deaths with the
        same chunk it is given back.
        """
        from distributed import KilledWorker

        running: dict[Any, Job] = {}
        broken: list[Job] = []
        waiting = True
        while waiting or running:
            while waiting and len(running) < self._places():
                job = next(jobs, None)
                if job is None:
                    waiting = False
                    break
                running[self._submit(job)] = job
            for future in self._finished(list(running)):
                job = running.pop(future)
                try:
                    done(job, self._answer(future, job))
                except KilledWorker:
                    broken.append(job)
        return broken

    def alone(self, job: Job) -> Seconds | None:
        """Work on one chunk; None where every worker that took it died."""
        from distributed import KilledWorker

        future = self._submit(job)
        while not self._finished([future]):
            pass
        try:
            return self._answer(future, job)
        except KilledWorker:
            return None

    def _submit(self, job: Job) -> Any:
        return self._client.submit(work, self.settings, job, pure=False)

    def _places(self) -> int:
        """How many chunks are with the cluster at once: two for each thread of a worker that there is now."""
        try:
            return max(2, 2 * sum(self._client.nthreads().values()))
        except OSError:
            raise self._lost() from None

    def _finished(self, futures: list[Any]) -> list[Any]:
        """Those that are done; none of them where nothing happened for a while."""
        from distributed import CancelledError, wait

        try:
            with self._client.as_current():
                if not futures:
                    return []
                return list(wait(futures, timeout=self._patience, return_when="FIRST_COMPLETED").done)
        except TimeoutError:
            self._look()
            return []
        except (CancelledError, OSError):
            raise self._lost() from None

    def _look(self) -> None:
        if self._client.status != "running":
            raise self._lost()
        if not self._client.nthreads():
            self._notice("waiting for workers: the scheduler has none")

    def _answer(self, future: Any, job: Job) -> Seconds:
        from distributed import CancelledError

        try:
            seconds: Seconds = future.result()
        except CancelledError:
            raise self._lost() from None
        if not job.done():
            raise UserError(
                f"{job.path}: a worker wrote it, but it is not here; the output must lie in a folder that all "
                f"machines share."
            )
        return seconds

    def _lost(self) -> UserError:
        return UserError(f"--scheduler {self.scheduler}: the scheduler is gone; the same command goes on from here.")
