"""Source trees whose code is measured: the working tree, and a commit that is checked out beside it."""

import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


class Stopped(Exception):
    """Raised for what cannot be done, with one line that says what to do."""


@dataclass(frozen=True, kw_only=True)
class Tree:
    """A checkout, and the folder from which its packages are imported."""

    root: Path
    imports: Path


def linked(root: Path, imports: Path) -> Tree:
    """Return the tree at ``root``, with links in ``imports`` that lay its packages out as an installation does.

    An editable installation knows one tree only; what is found on the path comes before it.
    """
    folders = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    for package, folder in sorted(folders.items()):
        place = imports / package.replace(".", "/")
        if "." in package:
            place.symlink_to(root / folder, target_is_directory=True)
            continue
        place.mkdir(parents=True)
        for path in (root / folder).iterdir():
            if path.name != "__pycache__":
                (place / path.name).symlink_to(path, target_is_directory=path.is_dir())
    return Tree(root=root, imports=imports)


@contextmanager
def working_tree(root: Path) -> Iterator[Tree]:
    """Give the checkout as it is, with changes that are not committed."""
    with tempfile.TemporaryDirectory(prefix="regression-") as folder:
        yield linked(root, Path(folder))


@contextmanager
def checked_out(root: Path, commit: str) -> Iterator[Tree]:
    """Give a commit of the repository at ``root`` in a temporary worktree; raises Stopped where there is none."""
    full = commit_of(root, commit)
    with tempfile.TemporaryDirectory(prefix="regression-") as folder:
        place = Path(folder) / "tree"
        git(root, "worktree", "add", "--quiet", "--detach", str(place), full)
        try:
            yield linked(place, Path(folder) / "imports")
        finally:
            git(root, "worktree", "remove", "--force", str(place))


def commit_of(root: Path, name: str) -> str:
    """Return the commit of that name, 40 hex digits; raises Stopped where the repository has none."""
    try:
        return git(root, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    except Stopped as error:
        raise Stopped(f"the repository has no commit '{name}': fetch it, or name another with --base") from error


def git(root: Path, *arguments: str) -> str:
    """Return what git prints; raises Stopped with its own words where it fails."""
    process = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True, check=False)
    if process.returncode:
        raise Stopped(f"git {arguments[0]} failed: {' '.join(process.stderr.split())}")
    return process.stdout.strip()
