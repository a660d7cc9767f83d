"""Samples of benchmarks, of one tree or of two in turn, and what they come to."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from judging import MOST_PAIRS, Comparison, Kind, Level, Verdict
from running import Broken, Listed, Side

SAMPLES = 7
"""Of a benchmark that is timed; their quartiles tell its noise."""
LONG_S = 0.2
LONG_SAMPLES = 3
"""Of one that takes longer; its noise is a smaller part of it, and more are taken where they do not agree."""

ROUNDS = 3
"""Pairs of processes that must all find a benchmark worse: on a busy machine two in turn saw a doubling by chance."""

Tell = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What comparing gave."""

    compared: Sequence[Comparison]
    failed: Mapping[str, str]
    """Why a benchmark gives no number now, by its name."""
    new: Mapping[str, str]
    """Why there is nothing to compare a benchmark with, by its name."""
    suspected: int = 0
    """Benchmarks that looked worse at first."""

    @property
    def worse(self) -> list[Comparison]:
        """Surely beyond their limits."""
        return [c for c in self.compared if c.verdict is Verdict.WORSE]

    @property
    def unclear(self) -> list[Comparison]:
        """Beyond their limits, but so is their noise."""
        return [c for c in self.compared if c.verdict is Verdict.UNCLEAR]

    @property
    def raised(self) -> int:
        """Benchmarks that became worse, or fail."""
        return len(self.worse) + len(self.failed)

    @property
    def largest(self) -> Comparison | None:
        """Of the largest ratio; None where nothing was compared."""
        return max(self.compared, key=lambda c: c.ratio, default=None)


def levels(now: Side, listed: Sequence[Listed], tell: Tell) -> tuple[dict[str, Level], dict[str, str]]:
    """What every benchmark comes to in one tree; and of those that fail, why."""
    found: dict[str, Level] = {}
    failed: dict[str, str] = {}
    for one in listed:
        tell(one.name)
        try:
            found[one.name] = Level.of(_samples(one, now)[0])
        except Broken as error:
            failed[one.name] = str(error)
    return found, failed


def in_turn(before: Side, now: Side, listed: Sequence[Listed], tell: Tell) -> Outcome:
    """Every benchmark of both trees, sample by sample in turn.

    What looks worse is measured again by other processes, and is worse only where all ``ROUNDS`` say so.
    """
    there = {one.name for one in before.benchmarks()}
    new = {one.name: "not there before" for one in listed if one.name not in there}
    failed = {name: why for one in listed if one.name in new and (why := _fault(now, one)) for name in (one.name,)}
    compared: dict[str, Comparison] = {}
    suspected = 0
    for number in range(ROUNDS):
        looked_at = [one for one in listed if (_suspect(compared, one.name) if number else one.name not in new)]
        if number and looked_at:
            suspected = suspected or len(looked_at)
            before.renew()
            now.renew()
        for one in looked_at:
            tell(one.name)
            try:
                compared[one.name] = _compared(one, before, now)
            except Broken as error:
                compared.pop(one.name, None)
                if why := _fault(now, one):
                    failed[one.name] = why
                else:
                    new[one.name] = f"failed before: {_fault(before, one) or error}"
    return Outcome(compared=list(compared.values()), failed=failed, new=new, suspected=suspected)


def _suspect(compared: Mapping[str, Comparison], name: str) -> bool:
    return name in compared and compared[name].verdict is not Verdict.FINE


def _fault(side: Side, one: Listed) -> str | None:
    try:
        _samples(one, side, most=1)
    except Broken as error:
        return str(error)
    return None


def _compared(one: Listed, before: Side, now: Side) -> Comparison:
    enough = 0
    while True:
        then, here = (Level.of(taken) for taken in _samples(one, before, now, least=enough))
        found = Comparison(name=one.name, kind=one.kind, unit=one.unit, before=then, now=here)
        if found.verdict is not Verdict.UNCLEAR or enough:
            return found
        enough = MOST_PAIRS


def _samples(one: Listed, *sides: Side, least: int = 0, most: int = MOST_PAIRS) -> list[list[float]]:
    """Of each side, taken in turn; the first of a turn is the last of the next."""
    if one.kind is Kind.MEMORY:
        return [[side.peak(one.name)] for side in sides]
    with _prepared(one, sides) as first:
        # What takes long is not called once for nothing.
        taken = [[seconds] if seconds is not None and seconds > LONG_S else [] for seconds in first]
        for turn in range(most):
            if turn and len(taken[0]) >= max(least, _wanted(one, taken[0][0])):
                break
            order = list(zip(sides, taken))
            for side, samples in order if turn % 2 else reversed(order):
                samples.append(float(side.process.ask("sample", one.name)))
    return taken


def _wanted(one: Listed, first: float) -> int:
    if one.kind is Kind.TRACK:
        return 1
    return LONG_SAMPLES if first > LONG_S else SAMPLES


@contextmanager
def _prepared(one: Listed, sides: Sequence[Side]) -> Iterator[list[float | None]]:
    ready: list[Side] = []
    first: list[float | None] = []
    try:
        for side in sides:
            first.append(side.process.ask("prepare", one.name))
            ready.append(side)
        yield first
    finally:
        for side in ready:
            side.process.ask("close", one.name)
