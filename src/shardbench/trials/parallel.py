"""Simulated trials side by side: each plans and counts in processes of its own, for which a thread waits."""

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing

from shardbench.records.record import Record
from shardbench.records.trial import TrialSpec
from shardbench.trials.run_trial import JobContext
from shardbench.trials.session import waiting_side_by_side

RunTrial = Callable[[TrialSpec, JobContext], Record]


class SharedJob:
    """The context of a job, there from the first of its trials that runs to the last."""

    def __init__(self, context: AbstractContextManager[JobContext], specs: Sequence[TrialSpec]) -> None:
        repeats: dict[TrialSpec, list[TrialSpec]] = {}
        for spec in specs:
            repeats.setdefault(spec.model_copy(update={"repeat": 0}), []).append(spec)
        self.groups = list(repeats.values())
        """Trials that run one after the other: repeats of one plan."""
        self._manager = context
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._context: JobContext | None = None
        self._groups_left = len(self.groups)

    def enter(self) -> JobContext:
        """Return the context, for a group that begins."""
        with self._lock:
            if self._context is None:
                self._context = self._stack.enter_context(self._manager)
            return self._context

    def leave(self) -> None:
        """Note that a group is done with."""
        with self._lock:
            self._groups_left -= 1
            if self._groups_left == 0:
                self.close()

    def close(self) -> None:
        """Take away what the context made."""
        self._stack.close()


def run_beside(jobs: Sequence[SharedJob], run: RunTrial, workers: int) -> Generator[Record, None, None]:
    """Yield records as trials are done, ``workers`` at once; 0 are one a core."""
    arguments = [(job, group, run) for job in jobs for group in job.groups]
    try:
        with closing(waiting_side_by_side(_run_group, arguments, workers)) as groups:
            for records in groups:
                yield from records
    finally:
        for job in jobs:
            job.close()


def _run_group(job: SharedJob, group: Sequence[TrialSpec], run: RunTrial) -> list[Record]:
    context = job.enter()
    records = [run(spec, context) for spec in group]
    job.leave()
    return records
