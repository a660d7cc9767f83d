"""Faults of planners: each ends as it should, and a trial after it ends well."""

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

from misbehaving import Does, Honest
from problems import RandomWorkload
from toy_machine import machine_file

from faults import strategies
from faults.case import Fault, Seen, expected
from shardbench.base.deadline import interrupt
from shardbench.engine.processes import launch
from shardbench.model.strategy import Strategy
from shardbench.records.record import Record
from shardbench.records.trial import Backend, Outcome, TrialSpec
from shardbench.trials.run_trial import JobContext, run_trial
from shardbench.trials.suite import Job

PLAN_S, SHORT_S = 60.0, 3.0
"""Budgets of planners that are to come back, however busy the machine, and of those that are not."""
NOT_FULL = r"\(not by the kernel for want of memory\) in phase plan"
ENDS = {
    "SIGKILL": (Outcome.ERROR, f"the process was killed by signal 9 {NOT_FULL}"),
    "SIGTERM": (Outcome.ERROR, "the process was killed by signal 15 in phase plan"),
    "SIGSEGV": (Outcome.ERROR, "the process was killed by signal 11 in phase plan"),
    "SIGABRT": (Outcome.ERROR, "the process was killed by signal 6 in phase plan"),
    "SIGSTOP": (Outcome.TIMEOUT, "no result from plan"),
    "exits": (Outcome.ERROR, "the process exited with 3 in phase plan"),
    "leaves": (Outcome.ERROR, "SystemExit"),
    "raises": (Outcome.ERROR, "ZeroDivisionError"),
    "recurses": (Outcome.ERROR, "RecursionError"),
    "hangs": (Outcome.TIMEOUT, "no result from plan"),
    "spins": (Outcome.TIMEOUT, "no result from plan"),
    "all memory": (Outcome.OOM, "MemoryError"),
    "half an answer": (Outcome.TIMEOUT, "no result from plan"),
    "nonsense": (Outcome.ERROR, "an answer that cannot be read"),
    "closes all": (Outcome.ERROR, "process exited with 1 in phase plan|Bad file descriptor|closed the pipe"),
    "daemon": (Outcome.OK, ""),
    "daemon and exit": (Outcome.ERROR, "the process exited with 4 in phase plan"),
    "thirty children": (Outcome.OK, ""),
    "kills who is above": (Outcome.OK, ""),
    "stops who is above": (Outcome.OK, ""),
    "kills all others": (Outcome.INVALID, "reached for what is closed to planners"),
    "stops all others": (Outcome.INVALID, "reached for what is closed to planners"),
    "nice for all of its user's": (Outcome.OK, ""),
}
"""How a trial ends, by what its strategy does."""
TWICE = ("SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT", "exits", "leaves", "all memory", "daemon", "daemon and exit",
         "thirty children", "closes all", "nonsense", "kills who is above", "recurses", "raises", "hangs")  # fmt: skip


def faults() -> Iterator[Fault]:
    """All of them; those that cost much once."""
    for name in ENDS:
        for repeat in range(2 if name in TWICE else 1):
            yield Fault("planner", "plan", f"{name} {repeat}", partial(_harms, name))
    yield Fault("planner", "start", "pickles for ever", _pickles_for_ever)
    for where in strategies.PLACES:
        for name in strategies.RAISED:
            yield Fault("planner", where, f"raises {name}", partial(_raises, where, name))


def _harms(name: str, folder: Path, rng: random.Random) -> Seen:
    outcome, cause = ENDS[name]
    context = context_of(folder, SHORT_S if outcome is Outcome.TIMEOUT else PLAN_S)
    record = run_one(context, Does(name, rng.uniform(0.0, 0.2)))
    return _and_then(context, expected(record.failure, outcome, cause))


def _raises(where: str, name: str, folder: Path, rng: random.Random) -> Seen:
    """Whatever it raises, and wherever: here, as the program, which is interrupted by signals alone."""
    context = context_of(folder)
    with _interrupted_by_signals():
        record = run_one(context, strategies.Raises(where, name))
    said = "cannot be pickled for a process of its own: " if where in strategies.IN_PICKLING else ""
    phase = "start" if where == "requires" else "plan"
    return _and_then(context, expected(record.failure, Outcome.ERROR, said + strategies.RAISED[name][1], phase=phase))


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    endings = (signal.SIGINT, signal.SIGTERM)
    before = {ending: signal.signal(ending, interrupt) for ending in endings}
    try:
        yield
    finally:
        for ending, handler in before.items():
            signal.signal(ending, handler)


def _pickles_for_ever(folder: Path, rng: random.Random) -> Seen:
    context = context_of(folder)
    with _shorter(launch, "PICKLING_S", 2.0):
        record = run_one(context, strategies.PicklesForEver())
    return _and_then(context, expected(record.failure, Outcome.TIMEOUT, "cannot be pickled"))


def _and_then(context: JobContext, seen: Seen) -> Seen:
    """The same, if an honest strategy's trial ends well afterwards."""
    after = run_one(context, Honest(), PLAN_S)
    if after.outcome is Outcome.OK:
        return seen
    return replace(seen, said=f"{seen.said}; then {after.cause}", outcome_right=False)


def context_of(folder: Path, plan_s: float = PLAN_S) -> JobContext:
    """A job of small tables on a made-up machine, which works in a folder there."""
    workload = RandomWorkload([(100, 8), (40, 8)], 16)
    machine = machine_file(folder)
    job = Job(workload="random", machine=machine, backend=Backend.SIMULATED, iterations=2, plan_s=plan_s)
    return JobContext(job, workload, folder / "job")


@contextmanager
def _shorter(module: ModuleType, name: str, seconds: float) -> Iterator[None]:
    """A limit of the program that would make the faults take an hour."""
    before = getattr(module, name)
    setattr(module, name, seconds)
    try:
        yield
    finally:
        setattr(module, name, before)


def run_one(context: JobContext, strategy: Strategy, plan_s: float | None = None) -> Record:
    """A simulated trial."""
    plan_s = plan_s or context.job.plan_s
    context.folder.mkdir(exist_ok=True)
    spec = TrialSpec(
        suite="s", workload="random", workload_fingerprint="f", machine="toy", machine_hash="m",
        backend=Backend.SIMULATED, strategy=strategy.name, seed=0, batch_size=16, iterations=2, warmup=1,
        plan_s=plan_s, fit_s=60, timeout_s=300,
    )  # fmt: skip
    return run_trial(spec, strategy, context, "e")
