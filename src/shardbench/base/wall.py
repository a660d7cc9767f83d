"""Processes in namespaces: what they do not need is not there, and what they start ends with them where the kernel can.

Bubblewrap builds the wall around somebody else's code where it is installed, else the same calls made here.
"""

import ctypes
import fcntl
import os
import platform
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

_NEW_MOUNTS, _NEW_USER, _NEW_PIDS = 0x20000, 0x10000000, 0x20000000
_NEW_REST = 0x4000000 | 0x8000000 | 0x40000000 | 0x2000000
"""Host name, System V memory and queues, network, control groups."""
_NO_SUID, _NO_DEVICES, _NO_EXEC, _BIND, _ALL_BELOW, _PRIVATE = 0x2, 0x4, 0x8, 0x1000, 0x4000, 0x40000
_ATTRIBUTES_BELOW, _READ_ONLY = 0x8000, 0x1
_DETACH = 2
_MOUNT_SETATTR = 442
_PDEATHSIG, _NO_NEW_PRIVILEGES, _DROP_BOUND = 1, 38, 24
_CAPABILITIES_3 = 0x20080522
_BUBBLEWRAP = "bwrap"
_SET_FILTER, _BY_PROGRAM = 22, 2
_CALLS = {
    # The kernel's number of the processor, and its numbers of socket, add_key, request_key, keyctl, io_uring_setup.
    "x86_64": (0xC000003E, 41, (248, 249, 250, 425)),
    "aarch64": (0xC00000B7, 198, (217, 218, 219, 425)),
}
"""Keyrings are found by number from any namespace; a ring of calls to be made would go by the filter of calls."""
_FAMILIES = (1, 2, 10, 16)
"""Sockets that network namespaces divide: Unix, both of the internet, and netlink."""
_SPACE_SHARE = 0.2
"""Share of this machine's memory that the files of each of a process's own folders may take."""
_FILES = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/sys/devices/system",
    "/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime", "/etc/passwd", "/etc/group",
)  # fmt: skip
"""What programs need of a system."""
_PACKAGES = ("site-packages", "dist-packages")
"""Names of folders of installed packages."""
_LOOK_MS = 50
"""How often a child is looked at where the system does not tell of its end."""
_ENDS_MS = 1000
"""How long a process has to end when those below it are gone."""
_DEVICES = ("null", "zero", "full", "random", "urandom")
PRIVATE = Path("/tmp")  # noqa: S108 - of its own
"""The folder that a process behind the wall writes to."""


class Kind(StrEnum):
    """What keeps planners from what is not theirs."""

    BUBBLEWRAP = "bubblewrap"
    NAMESPACES = "namespaces"
    UNCONFINED = "unconfined"
    """This kernel lets users make no namespaces, and nothing does."""


@cache
def kind() -> Kind:
    """Return what builds the wall here; tried once a process."""
    if sys.platform != "linux":
        return Kind.UNCONFINED
    if shutil.which(_BUBBLEWRAP):
        program, quiet = [sys.executable, "-I", "-S", "-c", ""], subprocess.DEVNULL
        if _bubblewrap(Wall(by=Kind.BUBBLEWRAP), program, (), stdout=quiet, stderr=quiet).wait() == 0:
            return Kind.BUBBLEWRAP
    # In a program of its own: beside threads a fork may find locks held.
    tried = [sys.executable, "-I", "-S", __file__]
    works = subprocess.run(tried, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0
    return Kind.NAMESPACES if works else Kind.UNCONFINED


@dataclass(frozen=True, kw_only=True)
class Wall:
    """What is seen behind it besides Python and the system's libraries."""

    shown: tuple[Path, ...] = ()
    """Files and folders that can be read."""
    hidden: tuple[Path, ...] = ()
    """Folders that are empty, should they lie below one that is shown."""
    by: Kind = field(default_factory=kind)

    def paths(self) -> list[Path]:
        """Return all that is shown, parents first, each under every name that it goes by."""
        libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
        python = (sys.prefix, sys.base_prefix, sys.exec_prefix, *filter(None, libraries))
        # A user's own packages, and those of a cluster, may lie anywhere.
        python += tuple(path for path in sys.path if Path(path).name in _PACKAGES)
        named = {Path(path) for path in (*_FILES, *python)} | set(self.shown)
        every = sorted({path for one in named if one.exists() for path in (one.absolute(), one.resolve())})
        kept: list[Path] = []
        for path in every:
            if not any(above in path.parents for above in kept):
                kept.append(path)
        return kept

    def covered(self) -> list[Path]:
        """Return the folders that must be emptied: they lie in what is shown."""
        shown = set(self.paths())
        named = sorted({path for one in self.hidden if one.is_dir() for path in (one.absolute(), one.resolve())})
        return [path for path in named if path in shown or shown & set(path.parents)]


def run(
    work: Callable[[], int | None],
    leash: int | None,
    wall: Wall | None = None,
    command: Sequence[str] = (),
    kept: Sequence[int] = (),
) -> int:
    """Do ``work`` in a process of its own and return its exit code: 128 more than its number where a signal ended it.

    That process, and all that it started where it has a namespace, ends at the latest when this one does or nobody
    holds the other end of the pipe ``leash``; where that is given, this process is there for nothing else, and closes
    its other files. Without ``wall`` it sees all that this process does. Behind one it has the standard streams and the
    files ``kept``, and ``command`` does the same as ``work`` where that takes a program of its own.
    """
    by = wall.by if wall is not None else Kind.UNCONFINED
    if wall is not None and by is Kind.BUBBLEWRAP:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        # Kept, for it would be waited for where it is dropped.
        started = _bubblewrap(wall, command, kept, env=environment)
        return _watched(started.pid, leash)

    def above() -> int:
        if wall is not None and by is Kind.NAMESPACES:
            paths, covered = wall.paths(), wall.covered()
            _unshare(_NEW_USER | _NEW_PIDS | _NEW_REST)
            return _watched(_forked(lambda: _first(work, lambda: _build(paths, covered, kept))), leash)
        prepare = _contained()
        return _watched(_forked(lambda: _first(work, prepare)), leash)

    # Only a process without other threads may leave its namespaces.
    child = _forked(above)
    if leash is not None:
        _close_all_but([leash])
    return _ended(child)


def _contained() -> Callable[[], None]:
    """Have the processes that are forked from here on end with the first of them, where the kernel can see to that."""
    # NCCL looks for its peers by the numbers of their processes.
    if sys.platform == "linux" and not Path("/dev/nvidiactl").exists():
        for flags in (_NEW_PIDS, _NEW_PIDS | _NEW_USER):
            with suppress(OSError):
                _unshare(flags)
                return _own_processes
    return lambda: None


def _forked(work: Callable[[], int | None]) -> int:
    """Fork a process that ends with this one, does the work and exits with the code that it gives; return its id."""
    for stream in (sys.stdout, sys.stderr):
        # Else both processes write what waits to be written.
        stream.flush()
    with warnings.catch_warnings():
        # Of a fork beside threads, whose work the child takes no part in.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        return child
    code = 1
    try:
        if sys.platform == "linux":
            _checked(_libc().prctl(_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
        code = work() or 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        # It is in the log, and in the exit code: a forked process must not go on where its parent does.
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def _watched(child: int, leash: int | None) -> int:
    """Wait until a child has ended, which it must when the leash is let go; return what to exit with."""
    # The ends of its pipes are the child's.
    _close_all_but([leash] if leash is not None else [])
    if leash is not None:
        poll = select.poll()
        poll.register(leash, select.POLLIN)
        told = hasattr(os, "pidfd_open")
        if told:
            poll.register(os.pidfd_open(child), select.POLLIN)
        while not (ready := poll.poll(None if told else _LOOK_MS)):
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                break
        if leash in [descriptor for descriptor, _ in ready]:
            poll.unregister(leash)
            # What is below it first, which it waits for and ends with: else the kernel forgets what that spent.
            for pid in children(child):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not (told and poll.poll(_ENDS_MS)):
                os.kill(child, signal.SIGKILL)
    return _ended(child)


def _first(work: Callable[[], int | None], prepare: Callable[[], None]) -> int:
    """Be the first process of a namespace, with whose end the kernel ends all others: the work is done below it."""

    def own() -> int | None:
        os.setsid()
        return work()

    prepare()
    child = _forked(own)
    _close_all_but([])
    return _ended(child, others=True)


def _ended(child: int, *, others: bool = False) -> int:
    """Wait for a child, and for ``others`` that fall to this process meanwhile; return what to exit with."""
    ended = 0
    while ended != child:
        ended, status = os.waitpid(-1 if others else child, 0)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def children(pid: int) -> list[int]:
    """Return the children of a process; none where the system does not tell."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def _own_mounts() -> None:
    # Not before there is a first process: who watches it must see it in a /proc of its own.
    _unshare(_NEW_MOUNTS)
    _mount(None, "/", None, _ALL_BELOW | _PRIVATE)


def _own_processes() -> None:
    _own_mounts()
    _mount("proc", "/proc", "proc", _NO_SUID | _NO_DEVICES | _NO_EXEC)


def _unshare(flags: int) -> None:
    user, group = os.geteuid(), os.getegid()
    _checked(_libc().unshare(flags), "unshare")
    if not flags & _NEW_USER:
        return
    Path("/proc/self/setgroups").write_text("deny")
    for name, number in (("uid_map", user), ("gid_map", group)):
        try:
            # All of them, so that who is root may look for what is shown in folders of other people.
            Path("/proc/self", name).write_text("0 0 4294967295" if user == 0 else f"{number} {number} 1")
        except PermissionError:
            Path("/proc/self", name).write_text(f"{number} {number} 1")


def _build(paths: Sequence[Path], covered: Sequence[Path], kept: Sequence[int]) -> None:
    """Put the process into a root folder that has only these paths, some of them emptied, and what it writes to."""
    _own_mounts()
    _mount("tmpfs", str(PRIVATE), "tmpfs", _NO_SUID | _NO_DEVICES, "mode=755")
    old = PRIVATE / "old"
    old.mkdir()
    _checked(_libc().pivot_root(bytes(PRIVATE), bytes(old)), "pivot_root")
    old = Path("/old")
    for own in (PRIVATE, Path("/dev"), Path("/dev/shm")):  # noqa: S108
        own.mkdir()
        _mount("tmpfs", str(own), "tmpfs", _NO_SUID | _NO_DEVICES, f"mode=1777,size={_space_bytes()}")
    Path("/proc").mkdir()
    _mount("proc", "/proc", "proc", _NO_SUID | _NO_DEVICES | _NO_EXEC)
    # Further namespaces would give capabilities again, if over nothing but themselves.
    Path("/proc/sys/user/max_user_namespaces").write_text("0")
    for path in (*paths, *(Path("/dev", name) for name in _DEVICES)):
        _show(old / path.relative_to("/"), path, devices=path.parent == Path("/dev"))
    for path in covered:
        _mount("tmpfs", str(path), "tmpfs", _NO_SUID | _NO_DEVICES, "mode=755")
        _set_attributes(path, _READ_ONLY)
    _checked(_libc().umount2(bytes(old), _DETACH), "umount")
    old.rmdir()
    for name in ("/", "/proc", "/dev"):
        _set_attributes(Path(name), _READ_ONLY, below=False)
    os.chdir(PRIVATE)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        # As bubblewrap does: processes behind the wall may talk to each other.
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sH14x", b"lo", 0x41))
    _give_up_capabilities()
    _refuse_calls()
    _close_all_but(kept)


def _space_bytes() -> int:
    return int(_SPACE_SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def _show(source: Path, target: Path, *, devices: bool) -> None:
    if target.exists() or target.is_symlink():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(source.readlink())
        return
    if source.is_dir():
        target.mkdir()
    else:
        target.touch()
    _mount(str(source), str(target), None, _BIND | _ALL_BELOW)
    _set_attributes(target, _READ_ONLY | _NO_SUID | (0 if devices else _NO_DEVICES))


def _set_attributes(path: Path, attributes: int, *, below: bool = True) -> None:
    asked = struct.pack("=QQQQ", attributes, 0, 0, 0)
    flags = _ATTRIBUTES_BELOW if below else 0
    done = _libc().syscall(_MOUNT_SETATTR, -100, bytes(path), flags, asked, ctypes.c_size_t(len(asked)))
    _checked(done, f"mount_setattr {path}")


def _give_up_capabilities() -> None:
    _checked(_libc().prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0), "prctl")
    number = 0
    while _libc().prctl(_DROP_BOUND, number, 0, 0, 0) == 0:
        number += 1
    _checked(_libc().capset(struct.pack("=II", _CAPABILITIES_3, 0), bytes(24)), "capset")


def _refuse_calls() -> None:
    program = _filter()
    held = ctypes.create_string_buffer(program, len(program))
    given = struct.pack("HP", len(program) // 8, ctypes.addressof(held))
    _checked(_libc().prctl(_SET_FILTER, _BY_PROGRAM, given, 0, 0), "prctl")


def _filter() -> bytes:
    """Return the program by which the kernel refuses calls that reach out of namespaces; it refuses none on others."""
    load, equal, give, refuse, allow = 0x20, 0x15, 0x06, 0x50001, 0x7FFF0000
    lines: list[tuple[int, int, int, int]] = []
    if platform.machine() in _CALLS:
        processor, socket_call, refused = _CALLS[platform.machine()]
        # Of calls for another processor, and those of x86 with short pointers, which have high numbers.
        lines = [(load, 0, 0, 4), (equal, 1, 0, processor), (give, 0, 0, refuse)]
        lines += [(load, 0, 0, 0), (0x35, 0, 1, 0x40000000), (give, 0, 0, refuse)]
        for call in refused:
            lines += [(equal, 0, 1, call), (give, 0, 0, refuse)]
        lines += [(equal, 0, len(_FAMILIES) + 2, socket_call), (load, 0, 0, 16)]
        lines += [(equal, len(_FAMILIES) - number, 0, family) for number, family in enumerate(_FAMILIES)]
        lines += [(give, 0, 0, refuse)]
    return b"".join(struct.pack("HBBI", *line) for line in (*lines, (give, 0, 0, allow)))


def _close_all_but(kept: Sequence[int]) -> None:
    low = 3
    for descriptor in (*sorted(kept), os.sysconf("SC_OPEN_MAX")):
        os.closerange(low, descriptor)
        low = descriptor + 1


def _bubblewrap(wall: Wall, command: Sequence[str], kept: Sequence[int], **options: Any) -> "subprocess.Popen[bytes]":
    """Start a program behind the wall that bubblewrap builds."""
    calls = os.memfd_create("calls")
    os.write(calls, _filter())
    os.lseek(calls, 0, os.SEEK_SET)
    arguments = [_BUBBLEWRAP, "--seccomp", str(calls), *_arguments(wall), *command]
    try:
        return subprocess.Popen(arguments, pass_fds=(*kept, calls), stdin=subprocess.DEVNULL, **options)
    finally:
        os.close(calls)


def _arguments(wall: Wall) -> list[str]:
    """Return the options by which bubblewrap builds the wall."""
    paths = wall.paths()
    shown = [
        part
        for path in paths
        for part in (
            ("--symlink", str(path.readlink()), str(path)) if path.is_symlink() else ("--ro-bind", str(path), str(path))
        )
    ]

    def own(folder: Path) -> tuple[str, ...]:
        return "--perms", "1777", "--size", str(_space_bytes()), "--tmpfs", str(folder)

    hidden = [part for path in wall.covered() for part in ("--tmpfs", str(path), "--remount-ro", str(path))]
    return [
        "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session",
        "--cap-drop", "ALL",
        *own(PRIVATE), "--proc", "/proc", "--dev", "/dev", *own(Path("/dev/shm")), *shown, *hidden,  # noqa: S108
        "--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(PRIVATE), "--",
    ]  # fmt: skip


def new_keyring() -> None:
    """Leave the keyring of the session, in which processes could leave notes for others."""
    if sys.platform == "linux":
        known = _CALLS.get(platform.machine())
        if known is not None:
            _libc().syscall(known[2][2], 1, None)


def _mount(source: str | None, target: str, kind_of: str | None, flags: int, options: str | None = None) -> None:
    given = [value.encode() if value is not None else None for value in (source, target, kind_of)]
    data = options.encode() if options is not None else None
    _checked(_libc().mount(*given, ctypes.c_ulong(flags), data), f"mount {target}")


def _checked(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


if __name__ == "__main__":
    sys.exit(run(lambda: 0, None, Wall(by=Kind.NAMESPACES)))
