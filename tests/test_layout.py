"""The package map, the guard on the name `datasets`, files that must not be, and what .github/ has."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from layers import ROOMS, all_imports, cycle_of, fault_of, imports, modules, room_of

from shardbench.cli.main import app

ROOT = Path(__file__).parent.parent


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


GITHUB = ROOT / ".github"
WORKFLOWS = sorted(path.stem for path in GITHUB.glob("workflows/*.yml"))
FORMS = sorted(GITHUB.glob("ISSUE_TEMPLATE/*.yml"))
TEXTS = [path for path in sorted(GITHUB.rglob("*")) if path.is_file()]


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_runs_on_a_machine_of_anyone_and_takes_actions_by_their_version(name):
    workflow = yaml.safe_load((GITHUB / "workflows" / f"{name}.yml").read_text(encoding="ascii"))
    jobs = workflow["jobs"].values()
    assert {job["runs-on"] for job in jobs} == {"ubuntu-latest"}
    assert all(job["timeout-minutes"] <= 90 for job in jobs)
    assert workflow["permissions"]
    for step in (step for job in jobs for step in job["steps"]):
        assert ("run" in step) != ("uses" in step)
        assert re.fullmatch(r"actions/[a-z-]+@v\d+", step.get("uses", "actions/checkout@v1"))


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_has_what_github_asks_for(path):
    form = yaml.safe_load(path.read_text(encoding="ascii"))
    assert form.keys() <= {"name", "description", "title", "labels", "body"}
    assert form["name"]
    assert form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields) >= 3
    for field in fields:
        assert field["type"] in {"input", "textarea", "checkboxes"}
        assert field["attributes"]["label"]
        assert (field["type"] == "checkboxes") == ("options" in field["attributes"])


def test_there_is_a_form_for_each_matter():
    assert [path.stem for path in FORMS] == ["data_set", "submission", "wrong_number"]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_commands_and_files_that_are_named_exist(path):
    text = path.read_text()
    known = {command.name for command in app.registered_commands}
    assert set(re.findall(r"\bshardbench ([a-z]+(?:-[a-z]+)*)", text)) <= known
    sessions = set(re.findall(r"^@nox\.session\ndef (\w+)", (ROOT / "noxfile.py").read_text(), flags=re.MULTILINE))
    assert {name for names in re.findall(r"nox -s ([a-z ]+)", text) for name in names.split()} <= sessions
    named = re.findall(r"\b((?:docs|tools|src|requirements)/[\w./-]*\w)", text)
    assert [name for name in named if not (ROOT / name).exists()] == []
