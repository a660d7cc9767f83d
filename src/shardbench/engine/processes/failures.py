"""Exceptions as outcomes of a trial: what went wrong, in one line, with the file and line of what raised.

A process that runs other people's code may take so much of this machine, and to ask for more is an outcome, too.
"""

import errno
import resource
from pathlib import Path
from types import TracebackType

from shardbench.base.errors import (
    Infeasible,
    InvalidPlan,
    ShardBenchError,
    Undeclared,
    Unsupported,
    described,
    one_line,
    text_of,
)
from shardbench.base.host import why_not_loaded
from shardbench.base.reading import line_of
from shardbench.records.trial import Failure, Outcome

_OUTCOMES: tuple[tuple[type[BaseException], Outcome], ...] = (
    (Infeasible, Outcome.INFEASIBLE),
    (InvalidPlan, Outcome.INVALID),
    (Undeclared, Outcome.INVALID),
    (Unsupported, Outcome.SKIPPED),
    (TimeoutError, Outcome.TIMEOUT),
)
_REFUSED = "resource temporarily unavailable"
_OUT_OF_MEMORY = ("can't allocate memory", "out of memory")
_NOT_MAPPED = "failed to map segment"
"""What the system's loader says of a library for which there is no memory."""
NEEDED_BYTES = 1 << 30
"""About the memory that a process with the engine asks for."""
LEAST_BYTES = NEEDED_BYTES // 2
"""Where there is less, libraries of numbers hang or abort, as they get no memory for a thread."""
LONGEST_CAUSE = 500
"""Characters of an exception's text that a record keeps."""
MEMORY_SHARE = 0.8
"""Share of the free memory that a process may take: the harness must be able to go on and say what happened."""
FILE_BYTES = 1 << 30
"""Size of the largest file that a process may write, what it prints included."""
_STACK_BYTES = 8 << 20
_FIRST_TO_GO = "1000"


class TrialFailed(ShardBenchError):
    """Something of a trial ended without a result; ``failure`` says how."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.outcome}: {failure.cause}")
        self.failure = failure


def failed(outcome: Outcome, cause: str, phase: str, rule: str | None = None) -> TrialFailed:
    """Return the exception to raise for a failure of these fields."""
    return TrialFailed(Failure(outcome=outcome, cause=cause, phase=phase, rule=rule))


def not_started(error: OSError | EOFError, phase: str) -> TrialFailed:
    """Return the exception to raise where no process could be started; a memory limit that is too low is named."""
    cause, outcome = f"no process could be started: {text_of(error) or type(error).__name__}", Outcome.ERROR
    limited = too_little_memory()
    if limited:
        cause, outcome = f"{cause}; {limited}", Outcome.OOM
    return failed(outcome, cause, phase)


def too_little_memory(enough_bytes: int = NEEDED_BYTES) -> str:
    """Say in one line that this process may take too little memory for the engine; empty where it may take enough."""
    limited = memory_limit_bytes()
    if limited is None or limited >= enough_bytes:
        return ""
    return (
        f"processes of this shell may take {limited >> 20} MiB each, ranks and planners need about "
        f"{NEEDED_BYTES >> 20}: raise the limit (ulimit -v, ulimit -d)"
    )


def memory_limit_bytes() -> int | None:
    """Return the memory that this process may ask for; None where nothing limits it."""
    soft = [resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return min((most for most in soft if most != resource.RLIM_INFINITY), default=None)


def out_of_memory(error: BaseException) -> bool:
    """Tell whether an exception says that a device or this machine had no memory."""
    # Torch's allocators, kernels of managed memory and NCCL say it in errors of other types.
    text = text_of(error).lower() if isinstance(error, RuntimeError) else ""
    # The system says of a thread's stack that gets no memory what it says of one thread too many.
    refused = _REFUSED in text and at_memory_limit()
    none = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)
    return refused or none or any(words in text for words in _OUT_OF_MEMORY) or _unmapped(error)


def _unmapped(error: BaseException) -> bool:
    """Tell whether there was no memory for a library; some libraries say something else, and give that as the cause."""
    chain = (error, error.__cause__, error.__context__)
    return isinstance(error, ImportError) and any(_NOT_MAPPED in str(one) for one in chain)


def failure_of(error: BaseException, phase: str, package: str = "") -> Failure:
    """Return the failure that an exception is, in one line.

    Its place is the innermost line in ``package`` (a module name with all below it). Errors that are
    not the suite's own have their type before and a place in any case: else that of what raised.
    """
    if isinstance(error, TrialFailed):
        return error.failure
    outcome = next((mapped for kind, mapped in _OUTCOMES if isinstance(error, kind)), Outcome.ERROR)
    if out_of_memory(error):
        outcome = Outcome.OOM
    text = one_line(text_of(error), LONGEST_CAUSE)
    rule = one_line(str(error.rule)) if isinstance(error, InvalidPlan | Undeclared) else None
    places = _places(error.__traceback__)
    inside = [place for module, place in places if package and f"{module}.".startswith(f"{package}.")]
    place = inside[-1] if inside else ""
    if not isinstance(error, ShardBenchError):
        text = why_not_loaded(error) or described(error, LONGEST_CAUSE)
        place = place or (places[-1][1] if places else "")
    if isinstance(error, ImportError) and outcome is Outcome.OOM and (limited := too_little_memory()):
        text += f"; {limited}"
    # A strategy that declines has nothing to mend.
    text += f" ({place})" if place and outcome is not Outcome.INFEASIBLE else ""
    return Failure(outcome=outcome, cause=text or outcome.value, phase=phase, rule=rule)


def _places(traceback: TracebackType | None) -> list[tuple[str, str]]:
    """Return module and ``file:line`` of every frame, the innermost last, without folders of this machine."""
    places: list[tuple[str, str]] = []
    while traceback is not None:
        code, module = traceback.tb_frame.f_code, str(traceback.tb_frame.f_globals.get("__name__", ""))
        name = Path(code.co_filename).name
        parents = module.split(".") if name == "__init__.py" else module.split(".")[:-1]
        places.append((module, f"{'/'.join([*parents, name])}:{traceback.tb_lineno}"))
        traceback = traceback.tb_next
    return places


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
    size = line_of(Path("/proc/self/status"), "VmData:")
    return int(size.split()[0]) * 1024 if size else 0
