"""Runs a suite: lists its trials, skips what is settled, records everything that happens."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import pydantic

from shardbench.base.errors import BadInput
from shardbench.base.host import Environment
from shardbench.base.serialise import content_hash, first_error
from shardbench.engine.launch import set_rank_variables
from shardbench.model.discovery import get_strategy, strategies, strategy_codes
from shardbench.model.strategy import Role
from shardbench.records.provenance import Provenance
from shardbench.records.record import Record
from shardbench.records.store import RecordStore, is_settled
from shardbench.records.trial import Backend, Outcome, TrialSpec
from shardbench.runs.run_trial import JobContext, run_trial
from shardbench.runs.suite import EVERY, Job, Suite
from shardbench.workloads.workload import Workload, WorkloadConfig


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What of a suite to run, from and to where; empty selections mean all."""

    results: Path
    data: Path
    backend: Backend | None = None
    strategies: tuple[str, ...] = ()
    seeds: tuple[int, ...] = ()
    quick: bool = False
    """Only the jobs that the suite marks as quick."""
    force: bool = False
    retry: frozenset[Outcome] = frozenset()
    work: Path | None = None
    """Where job folders are made and kept; a temporary folder where None."""


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


def settled_records(trials: Sequence[TrialSpec], known: Mapping[str, Record]) -> list[Record]:
    """Records of those trials that a run here and now would not repeat."""
    set_rank_variables()
    settled = partial(is_settled, environment=Environment.here().hash)
    codes = strategy_codes(trial.strategy for trial in trials)
    return [known[trial.key] for trial in trials if settled(known.get(trial.key), code=codes[trial.strategy])]


def run_suite(suite: Suite, options: RunOptions, listener: Listener) -> list[Record]:
    """Run what is open and return the records of all trials of the selection, settled ones too."""
    set_rank_variables()
    store = RecordStore(options.results, suite.name)
    known = store.latest()
    jobs = _list_jobs(suite, options)
    specs = [spec for listed in jobs for spec in listed.specs]
    environment = Environment.here()
    codes = strategy_codes(spec.strategy for spec in specs)
    settled = partial(is_settled, force=options.force, retry=options.retry, environment=environment.hash)
    open_keys = {spec.key for spec in specs if not settled(known.get(spec.key), code=codes[spec.strategy])}
    listener.planned(len(specs), len(specs) - len(open_keys))
    number = 0
    for listed in jobs:
        todo = [spec for spec in listed.specs if spec.key in open_keys]
        if not todo:
            continue
        environment.save(options.results)
        with _job_context(listed, options) as context:
            for spec in todo:
                number += 1
                listener.started(number, spec)
                provenance = Provenance.begin(codes[spec.strategy])
                made = run_trial(spec, get_strategy(spec.strategy), context, environment.hash)
                record = made.model_copy(update={"provenance": provenance.ended()})
                store.append(record)
                known[spec.key] = record
                listener.finished(number, record)
    return [known[spec.key] for spec in specs]


@contextmanager
def _job_context(listed: _ListedJob, options: RunOptions) -> Iterator[JobContext]:
    job, results = listed.job, options.results
    if options.work is None:
        with tempfile.TemporaryDirectory(prefix="shardbench-") as folder:
            yield JobContext(job, listed.workload, Path(folder), results=results)
        return
    facts = (listed.workload.name, job.load_machine().name, job.backend, job.precision, job.optimizer)
    # The ranks of the kept folder may be started from anywhere.
    path = options.work.resolve() / "-".join((*facts, str(listed.workload.batch_size)))
    path.mkdir(parents=True, exist_ok=True)
    yield JobContext(job, listed.workload, path, results=results, folder_stays=True)


def _list_jobs(suite: Suite, options: RunOptions) -> list[_ListedJob]:
    for name in options.strategies:
        get_strategy(name)
    jobs = [job for job in suite.jobs if options.backend in (None, job.backend) and (job.quick or not options.quick)]
    # Jobs with the same parameters share one workload, and so its training profiles.
    built: dict[str, Workload] = {}
    listed = []
    for job in jobs:
        config = suite.workload(job)
        key = content_hash(config)
        if key not in built:
            built[key] = _build(config, options.data)
        listed.append(_ListedJob(job=job, workload=built[key], specs=_specs(suite, job, built[key], options)))
    return listed


def _build(config: WorkloadConfig, data: Path) -> Workload:
    try:
        return config.build(data)
    except pydantic.ValidationError as error:
        raise BadInput(f"workload {config.name}: {first_error(error)}") from error


def _specs(suite: Suite, job: Job, workload: Workload, options: RunOptions) -> tuple[TrialSpec, ...]:
    machine = job.load_machine()
    names = _selected(job, options.strategies)
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
            # Nothing warms up where nothing is timed: such trials are the same whatever the job says.
            warmup=job.warmup if job.backend is Backend.MEASURED else 0,
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


def _selected(job: Job, wanted: Sequence[str]) -> list[str]:
    for name in job.without:
        get_strategy(name)
    if EVERY in job.strategies:
        named = {*job.strategies, *wanted}
        names = [name for name, one in strategies().items() if one.role is not Role.VARIANT or name in named]
    else:
        names = [get_strategy(name).name for name in job.strategies]
    return [name for name in names if (name in wanted if wanted else name not in job.without)]
