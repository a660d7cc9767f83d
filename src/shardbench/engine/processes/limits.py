"""What a process that runs other people's code may take of this machine; to ask for more is an outcome."""

import resource
from pathlib import Path

MEMORY_SHARE = 0.8
"""Share of the free memory that a process may take: the harness must be able to go on and say what happened."""
FILE_BYTES = 1 << 30
"""Size of the largest file that a process may write, what it prints included."""
_STACK_BYTES = 8 << 20
_FIRST_TO_GO = "1000"


def limit_this_process(memory_bytes: int, file_bytes: int | None) -> None:
    """Refuse this process more than ``memory_bytes`` beyond what it has now, and files larger than ``file_bytes``.

    Processes that it starts have the same limits, each for itself. That of files cannot be lifted again.
    """
    _lower(resource.RLIMIT_DATA, _data_bytes() + memory_bytes)
    if file_bytes is not None:
        _lower(resource.RLIMIT_FSIZE, file_bytes)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.getrlimit(resource.RLIMIT_FSIZE)[0],) * 2)


def be_first_to_go() -> None:
    """Have this process and what it starts be what the kernel ends first where all together fill the machine."""
    score = Path("/proc/self/oom_score_adj")
    if score.is_file():
        score.write_text(_FIRST_TO_GO)


def lift_memory_limit() -> None:
    """Lift the limit of this process, which has little left to do but to say that it had no memory."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def at_memory_limit() -> bool:
    """Tell whether this process could not take as much more as the stack of a thread."""
    soft, _ = resource.getrlimit(resource.RLIMIT_DATA)
    return soft != resource.RLIM_INFINITY and _data_bytes() + _STACK_BYTES > soft


def _lower(kind: int, most: int) -> None:
    soft, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (min(most, soft) if soft != resource.RLIM_INFINITY else most, hard))


def _data_bytes() -> int:
    """Return the memory that this process asked for, touched or not: the kernel holds the limit against it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * 1024
    return 0
