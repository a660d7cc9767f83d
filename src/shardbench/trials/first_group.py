"""The first of several groups of measured trials: who is clearly slow in it is not measured again.

Strategies take turns within a group, one trial each. What a later trial of a strategy far behind the best would cost is
left to iterations of all others, as its place is known.
"""

from collections.abc import Iterable

from shardbench.model.strategy import Role
from shardbench.records.record import Record, fast_ms
from shardbench.records.trial import LEFT_OUT, Failure, Outcome, TrialSpec

CLEARLY_SLOW = 1.3
"""Ratio to the best first trial from which on a strategy is not measured again.

A first trial over its control has a standard deviation of 5 % at most in the suite `measured`, so that the least of
twenty that tie is about 10 % too fast, and one of them would have to be more than three deviations too slow to be lost.
In both committed runs every strategy that is so far behind in its first trial is 16 % or more behind over all trials.
"""


class FirstGroup:
    """The first trial of each strategy and seed of a job: its step over the control's, by the fastest iterations."""

    def __init__(self, records: Iterable[Record]) -> None:
        """Take the trials of the job that are on record."""
        self._ratios: dict[tuple[str, int], float] = {}
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Take a trial, where it is a first one whose time is compared with others'."""
        ok = record.outcome is Outcome.OK and record.role is not Role.OTHER_MODEL and not record.shares_cores
        if ok and record.spec.repeat == 0 and record.timing is not None and record.control is not None:
            ratio = fast_ms(record.timing.step_ms) / fast_ms(record.control.step_ms)
            self._ratios[record.spec.strategy, record.spec.seed] = ratio

    def clearly_slow(self, spec: TrialSpec) -> Failure | None:
        """Return why a trial need not run; None where it must: a first one, or one of a strategy near the best."""
        ratio = self._ratios.get((spec.strategy, spec.seed))
        if spec.repeat == 0 or ratio is None:
            return None
        behind = ratio / min(self._ratios.values())
        if behind <= CLEARLY_SLOW:
            return None
        cause = f"its first trial took {behind:.2f} times the step of the best one, both over the control's"
        return Failure(outcome=Outcome.SKIPPED, cause=cause, phase=LEFT_OUT)
