"""One parser given many wrong files: each is read or refused in one line; whatever else happens is a crash."""

import json
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from command_lines import LINES
from data_files import DATA
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from left_files import LEFT
from parser import Parser, in_folder
from texts import TEXTS

from shardbench.base.errors import LONGEST_ERROR, ShardBenchError

PARSERS = TEXTS + LEFT + DATA + LINES
SLOW_S = 20
"""A file of a few kilobytes that takes longer to read is a hang."""
MOST_MORE_BYTES = 3 << 29
"""Of memory that a fuzzed process may ask for beyond what it begins with; more ends in a MemoryError, a crash."""


class Hang(Exception):
    """A parser took too long."""


@dataclass
class Tally:
    """What became of the cases of one parser."""

    parser: str
    cases: int = 0
    clean_errors: int = 0
    crashes: list[str] = field(default_factory=list)
    """What and where, one line each."""
    max_rss_mb: float = 0.0


def fuzz(parser: Parser, cases: int, folder: Path) -> Tally:
    """So many wrong files, the same ones in every run, and the valid ones first, which must be read."""
    tally = Tally(parser=parser.name)
    path, valid = folder / parser.file, parser.make(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    for content in valid:
        refused = tally.clean_errors
        _read(parser, path, content, tally)
        if tally.clean_errors > refused:
            tally.crashes.append("a valid file is refused")
    tally.cases = tally.clean_errors = 0

    @seed(zlib.crc32(parser.name.encode()))
    @settings(
        max_examples=cases, derandomize=True, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(st.randoms(use_true_random=False))
    def each(random: Random) -> None:
        _read(parser, path, parser.change(random.choice(valid), random), tally)

    with in_folder(folder):
        each()
    tally.max_rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return tally


def _read(parser: Parser, path: Path, content: bytes, tally: Tally) -> None:
    tally.cases += 1
    path.write_bytes(content)
    try:
        with _deadline(), warnings.catch_warnings():
            warnings.simplefilter("error")
            parser.read(path)
    except ShardBenchError as error:
        said = str(error)
        tally.clean_errors += 1
        if "\n" in said or not said or len(said) > LONGEST_ERROR + 100:
            tally.crashes.append(f"an error of {len(said)} characters, {said.count(chr(10)) + 1} lines: {said[:80]!r}")
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-2 if isinstance(error, Hang) else -1]
        text = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {str(error)[:80]!r}"
        tally.crashes.append(text)


@contextmanager
def _deadline() -> Iterator[None]:
    def ring(*_: object) -> None:
        raise Hang(f"longer than {SLOW_S} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(SLOW_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def in_process(parser: Parser, cases: int) -> Tally:
    """The same in a process of its own, whose memory is told and bounded, and whose death is a crash."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _in_child(parser, cases, write)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if not said:
        return Tally(parser=parser.name, crashes=[f"the process ended with status {status}"])
    return Tally(**json.loads(said))


def _in_child(parser: Parser, cases: int, write: int) -> None:
    try:
        resource.setrlimit(resource.RLIMIT_DATA, (_data_bytes() + MOST_MORE_BYTES,) * 2)
        with tempfile.TemporaryDirectory() as folder:
            tally = fuzz(parser, cases, Path(folder))
        os.write(write, json.dumps(vars(tally)).encode())
    except Exception:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        # Not what the parent has open or registered.
        os._exit(0)


def _data_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("no VmData: this needs Linux")


def shares(total: int) -> dict[str, int]:
    """Cases of each parser, by weight; ``total`` or a few more in all."""
    weights = sum(parser.weight for parser in PARSERS)
    return {parser.name: -(-total * parser.weight // weights) for parser in PARSERS}


def run_all(total: int) -> Iterator[tuple[Tally, float]]:
    """Every parser in turn, and the seconds that it took."""
    for parser in PARSERS:
        began = time.monotonic()
        yield in_process(parser, shares(total)[parser.name]), time.monotonic() - began
