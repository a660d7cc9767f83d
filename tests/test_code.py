"""The hash of code changes with what the code does, and with nothing else; checkouts are what git says."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from shardbench.base import code
from shardbench.model.discovery import get_strategy, strategy_codes
from shardbench.model.strategy import Strategy

SOURCE = '''"""A module."""

X = 1
"""What X is."""

def f(a, b=None):
    """Doc."""
    # a reason
    return {"a": a, **(b or {})}
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package on the import path: its folder."""
    folder = tmp_path / "site" / "pack_of_a_test"
    (folder / "reproduction").mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "module.py").write_text(SOURCE)
    (folder / "reproduction" / "__init__.py").write_text("Y = 1\n")
    (folder / "data.toml").write_text("x = 1\n")
    monkeypatch.syspath_prepend(folder.parent)
    yield folder
    for name in [name for name in sys.modules if name.partition(".")[0] == folder.name]:
        del sys.modules[name]


def hashed(folder: Path, **options: bool) -> str | None:
    code.code_hash.cache_clear()
    importlib.invalidate_caches()
    return code.code_hash(folder.name, **options)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# a reason", "# another reason\n"),
        ('"""A module."""', ""),
        ('"""Doc."""', '"""Doc.\n\n    More of it.\n    """'),
        ('"""What X is."""', '"""What X is now."""'),
        ('{"a": a, **(b or {})}', "{\n        'a': a, **(b or {}),\n    }"),
    ],
)
def test_comments_docstrings_and_formatting_change_nothing(package, old, new):
    before = hashed(package)
    assert old in SOURCE
    (package / "module.py").write_text(SOURCE.replace(old, new))
    assert hashed(package) == before


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("X = 1", "X = 2"),
        ("X = 1", "X = True"),
        ("X = 1", "X = '1'"),
        ("a, b=None", "a, b=0"),
        ("a, b=None", "b, a=None"),
        ("a, b=None", "a, *, b=None"),
        ("return ", ""),
        ('{"a": a, **(b or {})}', "None"),
    ],
)
def test_another_meaning_is_another_hash(package, old, new):
    before = hashed(package)
    assert old in SOURCE
    (package / "module.py").write_text(SOURCE.replace(old, new))
    assert hashed(package) != before


def test_files_that_code_reads_count_and_prose_does_not(package):
    before = hashed(package)
    (package / "README.md").write_text("words")
    (package / "__pycache__").mkdir()
    (package / "__pycache__" / "module.pyc").write_text("compiled")
    assert hashed(package) == before
    (package / "data.toml").write_text("x = 2\n")
    changed = hashed(package)
    assert changed != before
    (package / "more.py").write_text("")
    assert hashed(package) != changed


def test_a_reproduction_counts_only_where_asked(package):
    alone, whole = hashed(package), hashed(package, reproduction=True)
    assert alone != whole
    (package / "reproduction" / "__init__.py").write_text("Y = 2\n")
    assert hashed(package) == alone
    assert hashed(package, reproduction=True) != whole


def test_a_file_of_another_language_counts_by_its_bytes(package):
    (package / "old.py").write_text("print 'python 2'\n")
    before = hashed(package)
    (package / "old.py").write_text("print 'python 2' # comment\n")
    assert hashed(package) != before


def test_what_has_no_file_has_no_hash(tmp_path, monkeypatch):
    assert code.code_hash("no_such_module") is None
    assert code.class_code(type("Typed", (Strategy,), {"__module__": "typed_at_a_prompt"}), type) is None
    program = (
        "from shardbench.base.code import class_code\nclass A: pass\nclass B(A): pass\nprint(class_code(B(), A))\n"
    )
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


def test_each_baseline_has_a_hash_of_its_own_folder():
    codes = strategy_codes(["greedy-size", "greedy-lookup", "shuffle", "no-such-strategy"])
    assert codes["no-such-strategy"] is None
    assert codes["greedy-size"] == codes["greedy-lookup"] == code.code_hash("shardbench.baselines.greedy")
    assert codes["shuffle"] != codes["greedy-size"]
    assert codes["shuffle"] == code.class_code(get_strategy("shuffle"), Strategy)


def test_a_subclass_of_other_peoples_strategy_counts_both_packages(package):
    (package / "mine.py").write_text(
        "from shardbench.model.discovery import get_strategy\n"
        "class Mine(type(get_strategy('shuffle'))):\n    '''Mine.'''\n"
    )
    mine = importlib.import_module("pack_of_a_test.mine").Mine
    code.code_hash.cache_clear()
    both = code.code_hash("pack_of_a_test", "shardbench.baselines.shuffle")
    assert code.class_code(mine(), Strategy) == both != code.code_hash("pack_of_a_test")


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
    found = code.checkout.__wrapped__()
    return found.commit, found.dirty


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


def test_the_package_counts_without_baselines(monkeypatch):
    rooms = {path.partition("/")[0] for path in code._files(code.PACKAGE, code._FOLDERS)}
    assert {"base", "cli", "__init__.py"} <= rooms
    assert rooms.isdisjoint({"baselines", "machines", "suites"})
    assert code.checkout().package == code._package_code()
