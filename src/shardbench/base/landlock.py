"""Landlock, by which the kernel keeps folders out of a process's reach (Linux 5.13 and later; it needs no rights)."""

import ctypes
import os
import stat
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ASK_VERSION, _PATH_BENEATH = 1, 1
_NO_NEW_PRIVILEGES = 38
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
# Bits 4 to 12: remove and make entries.
_CHANGE_FOLDER = sum(1 << bit for bit in range(4, 13))
_MOVE = 1 << 13
_SIGNALS, _ABSTRACT_SOCKETS = 1 << 1, 1 << 0
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_TCP = 1 << 0 | 1 << 1
_MOVES_SINCE, _TRUNCATES_SINCE, _TCP_SINCE, _SCOPED_SINCE = 2, 3, 4, 6
DEVICES = Path("/dev")
_confined = False


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def version() -> int:
    """Return the version of the kernel's Landlock; 0 where it has none, or does not let this process use it."""
    if sys.platform != "linux":
        return 0
    found = _libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_ASK_VERSION))
    return max(int(found), 0)


def confine(closed: Iterable[Path], writable: Iterable[Path], *, signals: bool = False) -> bool:
    """Let this thread, and what it starts, read nothing under ``closed`` and write only under ``writable`` from now on.

    Devices can be written too, but no disks; memory of processes outside cannot be read; there is no TCP (since
    version 4) and, unless ``signals`` says otherwise, no signal reaches processes outside (since version 6). It cannot
    be undone. Returns whether the kernel does it; raises OSError where it should but does not.
    """
    global _confined
    known = version()
    if not known:
        return False
    changes = _WRITE_FILE | _CHANGE_FOLDER | (_MOVE if known > 1 else 0) | (_TRUNCATE if known > 2 else 0)
    handled = _READ | changes
    scoped = _ABSTRACT_SOCKETS | (0 if signals else _SIGNALS) if known >= _SCOPED_SINCE else 0
    rules = _Ruleset(handled, _TCP if known >= _TCP_SINCE else 0, scoped)
    # The kernel refuses a structure with more in it than it knows, unless that is zero.
    ruleset = _called(_CREATE_RULESET, ctypes.byref(rules), ctypes.c_size_t(ctypes.sizeof(rules)), ctypes.c_uint32(0))
    try:
        for path in _open_beside({folder.resolve() for folder in closed} | {DEVICES}):
            _allow(ruleset, path, _READ)
        for path in (*_devices(), *writable):
            _allow(ruleset, path, handled)
        if _libc().prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "no new privileges")
        _called(_RESTRICT_SELF, ctypes.c_int(ruleset), ctypes.c_uint32(0))
    finally:
        os.close(ruleset)
    _confined = True
    return True


def confined() -> bool:
    """Say whether this process has confined itself."""
    return _confined


def _open_beside(closed: set[Path], folder: Path = Path("/")) -> Iterator[Path]:
    """Yield what stays readable: whatever lies beside the closed folders on the way to them, links left out."""
    if folder in closed:
        return
    if not any(folder in path.parents for path in closed):
        yield folder
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.is_symlink():
                yield from _open_beside(closed, folder / entry.name)


def _devices() -> Iterator[Path]:
    with os.scandir(DEVICES) as entries:
        for entry in entries:
            if not entry.is_symlink() and not stat.S_ISBLK(entry.stat(follow_symlinks=False).st_mode):
                yield Path(entry.path)


def _allow(ruleset: int, path: Path, rights: int) -> None:
    try:
        handle = os.open(path, os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW)
    except (FileNotFoundError, PermissionError):
        # Gone meanwhile, or not this user's in the first place.
        return
    try:
        mode = os.fstat(handle).st_mode
        if not stat.S_ISLNK(mode):
            beneath = _Beneath(rights if stat.S_ISDIR(mode) else rights & _OF_FILES, handle)
            _called(
                _ADD_RULE, ctypes.c_int(ruleset), ctypes.c_int(_PATH_BENEATH), ctypes.byref(beneath), ctypes.c_uint32(0)
            )
    finally:
        os.close(handle)


def _called(number: int, *arguments: object) -> int:
    found = int(_libc().syscall(number, *arguments))
    if found < 0:
        error = ctypes.get_errno()
        raise OSError(error, f"Landlock: {os.strerror(error)}")
    return found


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
