"""Processes that take samples of asv benchmarks in the code of one tree, and what can be asked of them."""

import itertools
import math
import os
import pickle
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from asv_runner.benchmarks._base import Benchmark
from asv_runner.benchmarks.time import TimeBenchmark
from asv_runner.discovery import disc_benchmarks, get_benchmark_from_name
from judging import Kind
from trees import Stopped, Tree

LEAST_SAMPLE_S = 0.02
"""Calls are repeated within a sample until they take so long, which a clock tells well enough."""
PATH = os.environ.get("PYTHONPATH")
PRINTED = "printed.log"


class Broken(Exception):
    """Raised for a benchmark that does not run, with its own words."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A benchmark with its parameters."""

    name: str
    kind: Kind
    unit: str


class Worker:
    """Benchmarks of a folder, in the code that this process imports; it holds set-ups from one question to the next."""

    def __init__(self, folder: Path, caches: Path, *, skips_unknown: bool) -> None:
        """``skips_unknown`` leaves out benchmarks that import what the code does not have."""
        sys.path.insert(0, str(folder.parent))
        self._folder, self._caches, self._skips = folder, caches, skips_unknown
        self._caches_by_key: dict[str, Any] = {}
        self._by_name: dict[str, tuple[Benchmark, int]] = {}
        self._calls = 1

    def list(self) -> list[Listed]:
        """Return all benchmarks of the folder."""
        for benchmark in disc_benchmarks(str(self._folder), ignore_import_errors=self._skips):
            self._keep(benchmark)
        return [
            Listed(name=name, kind=Kind(benchmark.type), unit=benchmark.unit)
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


_WORKERS: list[Worker] = []
"""The one of a process that measures."""


def _begin(tree: Tree, folder: Path, caches: Path, skips_unknown: bool) -> None:
    # Commands print tables: only the last words of a process that ends are anybody's concern.
    printed = os.open(caches / PRINTED, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(printed, 1)
    os.dup2(printed, 2)
    sys.path.insert(0, str(tree.imports))
    _WORKERS.append(Worker(folder, caches, skips_unknown=skips_unknown))


def _answer(do: str, *name: str) -> Any:
    try:
        return getattr(_WORKERS[0], do)(*name)
    except Exception as error:  # a benchmark may raise anything, and the others are to run
        raise Broken(" ".join(f"{type(error).__name__}: {error}".split())) from None


class Side:
    """One tree of a comparison: a process for what is timed and tracked, and its own for every peak of memory."""

    def __init__(self, tree: Tree, benchmarks: Path, caches: Path, *, skips_unknown: bool) -> None:
        self._tree, self._given = tree, (tree, benchmarks, caches, skips_unknown)
        self._printed = caches / PRINTED
        self._process = self._new_process()

    def _new_process(self) -> ProcessPoolExecutor:
        # Commands that benchmarks start find the tree, too.
        path = os.pathsep.join(filter(None, [str(self._tree.imports), PATH]))
        os.environ |= {"PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
        process = ProcessPoolExecutor(1, get_context("spawn"), initializer=_begin, initargs=self._given)
        with chdir(self._tree.root):
            process.submit(int)
        return process

    def end(self) -> None:
        """Let the process end, and wait for it."""
        self._process.shutdown()

    def renew(self) -> None:
        """Measure in another process from now on: layouts of memory differ, and times with them."""
        self.end()
        self._process = self._new_process()

    def benchmarks(self) -> list[Listed]:
        """Return all benchmarks of this tree; raises Stopped where they cannot be imported."""
        try:
            listed: list[Listed] = self.ask("list")
        except Broken as error:
            raise Stopped(f"the benchmarks cannot be imported: {error}") from error
        return listed

    def ask(self, do: str, *name: str) -> Any:
        """Return a worker's answer; raises Broken with its error, Stopped where its process ended."""
        return self._ask(self._process, do, *name)

    def _ask(self, process: ProcessPoolExecutor, do: str, *name: str) -> Any:
        try:
            return process.submit(_answer, do, *name).result()
        except BrokenProcessPool as error:
            lines = filter(str.strip, self._printed.read_text(errors="replace").splitlines())
            *_, last = ("nothing", *lines)
            said = f"the process that measures ended at '{' '.join((do, *name))}' and said last: {last.strip()}"
            raise Stopped(said) from error

    def peak(self, name: str) -> float:
        """Return the bytes of a process that does nothing else."""
        self.ask("cache", name)
        alone = self._new_process()
        try:
            self._ask(alone, "prepare", name)
            return float(self._ask(alone, "sample", name))
        finally:
            alone.shutdown()


@contextmanager
def side(tree: Tree, benchmarks: Path, *, skips_unknown: bool = False) -> Iterator[Side]:
    """Open a tree; its processes end with it. Benchmarks that its code cannot import are an error, or left out."""
    with tempfile.TemporaryDirectory(prefix="regression-") as folder:
        opened = Side(tree, benchmarks, Path(folder), skips_unknown=skips_unknown)
        try:
            yield opened
        finally:
            opened.end()
