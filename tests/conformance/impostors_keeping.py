"""Strategies that leave something for their next process, and look for what an earlier one left.

Each fails as nobody expects where it finds it. What is left is a byte or a name, and taken away where it is found.
"""

import contextlib
import ctypes
import fcntl
import os
import pwd
import socket
import tempfile
import time
from pathlib import Path

from impostors import GotThroughError
from impostors_reaching import Reaching

import shardbench
from shardbench.model.problem import Problem

_LEFT: set[str] = set()
"""Those that left something in this process."""
_KEY = 0x5AD0031
_CREATE = 0o1600
_LOOK = 0
_LIBC = ctypes.CDLL(None, use_errno=True)
_USERS_KEYRING = -4
_CALLS = {"x86_64": (248, 250), "aarch64": (217, 219)}.get(os.uname().machine, (-1, -1))


class Keeps(Reaching):
    """Knows in its next process that it was there before."""

    def found(self) -> bool:
        """Tell whether something is there; it is taken away."""
        raise NotImplementedError

    def leave(self) -> None:
        """Leave it; raises OSError."""
        raise NotImplementedError

    def reach(self, problem: Problem) -> None:
        if type(self).__name__ in _LEFT:
            return
        if self.found():
            raise GotThroughError("it was here before")
        _LEFT.add(type(self).__name__)
        self.leave()


def checked(result: int) -> int:
    """What a call of the C library gave, where that is no error; raises OSError."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


class KeepsAFile(Keeps):
    def place(self) -> Path:
        """Say where."""
        return Path(tempfile.gettempdir(), "impostor")

    def found(self) -> bool:
        with contextlib.suppress(FileNotFoundError):
            self.place().unlink()
            return True
        return False

    def leave(self) -> None:
        self.place().write_text("seen")


class KeepsAFileInSharedMemory(KeepsAFile):
    def place(self) -> Path:
        return Path("/dev/shm/impostor")


class KeepsAFileAtHome(KeepsAFile):
    def place(self) -> Path:
        return Path.home() / ".impostor"


class KeepsAFileAtTheUsersHome(KeepsAFile):
    def place(self) -> Path:
        return Path(pwd.getpwuid(os.getuid()).pw_dir, ".impostor")


class KeepsAFileInThePackage(KeepsAFile):
    def place(self) -> Path:
        return Path(shardbench.__file__).parent / ".impostor"


class KeepsBytecode(KeepsAFile):
    def place(self) -> Path:
        return Path(shardbench.__file__).parent / "__pycache__" / "impostor.pyc"


class KeepsTheTimeOfAFile(Keeps):
    def found(self) -> bool:
        return False

    def leave(self) -> None:
        place = Path(shardbench.__file__)
        os.utime(place, ns=(place.stat().st_atime_ns, place.stat().st_mtime_ns))


class KeepsTheEnvironment(Keeps):
    def found(self) -> bool:
        return "SHARDBENCH_IMPOSTOR" in os.environ

    def leave(self) -> None:
        os.environ["SHARDBENCH_IMPOSTOR"] = "seen"


class KeepsItsLog(Keeps):
    """Opens the file that it prints to for reading."""

    def found(self) -> bool:
        return "the impostor was here" in Path("/proc/self/fd/1").read_text()

    def leave(self) -> None:
        os.write(1, b"the impostor was here\n")


class KeepsSystemVMemory(Keeps):
    def found(self) -> bool:
        return _taken(_LIBC.shmget(_KEY, 0, _LOOK), _LIBC.shmctl)

    def leave(self) -> None:
        checked(_LIBC.shmget(_KEY, 64, _CREATE))


class KeepsASystemVQueue(Keeps):
    def found(self) -> bool:
        return _taken(_LIBC.msgget(_KEY, _LOOK), _LIBC.msgctl)

    def leave(self) -> None:
        checked(_LIBC.msgget(_KEY, _CREATE))


class KeepsASystemVSemaphore(Keeps):
    def found(self) -> bool:
        return _taken(_LIBC.semget(_KEY, 0, _LOOK), lambda number, command, _: _LIBC.semctl(number, 0, command))

    def leave(self) -> None:
        checked(_LIBC.semget(_KEY, 1, _CREATE))


def _taken(number: int, control) -> bool:
    return number >= 0 and control(number, 0, None) == 0


class KeepsAMessageQueue(Keeps):
    def found(self) -> bool:
        return _LIBC.mq_unlink(b"/impostor") == 0

    def leave(self) -> None:
        os.close(checked(_LIBC.mq_open(b"/impostor", os.O_CREAT | os.O_RDWR, 0o600, None)))


class KeepsASemaphore(Keeps):
    def found(self) -> bool:
        return _LIBC.sem_unlink(b"/impostor") == 0

    def leave(self) -> None:
        _LIBC.sem_open.restype = ctypes.c_void_p
        if not _LIBC.sem_open(b"/impostor", os.O_CREAT, 0o600, 1):
            raise OSError(ctypes.get_errno(), "sem_open")


class KeepsAKey(Keeps):
    """In the keyring of its user, which each namespace of users has for itself."""

    def keyring(self) -> int:
        return _USERS_KEYRING

    def found(self) -> bool:
        key = _LIBC.syscall(_CALLS[1], 10, self.keyring(), b"user", b"impostor", 0)
        return key >= 0 and _LIBC.syscall(_CALLS[1], 9, key, self.keyring()) == 0

    def leave(self) -> None:
        checked(_LIBC.syscall(_CALLS[0], b"user", b"impostor", b"x", 1, self.keyring()))


class KeepsAKeyByNumber(KeepsAKey):
    """In that of the namespace around its own, whose number the kernel tells everybody."""

    def keyring(self) -> int:
        for line in Path("/proc/keys").read_text().splitlines():
            if f"_uid.{os.getuid()}:" in line:
                return int(line.split()[0], 16)
        return _USERS_KEYRING


class KeepsAProcess(Keeps):
    """Leaves one of a session of its own, which would end by itself after a while."""

    many = 1

    def found(self) -> bool:
        return any(_name(folder) == b"impostor" for folder in Path("/proc").glob("[0-9]*"))

    def leave(self) -> None:
        for _ in range(self.many):
            if os.fork() == 0:
                os.setsid()
                _LIBC.prctl(15, b"impostor", 0, 0, 0)
                self.stay()
                os._exit(0)

    def stay(self) -> None:
        time.sleep(30.0)


def _name(folder: Path) -> bytes:
    with contextlib.suppress(OSError):
        return (folder / "comm").read_bytes().strip()
    return b""


class KeepsProcesses(KeepsAProcess):
    """Leaves 64 of them, each the parent of the next."""

    def stay(self) -> None:
        for _ in range(63):
            if os.fork():
                break
        time.sleep(30.0)


class KeepsAnAbstractSocket(KeepsAProcess):
    """Leaves a process that answers by a name without a file."""

    def found(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(ConnectionRefusedError):
            connection.connect("\0impostor")
            return True
        return False

    def stay(self) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("\0impostor")
            listener.listen()
            time.sleep(30.0)


class TalksByLocks(Keeps):
    """Locks a file of the package, which processes of the same time could see."""

    def found(self) -> bool:
        return False

    def leave(self) -> None:
        with Path(shardbench.__file__).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
