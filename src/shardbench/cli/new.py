"""The command ``new``: writes a strategy to start from, which lints, passes the conformance checks and runs."""

import importlib
import importlib.util
import keyword
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from shardbench.base.atomic import whole_folder
from shardbench.base.errors import BadInput
from shardbench.cli.options import JsonOption, tell

TEMPLATES = Path(__file__).parent
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*([_.+-][A-Za-z0-9]+)*")
_LONGEST = 60


def new_command(
    name: Annotated[str, typer.Argument(help="Name of the strategy, such as my-strategy.")],
    *,
    package: Annotated[
        bool,
        typer.Option("--package", help="Write a package into this folder, not a baseline of this checkout."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a strategy to start from. It lints, passes "shardbench test" and runs."""
    module = module_of(name)
    _refuse_taken(name)
    folder = write_package(name, Path(module)) if package else write_baseline(name, baselines_folder() / module)
    files = sorted(str(path) for path in folder.rglob("*") if path.is_file())
    steps = [f"pip install -e {folder}"] if package else []
    steps += [
        f"shardbench test {name}",
        f"shardbench run quick --strategy {name} --backend simulated",
        f"shardbench reproduce leaderboard --strategy {name} --results mine",
    ]
    lines = [*(f"wrote {file}" for file in files), "next:", *(f"  {step}" for step in steps)]
    tell({"strategy": name, "module": module, "files": files, "next": steps}, lines, as_json=as_json)


def module_of(name: str) -> str:
    """Make the module's name of the strategy's; raises BadInput where nothing of that name can be imported."""
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        raise BadInput(
            f"'{name}' names no strategy: letters and digits that begin with a letter, single _ . + - between them, "
            f"at most {_LONGEST} in all"
        )
    module = re.sub(r"[.+-]", "_", name.lower())
    if keyword.iskeyword(module):
        raise BadInput(f"'{name}' is a word of Python: take another name")
    return module


def baselines_folder() -> Path:
    """Find the folder of baselines; raises BadInput where this is no checkout, in which nobody could edit one."""
    from shardbench.trials.discovery import GROUP  # noqa: PLC0415

    place, *_ = importlib.import_module(GROUP).__path__
    folder = Path(place).resolve()
    if not (folder.parent / "pyproject.toml").is_file():
        raise BadInput(f"{folder} is in no checkout of ShardBench: add --package for a package of your own")
    return folder


def write_baseline(name: str, folder: Path) -> Path:
    """Write the baseline's folder, which must not exist, and give it back."""
    return _write(name, folder, {"__init__.py": "new_strategy.py.j2", "README.md": "new_readme.md.j2"})


def write_package(name: str, folder: Path) -> Path:
    """Write a package with its test and entry point into a folder that must not exist, and give it back."""
    module = module_of(name)
    if importlib.util.find_spec(module) is not None:
        raise BadInput(f"a module '{module}' is installed here already: take another name for the strategy")
    templates = {
        f"{module}/__init__.py": "new_strategy.py.j2",
        f"{module}/py.typed": "",
        f"tests/test_{module}.py": "new_test.py.j2",
        "pyproject.toml": "new_pyproject.toml.j2",
        "README.md": "new_readme.md.j2",
    }
    return _write(name, folder, templates)


def _write(name: str, folder: Path, templates: Mapping[str, str]) -> Path:
    """Write files by the names of their templates; one without a template is empty."""
    import jinja2  # noqa: PLC0415

    module = module_of(name)
    words = "".join(part[0].upper() + part[1:] for part in re.split(r"[_.+-]", name))
    fields = {"name": name, "module": module, "class": words, "distribution": module.replace("_", "-")}
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True, autoescape=False)  # noqa: S701 - Python, not HTML
    with whole_folder(folder) as new_folder:
        for file, template in templates.items():
            path = new_folder / file
            path.parent.mkdir(exist_ok=True)
            text = (TEMPLATES / template).read_text(encoding="ascii") if template else ""
            path.write_text(environment.from_string(text).render(fields), encoding="ascii")
    return folder


def _refuse_taken(name: str) -> None:
    from shardbench.trials.discovery import strategies  # noqa: PLC0415

    if name in strategies():
        raise BadInput(f"a strategy '{name}' is there already: take another name, or edit that one")
