"""The locked requirements: whole, hashed, of the versions that the inputs state, and nothing installed beside them."""

import json
import re
import runpy
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
REQUIREMENTS = ROOT / "requirements"
LOCKED = sorted((REQUIREMENTS / "locked").glob("*.txt"))
PYTHONS = ("3.11.0", "3.11.14", "3.12.0", "3.13.0", "3.14.0")
LINUX = {
    "sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "platform_machine": "x86_64",
    "platform_python_implementation": "CPython", "implementation_name": "cpython",
}  # fmt: skip


def entries(path: Path) -> list[tuple[Requirement, list[str]]]:
    """Each requirement of a locked file with its hashes."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    whole = "\n".join(lines).replace(" \\\n    ", " ").splitlines()
    found = [line.partition(" --hash=") for line in whole]
    return [(Requirement(required), hashes.split(" --hash=")) for required, _, hashes in found]


def pins(path: Path, python: str = "3.11.14") -> dict[str, str]:
    """Version by name of what is installed on a Python of Linux."""
    environment = {**LINUX, "python_version": ".".join(python.split(".")[:2]), "python_full_version": python}
    found: dict[str, str] = {}
    for required, _ in entries(path):
        if required.marker is None or required.marker.evaluate(environment):
            assert required.name not in found, f"{path.name} has {required.name} twice on Python {python}"
            (exact,) = required.specifier
            assert exact.operator == "=="
            found[required.name] = exact.version
    return found


def all_pins(engine: str) -> dict[str, str]:
    names = ("common", "torch", f"fbgemm-{engine}")
    return {name: at for file in names for name, at in pins(REQUIREMENTS / "locked" / f"{file}.txt").items()}


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def stated(group: str) -> dict[str, str]:
    """Version by name that a group pins, with those of the groups that it includes."""
    found: dict[str, str] = {}
    for one in PROJECT["dependency-groups"][group]:
        found |= stated(one["include-group"]) if isinstance(one, dict) else dict([one.split("==")])
    return found


@pytest.mark.parametrize("path", LOCKED, ids=lambda path: path.stem)
def test_every_package_is_pinned_by_its_hashes_and_no_place_is_named(path):
    found = entries(path)
    assert found
    for required, hashes in found:
        assert hashes, required.name
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", known) for known in hashes), required.name
        assert required.url is None
    assert "://" not in path.read_text()
    assert "-index" not in path.read_text()
    for python in PYTHONS:
        pins(path, python)


@pytest.mark.parametrize("engine", ["cpu", "cuda"])
def test_what_is_stated_is_what_is_locked(engine):
    locked = all_pins(engine)
    for group in (f"engine-{engine}", "torchrec", "dev"):
        for name, version in stated(group).items():
            assert locked[canonicalize_name(name)] == version, f"{name}: nox -s lock"
    project = PROJECT["project"]
    for line in sum(project["optional-dependencies"].values(), project["dependencies"]):
        wanted = Requirement(line)
        assert wanted.specifier.contains(locked[wanted.name]), f"{line}: nox -s lock"
    assert ("fbgemm-gpu" in locked) == (engine == "cuda")
    for alone in ("docs", "build", "nox", "uv", "audit"):
        version = stated(alone)
        assert version.items() <= pins(REQUIREMENTS / "locked" / f"{alone}.txt").items()


def test_the_cpu_build_of_torch_is_of_the_same_release_and_needs_no_library_of_cuda():
    torch = pins(REQUIREMENTS / "locked" / "torch.txt")
    assert pins(REQUIREMENTS / "locked" / "torch-cpu.txt") == {"torch": f"{torch['torch']}+cpu"}
    assert len(torch) > 1
    assert not [name for name in pins(REQUIREMENTS / "locked" / "common.txt") if name.startswith(("nvidia", "triton"))]


UV = """\
a==1 \\
    --hash=sha256:aa
fbgemm-gpu==3 \\
    --hash=sha256:bb
fbgemm-gpu-cpu==3 \\
    --hash=sha256:cc
nvidia-x==4 ; sys_platform == 'linux' \\
    --hash=sha256:dd
torch==2.0 \\
    --hash=sha256:ee \\
    --hash=sha256:ff
torchrec==5 \\
    --hash=sha256:11
"""


def test_one_resolution_is_divided_so_that_each_engine_installs_its_own():
    lock = runpy.run_path(str(REQUIREMENTS / "lock.py"))
    parts = lock["parts"](UV)
    of = {name: [entry[0] for entry in lock["split"](text)] for name, text in parts.items()}
    assert of == {
        "common": ["a", "torchrec"], "torch": ["nvidia-x", "torch"], "torch-cpu": ["torch"],
        "fbgemm-cpu": ["fbgemm-gpu-cpu"], "fbgemm-cuda": ["fbgemm-gpu"],
    }  # fmt: skip
    assert parts["torch"].endswith("torch==2.0 \\\n    --hash=sha256:ee \\\n    --hash=sha256:ff\n")
    assert parts["torch-cpu"].startswith("torch==2.0+cpu \\\n    --hash=sha256:")
    assert {path.stem for path in LOCKED} == {*parts, *lock["ALONE"]}


@pytest.mark.parametrize(
    ("engine", "at_hand", "torch"),
    [("cpu", "locked", "torch-cpu"), ("cpu", "f" * 64, "torch"), ("cpu", None, "torch"), ("cuda", None, "torch")],
)
@pytest.mark.parametrize("lacks", [None, "torchrec 1.8.0 requires fbgemm-gpu, which is not installed.", "a 1 has b 2."])
def test_all_is_installed_at_once_by_hash_and_held_against_what_pip_lacks(monkeypatch, engine, at_hand, torch, lacks):
    said = []
    if at_hand == "locked":
        ((_, (known, *_)),) = entries(REQUIREMENTS / "locked" / "torch-cpu.txt")
        at_hand = known.removeprefix("sha256:")

    def pip(command, **_):
        said.append(command[3:])
        if "--dry-run" in command:
            file = {"archive_info": {"hashes": {"sha256": at_hand}}} if at_hand else {}
            return SimpleNamespace(stdout=json.dumps({"install": [{"download_info": file}]}), returncode=0)
        lines = lacks if command[3] == "check" and lacks else ""
        return SimpleNamespace(stdout=lines, returncode=int(bool(lines)))

    monkeypatch.setattr(subprocess, "run", pip)
    monkeypatch.setattr(sys, "argv", ["install.py", engine])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(REQUIREMENTS / "install.py"), run_name="__main__")
    fine = lacks is None or (engine == "cpu" and "fbgemm-gpu" in lacks)
    assert (not ended.value.code) == fine
    assert fine or lacks in ended.value.code
    *asked, install, _ = said
    assert len(asked) == (engine == "cpu")
    assert {"--require-hashes", "--no-deps"} <= set(install)
    assert [Path(word).stem for word in install if word.endswith(".txt")] == ["common", torch, f"fbgemm-{engine}"]


def test_documents_and_workflows_install_nox_by_its_hashes():
    asked = []
    for path in (ROOT / "README.md", *ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob(".github/**/*.yml")):
        asked += re.findall(r"pip install .*?(?=&&|$)", path.read_text(), flags=re.MULTILINE)
    asked = [command for command in asked if re.search(r"\bnox\b", command)]
    assert len(asked) >= 5
    # pip checks hashes where a list has any, and this one has them all.
    assert all("-r requirements/locked/nox.txt" in command for command in asked)


def audit(monkeypatch, answers):
    """Exit code of the audit where pip-audit answers so about a requirement list, as text or as dependencies."""
    asked = []

    def pip_audit(command, **_):
        listed = Path(command[-1]).read_text().splitlines()
        assert len({line.partition("==")[0] for line in listed}) == len(listed), "pip-audit refuses a name twice"
        asked.extend(listed)
        told = answers(listed)
        return SimpleNamespace(
            stdout=json.dumps({"dependencies": told}) if told else "", stderr="no\nroute", returncode=1
        )

    monkeypatch.setattr(subprocess, "run", pip_audit)
    return runpy.run_path(str(REQUIREMENTS / "audit.py"))["main"](), asked


def clean(listed):
    return [{"name": name, "version": at, "vulns": []} for name, _, at in (line.partition("==") for line in listed)]


def test_everything_that_is_locked_is_audited(monkeypatch, capsys):
    code, asked = audit(monkeypatch, clean)
    every = {str(each).partition(";")[0].partition("+")[0].strip() for path in LOCKED for each, _ in entries(path)}
    assert sorted(asked) == sorted(every)
    assert code == 0
    assert capsys.readouterr().out == f"{len(every)} of {len(every)} locked releases were audited: 0 known advisories\n"


def test_an_advisory_is_said_with_the_file_and_what_fixes_it(monkeypatch, capsys):
    def one(listed):
        flaw = [{"id": "PYSEC-1", "fix_versions": ["2"]}]
        return [each | ({"vulns": flaw} if each["name"] == "nox" else {}) for each in clean(listed)]

    code, _ = audit(monkeypatch, one)
    assert code == 1
    said = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"nox [\d.]+ \(nox\.txt\): PYSEC-1, fixed in 2", said[0])
    assert said[1].endswith(": 1 known advisories")


@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (lambda listed: [], "route"),
        (lambda listed: [{"name": "nox", "skip_reason": "not found"}], "not found"),
        (lambda listed: [*clean(listed[1:]), {"name": "nox", "skip_reason": "not found"}], "not found"),
    ],
)
def test_what_was_not_audited_does_not_pass_as_free_of_faults(monkeypatch, capsys, answers, why):
    code, _ = audit(monkeypatch, answers)
    assert code == 3
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("NOT AUDITED: ")
    assert said.endswith(f" locked releases, as the source of advisories did not tell: {why}")
