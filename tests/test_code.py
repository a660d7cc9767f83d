"""The hash of code changes with what the code does, and with nothing else; checkouts are what git says."""

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from shardbench.base import code
from shardbench.model.strategy import Strategy
from shardbench.runs.discovery import get_strategy, strategy_codes

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
    (package / "more.py").write_text("from pack_of_a_test.module import X\n")
    assert hashed(package) == changed
    (package / "more.py").write_text("Z = 1\n")
    assert hashed(package) != changed


def test_it_does_not_matter_where_a_definition_stands_and_what_its_file_is_called(package):
    before = hashed(package)
    (package / "data.toml").rename(package / "other.toml")
    (package / "module.py").rename(package / "renamed.py")
    assert hashed(package) == before
    helper = SOURCE.partition("def f(")[0]
    (package / "renamed.py").write_text("from .helper import X\n" + SOURCE.removeprefix(helper))
    (package / "helper.py").write_text(helper)
    assert hashed(package) == before


def test_a_name_stands_for_what_other_people_call_it(package):
    def with_module(text: str) -> str | None:
        (package / "module.py").write_text(text)
        return hashed(package)

    before = with_module("import numpy as np\ndef f(x):\n    return np.floor(x)\n")
    assert with_module("import numpy\ndef f(x):\n    import os\n    return numpy.floor(x)\n") == before
    rounds = with_module("from numpy import floor as rounded\ndef f(x):\n    return rounded(x)\n")
    assert with_module("from numpy import ceil as rounded\ndef f(x):\n    return rounded(x)\n") != rounds
    own = with_module("from .one import g as h\ndef f(x):\n    return h(x)\n")
    assert with_module("from pack_of_a_test.two import g\ndef f(x):\n    return g(x)\n") == own
    assert with_module("from .one import i as h\ndef f(x):\n    return h(x)\n") != own


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
        "from shardbench.runs.discovery import get_strategy\n"
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


@pytest.fixture
def harness(tmp_path):
    """A copy of the harness, to edit."""
    copy = tmp_path / "shardbench"
    shutil.copytree(code._ROOT, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


COSTS = Path("cost") / "costmodel.py"


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert f"\n{old}" in text or f" {old}" in text
    path.write_text(text.replace(old, new, 1))


def test_the_harness_is_the_same_where_its_code_is_only_moved(harness):
    before = code.checkout().package
    source = (harness / COSTS).read_text()
    start = source.index("def gather_rate(")
    helper = source[start : source.index("\ndef ", start)]
    (harness / "cost" / "rates.py").write_text(f"from shardbench.model.machine import Constants\n\n\n{helper}")
    edit(harness / COSTS, helper, "")
    assert code.judging_code(harness) != before, "a definition is missed"
    edit(harness / COSTS, "import numpy as np\n", "import numpy as np\nfrom shardbench.cost.rates import gather_rate\n")
    assert code.judging_code(harness) == before


def test_the_harness_is_the_same_where_a_module_has_another_name(harness):
    before = code.checkout().package
    (harness / COSTS).rename(harness / "cost" / "step_model.py")
    for path in harness.rglob("*.py"):
        text = path.read_text()
        path.write_text(text.replace("shardbench.cost.costmodel", "shardbench.cost.step_model"))
    assert code.judging_code(harness) == before


@pytest.mark.parametrize(
    ("path", "old", "new", "same"),
    [
        ("report/results.py", "import", "ADDED = 1\nimport", True),
        ("cli/main.py", "import", "ADDED = 1\nimport", True),
        ("cost/costmodel.py", "return constants.hbm_bytes_per_s * ", "return constants.hbm_bytes_per_s / ", False),
        ("cost/bounds/step.py", "return keeps_order(plan) and ", "return keeps_order(plan) or ", False),
        ("engine/turns.py", "import", "ADDED = 1\nimport", False),
        ("tasks/oracle.py", "import", "ADDED = 1\nimport", False),
        ("studies/contests/contest.py", "import", "ADDED = 1\nimport", False),
        ("studies/contests/split_contest.py", "import", "ADDED = 1\nimport", False),
    ],
)
def test_reports_and_commands_are_not_the_harness_and_formulas_are(harness, path, old, new, same):
    before = code.checkout().package
    edit(harness / path, old, new)
    assert (code.judging_code(harness) == before) is same


def test_a_judging_module_that_is_not_there_is_said(harness):
    (harness / "engine" / "rank.py").unlink()
    with pytest.raises(ModuleNotFoundError, match=r"engine\.rank is listed as one that judges numbers"):
        code.judging_code(harness)
