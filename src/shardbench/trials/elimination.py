"""Who is measured no more: measured trials go in groups, one of each strategy in turn, and who is slow drops out.

After the first group, in every suite, who is clearly slow is not measured again: what a later trial would cost is left
to iterations of all others, as its place is known. In a race who is slower than the best by more than repeats differ
drops out after every later group, too, and so does who failed; it is over when the rest tie.
"""

import math
from collections.abc import Iterable
from statistics import fmean

from shardbench.base.statistics import pooled_noise
from shardbench.model.strategy import Role
from shardbench.records.record import Record, fast_ms
from shardbench.records.trial import LEFT_OUT, Failure, Outcome, TrialSpec

CLEARLY_SLOW = 1.3
"""Ratio to the best first trial from which on a strategy is not measured again.

A first trial over its control has a standard deviation of 5 % at most in the suite `measured`, so that the least of
twenty that tie is about 10 % too fast, and one of them would have to be more than three deviations too slow to be lost.
In both committed runs every strategy that is so far behind in its first trial is 16 % or more behind over all trials.
"""
REPEATED = 2
"""Groups of a race after which noise is known, and who is left alone has an interval."""
TIE_SHARE = 0.01
"""Least significant difference from which more groups would tell apart what hardly matters."""

_Key = tuple[str, int]


def is_waiting(record: Record) -> bool:
    """Tell whether the record is of a trial whose folder was made and whose ranks have not run."""
    failure = record.failure
    is_skipped = failure is not None and failure.outcome is Outcome.SKIPPED and failure.phase == "start"
    return is_skipped and record.predicted is not None


class Elimination:
    """The trials of a job so far, and who is out: each strategy and seed by its steps over the control's."""

    def __init__(self, records: Iterable[Record], *, is_race: bool = False) -> None:
        """Take the trials of the job that are on record."""
        self._is_race = is_race
        self._ratios: dict[_Key, dict[int, float]] = {}
        """Ratios of trials to the control, of the fastest iterations of both, by group."""
        self._causes: dict[_Key, str] = {}
        self._waiting: set[int] = set()
        self._decided = 0
        """The last group before which it was decided who is out."""
        for record in records:
            self.add(record)

    def add(self, record: Record) -> None:
        """Take a trial, where its time is compared with others', or it says who is out or waits for its ranks."""
        key, group = (record.spec.strategy, record.spec.seed), record.spec.repeat
        if record.left_out:
            self._causes[key] = record.failure.cause if record.failure is not None else ""
        elif is_waiting(record):
            self._waiting.add(group)
        elif record.outcome is not Outcome.OK and self._is_race:
            self._causes[key] = f"its trial before ended in {record.outcome}"
        is_compared = record.role is not Role.OTHER_MODEL and (self._is_race or not record.shares_cores)
        ok = record.outcome is Outcome.OK and is_compared
        if ok and record.timing is not None and record.control is not None:
            ratio = fast_ms(record.timing.step_ms) / fast_ms(record.control.step_ms)
            self._ratios.setdefault(key, {})[group] = ratio

    def waits(self, spec: TrialSpec) -> bool:
        """Tell whether a trial of a group before still waits for its ranks, which may run elsewhere."""
        return any(group < spec.repeat for group in self._waiting)

    def left_out(self, spec: TrialSpec) -> Failure | None:
        """Return why a trial need not run; None where it must, as first ones and those of strategies near the best."""
        if spec.repeat > self._decided:
            self._decided = spec.repeat
            self._drop_clearly_slow()
            if self._is_race and spec.repeat >= REPEATED:
                self._drop_by_noise(spec.repeat)
        cause = self._causes.get((spec.strategy, spec.seed)) if spec.repeat else None
        return Failure(outcome=Outcome.SKIPPED, cause=cause, phase=LEFT_OUT) if cause else None

    def _drop_clearly_slow(self) -> None:
        first = {key: of[0] for key, of in self._ratios.items() if 0 in of}
        for key, ratio in first.items():
            behind = ratio / min(first.values())
            if behind > CLEARLY_SLOW:
                cause = f"its first trial took {behind:.2f} times the step of the best one, both over the control's"
                self._causes.setdefault(key, cause)

    def _drop_by_noise(self, group: int) -> None:
        """Decide who is out by the trials of the groups before this one."""
        ratios = {key: [ratio for number, ratio in of.items() if number < group] for key, of in self._ratios.items()}
        noise = pooled_noise(filter(None, ratios.values()))
        logs = {key: fmean(map(math.log, of)) for key, of in ratios.items() if of and key not in self._causes}
        if noise is None or not logs:
            return
        best = min(logs, key=lambda key: logs[key])
        ties = []
        for key in logs.keys() - {best}:
            behind, least = logs[key] - logs[best], noise.least_log(len(ratios[key]), len(ratios[best]))
            if behind <= least:
                ties.append(least)
                continue
            self._causes[key] = (
                f"its step is {100.0 * math.expm1(behind):.3g} % longer than that of {best[0]}, both over the "
                f"control's; the noise of repeats is {100.0 * math.expm1(least):.3g} %"
            )
        if max(ties, default=0.0) < math.log1p(TIE_SHARE):
            cause = f"more trials would tell apart less than {100.0 * TIE_SHARE:g} %" if ties else "no other is left"
            self._causes = dict.fromkeys(logs, f"the race is over: {cause}") | self._causes
