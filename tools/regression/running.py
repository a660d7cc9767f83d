"""A process that measures the code of one tree, and what can be asked of it."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from judging import Kind
from trees import Stopped, Tree


class Broken(Exception):
    """Raised for a benchmark that does not run, with its own words."""


@dataclass(frozen=True, kw_only=True)
class Listed:
    """A benchmark with its parameters."""

    name: str
    kind: Kind
    unit: str


class Process:
    """A worker in the code of a tree; it holds imports and set-ups from one question to the next.

    It is told what ``worker.main`` takes: the folder of benchmarks, one for caches, and what to do with unknown ones.
    """

    def __init__(self, tree: Tree, *arguments: str) -> None:
        path = os.pathsep.join([str(tree.imports), *filter(None, [os.environ.get("PYTHONPATH")])])
        environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}
        script = str(Path(__file__).parent / "worker.py")
        # Commands print tables: only the last words of a process that ends are anybody's concern.
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 (end() closes it)
        self._running = subprocess.Popen(
            [sys.executable, script, *arguments],
            cwd=tree.root,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._output,
            text=True,
        )

    def ask(self, do: str, name: str | None = None) -> Any:
        """Return the answer; raises Broken with the error where there is none, Stopped where the process ended."""
        request = {"do": do} if name is None else {"do": do, "name": name}
        if self._running.stdin is None or self._running.stdout is None:
            raise self._end_error(request)
        try:
            self._running.stdin.write(json.dumps(request) + "\n")
            self._running.stdin.flush()
        except BrokenPipeError as error:
            raise self._end_error(request) from error
        line = self._running.stdout.readline()
        if not line:
            raise self._end_error(request)
        reply = json.loads(line)
        if "error" in reply:
            raise Broken(reply["error"])
        return reply["answer"]

    def end(self) -> None:
        """Let the process end, and wait for it."""
        if self._running.stdin is not None:
            self._running.stdin.close()
        if self._running.stdout is not None:
            self._running.stdout.close()
        self._running.wait()
        self._output.close()

    def _end_error(self, request: dict[str, str]) -> Stopped:
        self._running.wait()
        self._output.seek(0)
        last = ([line.strip() for line in self._output if line.strip()] or ["nothing"])[-1]
        return Stopped(f"the process that measures ended at '{' '.join(request.values())}' and said last: {last}")


class Side:
    """One tree of a comparison: a process for what is timed and tracked, and its own for every peak of memory."""

    def __init__(self, tree: Tree, *arguments: str) -> None:
        self._tree, self._arguments = tree, arguments
        self._process: Process | None = None

    @property
    def process(self) -> Process:
        """The long-lived process, which begins when it is first asked for."""
        if self._process is None:
            self._process = self._new_process()
        return self._process

    def renew(self) -> None:
        """Measure in another process from now on: layouts of memory differ, and times with them."""
        if self._process is not None:
            self._process.end()
            self._process = None

    def benchmarks(self) -> list[Listed]:
        """Return all benchmarks of this tree; raises Stopped where they cannot be imported."""
        try:
            descriptions = self.process.ask("list")
        except Broken as error:
            raise Stopped(f"the benchmarks cannot be imported: {error}") from error
        return [Listed(**{**description, "kind": Kind(description["kind"])}) for description in descriptions]

    def peak(self, name: str) -> float:
        """Return the bytes of a process that does nothing else."""
        self.process.ask("cache", name)
        alone = self._new_process()
        try:
            alone.ask("prepare", name)
            return float(alone.ask("sample", name))
        finally:
            alone.end()

    def _new_process(self) -> Process:
        return Process(self._tree, *self._arguments)


@contextmanager
def side(tree: Tree, benchmarks: Path, *, skips_unknown: bool = False) -> Iterator[Side]:
    """Open a tree; its processes end with it. Benchmarks that its code cannot import are an error, or left out."""
    with tempfile.TemporaryDirectory(prefix="regression-") as folder:
        opened = Side(tree, str(benchmarks), folder, "skip" if skips_unknown else "fail")
        try:
            yield opened
        finally:
            opened.renew()
