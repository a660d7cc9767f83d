"""Regressions are found where something became worse, and nowhere else."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "tools" / "regression"))

from judging import LIMIT, MOST_PAIRS, Kind, Level, LevelChange, Verdict, quantity
from measuring import SAMPLES, Outcome, in_turn
from running import Broken, Listed, Worker
from trees import git, linked

ROOT = Path(__file__).parent.parent
CODE = ROOT / "tools" / "regression"


def compared(before: list[float], now: list[float], kind: Kind = Kind.TIME) -> LevelChange:
    units = {Kind.TIME: "seconds", Kind.MEMORY: "bytes", Kind.TRACK: "bounds"}
    return LevelChange(name="one", kind=kind, unit=units[kind], before=Level.of(before), now=Level.of(now))


def noisy(seed: int, middle: float, spread: float, n: int = SAMPLES) -> list[float]:
    return (middle * np.exp(np.random.default_rng(seed).normal(0.0, spread, n))).tolist()


def test_level_by_hand():
    level = Level.of([1.0, 2.0, 4.0])
    assert (level.median, level.n) == (2.0, 3)
    assert level.spread == pytest.approx(np.log(2.0) / 1.349)  # the quartiles are 2 ** 0.5 and 2 ** 1.5
    assert level.error == pytest.approx(1.2533 * level.spread / 3**0.5)
    assert Level.of([5.0]) == Level(median=5.0, spread=0.0, n=1)


@pytest.mark.parametrize("samples", [[], [float("nan")], [1.0, -1.0]])
def test_a_level_of_no_numbers_is_refused(samples):
    with pytest.raises(ValueError, match="samples must be"):
        Level.of(samples)


@pytest.mark.parametrize("kind", list(Kind))
def test_limits(kind):
    at, beyond = LIMIT[kind], LIMIT[kind] * 1.001
    assert compared([1.0], [at], kind).verdict is Verdict.FINE
    assert compared([1.0], [beyond], kind).verdict is Verdict.WORSE
    assert compared([2.0], [1.0], kind).verdict is Verdict.FINE


def test_nothing_that_becomes_something_is_worse():
    assert compared([0.0], [0.0], Kind.TRACK).verdict is Verdict.FINE
    assert compared([0.0], [1.0], Kind.TRACK).verdict is Verdict.WORSE


@pytest.mark.parametrize("spread", [0.02, 0.1])
def test_a_doubling_is_seen_through_noise(spread):
    found = [compared(noisy(i, 1.0, spread), noisy(1000 + i, 2.0, spread)).verdict for i in range(500)]
    assert found.count(Verdict.FINE) == 0
    # What the usual seven samples leave open, more of them settle.
    more = [
        compared(noisy(i, 1.0, spread, MOST_PAIRS), noisy(1000 + i, 2.0, spread, MOST_PAIRS)).verdict
        for i in range(500)
    ]
    assert found.count(Verdict.WORSE) >= 450
    assert more.count(Verdict.WORSE) == 500


@pytest.mark.parametrize("spread", [0.02, 0.1, 0.25])
def test_noise_is_not_worse(spread):
    found = [compared(noisy(i, 1.0, spread), noisy(1000 + i, 1.0, spread)).verdict for i in range(2000)]
    assert found.count(Verdict.WORSE) <= 4


def test_what_noise_hides_is_unclear():
    wide = [1.0, 1.0, 1.0, 2.0, 2.0]
    assert compared(wide, [1.0, 1.1, 1.5, 2.0, 2.2]).verdict is Verdict.UNCLEAR


def test_a_regression_is_one_line():
    assert compared([0.25], [0.75]).line() == "one: 250 ms before, 750 ms now, ratio 3.00"
    assert quantity(3 * 2.0**30, "bytes") == "3 GiB"
    assert quantity(12.0, "claims") == "12 claims"


class Told:
    """Stands for the processes of one tree: what each benchmark gives, process by process."""

    def __init__(self, **given: list[float] | str) -> None:
        self.given = given
        self.processes = 0
        self.asked: list[tuple[str, str | None]] = []

    def benchmarks(self):
        return [Listed(name=name, kind=Kind.TIME, unit="seconds") for name in self.given]

    def renew(self):
        self.processes += 1

    def ask(self, do, name=None):
        self.asked.append((do, name))
        given = self.given[name]
        if isinstance(given, str):
            raise Broken(given)
        return given[min(self.processes, len(given) - 1)] if do == "sample" else None


def turned(before: Told, now: Told) -> Outcome:
    return in_turn(before, now, now.benchmarks(), lambda name: None)


def test_only_what_is_worse_in_all_pairs_of_processes_is_worse():
    before = Told(once=[0.1], twice=[0.1], really=[0.1], same=[0.1])
    now = Told(once=[0.2, 0.1, 0.2], twice=[0.2, 0.2, 0.1], really=[0.2], same=[0.1])
    outcome = turned(before, now)
    assert [c.name for c in outcome.worse] == ["really"]
    assert sorted(c.name for c in outcome.compared) == ["once", "really", "same", "twice"]
    taken = {name: before.asked.count(("sample", name)) for name in before.given}
    assert taken == {"once": 2 * SAMPLES, "twice": 3 * SAMPLES, "really": 3 * SAMPLES, "same": SAMPLES}


def test_trees_take_their_samples_in_turn():
    order = []
    before, now = Told(one=[0.1]), Told(one=[0.1])
    for side in (before, now):
        ask = side.ask
        side.ask = lambda do, name=None, ask=ask, side=side: (
            order.append(side) if do == "sample" else None,
            ask(do, name),
        )[1]
    turned(before, now)
    assert order[:4] == [now, before, before, now]
    assert len(order) == 2 * SAMPLES
    assert before.asked[0] == ("prepare", "one")
    assert before.asked[-1] == ("close", "one")


def test_what_fails_now_is_raised_and_what_failed_before_is_new():
    before, now = Told(breaks=[0.1], mended="KeyError: x"), Told(breaks="ValueError: y", mended=[0.1], added=[0.1])
    outcome = turned(before, now)
    assert outcome.failed == {"breaks": "ValueError: y"}
    assert outcome.new == {"mended": "failed before: KeyError: x", "added": "not there before"}
    assert outcome.raised == 1


def test_every_case_is_listed(tmp_path):
    listed = Worker(ROOT / "benchmarks" / "cases", tmp_path, skips_unknown=False).list()
    assert len({one.name for one in listed}) == len(listed) > 100


TOY = """
from toy import cost

def track_cost():
    return cost()
track_cost.unit = "claims"

def track_other():
    return 7.0

def peakmem_nothing():
    return None
"""


def commit(repository: Path, message: str) -> str:
    git(repository, "add", "--all")
    git(repository, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "--message", message)
    return git(repository, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path):
    """A project of one function with benchmarks, and this comparison."""
    root = tmp_path / "project"
    shutil.copytree(CODE, root / "tools" / "regression", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "benchmarks" / "cases").mkdir(parents=True)
    (root / "benchmarks" / "cases" / "__init__.py").touch()
    (root / "benchmarks" / "cases" / "bench_toy.py").write_text(TOY)
    (root / "src" / "toy").mkdir(parents=True)
    (root / "src" / "toy" / "__init__.py").write_text("def cost():\n    return 100.0\n")
    (root / ".gitignore").write_text("__pycache__/\n")
    (root / "pyproject.toml").write_text('[tool.setuptools]\npackage-dir = { "toy" = "src/toy" }\n')
    git(tmp_path, "init", "--quiet", "project")
    commit(root, "first")
    return root


def regression(root: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "tools" / "regression"), *options]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment}, check=False)


def edit(root: Path, cost: float) -> None:
    (root / "src" / "toy" / "__init__.py").write_text(f"def cost():\n    return {cost}\n")


def test_a_regression_is_found_and_named(repository):
    first = git(repository, "rev-parse", "HEAD")
    done = regression(repository)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"3 benchmarks compared with {first[:10]} in turn: 0 worse; largest ratio" in done.stdout

    edit(repository, 200.0)
    done = regression(repository, "--only", "track")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "worse: bench_toy.track_cost: 100 claims before, 200 claims now, ratio 2.00\n" in done.stdout
    assert "bench_toy.track_other:" not in done.stdout
    assert git(repository, "worktree", "list").count("\n") == 0

    done = regression(repository, "--only", "no_such")
    assert (done.returncode, done.stderr) == (2, "error: no benchmark has 'no_such' in its name\n")


def test_what_is_planted_is_found(repository):
    planted = {"PYTHONPATH": str(ROOT / "tests" / "planted"), "PLANTED_TREE": str(repository)}
    done = regression(repository, "--base", "HEAD", **planted)
    assert done.returncode == 1, done.stdout + done.stderr
    for name in ("track_cost", "track_other", "peakmem_nothing"):
        assert f"worse: bench_toy.{name}: " in done.stdout


def test_benchmarks_that_cannot_be_imported_are_an_error(repository):
    (repository / "benchmarks" / "cases" / "bench_more.py").write_text("import no_such_module\n")
    done = regression(repository, "--base", "HEAD")
    last = "ModuleNotFoundError: No module named 'no_such_module'"
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"error: the benchmarks cannot be imported: {last}\n"


def test_a_commit_that_is_not_there_is_named(repository):
    done = regression(repository, "--base", "no-such-branch")
    assert (done.returncode, done.stderr) == (
        2,
        "error: the repository has no commit 'no-such-branch': fetch it, or name another with --base\n",
    )


def test_a_tree_is_laid_out_as_installed(tmp_path):
    tree = linked(ROOT, tmp_path / "imports")
    assert (tree.imports / "shardbench" / "baselines").resolve() == ROOT / "baselines"
    assert (tree.imports / "shardbench" / "machines").resolve() == ROOT / "benchmarks" / "machines"
    code = "import shardbench.cost, shardbench.baselines.greedy as g; print(shardbench.cost.__file__, g.__file__)"
    environment = {**os.environ, "PYTHONPATH": str(tree.imports), "PYTHONSAFEPATH": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert all(path.startswith(str(tree.imports)) for path in done.stdout.split())


@pytest.mark.slow
def test_a_doubling_of_any_benchmark_is_found():
    planted = {"PYTHONPATH": str(ROOT / "tests" / "planted"), "PLANTED_TREE": str(ROOT)}
    done = regression(ROOT, "--base", "HEAD", **planted)
    worse = set(re.findall(r"^worse: (.+?): \S+ \S+ before", done.stdout, re.MULTILINE))
    (total,) = re.findall(r"^(\d+) benchmarks compared", done.stdout, re.MULTILINE)
    assert done.returncode == 1
    assert len(worse) == int(total) > 100, done.stdout
