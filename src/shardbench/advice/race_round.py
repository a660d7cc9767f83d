"""A round of a race: one trial of each plan that is still in it, on real ranks beside the control plan."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import numpy as np

from shardbench.advice.asking import HandedPlan
from shardbench.engine.processes.server import FORK_SERVER
from shardbench.engine.processes.trial_folder import attempts
from shardbench.records.provenance import Provenance
from shardbench.records.record import Record
from shardbench.records.store import trial_store
from shardbench.records.trial import Backend, Outcome, TrialSpec
from shardbench.trials.jobcheck import lacking_devices
from shardbench.trials.run_trial import JobContext, keep_rest, run_trial
from shardbench.trials.session import Work

TIE_SHARE = 0.01
"""Least significant difference from which more rounds would tell apart what hardly matters."""
MOST_ROUNDS = 20


@dataclass(frozen=True, kw_only=True)
class RaceOptions:
    """Where a race's records and data lie, and how long it goes on."""

    name: str
    """The records are ``<results>/records/<name>.jsonl``."""
    results: Path
    data: Path
    race_s: float = 300.0
    """Seconds after which no trial ends that is begun here; the first round always runs."""
    iterations: int = 10
    warmup: int = 2
    timeout_s: float = 300.0
    drops: bool = True
    """Whether the slower ones drop out; else all run ``most_rounds`` times, however long that takes."""
    most_rounds: int = MOST_ROUNDS
    tie_share: float = TIE_SHARE
    work: Path | None = None
    """The folder in which job folders are made and kept; a temporary one where None."""
    launch: bool = True
    """Whether ranks are started here; else the folders of a round are made, and ``collect`` records what ranks left."""
    retry: frozenset[Outcome] = frozenset()
    """Outcomes on record that are run again."""
    busy_ok: bool = True
    """Whether it goes on while others use the machine, which the ratios to the control plan bear."""


def ratio_to_control(record: Record) -> float:
    """Return the median over iterations of a trial's step over the control's of the same turn."""
    if record.timing is None or record.control is None:
        raise ValueError(f"{record.summary}: no steps beside the control's")
    return float(np.median(np.divide(record.timing.step_ms, record.control.step_ms)))


def is_waiting(record: Record) -> bool:
    """Tell whether the record is of a trial whose folder was made and whose ranks have not run."""
    failure = record.failure
    is_skipped = failure is not None and failure.outcome is Outcome.SKIPPED and failure.phase == "start"
    return is_skipped and record.predicted is not None


class TimeIsOver(Exception):
    """The next trial would end after the race."""


@dataclass
class RaceTime:
    """The end of the race by this process's clock, and how long a trial takes."""

    ends_at: float
    longest_s: float = 0.0

    @property
    def is_over(self) -> bool:
        """Tell whether a trial as long as the longest so far would end too late."""
        return monotonic() + self.longest_s > self.ends_at


class Round(Work[TrialSpec, Record]):
    """One trial of each candidate that is still in the race."""

    unit = "trial"

    def __init__(
        self,
        options: RaceOptions,
        turns: Mapping[TrialSpec, HandedPlan],
        context: JobContext,
        time: RaceTime,
        *,
        limited: bool,
    ) -> None:
        self.pieces = list(turns)
        self.title = f"race {options.name}, round {self.pieces[0].repeat + 1}"
        self.store = trial_store(options.results, options.name)
        self.new_trials = 0
        """Trials that this round ran, and did not find on record."""
        self._plans = {spec.key: plan for spec, plan in turns.items()}
        self._context, self._time, self._limited, self._retry = context, time, limited, options.retry
        self._here = options.launch and not lacking_devices(context.machine, Backend.MEASURED)

    def key(self, piece: TrialSpec) -> str:
        """Return the key of the spec."""
        return piece.key

    def version(self, piece: TrialSpec) -> str | None:
        """Return the hash of the candidate's plan: whoever made it, a trial of another plan is not its trial."""
        return self._plans[piece.key].plan_hash

    def is_timed(self, piece: TrialSpec) -> bool:
        """Tell whether ranks run here; what ran elsewhere holds here."""
        return self._here

    def wants_rerun(self, record: Record) -> bool:
        """Tell whether it is to be retried, or its ranks, to run elsewhere, may now run here or lost their folder."""
        if is_waiting(record):
            return self._here or not attempts(self._context.folder / record.key)
        return record.outcome in self._retry

    def keep_extras(self, record: Record) -> None:
        """Keep the trial's files for which there was no room before."""
        keep_rest(self._context.later)

    def run(
        self, pieces: Sequence[TrialSpec], environment: str, started: Callable[[str], None]
    ) -> Generator[Record, None, None]:
        """Run the trials in turn; raises TimeIsOver before one that would end too late."""
        FORK_SERVER.context()
        for spec in pieces:
            if self._limited and self._time.is_over:
                raise TimeIsOver
            started(spec.text)
            plan, start = self._plans[spec.key], monotonic()
            provenance = Provenance.begin(plan.plan_hash)
            record = run_trial(spec, plan, self._context, environment, provenance)
            self._time.longest_s = max(self._time.longest_s, monotonic() - start)
            self.new_trials += 1
            yield record.model_copy(update={"provenance": provenance.ended()})
