"""Ratios of a benchmark's CPU seconds to those of something else: a time in seconds belongs to a machine."""

import os
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from cases.case import cpu_s

HEADERS = ("benchmark", "against", "ratio", "middle half", "n", "threads")
KEY = "ratios"


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """Two things that were timed in one process, or in turn, the one over the other."""

    against: str
    ratio: float
    low: float
    """The middle half of what single times give lies between these."""
    high: float
    n: str
    threads: str

    @classmethod
    def of(cls, against: str, own: Sequence[float], other: Sequence[float]) -> "Ratio":
        """Return the medians' ratio; every time of one is held against every time of the other."""
        low, _, high = quartiles([a / b for a in own for b in other])
        ratio = statistics.median(own) / statistics.median(other)
        return cls(against=against, ratio=ratio, low=low, high=high, n=f"{len(own)} / {len(other)}", threads=threads())


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the quartiles of one value or more."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def threads() -> str:
    """Return the threads of OpenMP, which torch and numpy use."""
    return os.environ.get("OMP_NUM_THREADS", "as many as cores")


def cpu_seconds(call: Callable[[], object], rounds: int) -> list[float]:
    """Return the seconds of each of some calls, in this process."""
    seconds = []
    for _ in range(rounds):
        start = cpu_s()
        call()
        seconds.append(cpu_s() - start)
    return seconds


def beside(benchmark, against: str, call: Callable[[], object], rounds: int = 5) -> Ratio | None:
    """Hold a benchmark, timed in CPU seconds, against those of ``call``; None where benchmarks are disabled."""
    if benchmark.stats is None:
        return None
    return add(benchmark, Ratio.of(against, benchmark.stats.stats.data, cpu_seconds(call, rounds)))


def add(benchmark, ratio: Ratio) -> Ratio:
    """Have a ratio printed at the end."""
    benchmark.extra_info.setdefault(KEY, []).append(vars(ratio))
    return ratio


def table(benchmarks: Iterable[tuple[str, dict]]) -> list[str]:
    """Lines of all ratios of benchmarks, by name and ``extra_info``, in columns."""
    rows = [HEADERS]
    for name, told in benchmarks:
        for one in told.get(KEY, []):
            span = f"{_three_digits(one['low'])} to {_three_digits(one['high'])}"
            rows.append((name, one["against"], _three_digits(one["ratio"]), span, one["n"], one["threads"]))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADERS))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]


def _three_digits(number: float) -> str:
    """Write a number in three digits without an exponent: 0.985, 12.3, 47,000."""
    return f"{float(f'{number:.3g}'):,.9g}"
