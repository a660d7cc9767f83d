"""The race: candidate plans on real ranks, round by round, until the measured best is told from the rest.

Every round gives each candidate that is still in it one trial, in which its ranks take turns with the control plan.
Candidates are compared by the ratios of their steps to the control's; one that is slower than the leader by more than
repeats differ drops out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import combinations, count
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np

from shardbench.advice.asking import HandedPlan
from shardbench.advice.best_plan import Candidate
from shardbench.advice.race_round import RaceOptions, RaceTime, Round, TimeIsOver, is_waiting, ratio_to_control
from shardbench.base.errors import BadInput
from shardbench.base.serialise import content_hash
from shardbench.base.statistics import Average, Noise, log_mean, pooled_noise
from shardbench.model.machine import Machine
from shardbench.model.plan import Plan
from shardbench.records.record import Record
from shardbench.records.store import trial_store
from shardbench.records.trial import Backend, Outcome, TrialSpec
from shardbench.trials.jobcheck import impossible, lacking_devices
from shardbench.trials.quiet import BUSY_SHARE, Quiet
from shardbench.trials.run_trial import JobContext
from shardbench.trials.runner import RunOptions, job_context
from shardbench.trials.session import Listener, run_session
from shardbench.trials.suite import Job
from shardbench.workloads.workload import Workload

WIDE = 1.35
"""Ratio to the leader's from which a candidate drops out after one round, which says nothing of noise yet.

The measured suite's noise floors are at most 10 % for three repeats, so that one trial has a standard deviation of 6 %
at most. The least of ten plans that tie is then about 9 % too fast, and one of them would have to be more than three
standard deviations too slow to be lost. Steps within a trial would not do in place of a factor: they share what makes
trials differ, such as where a process's memory lies.
"""
REPEATED = 2
"""Rounds after which noise is known."""


class Ending(StrEnum):
    """Why a race ended, in words that follow "ended as"."""

    ONE_LEFT = "one is left"
    TIE = "the rest tie"
    ROUNDS = "its rounds are run"
    TIME = "its time is over"
    INTERRUPTED = "it was interrupted"
    WAITING = "its ranks are still to run"
    NONE_LEFT = "every candidate failed"


@dataclass(frozen=True, kw_only=True)
class Standing:
    """A candidate and what its trials came to."""

    name: str
    plan: Plan
    """The plan as its records know it, without notes."""
    predicted_ms: float
    records: tuple[Record, ...]
    """Records of the trials that ended well, in the order of rounds."""
    ratio: Average | None
    """Geometric mean over trials of the step over the control's; its interval is by the noise of all repeats."""
    step: Average | None
    """The same of the median steps, ms."""
    n: int
    """Trials that ended well, each with processes of its own."""
    dropped_in: int | None
    """The round (1, 2, ...) after which it was out; None for one that stayed."""
    ties: bool
    """Whether the leader is not told apart from it."""
    cause: str
    """Why its last trial failed; empty where none did."""

    def slower_than(self, other: "Standing") -> float:
        """Return the ratio of its steps to the other's, each over the control's; NaN where one has no trial."""
        if self.ratio is None or other.ratio is None:
            return math.nan
        return self.ratio.value / other.ratio.value


@dataclass(frozen=True, kw_only=True)
class RaceResult:
    """The standings of a race, best first: who stayed, who dropped out, who failed or never ran."""

    standings: tuple[Standing, ...]
    rounds: int
    """Rounds that all candidates in them ran."""
    seconds: float
    """Wall seconds, without those of earlier runs of the command."""
    ended_by: Ending
    noise: Noise | None
    """How much logarithms of ratios of one plan differ; None before a second round, when nobody knows who ties."""
    on_record: int
    """Trials that were on record before."""
    waiting: int
    """Trials of the round whose ranks are still to run elsewhere."""

    @property
    def best(self) -> Standing | None:
        """Return the measured best; None where nothing was measured."""
        return next((one for one in self.standings[:1] if one.n), None)

    def model_order(self) -> tuple[int, int]:
        """Count the pairs of candidates that trials tell apart: those in the predicted order, and all."""
        in_order = pairs = 0
        for one, other in combinations([one for one in self.standings if one.n], 2):
            log = math.log(one.slower_than(other))
            if self.noise is not None and abs(log) > self.noise.least_log(one.n, other.n):
                pairs += 1
                in_order += (log > 0) == (one.predicted_ms > other.predicted_ms)
        return in_order, pairs


def race(  # noqa: PLR0917 - what is raced, where and how
    workload: Workload,
    machine: str,
    candidates: Sequence[Candidate],
    training: Mapping[str, Any],
    options: RaceOptions,
    listener: Listener,
) -> RaceResult:
    """Race the plans on the ranks of ``machine``, a name or the path of a .toml file, and say how they stand.

    Trials on record of the same plans are not run again. Ctrl-C ends the race, and its standings are returned.
    Raises BadInput where there is nothing to race, where the machine's devices are not here and no folder is named in
    which ranks elsewhere find their trials, and where the workload can run on no ranks of the machine.
    """
    start = monotonic()
    job = Job(
        workload=workload.name, machine=machine, backend=Backend.MEASURED, strategies=(),
        iterations=options.iterations, warmup=options.warmup, timeout_s=options.timeout_s, **training,
    )  # fmt: skip
    on = job.load_machine()
    if not candidates:
        raise BadInput("no candidate to race: no strategy has a plan")
    cause = impossible(workload, on, job)
    if cause:
        raise BadInput(cause)
    refuse_elsewhere(on, options.work)
    racing = _Race(workload, job, candidates, options, ends_at=start + options.race_s)
    quiet = Quiet(None if options.busy_ok else BUSY_SHARE, listener.noted)
    run_options = RunOptions(results=options.results, data=options.data, work=options.work, launch=options.launch)
    with job_context(job, workload, run_options, quiet=quiet, hands_on=True) as context:
        ending = racing.run(context, listener)
    return racing.result(ending, monotonic() - start)


def refuse_elsewhere(machine: Machine, work: Path | None) -> None:
    """Raise BadInput where ranks of the machine cannot run here and no folder is named for ranks elsewhere."""
    shortfall = lacking_devices(machine, Backend.MEASURED)
    if shortfall and work is None:
        raise BadInput(
            f"{machine.name} cannot be raced on here: {shortfall}; make folders for its ranks with --work DIR "
            "--no-launch"
        )


@dataclass
class _Racer:
    """A candidate in the race, and its trials so far."""

    candidate: Candidate
    plan: HandedPlan
    records: list[Record] = field(default_factory=list)
    dropped_in: int | None = None
    cause: str = ""

    @property
    def logs(self) -> list[float]:
        """Logarithms of the trials' ratios."""
        return [math.log(ratio_to_control(record)) for record in self.records]

    @property
    def log(self) -> float:
        return float(np.mean(self.logs))


class _Race:
    """The state of a race: replayed from records, then driven by new ones."""

    def __init__(
        self, workload: Workload, job: Job, candidates: Sequence[Candidate], options: RaceOptions, *, ends_at: float
    ) -> None:
        # Notes may say how long a search took, and are no part of what ranks run.
        self._racers = [_Racer(one, HandedPlan(one.name, replace(one.plan, notes={}))) for one in candidates]
        self._workload, self._job, self._options = workload, job, options
        self._machine = job.load_machine()
        self._ends_at = ends_at
        self._store = trial_store(options.results, options.name)
        self._rounds = self._on_record = self._waiting = 0
        self._noise: Noise | None = None

    def run(self, context: JobContext, listener: Listener) -> Ending:
        """Run round after round; say why it ended."""
        time = RaceTime(self._ends_at)
        for number in count():
            turns = self._turns(number)
            # The first round says most: it always runs whole.
            limited = number > 0 and self._options.drops
            work = Round(self._options, {spec: racer.plan for spec, racer in turns}, context, time, limited=limited)
            stop = None
            try:
                run_session(work, self._options.results, listener)
            except TimeIsOver:
                stop = Ending.TIME
            except KeyboardInterrupt:
                stop = Ending.INTERRUPTED
            self._on_record += self._take(turns, number) - work.new_trials
            if stop is not None or self._waiting:
                return stop or Ending.WAITING
            self._rounds += 1
            if self._options.drops:
                self._drop()
            ending = self._ending()
            if ending is not None:
                return ending
        raise AssertionError

    @property
    def _still_in(self) -> list[_Racer]:
        return [racer for racer in self._racers if racer.dropped_in is None]

    def _turns(self, number: int) -> list[tuple[TrialSpec, _Racer]]:
        """List the trials of a round: there and back in turn, and from another one each time.

        So a machine that drifts treats them alike.
        """
        racers = self._still_in
        first = number // 2 % len(racers)
        order = [*racers[first:], *racers[:first]]
        if number % 2:
            order.reverse()
        return [(self._spec(racer, number), racer) for racer in order]

    def _spec(self, racer: _Racer, number: int) -> TrialSpec:
        job = self._job
        return TrialSpec(
            suite=self._options.name,
            workload=self._workload.name,
            workload_fingerprint=self._workload.fingerprint,
            machine=self._machine.name,
            machine_hash=content_hash(self._machine),
            backend=Backend.MEASURED,
            strategy=racer.candidate.name,
            seed=0,
            repeat=number,
            batch_size=self._workload.batch_size,
            iterations=job.iterations,
            warmup=job.warmup,
            **job.training,
            plan_s=job.plan_s,
            fit_s=job.fit_s,
            timeout_s=job.timeout_s,
        )

    def _take(self, turns: Sequence[tuple[TrialSpec, _Racer]], number: int) -> int:
        """Take a round's trials from the records, as far as they are there, and count them; who failed is out."""
        latest = self._store.latest()
        entries = [(racer, latest[spec.key]) for spec, racer in turns if spec.key in latest]
        entries = [(racer, record) for racer, record in entries if record.is_of(racer.plan.plan_hash)]
        self._waiting = 0
        for racer, record in entries:
            if is_waiting(record):
                self._waiting += 1
            elif record.outcome is Outcome.OK and record.control is not None:
                racer.records.append(record)
            else:
                racer.dropped_in, racer.cause = number + 1, f"{record.outcome.value} in {record.cause}"
        self._noise = pooled_noise([ratio_to_control(r) for r in racer.records] for racer in self._racers)
        return len(entries)

    def _drop(self) -> None:
        """Drop who is slower than the leader by more than the noise explains, or, before that is known, by WIDE."""
        leader = self._leader()
        if leader is None:
            return
        for racer in self._still_in:
            if racer.log - leader.log > self._least_difference(racer, leader):
                racer.dropped_in = self._rounds

    def _least_difference(self, racer: _Racer, leader: _Racer) -> float:
        """Return the least difference of mean logarithms that tells two racers apart."""
        if self._rounds < REPEATED or self._noise is None:
            return math.log(WIDE)
        return self._noise.least_log(len(racer.records), len(leader.records))

    def _leader(self) -> _Racer | None:
        return min((racer for racer in self._still_in if racer.records), key=lambda racer: racer.log, default=None)

    def _ending(self) -> Ending | None:
        leader = self._leader()
        if leader is None:
            return Ending.NONE_LEFT
        # One that is left alone after one round runs once more: a single trial has no interval.
        if self._options.drops and self._rounds >= REPEATED:
            rest = [racer for racer in self._still_in if racer is not leader]
            if not rest:
                return Ending.ONE_LEFT
            if max(self._least_difference(racer, leader) for racer in rest) < math.log1p(self._options.tie_share):
                return Ending.TIE
        return Ending.ROUNDS if self._rounds >= self._options.most_rounds else None

    def result(self, ending: Ending, seconds: float) -> RaceResult:
        """Return how the candidates stand."""
        steps = pooled_noise([_step_ms(record) for record in racer.records] for racer in self._racers)
        leader = self._leader()
        ranking = sorted(self._racers, key=_rank)
        return RaceResult(
            standings=tuple(self._standing(racer, leader, steps) for racer in ranking),
            rounds=self._rounds,
            seconds=seconds,
            ended_by=ending,
            noise=self._noise,
            on_record=self._on_record,
            waiting=self._waiting,
        )

    def _standing(self, racer: _Racer, leader: _Racer | None, steps: Noise | None) -> Standing:
        noise, records = self._noise, racer.records
        may_tie = racer.dropped_in is None and racer is not leader and bool(records)
        return Standing(
            name=racer.candidate.name,
            plan=racer.plan.fixed_plan,
            predicted_ms=racer.candidate.step_ms,
            records=tuple(records),
            ratio=log_mean([ratio_to_control(record) for record in records], noise) if records else None,
            step=log_mean([_step_ms(record) for record in records], steps) if records else None,
            n=len(records),
            dropped_in=racer.dropped_in,
            ties=may_tie and leader is not None and noise is not None and self._close(racer, leader, noise),
            cause=racer.cause,
        )

    def _close(self, racer: _Racer, leader: _Racer, noise: Noise) -> bool:
        return racer.log - leader.log <= noise.least_log(len(racer.records), len(leader.records))


def _step_ms(record: Record) -> float:
    return float(np.median(record.timing.step_ms)) if record.timing is not None else math.nan


def _rank(racer: _Racer) -> tuple[int, float]:
    """Order: who stayed, who was slower, who failed after a trial, who never had one, each by its speed."""
    if not racer.records:
        return 3, racer.candidate.step_ms
    return 2 if racer.cause else int(racer.dropped_in is not None), racer.log
