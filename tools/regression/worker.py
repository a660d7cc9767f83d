"""A process in the code of one source tree: it takes samples of asv benchmarks as it is told, line by line.

Every line of standard input is a JSON object with ``do`` and, of a benchmark, its ``name``; every line of output an
object with ``answer`` or ``error``. What benchmarks print goes to standard error.
"""

import itertools
import json
import math
import os
import pickle
import sys
from pathlib import Path
from typing import Any

from asv_runner.benchmarks._base import Benchmark
from asv_runner.benchmarks.time import TimeBenchmark
from asv_runner.discovery import disc_benchmarks, get_benchmark_from_name

LEAST_SAMPLE_S = 0.02
"""Calls are repeated within a sample until they take so long, which a clock tells well enough."""


class Worker:
    """Benchmarks of a folder, in the code that is imported here."""

    def __init__(self, folder: Path, caches: Path, *, skips_unknown: bool) -> None:
        sys.path.insert(0, str(folder.parent))
        self._folder, self._caches, self._skips = folder, caches, skips_unknown
        self._caches_by_key: dict[str, Any] = {}
        self._by_name: dict[str, tuple[Benchmark, int]] = {}
        self._calls = 1

    def list(self) -> list[dict[str, str]]:
        """Return all benchmarks with their kind and unit."""
        for benchmark in disc_benchmarks(str(self._folder), ignore_import_errors=self._skips):
            self._keep(benchmark)
        return [
            {"name": name, "kind": benchmark.type, "unit": benchmark.unit}
            for name, (benchmark, _) in self._by_name.items()
        ]

    def _keep(self, benchmark: Benchmark) -> None:
        for number, values in enumerate(itertools.product(*benchmark.params)):
            suffix = f"({', '.join(values)})" if values else ""
            self._by_name[f"{benchmark.name}{suffix}"] = benchmark, number

    def cache(self, name: str) -> None:
        """Have on disk what the benchmark's ``setup_cache`` makes, so that a process of its own finds it."""
        self._cache(self._benchmark(name))

    def prepare(self, name: str) -> float | None:
        """Set the benchmark up; of one that is timed, see how many calls make a sample, and give the first's time."""
        benchmark = self._benchmark(name)
        benchmark.set_cache(self._cache(benchmark))
        if benchmark.do_setup():
            raise RuntimeError("setup skips it: a benchmark here either runs or is not listed")
        self._calls = 1
        if not isinstance(benchmark, TimeBenchmark):
            return None
        first = self.sample(name)
        self._calls = max(1, math.ceil(LEAST_SAMPLE_S / max(first, 1e-9)))
        return first

    def sample(self, name: str) -> float:
        """Return the seconds of a call, the bytes, or the tracked value."""
        benchmark = self._benchmark(name)
        if not isinstance(benchmark, TimeBenchmark):
            return float(benchmark.do_run())
        # Of asv's own repeats only one is wanted, and no warming up: both trees take their samples in turn.
        benchmark.number, benchmark.repeat, benchmark.warmup_time, benchmark.min_run_count = self._calls, 1, 0.0, 1
        return float(benchmark.do_run()["samples"][0])

    def close(self, name: str) -> None:
        """Tear down what was set up."""
        self._benchmark(name).do_teardown()

    def _benchmark(self, name: str) -> Benchmark:
        if name not in self._by_name:
            # Without the other modules: their imports would be part of a peak of memory.
            self._keep(get_benchmark_from_name(str(self._folder), name.partition("(")[0]))
        if name not in self._by_name:
            raise KeyError(f"there is no benchmark {name} here")
        benchmark, number = self._by_name[name]
        if benchmark.params:
            benchmark.set_param_idx(number)
        return benchmark

    def _cache(self, benchmark: Benchmark) -> Any:
        key = benchmark.setup_cache_key
        if key is None:
            return None
        if key not in self._caches_by_key:
            path = self._caches / f"{key.replace('/', '-')}.pickle"
            if not path.exists():
                path.write_bytes(pickle.dumps(benchmark.do_setup_cache()))
            self._caches_by_key[key] = pickle.loads(path.read_bytes())
        return self._caches_by_key[key]


def main(folder: str, caches: str, unknown: str) -> None:
    """Answer until the input ends. Of code that has not all that benchmarks import, ``skip`` leaves these out."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    worker = Worker(Path(folder), Path(caches), skips_unknown=unknown == "skip")
    for line in sys.stdin:
        request = json.loads(line)
        job = getattr(worker, request["do"])
        try:
            reply = {"answer": job(request["name"]) if "name" in request else job()}
        except Exception as error:  # a benchmark may raise anything, and the others are to run
            reply = {"error": " ".join(f"{type(error).__name__}: {error}".split())}
        answers.write(json.dumps(reply) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
