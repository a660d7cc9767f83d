"""Makes every asv benchmark twice as bad in processes that run in one folder, as tests of ``regression`` plant it."""

import os
from pathlib import Path

from asv_runner.benchmarks._base import Benchmark
from asv_runner.benchmarks._maxrss import get_maxrss
from asv_runner.benchmarks.peakmem import PeakMemBenchmark
from asv_runner.benchmarks.track import TrackBenchmark


def twice(benchmark: Benchmark):
    """The benchmark's function, called twice, or with as much memory again, or with a value that is twice as large."""
    func = benchmark.func

    def tracked(*given):
        value = func(*given)
        return max(2.0 * value, value + 1.0)

    def held(*given):
        func(*given)
        bytes(b"\x01" * get_maxrss())

    def called(*given):
        func(*given)
        return func(*given)

    if isinstance(benchmark, TrackBenchmark):
        return tracked
    return held if isinstance(benchmark, PeakMemBenchmark) else called


def plant() -> None:
    """From now on."""
    made = Benchmark.__init__

    def planted(self, name, func, sources):
        made(self, name, func, sources)
        if name.startswith(os.environ.get("PLANTED_IN", "")):
            self.func = twice(self)

    Benchmark.__init__ = planted


if Path.cwd() == Path(os.environ["PLANTED_TREE"]):
    plant()
