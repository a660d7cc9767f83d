"""A suite as work: lists its trials and runs them, each to its record."""

from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from time import monotonic

import pydantic

from shardbench.base.atomic import sole_writer
from shardbench.base.errors import BadInput
from shardbench.base.host import Environment
from shardbench.base.serialise import content_hash, first_error
from shardbench.base.temporary import temporary_folder
from shardbench.engine.processes.server import FORK_SERVER, set_rank_variables
from shardbench.model.strategy import Strategy
from shardbench.model.table import Precision, StepSchedule
from shardbench.records.provenance import Provenance
from shardbench.records.record import Record
from shardbench.records.store import trial_store
from shardbench.records.trial import Backend, Failure, Outcome, TrialSpec
from shardbench.trials.calibrating import Calibrate, Calibrations, as_calibrated
from shardbench.trials.cluster import Cluster, submit_all
from shardbench.trials.discovery import entrant_version, get_entrant, get_strategy, strategies
from shardbench.trials.elimination import Elimination
from shardbench.trials.evaluate import SecondJudge, StepJudge, second_judge
from shardbench.trials.jobcheck import lacking_devices
from shardbench.trials.planning import may_need_engine, wall_kind
from shardbench.trials.quiet import BUSY_SHARE, Quiet
from shardbench.trials.run_trial import JobContext, open_record, run_trial
from shardbench.trials.session import Listener, Work, run_session, waiting_side_by_side
from shardbench.trials.suite import EVERY, Job, Suite
from shardbench.workloads.workload import Workload


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The part of a suite to run, from and to where; empty selections mean all."""

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
    """The folder in which job folders are made and kept; a temporary one where None."""
    launch: bool = True
    """Whether ranks of measured trials are started here; else their folders are made and no more."""
    parallel: int = 1
    """Simulated trials at once; 0: one a core."""
    cluster: Cluster | None = None
    """The scheduler on which simulated trials run as jobs, each its own; None: here."""
    calibrate: Calibrate | None = None
    """How a suite that asks for it calibrates its machines; None: it cannot be run."""
    busy_ok: bool = False
    """Whether such a suite is measured on a busy machine too."""
    second_judge: StepJudge | None = None
    """What judges plans beside the cost model; None: nothing does."""


@dataclass(frozen=True, kw_only=True)
class _ListedJob:
    """A job of the suite with its workload and its trials, interleaved over strategies."""

    job: Job
    workload: Workload
    entrants: Mapping[str, Strategy]
    """Strategies, and plans in their place, by name."""
    specs: tuple[TrialSpec, ...]


class SuiteWork(Work[TrialSpec, Record]):
    """The trials of a selection of a suite."""

    unit = "trial"

    def __init__(self, suite: Suite, options: RunOptions, quiet: Quiet | None = None) -> None:
        self.title = f"suite {suite.name}"
        self.store = trial_store(options.results, suite.name)
        self._suite, self._options, self._quiet = suite, options, quiet or Quiet()
        self._later: list[Callable[[], None]] = []
        self._jobs = _list_jobs(suite, options)
        self.pieces = [spec for entry in self._jobs for spec in entry.specs]
        self._entrants = {spec.key: entry.entrants[spec.strategy] for entry in self._jobs for spec in entry.specs}

    @cached_property
    def _not_here(self) -> frozenset[str]:
        """The keys of the measured trials whose devices this computer lacks."""
        return frozenset(
            spec.key
            for entry in self._jobs
            if any(spec.backend is Backend.MEASURED for spec in entry.specs)
            and lacking_devices(entry.job.load_machine(), Backend.MEASURED)
            for spec in entry.specs
        )

    def key(self, piece: TrialSpec) -> str:
        """Return the key of the spec."""
        return piece.key

    def version(self, piece: TrialSpec) -> str | None:
        """Return the version of the strategy, or the hash of the plan."""
        return entrant_version(self._entrants[piece.key])

    def is_timed(self, piece: TrialSpec) -> bool:
        """Tell whether it is measured here: simulated ones are the same everywhere, others hold from elsewhere."""
        needs_ranks = piece.backend is Backend.MEASURED and self._options.launch
        return needs_ranks and piece.key not in self._not_here

    def wants_rerun(self, record: Record) -> bool:
        """Tell whether the options ask for it."""
        return self._options.force or record.outcome in self._options.retry

    def keep_extras(self, record: Record) -> None:
        """Keep the files of trials for which there was no room before; raises OSError where there is still none."""
        while self._later:
            self._later.pop(0)()

    def run(
        self, pieces: Sequence[TrialSpec], environment: str, started: Callable[[str], None]
    ) -> Generator[Record, None, None]:
        """Run trials one by one, job by job; simulated ones first, beside each other or on a cluster if asked to."""
        keys = {spec.key for spec in pieces}
        todo = [(entry, [spec for spec in entry.specs if spec.key in keys]) for entry in self._jobs]
        todo = [(entry, specs) for entry, specs in todo if specs]
        any_measured = any(entry.job.backend is Backend.MEASURED for entry, _ in todo)
        needs_no_engine = not any_measured and not any(may_need_engine(self._entrants[key]) for key in keys)
        engine = FORK_SERVER.without_engine() if needs_no_engine else nullcontext()
        with engine, second_judge(self._options.second_judge) as second:
            # Its imports go on beside what this process does first.
            FORK_SERVER.context()
            yield from self._run(todo, second, environment, started)

    @contextmanager
    def _context(self, entry: _ListedJob, second: SecondJudge | None) -> Iterator[JobContext]:
        """Give what the trials of a job share, with a folder where the options say, or one that goes with it."""
        job, workload, options = entry.job, entry.workload, self._options
        context = partial(
            JobContext,
            job,
            workload,
            results=options.results,
            data=options.data,
            quiet=self._quiet,
            second=second,
            later=self._later,
        )
        if options.work is None:
            with temporary_folder() as folder:
                yield context(folder)
            return
        facts = (workload.name, job.load_machine().name, job.backend, *_ways(job))
        # The ranks of the kept folder may be started from anywhere.
        path = options.work.resolve() / "-".join((*facts, str(workload.batch_size)))
        path.mkdir(parents=True, exist_ok=True)
        yield context(path, folder_stays=True, launch=options.launch)

    def _run(
        self,
        todo: Sequence[tuple[_ListedJob, Sequence[TrialSpec]]],
        second: SecondJudge | None,
        environment: str,
        started: Callable[[str], None],
    ) -> Generator[Record, None, None]:
        def run_one(spec: TrialSpec, context: JobContext) -> Record:
            provenance = self._begin_provenance(spec)
            record = run_trial(spec, self._entrants[spec.key], context, environment, provenance)
            return record.model_copy(update={"provenance": provenance.ended()})

        if self._options.parallel != 1 or self._options.cluster is not None:
            simulated = [(entry, specs) for entry, specs in todo if entry.job.backend is Backend.SIMULATED]
            todo = [(entry, specs) for entry, specs in todo if entry.job.backend is not Backend.SIMULATED]
            if self._options.cluster is not None:
                yield from self._run_on(self._options.cluster, simulated, environment)
            else:
                yield from self._run_beside(simulated, second, run_one)
        latest = self.store.latest() if any(spec.repeat for _, specs in todo for spec in specs) else {}
        for entry, specs in todo:
            race_s, start = entry.job.race_s, monotonic()
            settled = latest.keys() - {spec.key for spec in specs}
            on_record = (latest[spec.key] for spec in entry.specs if spec.key in settled)
            elimination = Elimination(on_record, is_race=race_s is not None)
            with self._context(entry, second) as context:
                for spec in specs:
                    is_over = race_s is not None and monotonic() > start + race_s
                    if race_s is not None and spec.repeat and (is_over or elimination.waits(spec)):
                        break
                    started(spec.text)
                    failure = elimination.left_out(spec)
                    record = self._not_run(spec, failure, environment) if failure else run_one(spec, context)
                    elimination.add(record)
                    yield record

    def _run_beside(
        self,
        todo: Sequence[tuple[_ListedJob, Sequence[TrialSpec]]],
        second: SecondJudge | None,
        run_one: Callable[[TrialSpec, JobContext], Record],
    ) -> Generator[Record, None, None]:
        """Yield records as trials are done: each plans in a process of its own, repeats of a plan one by one."""

        def run_group(job: ExitStack, context: JobContext, group: list[TrialSpec]) -> tuple[ExitStack, list[Record]]:
            return job, [run_one(spec, context) for spec in group]

        with ExitStack() as jobs:
            calls = []
            for entry, specs in todo:
                job = jobs.enter_context(ExitStack())
                context = job.enter_context(self._context(entry, second))
                groups: dict[TrialSpec, list[TrialSpec]] = {}
                for spec in specs:
                    groups.setdefault(spec.model_copy(update={"repeat": 0}), []).append(spec)
                calls += [(job, context, group) for group in groups.values()]
            left = Counter(job for job, _, _ in calls)
            with closing(waiting_side_by_side(run_group, calls, self._options.parallel)) as results:
                for job, records in results:
                    yield from records
                    left[job] -= 1
                    if not left[job]:
                        # Its batches go as soon as nobody needs them.
                        job.close()

    def _run_on(
        self, cluster: Cluster, todo: Sequence[tuple[_ListedJob, Sequence[TrialSpec]]], environment: str
    ) -> Generator[Record, None, None]:
        """Yield records as jobs are done; raises BadInput for a fault of the user's files that a job met."""
        trials = [(entry.job, spec) for entry, specs in todo for spec in specs]
        arguments = [(self._suite.model_copy(update={"jobs": (job,)}), self._options, spec) for job, spec in trials]
        for outcome in submit_all(run_elsewhere, arguments, cluster):
            if isinstance(outcome.value, BadInput):
                raise outcome.value
            if isinstance(outcome.value, Record):
                yield outcome.value
                continue
            yield self._not_run(trials[outcome.number][1], outcome.value, environment)

    def _not_run(self, spec: TrialSpec, failure: Failure, environment: str) -> Record:
        """Return the record of a trial of which there is nothing but a failure."""
        return open_record(spec, self._entrants[spec.key], environment, self._begin_provenance(spec)).ended(failure)

    def _begin_provenance(self, spec: TrialSpec) -> Provenance:
        entrant = self._entrants[spec.key]
        return Provenance.begin(entrant_version(entrant), wall_kind(entrant))


def run_elsewhere(suite: Suite, options: RunOptions, spec: TrialSpec) -> Record | BadInput:
    """Run one trial of a suite of one job in this process, to its record, whose environment it saves.

    Gives BadInput, which a scheduler would hide, where it cannot read the user's files.
    """
    set_rank_variables()
    environment = Environment.here()
    own_options = replace(options, strategies=(spec.strategy,), seeds=(spec.seed,), parallel=1, cluster=None)
    try:
        work = SuiteWork(suite, own_options)
        pieces = [piece for piece in work.pieces if piece.key == spec.key]
        if not pieces:
            return BadInput(f"{spec.text}: where its job runs, data, machine or strategies are other ones")
        (record,) = work.run(pieces, environment.hash, lambda _: None)
        # A record is worth more than the files beside it.
        with suppress(OSError):
            work.keep_extras(record)
    except BadInput as error:
        return error
    environment.save(options.results)
    return record


def run_suite(suite: Suite, options: RunOptions, listener: Listener) -> list[Record]:
    """Run what is open and return the records of all trials of the selection, settled ones too.

    A suite that asks for it has its machines calibrated before the first measured trial and after the last. Raises
    BadInput where the machine is busy meanwhile.
    """
    quiet = Quiet(BUSY_SHARE if suite.calibrate and not options.busy_ok else None, listener.noted)
    calibrations = _calibrations(suite, options, quiet, listener)
    if calibrations is None:
        return run_session(SuiteWork(suite, options, quiet), options.results, listener)
    store = trial_store(options.results, suite.name)
    with sole_writer(options.results):
        set_rank_variables()
        environment, latest = Environment.here().hash, store.latest()
        calibrations.before(frozenset(r.spec.machine_hash for r in latest.values() if r.environment == environment))
    work = SuiteWork(as_calibrated(suite, options.results), options, quiet)
    records = run_session(work, options.results, listener)
    measured = (record for record in records if record.spec.backend is Backend.MEASURED)
    with sole_writer(options.results):
        for drift in calibrations.after(again=any(latest.get(record.key) != record for record in measured)):
            listener.noted(drift.text)
    return records


def _calibrations(suite: Suite, options: RunOptions, quiet: Quiet, listener: Listener) -> Calibrations | None:
    """Return the calibrations of a run that measures here; None for another. Raises BadInput where nobody can."""
    if not suite.calibrate or not options.launch:
        return None
    jobs = [(one.job, one.workload) for one in _list_jobs(suite, options) if one.job.backend is Backend.MEASURED]
    if not jobs:
        return None
    if options.calibrate is None:
        raise BadInput(f"suite {suite.name} calibrates its machines: run it by shardbench run {suite.name}")
    return Calibrations(
        suite=suite.name,
        jobs=tuple(jobs),
        results=options.results,
        calibrate=options.calibrate,
        quiet=quiet,
        note=listener.noted,
    )


def _ways(job: Job) -> list[str]:
    """Name how a job's model is trained in the parts of a folder's name; an ordinary exchange and step go unsaid."""
    ways = {job.exchange: job.exchange is not Precision.FP32, job.schedule: job.schedule is not StepSchedule.SEQUENTIAL}
    return [job.precision, job.optimizer, *(way for way, unusual in ways.items() if unusual)]


def _list_jobs(suite: Suite, options: RunOptions) -> list[_ListedJob]:
    jobs = [job for job in suite.jobs if options.backend in (None, job.backend) and (job.quick or not options.quick)]
    entrants_by_job = [_entrants(job, options.strategies) for job in jobs]
    for name in options.strategies:
        if not any(name in entrants for entrants in entrants_by_job):
            get_strategy(name)
    # Jobs with the same parameters share one workload, and so its training profiles.
    workloads: dict[str, Workload] = {}
    entries = []
    for job, entrants in zip(jobs, entrants_by_job):
        config = suite.workload(job)
        key = content_hash(config)
        if key not in workloads:
            try:
                workloads[key] = config.build(options.data)
            except pydantic.ValidationError as error:
                raise BadInput(f"workload {config.name}: {first_error(error)}") from error
        specs = _specs(suite, job, workloads[key], entrants, options.seeds)
        entries.append(_ListedJob(job=job, workload=workloads[key], entrants=entrants, specs=specs))
    return entries


def _specs(
    suite: Suite, job: Job, workload: Workload, names: Collection[str], seeds: Sequence[int]
) -> tuple[TrialSpec, ...]:
    machine = job.load_machine()
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
            **job.training,
            plan_s=job.plan_s,
            fit_s=job.fit_s,
            timeout_s=job.timeout_s,
        )
        for repeat in range(job.repeats)
        for seed in seeds or suite.seeds
        for name in names
    )


def _entrants(job: Job, selection: Sequence[str]) -> dict[str, Strategy]:
    for name in job.without:
        get_strategy(name)
    entrants = {one.name: one for one in (get_entrant(entry) for entry in job.strategies if entry != EVERY)}
    if EVERY in job.strategies:
        explicit_names = {*entrants, *selection}
        every = {n: one for n, one in strategies().items() if not one.role.named_only or n in explicit_names}
        entrants = every | entrants
    return {n: one for n, one in entrants.items() if (n in selection if selection else n not in job.without)}
