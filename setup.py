"""The list of packages, found: pyproject.toml cannot find them in several folders under one name."""

import tomllib
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
FOLDERS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]

setup(
    packages=sorted(
        name
        for package, folder in FOLDERS.items()
        for name in (package, *(f"{package}.{found}" for found in find_packages(str(ROOT / folder))))
    )
)
