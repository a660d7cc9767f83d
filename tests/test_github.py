"""What .github/ has: workflows that run the sessions and scripts that are here, and forms that can be filled in."""

import re
from pathlib import Path

import pytest
import yaml

from shardbench.cli.main import app

ROOT = Path(__file__).parent.parent
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
