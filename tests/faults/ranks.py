"""Faults of ranks: signals and limits from outside while real ranks run, and damage to what they read and leave."""

import os
import random
import resource
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp

from kept_folders import Silent
from process_table import descendants

from faults.case import Fault, Seen, expected, soon
from faults.suites import MEASURED, suite
from shardbench.base.errors import BadInput
from shardbench.engine.measure import gather, run_on_ranks
from shardbench.engine.processes.failures import TrialFailed
from shardbench.engine.processes.launch import lowest
from shardbench.records.trial import Failure, Outcome
from shardbench.trials.runner import RunOptions, run_suite

WORLD = 2
LIMIT_S = 150.0
SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGABRT)
DAMAGED_INPUTS = {
    "flipped batches": ("test batches in batches are damaged", "values"),
    "cut batches": ("test batches in batches are damaged", "values"),
    "no batches": ("test batches in batches are damaged", "values"),
    "flipped job": ("job|hash|test batches", "job"),
    "cut job": ("job.json", "job"),
}
"""What is damaged, what is said of it, and which file it is."""
DAMAGED_RESULTS = {
    "flipped": "digest|job.json|rank",
    "cut": "has no digest at its end",
    "gone": "left no result",
    "other": "is of rank",
}
LONG = 100_000
"""Iterations of a phase in which something is to happen."""
LENGTHS = {"start": (1, 3), "build": (1, 3), "warmup": (LONG, 3), "time": (1, LONG), "some": (1, 1000), "all": (1, 3),
           "wide": (1, 3)}  # fmt: skip
"""Steps of warm-up and timing of a job, by the phase that a fault happens in."""


def faults() -> Iterator[Fault]:
    """All of them."""
    for repeat in range(3):
        for phase in ("build", "warmup", "time"):
            for number in SIGNALS:
                yield Fault("rank", phase, f"{number.name} {repeat}", partial(_killed, phase, number))
    for repeat in range(2):
        for phase in ("build", "warmup", "time"):
            yield Fault("rank", phase, f"SIGSTOP {repeat}", partial(_stopped, phase))
    for repeat in range(6):
        yield Fault("rank", "build", f"no room {repeat}", _no_room)
        yield Fault("rank", "build", f"no memory {repeat}", _no_memory)
    for what in DAMAGED_INPUTS:
        yield Fault("rank", "start", what, partial(_damaged_input, what))
    for repeat in range(6):
        for what in DAMAGED_RESULTS:
            yield Fault("rank", "result", f"{what} {repeat}", partial(_damaged_result, what))


@cache
def _prepared(phase: str) -> Path:
    """The work folder of a trial whose ranks were not started."""
    folder = Path(mkdtemp(prefix="faults-ranks-", dir=os.environ["FAULTS_FOLDER"]))
    warmup, iterations = LENGTHS[phase]
    options = RunOptions(results=folder / "results", data=folder, work=folder / "work", launch=False)
    text = MEASURED.replace("dim = 8", "dim = 1024") if phase == "wide" else MEASURED
    run_suite(suite(folder, text, warmup=warmup, iterations=iterations), options, Silent())
    return folder / "work"


def trial_folder(folder: Path, phase: str) -> Path:
    """A copy of it, in which ranks can run; gives the trial's folder."""
    shutil.copytree(_prepared(phase), folder / "work")
    (job,) = folder.glob("work/*/*/job.json")
    return job.parent


@cache
def _ran() -> Path:
    """A work folder whose ranks ended well."""
    folder = Path(mkdtemp(prefix="faults-ran-", dir=os.environ["FAULTS_FOLDER"]))
    trial = trial_folder(folder, "all")
    run_on_ranks(trial, WORLD, LIMIT_S)
    gather(trial)
    return trial


def _outcome(trial: Path, limit_s: float = LIMIT_S) -> Failure | None:
    try:
        run_on_ranks(trial, WORLD, limit_s)
        gather(trial)
    except TrialFailed as error:
        return error.failure
    return None


def _pid(trial: Path, rank: int) -> int | None:
    """The process of a rank of this process: the one whose output goes to the rank's log."""
    for pid in descendants(os.getpid()):
        try:
            if Path(f"/proc/{pid}/fd/1").readlink() == trial / f"rank{rank}.log":
                return lowest(pid)
        except OSError:
            continue
    return None


def meanwhile(trial: Path, rank: int, phase: str, harm: Callable[[int], None], delay_s: float) -> Callable[[], bool]:
    """Do harm to a rank a moment after it says that it is in a phase; gives what tells whether that was done."""
    done = threading.Event()

    def watch() -> None:
        said = trial / f"rank{rank}.phase"
        if soon(lambda: said.is_file() and said.read_text() == phase, LIMIT_S):
            time.sleep(delay_s)
            pid = _pid(trial, rank)
            if pid is not None:
                harm(pid)
                done.set()

    threading.Thread(target=watch, daemon=True).start()
    return done.is_set


def _harmed(
    folder: Path, rng: random.Random, phase: str, harm: Callable[[int], None], *, limit_s: float = LIMIT_S,
    kind: str = "", latest_s: float = 0.05,
) -> tuple[Failure | None, int]:  # fmt: skip
    trial, rank = trial_folder(folder, kind or phase), rng.randrange(WORLD)
    done = meanwhile(trial, rank, phase, harm, rng.uniform(0.0, latest_s))
    failure = _outcome(trial, limit_s)
    if not done():
        raise RuntimeError(f"no rank {rank} in phase {phase} to harm: {failure}")
    return failure, rank


def _killed(phase: str, number: signal.Signals, folder: Path, rng: random.Random) -> Seen:
    failure, rank = _harmed(folder, rng, phase, lambda pid: os.kill(pid, number))
    return expected(failure, Outcome.ERROR, f"rank {rank} was killed by signal {number.value}", rank, phase)


def _stopped(phase: str, folder: Path, rng: random.Random) -> Seen:
    failure, rank = _harmed(folder, rng, phase, lambda pid: os.kill(pid, signal.SIGSTOP), limit_s=30.0)
    return expected(failure, Outcome.TIMEOUT, f"rank {rank} is stopped", rank, phase)


def _no_room(folder: Path, rng: random.Random) -> Seen:
    """The rank can write to no file any more: it cannot even say why."""
    failure, rank = _harmed(folder, rng, "build", lambda pid: _limit(pid, resource.RLIMIT_FSIZE, 0))
    return expected(failure, Outcome.ERROR, f"rank {rank} exited with 1|File too large", rank)


def _no_memory(folder: Path, rng: random.Random) -> Seen:
    """The rank gets no memory beyond what it has, when it needs some for its tables and threads."""

    def harm(pid: int) -> None:
        (line,) = [s for s in Path(f"/proc/{pid}/status").read_text().splitlines() if s.startswith("VmData:")]
        _limit(pid, resource.RLIMIT_DATA, 1024 * int(line.split()[1]))

    failure, rank = _harmed(folder, rng, "build", harm, kind="wide", latest_s=0.0)
    return expected(failure, Outcome.OOM, "", rank)


def _limit(pid: int, which: int, most: int) -> None:
    _, hard = resource.prlimit(pid, which)
    resource.prlimit(pid, which, (most, hard))


def _damaged_input(what: str, folder: Path, rng: random.Random) -> Seen:
    """Of what all ranks read: each of them says so, and any may be the first."""
    trial = trial_folder(folder, "all")
    values = trial.parent / "batches" / "0.values"
    cause, path = DAMAGED_INPUTS[what]
    _damage(what.split(maxsplit=1)[0], values if path == "values" else trial / "job.json", rng)
    try:
        failure = _outcome(trial)
    except BadInput as error:
        # The job is read before ranks are started, too.
        failure = Failure(outcome=Outcome.ERROR, cause=str(error), phase="start")
    return expected(failure, Outcome.ERROR, cause, phase="start")


def _damaged_result(what: str, folder: Path, rng: random.Random) -> Seen:
    """Of what one rank left, after all ended well."""
    shutil.copytree(_ran().parent, folder / "work")
    trial, rank = folder / "work" / _ran().name, rng.randrange(WORLD)
    path = trial / f"rank{rank}.json"
    if what == "other":
        shutil.copy(trial / f"rank{1 - rank}.json", path)
    else:
        _damage(what, path, rng)
    try:
        gather(trial)
    except TrialFailed as error:
        return expected(error.failure, Outcome.ERROR, DAMAGED_RESULTS[what], rank)
    return expected(None, Outcome.ERROR, "", rank)


def _damage(how: str, path: Path, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    if how == "no" or how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(data[: rng.randrange(len(data))])
    else:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
