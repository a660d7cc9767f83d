"""Strategies that reach for other processes: they look, send signal 0, or set what is set already."""

import contextlib
import ctypes
import mmap
import os
import resource
from collections.abc import Callable
from pathlib import Path

from impostors import GotThroughError
from impostors_keeping import checked
from impostors_reaching import Reaching

from shardbench.model.problem import Problem

_LIBC = ctypes.CDLL(None, use_errno=True)
_NUMBERS = range(2, 1 << 15)
_SEIZE = 0x4206
_NO_RESERVE = 0x4000


def own() -> set[int]:
    """Numbers of this process, its threads, its parent and the first process."""
    return {0, 1, os.getpid(), os.getppid(), *(int(path.name) for path in Path("/proc/self/task").iterdir())}


class ReachesOthers(Reaching):
    """Does something to every process there is but its own."""

    def touch(self, pid: int) -> object:
        """Raise OSError where that is not possible."""
        raise NotImplementedError

    def reach(self, problem: Problem) -> None:
        known = own()
        for pid in _NUMBERS:
            if pid not in known:
                with contextlib.suppress(ProcessLookupError):
                    self.touch(pid)
                    raise GotThroughError(f"process {pid} is not its own")


class SignalsOthers(ReachesOthers):
    def touch(self, pid: int) -> object:
        os.kill(pid, 0)


class LimitsOthers(ReachesOthers):
    def touch(self, pid: int) -> object:
        limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)


class PinsOthers(ReachesOthers):
    def touch(self, pid: int) -> object:
        os.sched_setaffinity(pid, os.sched_getaffinity(pid))


class RanksOthers(ReachesOthers):
    def touch(self, pid: int) -> object:
        os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid))


class TracesOthers(ReachesOthers):
    def touch(self, pid: int) -> object:
        checked(_LIBC.ptrace(_SEIZE, pid, None, None))


class ListsProcesses(Reaching):
    def reach(self, problem: Problem) -> None:
        others = {int(path.name) for path in Path("/proc").glob("[0-9]*")} - own()
        if others:
            raise GotThroughError(f"{len(others)} processes are there")


class ReadsOfOthers(Reaching):
    """Opens the environment, folders, files and memory of whatever process is there beside its own."""

    def reach(self, problem: Problem) -> None:
        looks: tuple[Callable[[Path], object], ...] = (
            lambda process: (process / "environ").read_bytes(),
            lambda process: (process / "cwd").readlink(),
            lambda process: (process / "root").readlink(),
            lambda process: list((process / "fd").iterdir()),
            lambda process: (process / "mem").open("rb").close(),
        )
        for process in Path("/proc").glob("[0-9]*"):
            if int(process.name) not in own():
                for look in looks:
                    with contextlib.suppress(OSError):
                        look(process)
                        raise GotThroughError(f"{process} can be read")


class SignalsEverybody(Reaching):
    def reach(self, problem: Problem) -> None:
        os.kill(-1, 0)


class RenicesItsUser(ListsProcesses):
    """Ranks all processes of its user one behind itself, where they are its own; the kernel does not say which were."""

    def reach(self, problem: Problem) -> None:
        super().reach(problem)
        os.setpriority(os.PRIO_USER, os.getuid(), os.getpriority(os.PRIO_PROCESS, 0) + 1)


class TracesItsParent(Reaching):
    """The first process of its namespace has nothing that it has not."""

    def reach(self, problem: Problem) -> None:
        with contextlib.suppress(PermissionError):
            checked(_LIBC.ptrace(_SEIZE, os.getppid(), None, None))
        parent = Path(f"/proc/{os.getppid()}")
        with contextlib.suppress(PermissionError):
            files = {str(path.readlink()) for path in (parent / "fd").iterdir()}
            mine = {str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.exists()}
            others = {name for name in files - mine if not name.startswith("anon_inode:")}
            if others:
                raise GotThroughError(f"its parent has {others}")


class LowersItsScore(Reaching):
    """Others are to go before it where memory runs out."""

    def reach(self, problem: Problem) -> None:
        with Path("/proc/self/oom_score_adj").open("r+") as file:
            score = int(file.read())
            file.write(str(score - 1))


class LiftsTheLimitOfFiles(Reaching):
    def reach(self, problem: Problem) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


class WritesAHugeFile(Reaching):
    def reach(self, problem: Problem) -> None:
        path = Path(os.environ["TMPDIR"], "huge")
        path.touch()
        try:
            os.truncate(path, 1 << 31)
        finally:
            path.unlink()


class PrintsWithoutEnd(Reaching):
    """Begins shortly before the end of what it may print."""

    def reach(self, problem: Problem) -> None:
        os.ftruncate(1, (1 << 30) - 100)
        while True:
            os.write(1, b"and so on\n" * 100)


class TakesMemoryInSeveralProcesses(Reaching):
    """Each asks for all that the machine has, and touches none of it."""

    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE

    def reach(self, problem: Problem) -> None:
        children = [_forked(lambda: mmap.mmap(-1, _memory_bytes(), self.flags)) for _ in range(4)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        if 0 in codes:
            raise GotThroughError("one of them got it")
        raise MemoryError("none of them got it")


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _forked(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        with contextlib.suppress(OSError):
            work()
            code = 0
        os._exit(code)
    return child


class MapsSharedMemory(TakesMemoryInSeveralProcesses):
    """Memory that processes share is not theirs in the kernel's books."""

    flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _NO_RESERVE

    def reach(self, problem: Problem) -> None:
        mmap.mmap(-1, _memory_bytes(), self.flags).close()
