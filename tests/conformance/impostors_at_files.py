"""Strategies that look for what lies around the program: other strategies' results, keys, history, logs."""

import os
import pwd
from collections.abc import Callable
from pathlib import Path

from impostors_at_kernel import AsksForAll

import shardbench
from shardbench.datasets.trace_file import BUILTIN

_CHECKOUT = Path(shardbench.__file__).parents[2]


def listed(*folders: Path) -> tuple[Callable[[], object], ...]:
    """List folders, each a question."""
    return tuple(lambda folder=folder: list(folder.iterdir()) for folder in folders)


def home() -> Path:
    """The home of who runs the program."""
    return Path(pwd.getpwuid(os.getuid()).pw_dir)


class ReadsOthersRecords(AsksForAll):
    def asked(self) -> tuple[Callable[[], object], ...]:
        return listed(_CHECKOUT / "results" / "records", Path.cwd() / "results" / "records")


class ReadsShippedLookups(AsksForAll):
    """Recorded lookups lie in the package: the second half of them is what some problems test on."""

    def asked(self) -> tuple[Callable[[], object], ...]:
        return tuple(BUILTIN[name].stat for name in sorted(BUILTIN))


class ReadsOthersPlans(AsksForAll):
    def asked(self) -> tuple[Callable[[], object], ...]:
        return listed(_CHECKOUT / "results" / "studies" / "leaderboard", _CHECKOUT / "results" / "plans")


class ReadsTheHistory(AsksForAll):
    def asked(self) -> tuple[Callable[[], object], ...]:
        return (_CHECKOUT / ".git" / "HEAD").lstat, (_CHECKOUT / ".git" / "config").lstat


class ReadsKeys(AsksForAll):
    def asked(self) -> tuple[Callable[[], object], ...]:
        return listed(home() / ".ssh" / ".", home() / ".gnupg" / ".")


class ReadsSettings(AsksForAll):
    def asked(self) -> tuple[Callable[[], object], ...]:
        return (home() / ".gitconfig").stat, (home() / ".config" / "git").stat


class ReadsPasswords(AsksForAll):
    def asked(self) -> tuple[Callable[[], object], ...]:
        return tuple(lambda name=name: Path("/etc", name).stat() for name in ("shadow", "hosts", "machine-id"))


class ReplacesItsLog(AsksForAll):
    """By a link to what whoever keeps the log may read, in its folder or where it is."""

    def asked(self) -> tuple[Callable[[], object], ...]:
        def replace() -> None:
            own = Path(os.environ["TMPDIR"], "log")
            own.unlink(missing_ok=True)
            own.symlink_to("/dev/null")
            log = Path("/proc/self/fd/1").readlink()
            log.rename(log.with_suffix(".before"))
            log.symlink_to("/dev/null")

        return (replace,)
