"""The package map, the guard on the name `datasets`, and files that must not be."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from layers import ROOMS, all_imports, cycle_of, fault_of, imports, modules, room_of

ROOT = Path(__file__).parent.parent
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def test_datasets_refuses_to_be_another_projects_package():
    command = [sys.executable, "-c", "import sys; sys.path.insert(0, '.'); import datasets"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "another project's name" in done.stderr


def test_imports_point_down_the_layers():
    assert [fault for fault in map(fault_of, all_imports()) if fault] == []


def test_there_is_a_room_for_every_layer_and_no_module_beside_them():
    source = ROOT / "src" / "shardbench"
    assert sorted(path.name for path in source.iterdir() if path.is_dir() and path.name != "__pycache__") == sorted(
        ROOMS
    )
    assert {path.name for path in source.glob("*.py")} == {"__init__.py", "__main__.py"}


def test_no_imports_form_a_cycle():
    edges: dict[str, set[str]] = {}
    for one in all_imports():
        # The package and the folder of a baseline are what their modules stand in, not a step of a cycle.
        if room_of(one.imported) and not one.importer.startswith(f"{one.imported}."):
            edges.setdefault(one.importer, set()).add(one.imported)
    assert cycle_of(edges) == []


@pytest.mark.parametrize(
    ("module", "planted"),
    [
        ("shardbench.base.errors", "from shardbench import cli"),
        ("shardbench.base.errors", "import shardbench.report.tables.suite_tables"),
        ("shardbench.base.errors", "def late():\n    from shardbench.records.store import trial_store"),
        ("shardbench.base.errors", "from ..model import plan"),
        ("shardbench.base.errors", "from shardbench import Plan"),
        ("shardbench.base.errors", "import importlib\nimportlib.import_module('shardbench.cli.main')"),
        ("shardbench.engine.phased.hot", "from ...trials import suite"),
        ("shardbench.trials.suite", "from shardbench.baselines.fae import Fae"),
        ("shardbench.datasets.rm", "from shardbench.cost import load"),
        ("shardbench.baselines.fae", "from shardbench.baselines import recshard"),
        ("shardbench.baselines.fae", "from shardbench.cli import main"),
        ("shardbench", "from shardbench.report.tables.suite_tables import Table"),
    ],
)
def test_an_import_that_points_up_is_found(module, planted):
    found = imports(module, planted, is_package=False, known=set(modules()))
    assert any(map(fault_of, found)), planted


def test_a_planted_cycle_is_found():
    assert cycle_of({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]


def committed(*patterns: str) -> list[str]:
    command = ["git", "ls-files", "-z", *patterns]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return list(filter(None, listed.split("\0")))


def test_nothing_that_git_or_a_command_gives_back_is_committed():
    assert committed("results/archive", "results/pages") == []


def test_large_or_secret_files_are_not_committed():
    for name in committed():
        path = ROOT / name
        assert not path.exists() or path.stat().st_size < 3_000_000, name
