"""Processes as /proc lists them."""

from pathlib import Path


def state_of(pid: int) -> tuple[str, int] | None:
    """The state letter of a process and its parent; None where there is no such process."""
    try:
        state, parent, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split(maxsplit=2)
    except (FileNotFoundError, ProcessLookupError):
        return None
    return state, int(parent)


def descendants(of: int) -> list[int]:
    """The processes below one, with ended ones that nobody waited for."""
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    parents = {pid: stat[1] for pid in pids if (stat := state_of(pid)) is not None}
    found, below = [], {of}
    while below:
        below = {pid for pid, parent in parents.items() if parent in below}
        found += sorted(below)
    return found


def seen_from_here(number: int, of: int) -> int | None:
    """The process below ``of`` that has this number in its own namespace; None where there is none."""
    for pid in descendants(of):
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        (numbers,) = [line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")]
        if int(numbers[-1]) == number:
            return pid
    return None
