"""Makes the package importable from a checkout in which nothing is installed.

The packages of this project lie in several folders under one name, which an installation joins (pyproject.toml); here a
folder of links does.
"""

import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def make_importable(folder: Path) -> None:
    """Fill ``folder``, which is to be on the path, with the package as an installation would lay it out."""
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    package = folder / "shardbench"
    package.mkdir(parents=True)
    for entry in (ROOT / folders.pop("shardbench")).iterdir():
        (package / entry.name).symlink_to(entry)
    for name, place in folders.items():
        (package / name.partition(".")[2]).symlink_to(ROOT / place)
