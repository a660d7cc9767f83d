"""Which rank is at fault, of several that ended badly or stand still, and what became of a process that was killed.

When one rank ends, its peers lose their connections to it and say so, often before it is known to have ended: such a
report is the last to be believed.
"""

import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path

import pydantic

from shardbench.base.errors import BadInput
from shardbench.base.reading import line_of
from shardbench.engine.processes.failures import too_little_memory
from shardbench.engine.processes.job import RankError
from shardbench.engine.processes.trial_folder import REFUSED, phase_of, progress_of, read_result
from shardbench.records.trial import Failure, Outcome

_LOST_PEER = re.compile(
    r"connection (was )?(closed|reset|refused|aborted)|connect(ing)? .*(failed|refused|timed out)|broken pipe|"
    r"closed by peer|timed out waiting|socket timeout|read error|write error|gloo|nccl.*(remote|abort)|"
    r"recvvalue failed|store.*(timeout|broken)",
    re.IGNORECASE,
)
"""What gloo, NCCL and the rendezvous say of a rank that is gone."""

_STARVED = {
    -signal.SIGABRT: ("std::bad_alloc", "terminate called without an active exception"),
    127: ("cannot allocate memory",),
}
"""What the runtimes of C++ and C print when they end a process that got no memory, by its exit code.

The second is what is said where there was none for a thread beside others that had begun.
"""
_END_BYTES = 1 << 14

LOOK_S = 0.5
"""How long a rank is looked at to see whether it goes on."""


def lost_peer(failure: Failure) -> bool:
    """Tell whether a rank's report only says that another one is gone."""
    # What is raised on purpose names what is to be done, such as a setting of gloo.
    lost = not failure.cause.startswith(BadInput.__name__) and _LOST_PEER.search(failure.cause)
    return failure.outcome is Outcome.ERROR and bool(lost)


def oom_kills() -> int | None:
    """Count what the kernel's out-of-memory killer ended on this machine and in this control group.

    None where the system has no such counters. With it a kill can be told from any other.
    """
    group = line_of(Path("/proc/self/cgroup"), "0::")
    own = Path("/sys/fs/cgroup", group.lstrip("/"), "memory.events") if group is not None else None
    counters = [Path("/proc/vmstat"), *([own] if own is not None else [])]
    counts = [int(count) for path in counters if (count := line_of(path, "oom_kill "))]
    return sum(counts) if counts else None


def died(exit_code: int | None, phase: str, rank: int | None, kills: int | None, log: Path | None = None) -> Failure:
    """Return the failure of a process that left no report.

    ``kills`` are the ``oom_kills`` when it began; ``log`` is what it printed.
    """
    who = f"rank {rank}" if rank is not None else "the process"
    how, outcome = f"exited with {exit_code}", Outcome.ERROR
    if exit_code is not None and exit_code < 0:
        how = f"was killed by signal {-exit_code}"
    if exit_code == -signal.SIGKILL:
        now = oom_kills()
        # Where nobody counts, an unexplained SIGKILL is taken for the out-of-memory killer's.
        full = kills is None or now is None or now > kills
        outcome = Outcome.OOM if full else Outcome.ERROR
        how += "" if full else " (not by the kernel for want of memory)"
    elif starved := [words for words in _STARVED.get(exit_code or 0, ()) if words.encode() in _end(log)]:
        how, outcome = f"{how} for want of memory ({starved[0]})", Outcome.OOM
    elif exit_code in _STARVED and (limited := too_little_memory()):
        # Runtimes end a process without these words, too, where a thread gets no memory.
        return Failure(outcome=Outcome.OOM, cause=f"{who} {how} in phase {phase}; {limited}", phase=phase, rank=rank)
    return Failure(outcome=outcome, cause=f"{who} {how} in phase {phase}", phase=phase, rank=rank)


def _end(log: Path | None) -> bytes:
    """Return the last of what a process printed."""
    if log is None or not log.is_file():
        return b""
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - _END_BYTES, 0))
        return file.read(_END_BYTES)


def without_result(folder: Path, rank: int) -> Failure | None:
    """Return the failure of a rank that ended as if all were well; None where it left a result that can be read."""
    path, phase = folder / f"rank{rank}.json", phase_of(folder, rank)
    remains = "no result"
    if path.is_file():
        try:
            if read_result(path).rank == rank:
                return None
            remains = "the result of another rank"
        except BadInput as error:
            remains = f"a broken result: {error}"
    cause = f"rank {rank} exited with 0 in phase {phase} and left {remains}"
    return Failure(outcome=Outcome.ERROR, cause=cause, phase=phase, rank=rank)


def removed(folder: Path) -> Failure:
    """Return the failure of ranks whose folder was taken away, whatever they say of it."""
    cause = f"the job folder {folder.name} was removed while its ranks ran: leave it until they end, and run it again"
    return Failure(outcome=Outcome.ERROR, cause=cause, phase="harness")


def fault(folder: Path, codes: Mapping[int, int | None], kills: int | None) -> tuple[Failure, bool]:
    """Return the failure of ranks whose exit codes are these (None: still running), and whether it is sure.

    ``kills`` are the ``oom_kills`` when they began. It is the earliest report that is more than a lost peer; then who
    was killed by a signal; then who ended as if all were well and left no result, or a broken one; then who ended
    without a report; else the earliest report, of which it is not sure that no other rank has more to say.
    """
    exit_codes = {rank: code for rank, code in codes.items() if code not in (None, 0)}
    killed = [rank for rank, code in exit_codes.items() if code is not None and code < 0]
    reports = sorted(
        (path.stat().st_mtime_ns, rank, path)
        for rank in exit_codes
        if (path := folder / f"rank{rank}.error.json").is_file()
    )
    failures = [_read(path, rank) for _, rank, path in reports]
    causes = [failure for failure in failures if not lost_peer(failure)]
    if causes:
        return causes[0], True
    if killed:
        return _died(folder, killed[0], exit_codes, kills), True
    broken = [failure for rank, code in codes.items() if code == 0 and (failure := without_result(folder, rank))]
    if broken:
        return broken[0], True
    reporters = {rank for _, rank, _ in reports}
    # Who found what a peer had left before it began has nothing to say.
    silent = sorted(
        rank for rank, code in exit_codes.items() if rank not in reporters and not (reporters and code == REFUSED)
    )
    if silent:
        return _died(folder, silent[0], exit_codes, kills), True
    return failures[0], False


def _died(folder: Path, rank: int, codes: Mapping[int, int | None], kills: int | None) -> Failure:
    return died(codes[rank], phase_of(folder, rank), rank, kills, folder / f"rank{rank}.log")


def _read(path: Path, rank: int) -> Failure:
    try:
        return RankError.model_validate_json(path.read_bytes()).failure
    except pydantic.ValidationError:
        phase = phase_of(path.parent, rank)
        cause = f"rank {rank} ended in phase {phase}; what it says of it in {path.name} cannot be read"
        return Failure(outcome=Outcome.ERROR, cause=cause, phase=phase, rank=rank)


def stalled(folder: Path, running: Mapping[int, int | None], timeout_s: float) -> Failure:
    """Return the failure of ranks (with their process ids) that did not end: it names who is stopped, or got least far.

    No rank is to blame where all go on, or several stand at one point.
    """
    before = {rank: progress_of(folder, rank) for rank in running}
    time.sleep(LOOK_S)
    after = {rank: progress_of(folder, rank) for rank in running}
    where = {rank: phase_of(folder, rank) for rank in running}
    stand = [rank for rank in running if after[rank] == before[rank]]
    stopped = [rank for rank, pid in running.items() if pid is not None and _is_stopped(pid)]
    least = [rank for rank in stand if after[rank] == min(after[one] for one in stand)]
    rank = stopped[0] if stopped else least[0] if len(least) == 1 else None
    places = ", ".join(f"rank {one} {phase} (stamp {after[one]})" for one, phase in sorted(where.items()))
    cause = f"no result after {timeout_s:g} s; ranks still in: {places}"
    if stopped:
        cause += f"; rank {rank} is stopped"
    elif not stand:
        cause += "; all go on: slow, not stuck"
    limited = too_little_memory()
    if limited:
        cause += f"; {limited}"
    phase = where[rank if rank is not None else min(where)]
    return Failure(outcome=Outcome.TIMEOUT, cause=cause, phase=phase, rank=rank)


def _is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (FileNotFoundError, ProcessLookupError):
        return False
