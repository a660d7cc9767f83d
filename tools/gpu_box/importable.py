"""Makes the package importable from a checkout in which nothing is installed.

The packages of this project lie in several folders under one name, which an installation joins (pyproject.toml); here a
folder of links does.
"""

import tomllib
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_IOPATH = "class PathManager: ...\n\n\nclass PathManagerFactory: ...\n"
"""What TorchRec 1.6 imports of iopath, and uses for data sets of its own alone."""


def make_importable(folder: Path) -> None:
    """Fill ``folder``, which is to be on the path, with the package as an installation would lay it out."""
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    package = folder / "shardbench"
    package.mkdir(parents=True)
    for entry in (ROOT / folders.pop("shardbench")).iterdir():
        (package / entry.name).symlink_to(entry)
    for name, place in folders.items():
        (package / name.partition(".")[2]).symlink_to(ROOT / place)
    if find_spec("iopath") is None:
        stand_in = folder / "iopath" / "common"
        stand_in.mkdir(parents=True)
        for name, text in (("../__init__.py", ""), ("__init__.py", ""), ("file_io.py", _IOPATH)):
            (stand_in / name).write_text(text)
