"""The wheel of this checkout, made of its source distribution: all of the package and the notices are in it."""

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path

import pytest

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
