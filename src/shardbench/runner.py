"""Runs a suite: lists its trials, skips what is settled, records everything that happens."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from shardbench.discovery import get_strategy, strategies
from shardbench.environment import Environment
from shardbench.launch import set_rank_variables
from shardbench.machine import load_machine
from shardbench.record import Record
from shardbench.serialise import content_hash
from shardbench.store import RecordStore, is_settled
from shardbench.suite import EVERY, Job, Suite
from shardbench.trial import Backend, Outcome, TrialSpec
from shardbench.tryout import JobContext, try_out
from shardbench.workload import Workload


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What of a suite to run, from and to where; empty selections mean all."""

    results: Path
    data: Path
    backend: Backend | None = None
    strategies: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    force: bool = False
    retry: frozenset[Outcome] = frozenset()


class Listener(Protocol):
    """Is told how the run goes."""

    def planned(self, total: int, settled: int) -> None:
        """Once, before the first trial: trials of the selection, and how many need not run."""

    def started(self, number: int, spec: TrialSpec) -> None:
        """Open trial ``number`` (1, 2, ...) begins."""

    def finished(self, number: int, record: Record) -> None:
        """Its record is on disk."""


@dataclass(frozen=True, kw_only=True)
class _ListedJob:
    """A job of the suite with its workload and its trials, interleaved over strategies."""

    job: Job
    workload: Workload
    specs: tuple[TrialSpec, ...]


def list_trials(suite: Suite, options: RunOptions) -> list[TrialSpec]:
    """Trials of the selection in the order they run; raises BadInput for an unknown strategy."""
    return [spec for listed in _list_jobs(suite, options) for spec in listed.specs]


def run_suite(suite: Suite, options: RunOptions, listener: Listener) -> list[Record]:
    """Run what is open and return the records of all trials of the selection, settled ones too."""
    set_rank_variables()
    store = RecordStore(options.results, suite.name)
    known = store.latest()
    jobs = _list_jobs(suite, options)
    specs = [spec for listed in jobs for spec in listed.specs]
    open_keys = {
        spec.key for spec in specs if not is_settled(known.get(spec.key), force=options.force, retry=options.retry)
    }
    listener.planned(len(specs), len(specs) - len(open_keys))
    environment = Environment.here()
    number = 0
    for listed in jobs:
        todo = [spec for spec in listed.specs if spec.key in open_keys]
        if not todo:
            continue
        environment.save(options.results)
        with _job_context(listed) as context:
            for spec in todo:
                number += 1
                listener.started(number, spec)
                record = try_out(spec, get_strategy(spec.strategy), context, environment.hash)
                store.append(record)
                known[spec.key] = record
                listener.finished(number, record)
    return [known[spec.key] for spec in specs]


@contextmanager
def _job_context(listed: _ListedJob) -> Iterator[JobContext]:
    with tempfile.TemporaryDirectory(prefix="shardbench-") as folder:
        yield JobContext(listed.job, listed.workload, Path(folder))


def _list_jobs(suite: Suite, options: RunOptions) -> list[_ListedJob]:
    for name in options.strategies:
        get_strategy(name)
    jobs = [job for job in suite.jobs if options.backend in (None, job.backend)]
    # Jobs with the same parameters share one workload, and so its training profiles.
    built: dict[str, Workload] = {}
    listed = []
    for job in jobs:
        config = suite.workload(job)
        key = content_hash(config)
        if key not in built:
            built[key] = config.build(options.data)
        listed.append(_ListedJob(job=job, workload=built[key], specs=_specs(suite, job, built[key], options)))
    return listed


def _specs(suite: Suite, job: Job, workload: Workload, options: RunOptions) -> tuple[TrialSpec, ...]:
    machine = load_machine(job.machine)
    names = _selected(job.strategies, options.strategies)
    seeds = options.seeds or suite.seeds
    # Strategies take turns within a repeat, so that a drifting machine treats them alike.
    return tuple(
        TrialSpec(
            suite=suite.name,
            workload=job.workload,
            workload_fingerprint=workload.fingerprint,
            machine=machine.name,
            machine_hash=content_hash(machine),
            backend=job.backend,
            strategy=name,
            seed=seed,
            repeat=repeat,
            batch_size=workload.batch_size,
            iterations=job.iterations,
            warmup=job.warmup,
            precision=job.precision,
            optimizer=job.optimizer,
            plan_s=job.plan_s,
            fit_s=job.fit_s,
            timeout_s=job.timeout_s,
        )
        for repeat in range(job.repeats)
        for seed in seeds
        for name in names
    )


def _selected(of_job: Sequence[str], wanted: Sequence[str]) -> list[str]:
    names = list(strategies()) if EVERY in of_job else [get_strategy(name).name for name in of_job]
    return [name for name in names if not wanted or name in wanted]
