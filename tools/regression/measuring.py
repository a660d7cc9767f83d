"""Samples of benchmarks, taken of two trees in turn, and what they come to."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from judging import MOST_PAIRS, Kind, Level, LevelChange, Verdict
from running import Broken, Listed, Side

SAMPLES = 7
"""Samples of a benchmark that is timed; their quartiles tell its noise."""
LONG_S = 0.2
LONG_SAMPLES = 3
"""Samples of a benchmark that takes longer: noise is a smaller part of it, and more are taken where they disagree."""

ROUNDS = 3
"""Pairs of processes that must all find a benchmark worse: on a busy machine two in turn saw a doubling by chance."""

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of a comparison of benchmarks."""

    compared: Sequence[LevelChange]
    failed: Mapping[str, str]
    """Why a benchmark gives no number now, by its name."""
    new: Mapping[str, str]
    """Why there is nothing to compare a benchmark with, by its name."""

    @property
    def worse(self) -> list[LevelChange]:
        """Benchmarks that are surely beyond their limits."""
        return [c for c in self.compared if c.verdict is Verdict.WORSE]

    @property
    def unclear(self) -> list[LevelChange]:
        """Benchmarks that are beyond their limits, as is their noise."""
        return [c for c in self.compared if c.verdict is Verdict.UNCLEAR]

    @property
    def raised(self) -> int:
        """The number of benchmarks that became worse, or fail."""
        return len(self.worse) + len(self.failed)

    @property
    def largest(self) -> LevelChange | None:
        """The comparison of the largest ratio; None where nothing was compared."""
        return max(self.compared, key=lambda c: c.ratio, default=None)


def in_turn(before: Side, now: Side, listed: Sequence[Listed], tell: Tell) -> Outcome:
    """Compare every benchmark of two trees, sample by sample in turn.

    What looks worse is measured again by other processes, and is worse only where all ``ROUNDS`` say so.
    """
    there = {one.name for one in before.benchmarks()}
    new = {one.name: "not there before" for one in listed if one.name not in there}
    faults = {one.name: _fault(now, one) for one in listed if one.name in new}
    failed = {name: why for name, why in faults.items() if why}
    compared: dict[str, LevelChange] = {}
    looked_at = [one for one in listed if one.name in there]
    for number in range(ROUNDS):
        if number and looked_at:
            before.renew()
            now.renew()
        for one in looked_at:
            tell(one.name)
            try:
                compared[one.name] = _compare(one, before, now)
            except Broken as error:
                compared.pop(one.name, None)
                if why := _fault(now, one):
                    failed[one.name] = why
                else:
                    new[one.name] = f"failed before: {_fault(before, one) or error}"
        looked_at = [o for o in looked_at if o.name in compared and compared[o.name].verdict is not Verdict.FINE]
    return Outcome(compared=list(compared.values()), failed=failed, new=new)


def _fault(side: Side, one: Listed) -> str | None:
    try:
        _samples(one, side, most=1)
    except Broken as error:
        return str(error)
    return None


def _compare(one: Listed, before: Side, now: Side) -> LevelChange:
    """Compare the benchmark by the usual number of samples, and by the most where these leave it open."""
    for least in (0, MOST_PAIRS):
        then, here = (Level.of(samples) for samples in _samples(one, before, now, least=least))
        change = LevelChange(name=one.name, kind=one.kind, unit=one.unit, before=then, now=here)
        if change.verdict is not Verdict.UNCLEAR:
            break
    return change


def _samples(one: Listed, *sides: Side, least: int = 0, most: int = MOST_PAIRS) -> list[list[float]]:
    """Return the samples of each side, taken in turn; the first of a turn is the last of the next."""
    if one.kind is Kind.MEMORY:
        return [[side.peak(one.name)] for side in sides]
    with _prepare(one, sides) as first:
        # What takes long is not called once for nothing.
        by_side = [[seconds] if seconds is not None and seconds > LONG_S else [] for seconds in first]
        for turn in range(most):
            if turn and len(by_side[0]) >= max(least, _sample_count(one, by_side[0][0])):
                break
            order = list(zip(sides, by_side))
            for side, samples in order if turn % 2 else reversed(order):
                samples.append(float(side.ask("sample", one.name)))
    return by_side


def _sample_count(one: Listed, first: float) -> int:
    if one.kind is Kind.TRACK:
        return 1
    return LONG_SAMPLES if first > LONG_S else SAMPLES


@contextmanager
def _prepare(one: Listed, sides: Sequence[Side]) -> Iterator[list[float | None]]:
    """Set the benchmark up in each side, and close it in those where that went well; gives the first call's seconds."""
    ready: list[Side] = []
    first: list[float | None] = []
    try:
        for side in sides:
            first.append(side.ask("prepare", one.name))
            ready.append(side)
        yield first
    finally:
        for side in ready:
            side.ask("close", one.name)
