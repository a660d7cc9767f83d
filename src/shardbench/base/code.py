"""The code that a number comes from: versions that a person raises, hashes of other people's files, and the commit.

Whoever changes what judges, or a strategy of this repository, so that a committed number moves, raises a version and
says in CHANGELOG.md which numbers moved: records of older versions are then made again. tests/test_versions.py fails
where a number moved under the same version. Of other people's packages nobody here knows that, so that their files
count as they are.
"""

import hashlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path

JUDGE_VERSION = 2
"""The version of all that a number goes through besides a strategy: counts, cost model, bounds, engine, data sets."""
PACKAGE = "shardbench"
BASELINES, DATASETS = f"{PACKAGE}.baselines", f"{PACKAGE}.datasets"
LEADERBOARD, DRIFT = f"{PACKAGE}.leaderboard", f"{PACKAGE}.drift"
COMMON = (DRIFT, LEADERBOARD)
"""Packages with studies of all strategies, which reproduce no paper."""
REPRODUCTION = "reproduction"
"""Subfolder of a baseline that compares its strategies but makes none of their plans."""

_ROOT = Path(__file__).resolve().parents[1]
_FOLDERS = ("baselines", "datasets", "drift", "leaderboard", "machines", "suites")
"""Parts of the package that lie in folders of their own."""
_NOT_CODE = frozenset({".md", ".rst", ".pyc"})
_MAIN = "__main__"


@cache
def checkout() -> tuple[str | None, bool | None]:
    """Return the commit of the checkout that this package lies in, and whether it ``differs``; read once a process."""
    commit = commit_here()
    return commit, differs() if commit else None


def commit_here() -> str | None:
    """Return the commit of the checkout that this package lies in, 40 hex digits; None where it is in none."""
    # A package in a virtual environment inside another project's checkout is not of that project.
    if _git("ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    output = _git("rev-parse", "HEAD")
    return output.strip() if output else None


def differs() -> bool | None:
    """Tell whether code, data sets, machines or suites differ from the commit, new files too; None without one."""
    specs = [_spec(f"{PACKAGE}.{name}") for name in _FOLDERS]
    varied = [Path(place).resolve() for spec in specs if spec for place in spec.submodule_search_locations or ()]
    changes = _git("status", "--porcelain", "--", *map(str, [_ROOT, *varied]))
    return bool(changes.strip()) if changes is not None else None


def last_commit(path: Path) -> tuple[str, datetime] | None:
    """Return hash and time of the last commit that changed a file; None where it was changed since or is in none."""
    if _git("status", "--porcelain", "--", str(path)) != "":
        return None
    line = _git("log", "-1", "--format=%H %cI", "--", str(path))
    if not line or not line.strip():
        return None
    commit, at = line.split()
    return commit, datetime.fromisoformat(at)


@cache
def files_hash(*modules: str) -> str | None:
    """Return the hash of the files of modules and packages, by their dotted names, in 16 hex digits.

    Prose and compiled files are left out. None where a module has no file to read, such as what was typed at a prompt.
    """
    digests = []
    for module in modules:
        files = _files(module)
        if not files:
            return None
        digests += [hashlib.sha256(path.read_bytes()).digest() for path in files]
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest()[:16]


def others_code(*modules: str) -> str | None:
    """Return the hash of the packages that modules belong to, and that are not this one; an empty word for none.

    None where there is no file to read.
    """
    others = _others(modules)
    return files_hash(*sorted(others)) if others else ""


def owner_of(module: str) -> str:
    """Return the package that a module's code belongs to: a baseline's folder, this package, or the top-level one."""
    parts = module.split(".")
    if parts[0] == PACKAGE:
        return ".".join(parts[:3]) if module.startswith(f"{BASELINES}.") else PACKAGE
    for end in range(1, len(parts)):
        spec = _spec(".".join(parts[:end]))
        # A namespace has no file of its own: what is in it may be other people's.
        if spec is not None and spec.origin is not None:
            return ".".join(parts[:end])
    return module


def _others(modules: Iterable[str]) -> set[str]:
    return {owner for owner in map(owner_of, modules) if owner.partition(".")[0] != PACKAGE}


def places_of(*modules: str) -> list[Path]:
    """List the files and folders that importing these modules takes, besides what is installed: this package's too.

    A module in no package is taken with those beside it.
    """
    owners = {PACKAGE, *(f"{PACKAGE}.{name}" for name in _FOLDERS), *_others(modules)}
    places: set[Path] = set()
    for spec in filter(None, map(_spec, owners)):
        # A folder without code is no package: it may be any that Python looks in.
        if spec.origin is not None:
            places |= {Path(place) for place in spec.submodule_search_locations or ()}
        if spec.submodule_search_locations is None and spec.origin and Path(spec.origin).is_file():
            places |= set(Path(spec.origin).parent.glob("*.py"))
    return sorted(places)


def shipped_data() -> list[Path]:
    """List the folders of the data that this package ships: recorded lookups are among it."""
    spec = _spec(DATASETS)
    return [Path(place, "data") for place in (spec.submodule_search_locations or ())] if spec is not None else []


def _spec(module: str) -> ModuleSpec | None:
    """Return where a module is, without importing what it is in, as importlib does; None where there is none."""
    parent = module.rpartition(".")[0]
    if not all(map(str.isidentifier, module.split("."))):
        return None
    try:
        if not parent or module in sys.modules:
            return importlib.util.find_spec(module)
    except ValueError:  # made without a file
        return None
    package = _spec(parent)
    if package is None or package.submodule_search_locations is None:
        return None
    places = list(package.submodule_search_locations)
    finders = (finder.find_spec for finder in sys.meta_path if hasattr(finder, "find_spec"))
    return next((spec for find in finders if (spec := find(module, places, None)) is not None), None)


def is_here(module: str) -> bool:
    """Tell whether a module can be found; nothing is imported."""
    return _spec(module) is not None


def _files(module: str) -> list[Path]:
    """List the files of a module or package; none where there is nothing to read."""
    if module == _MAIN:
        file = getattr(sys.modules[_MAIN], "__file__", None)
        return [Path(file)] if file and Path(file).is_file() else []
    spec = _spec(module)
    if spec is None:
        return []
    if spec.submodule_search_locations is None:
        return [Path(spec.origin)] if spec.origin and Path(spec.origin).is_file() else []
    return [path for folder in spec.submodule_search_locations for path in _walk(Path(folder))]


def _walk(folder: Path) -> Iterator[Path]:
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name[0] != "." and name != "__pycache__"]
        paths = (Path(place) / name for name in names if name[0] != ".")
        # A pipe or a device in somebody's folder has no end.
        yield from (path for path in paths if path.suffix not in _NOT_CODE and path.is_file())


def _git(*arguments: str) -> str | None:
    # A question must not take the lock of a checkout in which someone works.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        process = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, check=False, env=environment
        )
    except FileNotFoundError:  # no git here
        return None
    return process.stdout if process.returncode == 0 else None
