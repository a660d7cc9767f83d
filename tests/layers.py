"""Which package imports which, read off the syntax trees: late, relative and dynamic imports as well."""

import ast
from collections.abc import Iterator, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = (
    "base", "model", "workloads", "cost", "records", "engine", "trials", "advice", "report", "calibrate", "learned",
    "studies", "conformance", "torchrec", "cli",
)  # fmt: skip
"""Lowest first: a module imports its own room and those before it."""
PLUGINS = {
    "datasets": ("base", "model", "workloads"),
    "baselines": ROOMS[: ROOMS.index("cli")],
    "drift": ROOMS[: ROOMS.index("cli")],
    "leaderboard": ROOMS[: ROOMS.index("cli")],
}
"""What varies, and the rooms that it may import; a room imports neither by name but through discovery."""
LATE = {"shardbench.report.compare.comparison", "shardbench.report.results"}
"""Modules above the lowest rooms of which the package itself gives names, when they are first asked for."""
FOLDERS = {
    "shardbench": ROOT / "src" / "shardbench",
    "shardbench.baselines": ROOT / "baselines",
    "shardbench.datasets": ROOT / "datasets",
    "shardbench.drift": ROOT / "benchmarks" / "drift",
    "shardbench.leaderboard": ROOT / "benchmarks" / "leaderboard",
}


@dataclass(frozen=True)
class Import:
    """One module that another one imports."""

    importer: str
    imported: str
    line: int


def modules(folders: dict[str, Path] | None = None) -> dict[str, Path]:
    """Path of every module by its dotted name."""
    found = {}
    for package, folder in (folders or FOLDERS).items():
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder).with_suffix("").parts
            found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


def imports(importer: str, text: str, *, is_package: bool, known: Set[str]) -> Iterator[Import]:
    """Everything of ``shardbench`` that the module's source imports, wherever it does."""
    package = importer if is_package else importer.rpartition(".")[0]
    for node in ast.walk(ast.parse(text)):
        for name in _named(node, package):
            # ``from a.b import c`` names a module c or something in a.b.
            target = name if name in known else name.rpartition(".")[0]
            if target.split(".")[0] == "shardbench":
                yield Import(importer, target, getattr(node, "lineno", 0))


def _named(node: ast.AST, package: str) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (f"{alias.name}.*" for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*above, *filter(None, [node.module])])
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if called in ("import_module", "__import__") and isinstance(node.args[0].value, str):
            yield f"{node.args[0].value}.*"


def room_of(module: str) -> str:
    """The room or plug-in folder that a module is in; empty for the package itself."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def fault_of(one: Import) -> str:
    """Why the layers forbid an import, or an empty string."""
    own, used = room_of(one.importer), room_of(one.imported)
    where = f"{one.importer}:{one.line} imports {one.imported}"
    if one.importer == "shardbench.__main__":
        own = "cli"  # the command under the package's name
    if own in PLUGINS:
        folders = one.importer.split(".")[2:3], one.imported.split(".")[2:3]
        if own == used == "baselines" and folders[0] != folders[1]:
            return f"{where}: baselines do not import each other"
        allowed = ("", own, *PLUGINS[own], *(() if own == "datasets" else ("datasets",)))
        return "" if used in allowed else f"{where}: {own} may not"
    if not own:
        known = used in ("", "base", "model") or one.imported in LATE
        return "" if known else f"{where}: the plug-in API is made of the lowest rooms"
    if not used:
        return f"{where}: rooms do not import the plug-in API, which is made of them"
    if used in PLUGINS:
        return "" if (used, own) == ("datasets", "cli") else f"{where}: the harness names no {used}"
    return "" if ROOMS.index(used) <= ROOMS.index(own) else f"{where}: {used} is above {own}"


@cache
def all_imports() -> tuple[Import, ...]:
    """Of all modules of the package, the data sets and the baselines."""
    files = modules()
    return tuple(
        one
        for module, path in sorted(files.items())
        for one in imports(module, path.read_text(), is_package=path.name == "__init__.py", known=files.keys())
    )


def cycle_of(edges: dict[str, set[str]]) -> list[str]:
    """Modules of one import cycle, or none."""
    done: set[str] = set()

    def visit(module: str, path: list[str]) -> list[str]:
        if module in path:
            return [*path[path.index(module) :], module]
        if module in done:
            return []
        for used in sorted(edges.get(module, ())):
            found = visit(used, [*path, module])
            if found:
                return found
        done.add(module)
        return []

    for module in sorted(edges):
        found = visit(module, [])
        if found:
            return found
    return []
