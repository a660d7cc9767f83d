"""The wall behind which other people's strategies plan: bubblewrap, in whose namespaces only what they need is there.

Strategies of this repository are reviewed code and plan in plain processes. Where bubblewrap is not there, or cannot
start, other people's do so too, and their records say that they were unconfined.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

_PROGRAM = "bwrap"
_SPACE_SHARE = 0.2
"""Share of this machine's memory that the files of each of a process's own folders may take."""
_FILES = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/sys/devices/system",
    "/etc/ld.so.cache", "/etc/alternatives", "/etc/localtime", "/etc/passwd", "/etc/group",
)  # fmt: skip
"""What programs need of a system."""
_PACKAGES = ("site-packages", "dist-packages")
"""Names of folders of installed packages."""
PRIVATE = Path("/tmp")  # noqa: S108 - of its own
"""The folder that a process behind the wall writes to."""


class Kind(StrEnum):
    """What keeps planners of other people from what is not theirs."""

    BUBBLEWRAP = "bubblewrap"
    NAMESPACES = "namespaces"
    """Earlier records say so: the same calls of the kernel were made without bubblewrap."""
    UNCONFINED = "unconfined"
    """They are kept from nothing: bubblewrap is not there, or this kernel lets it make no namespaces."""


@cache
def kind() -> Kind:
    """Return what keeps them here; tried once a process."""
    if shutil.which(_PROGRAM) is None:
        return Kind.UNCONFINED
    trial = subprocess.run(Wall().around([sys.executable, "-I", "-S", "-c", ""]), capture_output=True, check=False)
    return Kind.BUBBLEWRAP if trial.returncode == 0 else Kind.UNCONFINED


@dataclass(frozen=True, kw_only=True)
class Wall:
    """What is seen behind it besides Python and the system's libraries."""

    shown: tuple[Path, ...] = ()
    """Files and folders that can be read."""
    hidden: tuple[Path, ...] = ()
    """Folders that are empty, should they lie below one that is shown; that of temporary files is always one."""

    def around(self, program: Sequence[str]) -> list[str]:
        """Return the command that runs a program behind the wall; it ends with the process that runs the command."""
        binds = [
            part
            for path in self.paths()
            for part in (
                ("--symlink", str(path.readlink()), str(path))
                if path.is_symlink()
                else ("--ro-bind", str(path), str(path))
            )
        ]
        empty_folders = [part for path in self.covered() for part in ("--tmpfs", str(path), "--remount-ro", str(path))]
        return [
            _PROGRAM, "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session",
            "--cap-drop", "ALL",
            *_own(PRIVATE), "--proc", "/proc", "--dev", "/dev", *_own(Path("/dev/shm")), *binds, *empty_folders,  # noqa: S108
            "--remount-ro", "/proc", "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(PRIVATE),
            "--", *program,
        ]  # fmt: skip

    def paths(self) -> list[Path]:
        """Return all that is shown, parents first, each under every name that it goes by."""
        libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
        python = (sys.prefix, sys.base_prefix, sys.exec_prefix, *filter(None, libraries))
        # A user's own packages, and those of a cluster, may lie anywhere.
        python += tuple(path for path in sys.path if Path(path).name in _PACKAGES)
        sources = {Path(path) for path in (*_FILES, *python)} | set(self.shown)
        every = sorted({path for one in sources if one.exists() for path in (one.absolute(), one.resolve())})
        outermost: list[Path] = []
        for path in every:
            # What lies in a folder follows it at once.
            if not outermost or outermost[-1] not in path.parents:
                outermost.append(path)
        return outermost

    def covered(self) -> list[Path]:
        """Return the folders that must be emptied: they lie in what is shown."""
        visible_paths, hidden = set(self.paths()), (*self.hidden, Path(tempfile.gettempdir()))
        folders = sorted({path for one in hidden if one.is_dir() for path in (one.absolute(), one.resolve())})
        return [path for path in folders if path in visible_paths or visible_paths & set(path.parents)]


def _own(folder: Path) -> tuple[str, ...]:
    space = int(_SPACE_SHARE * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    return "--perms", "1777", "--size", str(space), "--tmpfs", str(folder)


def wall_around(shown: Sequence[Path], hidden: Sequence[Path]) -> Wall | None:
    """Return the wall with these folders, None where bubblewrap builds none here."""
    return Wall(shown=tuple(shown), hidden=tuple(hidden)) if kind() is Kind.BUBBLEWRAP else None
