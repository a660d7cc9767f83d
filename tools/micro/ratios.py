"""Ratios of a benchmark's CPU seconds to those of something else, timed in the same process."""

import statistics
from collections.abc import Callable, Iterator

from cases.case import cpu_s


def beside(benchmark, against: str, call: Callable[[], object]) -> float:
    """Hold a benchmark, timed in CPU seconds, against the median of five of ``call``; returns the ratio of medians."""
    seconds = []
    for _ in range(5):
        start = cpu_s()
        call()
        seconds.append(cpu_s() - start)
    own, other = benchmark.stats.stats, statistics.median(seconds)
    low, ratio, high = (value / other for value in (own.q1, own.median, own.q3))
    benchmark.extra_info[against] = low, ratio, high
    return ratio


def lines(benchmarks) -> Iterator[str]:
    """Yield a line for each ratio of benchmarks, with what the middle half of their times give."""
    for one in benchmarks:
        for against, (low, ratio, high) in one.extra_info.items():
            yield f"{one.name}: {ratio:,.2f} times {against} ({low:,.2f} to {high:,.2f})"
