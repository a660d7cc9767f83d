"""The code that a number comes from: hashes of definitions, and the commit of the checkout.

A hash is of the set of top-level definitions that a piece of code has, by their syntax trees, and of its data files.
Comments, docstrings, formatting, README files and the wording of claims change no hash, nor does another version of
Python. Neither do the names of modules, nor where a definition stands and is imported from: a name that is imported
from other people's packages stands for what it is there, one of the same package for itself.
"""

import ast
import hashlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path

PACKAGE = "shardbench"
BASELINES, DATASETS = f"{PACKAGE}.baselines", f"{PACKAGE}.datasets"
LEADERBOARD, DRIFT = f"{PACKAGE}.leaderboard", f"{PACKAGE}.drift"
COMMON = (DRIFT, LEADERBOARD)
"""Packages with studies of all strategies, which reproduce no paper."""
REPRODUCTION = "reproduction"
"""Subfolder of a baseline that compares its strategies but makes none of their plans."""

_ROOT = Path(__file__).resolve().parents[1]
_FOLDERS = ("baselines", "datasets", "drift", "leaderboard", "machines", "suites")
"""Parts of the package that vary; records state machines and suites by other hashes."""
_JUDGES = (
    "runs.run_trial",
    "engine.rank",
    "studies.contests.contest",
    "studies.contests.split_contest",
    "tasks.measured_oracle",
    "workloads.drift",
    "torchrec.estimate",
)
"""Modules through which trials and the cells of studies are judged: with all that they import, the harness."""
_NOT_CODE = frozenset({".md", ".rst", ".pyc"})
_NOT_RUN = frozenset({"claims.toml", "defined.toml", "numbers.toml"})
"""They say how results are judged and shown, not how they are made."""
_OBSERVES = "claims.py"
"""The module of a reproduction that reads numbers out of tables that its studies have made."""
_MAIN = "__main__"


@dataclass(frozen=True, kw_only=True)
class Checkout:
    """The code of this process, apart from strategies."""

    commit: str | None
    """40 hex digits; None where the package is in no git checkout."""
    dirty: bool | None
    """Whether code, data sets, machines or suites differ from the commit, new files included; None without one."""
    package: str
    """Hash of what judges trials and cells, and of the data sets; of no baseline."""


@cache
def checkout() -> Checkout:
    """Describe the checkout that this package lies in; read once a process."""
    commit = commit_here()
    return Checkout(commit=commit, dirty=differs() if commit else None, package=judging_code())


def commit_here() -> str | None:
    """Return the commit of the checkout that this package lies in, 40 hex digits; None where it is in none."""
    # A package in a virtual environment inside another project's checkout is not of that project.
    if _git("ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    said = _git("rev-parse", "HEAD")
    return said.strip() if said else None


def differs() -> bool | None:
    """Tell whether code, data sets, machines or suites differ from the commit, new files too; None without one."""
    specs = [_spec(f"{PACKAGE}.{name}") for name in _FOLDERS]
    varied = [Path(place).resolve() for spec in specs if spec for place in spec.submodule_search_locations or ()]
    said = _git("status", "--porcelain", "--", *map(str, [_ROOT, *varied]))
    return bool(said.strip()) if said is not None else None


def last_commit(path: Path) -> tuple[str, datetime] | None:
    """Return hash and time of the last commit that changed a file; None where it was changed since or is in none."""
    if _git("status", "--porcelain", "--", str(path)) != "":
        return None
    said = _git("log", "-1", "--format=%H %cI", "--", str(path))
    if not said or not said.strip():
        return None
    commit, at = said.split()
    return commit, datetime.fromisoformat(at)


def judging_code(root: Path = _ROOT) -> str:
    """Return the hash of the harness that a judged number goes through, of the package in ``root``, and of data sets.

    The harness are the modules that _JUDGES import, directly or not, as their syntax trees say. Data sets are found by
    name when they are asked for, so that all of them count.
    """
    code = _Code(PACKAGE)
    open_modules = [f"{PACKAGE}.{name}" for name in _JUDGES]
    missing = [name for name in open_modules if _source(name, root) is None]
    if missing:
        raise ModuleNotFoundError(f"{missing[0]} is listed as one that judges numbers, but there is no such module")
    for path in _files(DATASETS):
        open_modules += code.add(path)
    seen: set[str] = set()
    while open_modules:
        name = open_modules.pop()
        source = None if name in seen else _source(name, root)
        seen.add(name)
        if source is not None:
            open_modules += code.add(source, name)
    return code.hash


@cache
def code_hash(*modules: str, reproduction: bool = False) -> str | None:
    """Return the hash of modules and packages (with all that they hold), each by its dotted name, in 16 hex digits.

    Python files count by their definitions, other files (data that the code reads) by their bytes.
    ``reproduction`` says whether subfolders of that name count. None where a module has no file to
    read, such as what was typed at a prompt.
    """
    code = _Code(*modules)
    without = frozenset() if reproduction else frozenset({REPRODUCTION})
    for module in modules:
        files = _files(module, without)
        if not files:
            return None
        for path in files:
            code.add(path)
    return code.hash


def class_code(value: object, base: type, *provided_by: str, reproduction: bool = False) -> str | None:
    """Return the hash of the packages that define the classes by which ``value`` is a ``base``, or that provide it.

    The code of a baseline and of ``COMMON`` is its folder, other people's is the top-level package, or the module
    where it is in none; classes of the harness are left out. None where there is no file to read.
    """
    named = {kind.__module__ for kind in type(value).__mro__ if issubclass(kind, base)} | set(provided_by)
    return modules_code(*named, reproduction=reproduction)


def modules_code(*modules: str, reproduction: bool = False) -> str | None:
    """Return the hash of the packages that modules belong to, as ``class_code`` does; None without a file to read."""
    owners = {owner for owner in map(owner_of, modules) if owner != PACKAGE}
    return code_hash(*sorted(owners), reproduction=reproduction) if owners else None


def owner_of(module: str) -> str:
    """Return the package that a module's code belongs to: a baseline's folder, or else the top-level package."""
    parts = module.split(".")
    if module.startswith(f"{BASELINES}."):
        return ".".join(parts[:3])
    if ".".join(parts[:2]) in COMMON:
        return ".".join(parts[:2])
    for end in range(1, len(parts)):
        spec = _spec(".".join(parts[:end]))
        # A namespace has no file of its own: what is in it may be other people's.
        if spec is not None and spec.origin is not None:
            return ".".join(parts[:end])
    return module


def places_of(*modules: str) -> list[Path]:
    """List the files and folders that importing these modules takes, besides what is installed: this package's too.

    A module in no package is taken with those beside it.
    """
    owners = {PACKAGE, *(f"{PACKAGE}.{name}" for name in _FOLDERS), *(_top(module) for module in modules)}
    found: set[Path] = set()
    for spec in filter(None, map(_spec, owners)):
        # A folder without code is no package: it may be any that Python looks in.
        if spec.origin is not None:
            found |= {Path(place) for place in spec.submodule_search_locations or ()}
        if spec.submodule_search_locations is None and spec.origin and Path(spec.origin).is_file():
            found |= set(Path(spec.origin).parent.glob("*.py"))
    return sorted(found)


def shipped_data() -> list[Path]:
    """List the folders of the data that this package ships: recorded lookups are among it."""
    spec = _spec(DATASETS)
    return [Path(place, "data") for place in (spec.submodule_search_locations or ())] if spec is not None else []


def _top(module: str) -> str:
    """Return the package that a module is imported with: the first that is no namespace."""
    return PACKAGE if module.partition(".")[0] == PACKAGE else owner_of(module)


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
    return next((spec for find in finders if (spec := find(module, places)) is not None), None)


def is_here(module: str) -> bool:
    """Tell whether a module can be found; nothing is imported."""
    return _spec(module) is not None


def _files(module: str, without: frozenset[str] = frozenset()) -> list[Path]:
    """List the files of a module or package; none where there is nothing to read."""
    if module == _MAIN:
        file = getattr(sys.modules[_MAIN], "__file__", None)
        return [Path(file)] if file and Path(file).is_file() else []
    spec = _spec(module)
    if spec is None:
        return []
    if spec.submodule_search_locations is None:
        return [Path(spec.origin)] if spec.origin and Path(spec.origin).is_file() else []
    return [path for folder in spec.submodule_search_locations for path in _walk(Path(folder), without)]


def _walk(folder: Path, without: frozenset[str]) -> Iterator[Path]:
    for place, folders, names in os.walk(folder, followlinks=True):
        left_out = {"__pycache__", *(without if Path(place) == folder else ())}
        folders[:] = [name for name in folders if name[0] != "." and name not in left_out]
        judging = _NOT_RUN | ({_OBSERVES} if Path(place) == folder / REPRODUCTION else set())
        yield from (Path(place) / name for name in names if _is_code(name) and name not in judging)


def _is_code(name: str) -> bool:
    return name[0] != "." and Path(name).suffix not in _NOT_CODE


def _source(module: str, root: Path) -> Path | None:
    """Return the file of a harness module, of the package in ``root``; None where the name is of no such module."""
    top, *inner = module.split(".")
    if top != PACKAGE or (inner and inner[0] in _FOLDERS):
        return None
    place = root.joinpath(*inner)
    return next((path for path in (place.with_suffix(".py"), place / "__init__.py") if path.is_file()), None)


class _Code:
    """The set of definitions of Python files, and of the contents of other files."""

    def __init__(self, *modules: str) -> None:
        """``modules`` are those whose code it is: what they import of their own packages stands for itself."""
        self._own = {PACKAGE, *(module.partition(".")[0] for module in modules)}
        self._digests: set[bytes] = set()

    @property
    def hash(self) -> str:
        """Return 16 hex digits, the same in whichever order and files the definitions stand."""
        return hashlib.sha256(b"".join(sorted(self._digests))).hexdigest()[:16]

    def add(self, path: Path, module: str = "") -> list[str]:
        """Add a file, and return the names that it imports; ``module`` is its name, which relative ones are of."""
        content = path.read_bytes()
        try:
            tree = ast.parse(content) if path.suffix == ".py" else None
        except (SyntaxError, ValueError):  # of another version of the language: it counts by its bytes
            tree = None
        if tree is None:
            self._digests.add(hashlib.sha256(content).digest())
            return []
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        imported, meant = self._imports(tree, package)
        for statement in tree.body:
            text = _text(statement, meant)
            if text:
                self._digests.add(hashlib.sha256(text.encode()).digest())
        return imported

    def _imports(self, tree: ast.Module, package: str) -> tuple[list[str], dict[str, str]]:
        """Return the dotted names that a module imports, and what the names mean that it gives them."""
        imported: list[str] = []
        meant: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                imported += [alias.name for alias in node.names]
                meant |= {alias.asname: alias.name for alias in node.names if alias.asname}
            elif isinstance(node, ast.ImportFrom):
                parents = package.split(".")[: 1 - node.level or None] if node.level else []
                of = ".".join([*parents, *([node.module] if node.module else [])])
                imported += [of, *(f"{of}.{alias.name}" for alias in node.names)]
                foreign = not node.level and of.partition(".")[0] not in self._own
                for alias in node.names:
                    meant[alias.asname or alias.name] = f"{of}.{alias.name}" if foreign else alias.name
        return imported, meant


def _text(value: object, meant: dict[str, str]) -> str:
    """Write a syntax tree without docstrings and imports; ``meant`` are the names that mean others."""
    # Not ast.dump: it writes empty fields in some versions of Python and leaves them out in others.
    if isinstance(value, ast.Name):
        return f"Name({meant.get(value.id, value.id)})"
    if isinstance(value, ast.AST):
        if _is_left_out(value):
            return ""
        empty = not isinstance(value, ast.Constant)
        parts = [
            f"{name}={_text(field, meant)}"
            for name in sorted(value._fields)
            # Whether a name is read or written is seen from where it stands.
            if name != "ctx" and ((field := getattr(value, name)) not in (None, []) or not empty)
        ]
        return f"{type(value).__name__}({','.join(parts)})"
    if isinstance(value, list):
        return f"[{','.join(filter(None, (_text(item, meant) for item in value)))}]"
    return repr(value)


def _is_left_out(node: ast.AST) -> bool:
    # Docstrings, those of attributes as well, and imports.
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    return isinstance(node, ast.Import | ast.ImportFrom)


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
