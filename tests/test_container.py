"""The Dockerfile against noxfile.py: the same packages in the same way, and an image that holds no more."""

import importlib.util
import json
import re
import shlex
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from shardbench.cli.options import DEFAULT_DATA, DEFAULT_RESULTS

ROOT = Path(__file__).parent.parent


def instructions(text):
    """(instruction, rest) of a Dockerfile, continued lines joined, without comments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    whole = re.sub(r"\\\n", " ", "\n".join(lines))
    return [tuple(line.split(maxsplit=1)) for line in whole.splitlines() if line.strip()]


def stages(text):
    """The instructions of each stage; the first of each is its FROM."""
    found = []
    for word, rest in instructions(text):
        if word == "FROM":
            found.append([])
        found[-1].append((word, rest))
    return found


def installed(command):
    """What is installed by a command, and with which options, but for where the package's code lies; else None."""
    words = shlex.split(command) if isinstance(command, str) else list(command)
    if words[0] == "python" and words[1].endswith("install.py"):
        return Path(words[1]).name, words[2]
    if words[:4] == ["python", "-m", "pip", "install"]:
        return "the package", frozenset(words[4:]) - {"-e"}
    return None


def of_dockerfile(text, engine):
    runs = [rest.replace("${ENGINE}", engine) for word, rest in stages(text)[0] if word == "RUN"]
    return [found for found in map(installed, runs) if found]


@pytest.fixture
def noxfile(monkeypatch, tmp_path):
    """The module on a folder with nothing installed, and a stand-in for nox, which is not there where tests run."""
    stand_in = SimpleNamespace(session=lambda function: function, options=SimpleNamespace(), Session=object)
    monkeypatch.setitem(sys.modules, "nox", stand_in)
    spec = importlib.util.spec_from_file_location("noxfile", ROOT / "noxfile.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("requirements", "pyproject.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    venv = tmp_path / ".nox" / "shardbench"
    venv.mkdir(parents=True)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "VENV", venv)
    return module


def of_noxfile(module, monkeypatch, engine):
    """What ``install`` asks pip for, in order."""
    monkeypatch.setattr(module.shutil, "which", lambda name: "/bin/nvidia-smi" if engine == "cuda" else None)
    said = []
    session = SimpleNamespace(run=lambda *command, **_: said.append(command), log=lambda _: None)
    module.install(session)
    return [found for found in (installed(["python", *command[1:]]) for command in said) if found]


@pytest.mark.parametrize("engine", ["cpu", "cuda"])
def test_the_image_installs_what_nox_does_in_its_order(noxfile, monkeypatch, engine):
    wanted = of_noxfile(noxfile, monkeypatch, engine)
    assert wanted[0] == ("install.py", engine)
    assert len(wanted) == 2
    assert of_dockerfile((ROOT / "Dockerfile").read_text(), engine) == wanted


def test_the_image_has_the_environment_of_nox(noxfile):
    _, final = stages((ROOT / "Dockerfile").read_text())
    stated = dict(part.split("=", 1) for word, rest in final if word == "ENV" for part in shlex.split(rest))
    assert noxfile.ENVIRONMENT.items() <= stated.items()


def test_nothing_but_what_is_copied_is_sent_to_the_build_and_the_wheel_has_its_parts():
    build, _ = stages((ROOT / "Dockerfile").read_text())
    copied = {part.rstrip("/") for word, rest in build if word == "COPY" for part in rest.split()[:-1]}
    ignore = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    assert ignore[0] == "*"
    assert {line[1:] for line in ignore if line.startswith("!")} == copied
    assert [name for name in copied if not (ROOT / name).exists()] == []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    parts = {Path(folder).parts[0] for folder in project["tool"]["setuptools"]["package-dir"].values()}
    parts |= {Path(notice).parts[0] for notice in project["project"]["license-files"]}
    parts |= {project["project"]["readme"], "pyproject.toml", "setup.py"}
    assert copied == parts | {"requirements"}


def test_the_image_is_run_by_a_user_with_volumes_where_the_command_looks():
    build, final = stages((ROOT / "Dockerfile").read_text())
    said = dict(final)
    assert said["USER"] not in ("root", "0")
    assert f" {said['USER']} " in said["RUN"] + " "
    assert json.loads(said["ENTRYPOINT"]) == ["shardbench"]
    work = Path(said["WORKDIR"])
    assert json.loads(said["VOLUME"]) == [str(work / DEFAULT_DATA), str(work / DEFAULT_RESULTS)]
    bases = {rest.split()[0] for word, rest in (*build, *final) if word == "FROM"}
    assert bases == {"python:3.11-slim"}
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert requires == ">=3.11"
