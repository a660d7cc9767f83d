"""Versions name the code of this repository, files that of others; checkouts are what git says."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardbench.base import code
from shardbench.trials import discovery
from shardbench.trials.discovery import get_strategy, strategy_version


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package on the import path: its folder."""
    folder = tmp_path / "site" / "pack_of_a_test"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "module.py").write_text("X = 1\n")
    (folder / "data.toml").write_text("x = 1\n")
    monkeypatch.syspath_prepend(folder.parent)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == folder.name]:
        del sys.modules[name]


def hashed(*names: str) -> str | None:
    code.files_hash.cache_clear()
    importlib.invalidate_caches()
    return code.files_hash(*names)


def test_all_files_of_a_package_count_and_prose_does_not(package):
    before = hashed(package.name)
    (package / "README.md").write_text("words")
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "module.pyc").write_text("compiled")
    assert hashed(package.name) == before
    known = {before}
    for name, text in (("data.toml", "x = 2\n"), ("module.py", "X = 1  # why\n"), ("more.py", "")):
        (package / name).write_text(text)
        known.add(hashed(package.name))
    assert len(known) == 4


def test_what_has_no_end_in_a_package_is_not_read(package):
    before = hashed(package.name)
    os.mkfifo(package / "pipe.py")
    (package / "zero.py").symlink_to("/dev/zero")
    (package / "gone.py").symlink_to(package / "nothing")
    (package / "round").symlink_to(package)
    assert hashed(package.name) == before


def test_what_has_no_file_has_no_hash(tmp_path):
    assert code.files_hash("no_such_module") is None
    program = "from shardbench.base.code import files_hash\nprint(files_hash('__main__'))\n"
    typed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert typed.stdout == "None\n"
    script = tmp_path / "script.py"
    script.write_text(program)
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert len(run.stdout.strip()) == 16


def test_owners_are_baselines_folders_top_level_packages_and_modules(package, tmp_path):
    assert code.owner_of("shardbench.baselines.fae.reproduction.claims") == "shardbench.baselines.fae"
    assert code.owner_of("numpy.linalg.linalg") == "numpy"
    assert code.owner_of("pack_of_a_test.module") == "pack_of_a_test"
    assert code.owner_of("layers") == "layers"
    space = tmp_path / "site" / "space_of_a_test" / "inner"
    space.mkdir(parents=True)
    (space / "__init__.py").write_text("")
    (space / "deep.py").write_text("")
    importlib.invalidate_caches()
    assert code.owner_of("space_of_a_test.inner.deep") == "space_of_a_test.inner"


class Brought:
    """What a package gives, as discovery keeps it."""

    def __init__(self, value, module):
        self.value, self.module = value, module


def test_a_strategys_version_is_a_number_and_for_other_people_their_files_count_too(package, monkeypatch):
    assert strategy_version("no-such-strategy") is None
    shuffle = get_strategy("shuffle")
    assert strategy_version("shuffle") == str(shuffle.version)
    (package / "mine.py").write_text(
        "from shardbench.trials.discovery import get_strategy\n"
        "class Mine(type(get_strategy('shuffle'))):\n    '''Mine.'''\n"
    )
    mine = importlib.import_module("pack_of_a_test.mine").Mine()
    typed = type("Typed", (type(shuffle),), {"__module__": "typed_at_a_prompt"})()
    brought = {"mine": Brought(mine, "pack_of_a_test"), "typed": Brought(typed, "typed_at_a_prompt")}
    monkeypatch.setattr(discovery, "_collect_strategies", lambda: (brought, ()))
    version = strategy_version.__wrapped__
    code.files_hash.cache_clear()
    assert version("mine") == f"{shuffle.version} {hashed('pack_of_a_test')}"
    mine.version = 7
    assert version("mine") == f"7 {hashed('pack_of_a_test')}"
    assert version("typed") is None


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A checkout that stands for the package's."""
    folder = tmp_path / "repository" / "package"
    folder.mkdir(parents=True)
    monkeypatch.setattr(code, "_ROOT", folder)
    monkeypatch.setattr(code, "_FOLDERS", ())
    git(folder, "init", "--quiet")
    (folder / "__init__.py").write_text("")
    return folder


def here() -> tuple[str | None, bool | None]:
    return code.checkout.__wrapped__()


def test_a_checkout_states_its_commit_and_whether_code_differs(repository):
    assert here() == (None, None), "nothing of it is in the checkout"
    git(repository, "add", ".")
    git(repository, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "first")
    commit = git(repository, "rev-parse", "HEAD")
    assert here() == (commit, False)
    (repository.parent / "results").write_text("not code")
    assert here() == (commit, False)
    (repository / "new.py").write_text("")
    assert here() == (commit, True)


def test_there_is_no_commit_without_git_or_outside_a_checkout(repository, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert here() == (None, None)
    monkeypatch.undo()
    monkeypatch.setattr(code, "_ROOT", tmp_path)
    (tmp_path / "__init__.py").write_text("")
    assert code.commit_here() is None
