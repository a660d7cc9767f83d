"""The package map, the guard on the name `datasets`, and files that must not be."""

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_the_package_list_equals_the_folders():
    found = set()
    for package, folder in CONFIG["package-dir"].items():
        base = ROOT / folder
        for init in base.rglob("__init__.py"):
            inner = init.parent.relative_to(base).parts
            found.add(".".join((package, *inner)))
    assert sorted(CONFIG["packages"]) == sorted(found)


def test_datasets_refuses_to_be_another_projects_package():
    command = [sys.executable, "-c", "import sys; sys.path.insert(0, '.'); import datasets"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "another project's name" in done.stderr


def test_imports_form_a_ladder():
    ladder = [
        "errors", "atomic", "serialise", "jsonlines", "table", "profile", "machine", "plan", "trace", "hotness",
        "problem", "strategy", "validate", "load", "distinct", "lookups", "links", "accounting", "traffic",
        "costmodel", "published", "published_steps", "validation", "lowerbound", "workload", "profiling", "materialise",
        "discovery", "trial", "record", "store", "suite", "environment", "statistics", "launch", "jobcheck",
        "execute", "conformance_problems", "conformance", "tryout", "runner", "listing", "progress",
        "report", "study", "reproduction", "memory", "calibrate", "learned", "doctor", "cli_options", "cli_tools",
        "cli_reproduce", "cli",
    ]  # fmt: skip
    height = {name: i for i, name in enumerate(ladder)}
    source = ROOT / "src" / "shardbench"
    for path in source.rglob("*.py"):
        own = path.relative_to(source).parts[0].removesuffix(".py")
        if own == "__init__":
            continue
        for line in path.read_text().splitlines():
            if line.startswith("from shardbench."):
                used = line.split()[1].split(".")[1]
                if used not in ("baselines", "datasets"):
                    assert height[used] <= height[own], f"{path.name} imports {used}, which is above it"


def test_large_or_secret_files_are_not_committed():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        assert not path.exists() or path.stat().st_size < 1_500_000, name
