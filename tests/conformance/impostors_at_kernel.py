"""Strategies that ask the kernel for what it gives to no planner: mounts, namespaces, devices, sockets.

What they ask for does nothing where it is given: a root folder that is one already, a mount of their own.
"""

import contextlib
import ctypes
import os
import socket
import stat
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from impostors import GotThroughError
from impostors_keeping import checked
from impostors_reaching import Reaching

import shardbench
import shardbench.baselines
from shardbench.model.problem import Problem

_LIBC = ctypes.CDLL(None, use_errno=True)
_X86 = os.uname().machine == "x86_64"
_PIVOT_ROOT, _OPEN_BY_HANDLE, _NAME_TO_HANDLE = (155, 304, 303) if _X86 else (41, 265, 264)
_RING = 425
_NEW_MOUNTS, _NEW_USER = 0x20000, 0x10000000
_DETACH, _REMOUNT, _BIND = 2, 32, 4096
UNIX_NAME = "shardbench-closed-socket"
"""Name of a socket that whoever tries impostors listens on."""


class AsksForAll(Reaching):
    """Asks for each of several things, and says why it was refused the last one."""

    def asked(self) -> tuple[Callable[[], object], ...]:
        """Return the questions; each raises OSError where it is refused."""
        raise NotImplementedError

    def reach(self, problem: Problem) -> None:
        refused = OSError("nothing was asked")
        for number, ask in enumerate(self.asked()):
            try:
                ask()
            except OSError as error:
                refused = error
            else:
                raise GotThroughError(f"question {number} was granted")
        raise refused


def opened(path: str | Path, mode: str = "r+b") -> Callable[[], object]:
    """Open a file, and write nothing."""
    return lambda: Path(path).open(mode).close()


class WritesSettings(AsksForAll):
    def asked(self) -> tuple[Callable[[], object], ...]:
        names = ("kernel/core_pattern", "kernel/hostname", "net/ipv4/ip_forward", "vm/overcommit_memory")
        return tuple(opened(Path("/proc/sys", name)) for name in names)


class PressesKeys(AsksForAll):
    def asked(self) -> tuple[Callable[[], object], ...]:
        return (opened("/proc/sysrq-trigger", "wb"),)


class UnmountsItsFolder(AsksForAll):
    def asked(self) -> tuple[Callable[[], object], ...]:
        return (lambda: checked(_LIBC.umount2(os.environ["TMPDIR"].encode(), _DETACH)),)


class RemountsForWriting(AsksForAll):
    def asked(self) -> tuple[Callable[[], object], ...]:
        folder = str(Path(shardbench.__file__).parent).encode()
        return (lambda: checked(_LIBC.mount(None, folder, None, _REMOUNT | _BIND, None)),)


class ChangesItsRoot(AsksForAll):
    def asked(self) -> tuple[Callable[[], object], ...]:
        return (
            lambda: os.chroot("/proc/1/root"),
            lambda: checked(_LIBC.syscall(_PIVOT_ROOT, b".", b".")),
        )


class EntersNamespaces(AsksForAll):
    def asked(self) -> tuple[Callable[[], object], ...]:
        return tuple(_entering(Path("/proc/1/ns", name)) for name in ("mnt", "pid", "net", "ipc", "uts"))


def _entering(path: Path) -> Callable[[], object]:
    def enter() -> None:
        with path.open() as file:
            checked(_LIBC.setns(file.fileno(), 0))

    return enter


class MakesADisk(AsksForAll):
    def asked(self) -> tuple[Callable[[], object], ...]:
        place = Path(os.environ["TMPDIR"], "disk")

        def make() -> None:
            os.mknod(place, stat.S_IFBLK | 0o600, os.makedev(8, 0))
            place.unlink()

        return (make,)


class OpensByHandle(AsksForAll):
    """Opens the root of the file system that a folder is of, by the number that it has on most."""

    def asked(self) -> tuple[Callable[[], object], ...]:
        return (root_by_handle,)


def root_by_handle() -> None:
    """Open it, and close it; raises OSError."""
    folder = os.open(Path(shardbench.__file__).parent, os.O_RDONLY)
    try:
        handle = ctypes.create_string_buffer(struct.pack("=IiII", 8, 1, 2, 0))
        os.close(checked(_LIBC.syscall(_OPEN_BY_HANDLE, folder, handle, os.O_RDONLY)))
    finally:
        os.close(folder)


class OpensRawSockets(AsksForAll):
    def asked(self) -> tuple[Callable[[], object], ...]:
        return (
            lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP).close(),
            lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close(),
        )


class SendsDatagrams(AsksForAll):
    def asked(self) -> tuple[Callable[[], object], ...]:
        return (lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"", ("192.0.2.1", 9)),)


class AsksForNames(Reaching):
    def reach(self, problem: Problem) -> None:
        socket.getaddrinfo("name.invalid", 80)


class CallsTheHypervisor(AsksForAll):
    def asked(self) -> tuple[Callable[[], object], ...]:
        return (lambda: socket.socket(socket.AF_VSOCK).close(),)


class UsesARingOfCalls(AsksForAll):
    """Calls that go through it are seen by no filter."""

    def asked(self) -> tuple[Callable[[], object], ...]:
        parameters = ctypes.create_string_buffer(120)
        return (lambda: os.close(checked(_LIBC.syscall(_RING, 1, parameters))),)


class ListsInterfaces(Reaching):
    """Asks by netlink which there are, and expects the one that every namespace has."""

    def reach(self, problem: Problem) -> None:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
            kernel.bind((0, 0))
            kernel.send(struct.pack("=IHHIIBxxxIII", 32, 18, 0x301, 1, 0, 0, 0, 0, 0))
            said = kernel.recv(1 << 16)
        links = 0
        while len(said) >= 16:
            size, kind = struct.unpack("=IH", said[:6])
            links += kind == 16
            said = said[size:]
        if links != 1:
            raise GotThroughError(f"{links} interfaces")


class ConnectsToSockets(Reaching):
    """Connects to every socket that the kernel lists: the fork server's, and names without files."""

    def reach(self, problem: Problem) -> None:
        for line in Path("/proc/net/unix").read_text().splitlines()[1:]:
            _, _, name = line.partition("/" if "/" in line else "@")
            address = f"/{name}" if "/" in line else f"\0{name}"
            if UNIX_NAME in name or "listener-" in name:
                with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
                    connection.connect(address)
                    raise GotThroughError(f"connected to {name}")


class MountsInNamespacesOfItsOwn(Reaching):
    """May do there what it likes; what is below its folders is not there either."""

    def reach(self, problem: Problem) -> None:
        child = os.fork()
        if child == 0:
            try:
                code = self.beyond()
            except OSError:
                code = 0
            finally:
                os._exit(code)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
            raise GotThroughError("there is something below its folders")

    def beyond(self) -> int:
        checked(_LIBC.unshare(_NEW_USER | _NEW_MOUNTS))
        folders = (Path("/tmp"), Path("/var/tmp"), Path("/"))
        before = [set(folder.iterdir()) for folder in folders if folder.exists()]
        for line in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
            _LIBC.umount2(line.split()[4].encode(), _DETACH)
        after = [set(folder.iterdir()) for folder in folders if folder.exists()]
        return int(any(later - earlier for earlier, later in zip(before, after)))


class OpensByHandleInNamespacesOfItsOwn(MountsInNamespacesOfItsOwn):
    def beyond(self) -> int:
        checked(_LIBC.unshare(_NEW_USER | _NEW_MOUNTS))
        root_by_handle()
        return 1


class ReopensItsDescriptors(Reaching):
    """Opens what it has once more, to read and to write; its log may be among it."""

    def reach(self, problem: Problem) -> None:
        log = os.fstat(1)
        for path in list(Path("/proc/self/fd").iterdir()):
            with contextlib.suppress(OSError), path.open("r+b", buffering=0) as file:
                found = os.fstat(file.fileno())
                others = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode) or stat.S_ISSOCK(found.st_mode)
                if others and not os.path.samestat(found, log):
                    raise GotThroughError(f"{path.readlink()} is open")


class EditsSitePackages(AsksForAll):
    def asked(self) -> tuple[Callable[[], object], ...]:
        place = Path(np.__file__)
        added = place.parents[1] / "impostor.pth"
        return opened(place), lambda: (added.touch(), added.unlink())


class EditsABaseline(AsksForAll):
    def asked(self) -> tuple[Callable[[], object], ...]:
        return (opened(next(Path(shardbench.baselines.__path__[0]).glob("*/__init__.py"))),)


class EditsPython(AsksForAll):
    def asked(self) -> tuple[Callable[[], object], ...]:
        return opened(sys.executable), opened(contextlib.__file__)
