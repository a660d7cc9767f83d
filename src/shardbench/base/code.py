"""Which code a number comes from: hashes of syntax trees, and the commit of the checkout.

Comments, docstrings, formatting, README files and the wording of claims change no hash, nor does
another version of Python.
"""

import ast
import hashlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path

PACKAGE = "shardbench"
BASELINES, DATASETS = f"{PACKAGE}.baselines", f"{PACKAGE}.datasets"
LEADERBOARD = f"{PACKAGE}.leaderboard"
REPRODUCTION = "reproduction"
"""Subfolder of a baseline that compares its strategies but makes none of their plans."""

_ROOT = Path(__file__).resolve().parents[1]
_FOLDERS = ("baselines", "datasets", "leaderboard", "machines", "suites")
"""Parts of the package that vary; records state machines and suites by other hashes."""
_NOT_CODE = frozenset({".md", ".rst", ".pyc"})
_NOT_RUN = frozenset({"claims.toml", "defined.toml", "numbers.toml"})
"""They say how results are judged and shown, not how they are made."""
_MAIN = "__main__"


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """The code of this process, apart from strategies."""

    commit: str | None
    """40 hex digits; None where the package is in no git checkout."""
    dirty: bool | None
    """Whether code, data sets, machines or suites differ from the commit, new files included; None without one."""
    package: str
    """Hash of the rooms and of the data sets, without the baselines."""


@cache
def checkout() -> Checkout:
    """The checkout that this package lies in; read once a process."""
    commit = commit_here()
    return Checkout(commit=commit, dirty=differs() if commit else None, package=_package_code())


def commit_here() -> str | None:
    """Commit of the checkout that this package lies in, 40 hex digits; None where it is in none."""
    # A package in a virtual environment inside another project's checkout is not of that project.
    if _git("ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    said = _git("rev-parse", "HEAD")
    return said.strip() if said else None


def differs() -> bool | None:
    """Whether code, data sets, machines or suites differ from the commit, new files included; None without one."""
    specs = [_spec(f"{PACKAGE}.{name}") for name in _FOLDERS]
    varied = [Path(place).resolve() for spec in specs if spec for place in spec.submodule_search_locations or ()]
    said = _git("status", "--porcelain", "--", *map(str, [_ROOT, *varied]))
    return bool(said.strip()) if said is not None else None


def last_commit(path: Path) -> tuple[str, datetime] | None:
    """Hash and time of the last commit that changed a file; None where it differs from the commit or is in none."""
    if _git("status", "--porcelain", "--", str(path)) != "":
        return None
    said = _git("log", "-1", "--format=%H %cI", "--", str(path))
    if not said or not said.strip():
        return None
    commit, at = said.split()
    return commit, datetime.fromisoformat(at)


@cache
def code_hash(*modules: str, reproduction: bool = False) -> str | None:
    """16 hex digits of modules and packages (with all that they hold), each by its dotted name.

    Python files count by their syntax trees, other files (data that the code reads) by their bytes.
    ``reproduction`` says whether subfolders of that name count. None where a module has no file to
    read, such as what was typed at a prompt.
    """
    digest = hashlib.sha256()
    for module in sorted(set(modules)):
        files = _files(module, () if reproduction else (REPRODUCTION,))
        if not files:
            return None
        _add(digest, module, files)
    return digest.hexdigest()[:16]


def class_code(value: object, base: type, *provided_by: str, reproduction: bool = False) -> str | None:
    """Hash of the packages that define the classes by which ``value`` is a ``base``, and of those that provide it.

    Of a baseline and the leaderboard its folder, of other people's code the top-level package, or the module where it
    is in none; classes of the harness are left out. None where there is no file to read.
    """
    named = {kind.__module__ for kind in type(value).__mro__ if issubclass(kind, base)} | set(provided_by)
    owners = {owner for owner in map(owner_of, named) if owner != PACKAGE}
    return code_hash(*sorted(owners), reproduction=reproduction) if owners else None


def owner_of(module: str) -> str:
    """The package that a module's code belongs to: a baseline's folder, or else the top-level package."""
    parts = module.split(".")
    if module.startswith(f"{BASELINES}."):
        return ".".join(parts[:3])
    if parts[:2] == LEADERBOARD.split("."):
        return LEADERBOARD
    for end in range(1, len(parts)):
        spec = _spec(".".join(parts[:end]))
        # A namespace has no file of its own: what is in it may be other people's.
        if spec is not None and spec.origin is not None:
            return ".".join(parts[:end])
    return module


def _package_code() -> str:
    digest = hashlib.sha256()
    _add(digest, PACKAGE, _files(PACKAGE, _FOLDERS))
    _add(digest, DATASETS, _files(DATASETS, ()))
    return digest.hexdigest()[:16]


def _spec(module: str) -> ModuleSpec | None:
    try:
        return importlib.util.find_spec(module)
    except (ModuleNotFoundError, ValueError):  # no such parent; made without a file
        return None


def _files(module: str, without: Iterable[str]) -> dict[str, Path]:
    """Files of a module or package by their path inside it; none where there is nothing to read."""
    if module == _MAIN:
        file = getattr(sys.modules[_MAIN], "__file__", None)
        return {_MAIN: Path(file)} if file and Path(file).is_file() else {}
    spec = _spec(module)
    if spec is None:
        return {}
    if spec.submodule_search_locations is None:
        found = Path(spec.origin) if spec.origin else None
        return {found.name: found} if found and found.is_file() else {}
    return {
        path.relative_to(folder).as_posix(): path
        for folder in map(Path, spec.submodule_search_locations)
        for path in _walk(folder, frozenset(without))
    }


def _walk(folder: Path, without: frozenset[str]) -> Iterator[Path]:
    for place, folders, names in os.walk(folder, followlinks=True):
        top = Path(place) == folder
        folders[:] = [
            name for name in folders if name != "__pycache__" and name[0] != "." and not (top and name in without)
        ]
        yield from (Path(place) / name for name in names if _is_code(name))


def _is_code(name: str) -> bool:
    return name[0] != "." and Path(name).suffix not in _NOT_CODE and name not in _NOT_RUN


def _add(digest: "hashlib._Hash", name: str, files: dict[str, Path]) -> None:
    for relative in sorted(files):
        content = files[relative].read_bytes()
        meaning = _syntax(content) if relative.endswith(".py") or relative == _MAIN else None
        digest.update(f"{name}/{relative}\0".encode())
        digest.update(meaning.encode() if meaning is not None else content)
        digest.update(b"\0")


def _syntax(content: bytes) -> str | None:
    """The tree of a Python file as text; None for a file of another language version, which counts by its bytes."""
    try:
        return _text(ast.parse(content))
    except (SyntaxError, ValueError):
        return None


def _text(value: object) -> str:
    # Not ast.dump: it writes empty fields in some versions of Python and leaves them out in others.
    if isinstance(value, ast.AST):
        fields = [(name, getattr(value, name)) for name in sorted(value._fields)]
        kept = [f"{name}={_text(field)}" for name, field in fields if field not in (None, []) or _is_constant(value)]
        return f"{type(value).__name__}({','.join(kept)})"
    if isinstance(value, list):
        return f"[{','.join(_text(item) for item in value if not _is_string(item))}]"
    return repr(value)


def _is_constant(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant)


def _is_string(statement: object) -> bool:
    # Docstrings, those of attributes as well.
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )


def _git(*arguments: str) -> str | None:
    # A question must not take the lock of a checkout in which someone works.
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, check=False, env=environment
        )
    except FileNotFoundError:  # no git here
        return None
    return done.stdout if done.returncode == 0 else None
