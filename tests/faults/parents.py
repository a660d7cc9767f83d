"""Faults of the program itself: ended, stopped and left without room while it runs a suite; the next run goes on."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from kept_folders import Silent

from faults.case import Fault, Seen, soon
from faults.suites import MEASURED, TRIALS, keys_of, suite_file
from shardbench.records.store import trial_store
from shardbench.records.trial import Outcome
from shardbench.trials.runner import RunOptions, run_suite
from shardbench.trials.suite import load_suite

INTERRUPTED = 130
ENDINGS = {
    signal.SIGKILL: -signal.SIGKILL,
    signal.SIGTERM: INTERRUPTED,
    signal.SIGINT: INTERRUPTED,
    signal.SIGHUP: INTERRUPTED,
    signal.SIGQUIT: INTERRUPTED,
}
"""Exit code, by the signal that the program gets."""
FIRST_S = 200.0
"""How long the first record may take: the program is started anew, with all that it imports."""


def faults() -> Iterator[Fault]:
    """All of them."""
    for number in (*ENDINGS, signal.SIGSTOP):
        yield Fault("parent", "trials", number.name, partial(_ended, number, late=True))
    yield Fault("parent", "start", "SIGKILL", partial(_ended, signal.SIGKILL, late=False))
    yield Fault("parent", "ranks", "SIGKILL", partial(_ended_with_ranks, signal.SIGKILL))


def _started(folder: Path, suite: Path) -> subprocess.Popen:
    command = "from shardbench.cli.main import main; main()"
    arguments = ["run", str(suite), "--json", "--results", str(folder / "results"), "--data", str(folder)]
    environment = {**os.environ, "TMPDIR": tempfile.gettempdir(), "COLUMNS": "200"}
    with (folder / "said").open("wb") as said:
        return subprocess.Popen(
            [sys.executable, "-c", command, *arguments], stdout=said, stderr=subprocess.STDOUT, env=environment,
            start_new_session=True,
        )  # fmt: skip


def _acknowledged(folder: Path) -> set[str]:
    """Keys of the trials that the program said were done."""
    events = [json.loads(line) for line in (folder / "said").read_text().splitlines() if line.startswith("{")]
    return {event["record"]["key"] for event in events if event["event"] == "finished"}


def _ended(number: signal.Signals, folder: Path, rng: random.Random, *, late: bool) -> Seen:
    program = _started(folder, suite_file(folder))
    wanted = rng.randrange(1, TRIALS) if late else 0
    lines = folder / "results" / "records" / "tiny.jsonl"
    soon(lambda: len(keys_of(lines)) >= wanted or program.poll() is not None, FIRST_S)
    time.sleep(rng.uniform(0.0, 0.5) if wanted else rng.uniform(1.0, 6.0))
    program.send_signal(number)
    if number is signal.SIGSTOP:
        time.sleep(1.0)
        program.send_signal(signal.SIGCONT)
    return _seen(program, folder, {ENDINGS.get(number, 0)}, TRIALS)


def _ended_with_ranks(number: signal.Signals, folder: Path, rng: random.Random) -> Seen:
    program = _started(folder, suite_file(folder, MEASURED, warmup=1, iterations=300))
    temporary = Path(tempfile.gettempdir())
    soon(lambda: any(temporary.glob("*/*/rank0.phase")) or program.poll() is not None, FIRST_S)
    time.sleep(rng.uniform(0.0, 1.0))
    program.send_signal(number)
    return _seen(program, folder, {ENDINGS[number]}, 1)


def _seen(program: subprocess.Popen, folder: Path, codes: set[int], trials: int) -> Seen:
    """What the program left, and whether the next run of the suite makes all of it whole."""
    code = program.wait(timeout=200)
    said = (folder / "said").read_text().splitlines()
    # One that had ended already has nothing to be interrupted in.
    right = code in codes or (code == 0 and len(_acknowledged(folder)) == trials)
    options = RunOptions(results=folder / "results", data=folder)
    acknowledged = _acknowledged(folder)
    loaded = load_suite(str(folder / "suite.toml"))
    kept = keys_of(folder / "results" / "records" / f"{loaded.name}.jsonl")
    records = run_suite(loaded, options, Silent())
    right = right and len(records) == trials and all(record.outcome is Outcome.OK for record in records)
    right = right and "Traceback (most recent call last):" not in said
    lines = trial_store(options.results, loaded.name).read()
    twice = len(lines) - len({record.key for record in lines})
    lost = len(acknowledged - kept) + len(acknowledged - {record.key for record in lines})
    words = f"exit {code}, {len(acknowledged)} acknowledged, {twice} run twice; {' | '.join(said[-1:])}"
    return Seen(words, right and not twice, lost=lost)
