"""Calls as jobs of a cluster, by submitit: for what outgrows one machine.

submitit and not a scheduler of tasks (dask.distributed): a call is a job of the scheduler that the
cluster has anyhow, so that no process and no open port of ours must outlive it, a job that is killed
is that one's failure, and what runs is seen, limited and paid for as all else there. Its engine
``local`` takes the same way on one machine.
"""

import time
import traceback
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, TypeVar

from shardbench.base.errors import BadInput
from shardbench.engine.processes.failures import failure_of
from shardbench.records.trial import Failure, Outcome

T = TypeVar("T")

POLL_S = 0.5


class Engine(StrEnum):
    """Where submitit starts jobs."""

    SLURM = "slurm"
    LOCAL = "local"
    """Processes of this machine."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """The scheduler on which calls run."""

    engine: Engine
    folder: Path
    """Shared by all machines; submitit keeps what goes to and fro, and what jobs print, there."""
    at_once: int
    """Jobs that are submitted and not done; 0: all."""
    parameters: dict[str, str | int] = field(default_factory=dict)
    """submitit's, such as ``timeout_min``, ``mem_gb``, ``slurm_partition``."""


@dataclass(frozen=True, kw_only=True)
class CallOutcome(Generic[T]):
    """What became of one call."""

    number: int
    """The number of its arguments: 0, 1, ..."""
    value: T | Failure


def submit_all(
    call: Callable[..., T], arguments: Sequence[tuple[object, ...]], cluster: Cluster
) -> Generator[CallOutcome[T], None, None]:
    """Yield what ``call`` gives for each of the arguments, as it is done; a job that ends without is a Failure.

    Jobs that are not done are cancelled where nobody reads further. Raises BadInput where submitit is
    missing, or the engine or a parameter is not to be had here.
    """
    executor = _executor(cluster)
    waiting = list(enumerate(arguments))[::-1]
    running: dict[int, Any] = {}
    try:
        while waiting or running:
            while waiting and (not cluster.at_once or len(running) < cluster.at_once):
                number, call_arguments = waiting.pop()
                running[number] = executor.submit(_answer, call, call_arguments)
            finished = [number for number, job in running.items() if _is_done(job, cluster)]
            for number in finished:
                yield CallOutcome(number=number, value=_value(running.pop(number)))
            if not finished:
                time.sleep(POLL_S)
    finally:
        for job in running.values():
            job.cancel()
        # Those of this machine are children of this process.
        while cluster.engine is Engine.LOCAL and not all(_is_done(job, cluster) for job in running.values()):
            time.sleep(0.1)


def _is_done(job: Any, cluster: Cluster) -> bool:
    # submitit looks whether a job without a result died once a minute, to spare a scheduler; here it asks the kernel.
    done: bool = job.done(force_check=cluster.engine is Engine.LOCAL)
    return done


def _executor(cluster: Cluster) -> Any:
    try:
        import submitit  # noqa: PLC0415 - an extra of the package
    except ModuleNotFoundError as error:
        raise BadInput("--cluster needs submitit: install shardbench[cluster]") from error
    try:
        executor = submitit.AutoExecutor(folder=cluster.folder, cluster=cluster.engine.value)
        executor.update_parameters(name="shardbench", **cluster.parameters)
    except (RuntimeError, NameError, ValueError, TypeError) as error:
        raise BadInput(f"--cluster {cluster.engine}: {' '.join(str(error).split())}") from error
    return executor


_OUTCOMES = {"OUT_OF_MEMORY": Outcome.OOM, "TIMEOUT": Outcome.TIMEOUT}
"""Outcomes of jobs that left nothing, by SLURM's words for their state."""


def _answer(call: Callable[..., T], arguments: tuple[object, ...]) -> T | Failure:
    """Return what the call gives in the job, or how it failed."""
    try:
        return call(*arguments)
    except Exception as error:
        traceback.print_exc()
        return failure_of(error, "harness")


def _value(job: Any) -> Any:
    from submitit.core.utils import UncompletedJobError  # noqa: PLC0415

    try:
        return job.result()
    except UncompletedJobError:
        outcome = _OUTCOMES.get(job.state.split()[0], Outcome.ERROR)
        return Failure(outcome=outcome, cause=f"its job ended without a result (state {job.state})", phase="harness")
