"""What is handed out: the wheel of this checkout, the archive of results, and CITATION.cff."""

import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest
import yaml
from data_package import main

import shardbench

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION = PROJECT["project"]["version"]
PLANTED = ("baselines/planted/__init__.py", "baselines/planted/reproduction/__init__.py")
"""A new baseline, which needs no edit elsewhere."""
LEFT_OUT = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    # Of a copy, because setuptools leaves build folders in the source.
    source = tmp_path_factory.mktemp("source")
    for name in ("src", "baselines", "datasets", "benchmarks", "tools"):
        shutil.copytree(ROOT / name, source / name, ignore=LEFT_OUT)
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    for name in PLANTED:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).touch()
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--disable-pip-version-check")
    sdist = [sys.executable, "-c", "from setuptools.build_meta import build_sdist; build_sdist('.')"]
    of_sdist = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", "wheels", f"shardbench-{VERSION}.tar.gz"]
    for command in (sdist, of_sdist):
        subprocess.run(command, cwd=source, check=True, capture_output=True, text=True, timeout=200)
    (made,) = (source / "wheels").glob("shardbench-*.whl")
    with zipfile.ZipFile(made) as opened:
        yield opened


def test_the_wheel_has_the_notices_of_both_licences(wheel):
    names = wheel.namelist()
    (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
    said = HeaderParser().parsestr(wheel.read(metadata).decode())
    assert said["License-Expression"] == "Apache-2.0 AND MIT"
    notices = PROJECT["project"]["license-files"]
    assert said.get_all("License-File") == notices
    for notice in notices:
        held = metadata.replace("METADATA", f"licenses/{notice}")
        assert wheel.read(held) == (ROOT / notice).read_bytes()


def test_the_notice_of_metas_data_names_all_of_it_and_lies_beside_it(wheel):
    names = wheel.namelist()
    notice = wheel.read("shardbench/datasets/data/LICENSE.meta.txt").decode()
    assert "Permission is hereby granted, free of charge" in notice
    assert "Copyright (c) Meta Platforms" in notice
    data = {name.rpartition("/")[2] for name in names if name.startswith("shardbench/datasets/data/")}
    metas = {name for name in data if name.startswith(("meta_", "dlrm_datasets", "synthetic"))}
    assert len(metas) == 4
    assert {name for name in data if name in notice} == metas


def test_every_file_of_the_package_is_in_the_wheel(wheel):
    names = set(wheel.namelist())
    for package, folder in PROJECT["tool"]["setuptools"]["package-dir"].items():
        said = subprocess.run(["git", "ls-files", folder], cwd=ROOT, check=True, capture_output=True, text=True).stdout
        wanted = {package.replace(".", "/") + name.removeprefix(folder) for name in said.splitlines()}
        assert wanted
        assert wanted <= names
    assert {f"shardbench/{name}" for name in PLANTED} <= names


def test_nothing_of_the_checkout_but_the_package_is_in_the_wheel(wheel):
    names = wheel.namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"shardbench"}
    assert [name for name in names if re.search(r"/(tools|cases|fits|regression|micro)/", name)] == []
    scripts = {path.name for path in (ROOT / "tools").glob("*.py")}
    assert len(scripts) >= 6
    assert scripts & {name.rpartition("/")[2] for name in names} == set()


TABLE, RECORD = b'strategy,"step, ms"\na,1\n', b"{}\n"


def test_the_archive_holds_what_is_committed_and_says_what_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {"results/tables/t.csv": TABLE, "results/records/r.jsonl": RECORD, "results/own.csv": TABLE}
    for name, content in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(content)
    Path("pyproject.toml").write_text('[project]\nname = "p"\nversion = "1.2"\nlicense = "MIT"\n')
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    for command in (("init", "-q"), ("add", "results/tables", "results/records"), (*who, "commit", "-q", "-m", "m")):
        subprocess.run(("git", *command), check=True)
    archives = []
    for _ in range(2):
        main()
        archives.append(Path("dist/p-results-1.2.tar.gz").read_bytes())
    assert archives[0] == archives[1]
    with tarfile.open("dist/p-results-1.2.tar.gz") as archive:
        members = {member.name: archive.extractfile(member) for member in archive}
        contents = {name.removeprefix("p-results-1.2/"): file.read() for name, file in members.items() if file}
    manifest = json.loads(contents.pop("datapackage.json"))
    assert contents == {"results/records/r.jsonl": RECORD, "results/tables/t.csv": TABLE}, "what is not committed stays"
    record, table = manifest["resources"]
    assert record == {
        "path": "results/records/r.jsonl",
        "bytes": 3,
        "hash": f"sha256:{hashlib.sha256(RECORD).hexdigest()}",
    }
    assert [field["name"] for field in table["schema"]["fields"]] == ["strategy", "step, ms"]


CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="ascii"))
KEYS = {
    "abstract", "authors", "cff-version", "commit", "contact", "date-released", "doi", "identifiers", "keywords",
    "license", "license-url", "message", "preferred-citation", "references", "repository", "repository-artifact",
    "repository-code", "title", "type", "url", "version",
}  # fmt: skip
"""All that the format knows; it takes no others."""


def test_it_has_what_the_format_asks_for_and_nothing_else():
    assert CITATION.keys() >= {"authors", "cff-version", "message", "title"}
    assert CITATION.keys() <= KEYS
    assert CITATION["cff-version"] == "1.2.0"
    assert CITATION["type"] == "software"
    texts = ("message", "title", "abstract", "version", "license")
    assert all(isinstance(CITATION[key], str) and CITATION[key].strip() for key in texts)
    assert len(set(CITATION["keywords"])) == len(CITATION["keywords"]) > 0


def test_its_author_is_an_entity():
    # An entity has a name; a person would have family-names and given-names.
    assert CITATION["authors"] == [{"name": "ShardBench developers"}]


def test_version_and_licence_are_the_projects():
    assert CITATION["version"] == VERSION == shardbench.__version__
    # The format has single licences: that of what is ours.
    assert CITATION["license"] == PROJECT["project"]["license"].split(" AND ")[0]
