"""One path for our folders and other people's packages, one line for whatever is wrong, and who needs the engine."""

import json
import os
import pickle
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shardbench import baselines
from shardbench.base.errors import BadInput
from shardbench.base.wall import Kind, kind
from shardbench.cli.main import run_command
from shardbench.conformance.problems import cases
from shardbench.model.plan import Plan, whole_tables
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Strategy
from shardbench.model.validate import validate
from shardbench.trials import described, discovery
from shardbench.trials import evaluate as evaluate_module
from shardbench.trials.discovery import broken_packages, get_strategy, missing_modules, strategies, strategy_version
from shardbench.trials.evaluate import Answer, RulesOnly, evaluate
from shardbench.trials.planning import may_need_engine

ROOT = Path(__file__).parent.parent
FOLDERS = sorted(path.name for path in (ROOT / "baselines").iterdir() if (path / "__init__.py").is_file())


class Mine(Strategy):
    name = "mine"
    sees = frozenset({Sees.TABLES})
    moves = frozenset({Move.TABLE})

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        return Plan(world_size=problem.world_size, segments=whole_tables(problem.tables, [0] * len(problem.tables)))


class Taken(Mine):
    name = "shuffle"


class Spaced(Mine):
    name = "my own"


class Listed(Mine):
    moves = (Move.TABLE,)  # type: ignore[assignment]


class Needy(Mine):
    name = "needy"
    requires = ("no_such_module", "no_such_package.part", "numpy")


def _install(monkeypatch: pytest.MonkeyPatch, name: str, module: str = __name__) -> None:
    point = metadata.EntryPoint(name="x", value=f"{module}:{name}", group=discovery.GROUP)
    vars(point).update(dist=SimpleNamespace(name="their-package"))
    monkeypatch.setattr(metadata, "entry_points", lambda group: [point] if group == discovery.GROUP else [])


def test_all_folders_give_strategies() -> None:
    modules = {
        type(s).__module__.split(".")[2] for s in strategies().values() if "shardbench.baselines" in str(type(s))
    }
    assert {"search", "greedy", "shuffle", "torchrec_planner"} <= modules <= set(FOLDERS)


A_CLASS, AN_INSTANCE, A_LIST = Mine, Mine(), [Mine()]


def a_function() -> Any:
    return [Mine()]


def a_generator() -> Any:
    yield Mine()


@pytest.mark.usefixtures("unconfined")
@pytest.mark.parametrize("provided", ["A_CLASS", "AN_INSTANCE", "A_LIST", "a_function", "a_generator"])
def test_entry_points_of_every_form(monkeypatch: pytest.MonkeyPatch, provided: str) -> None:
    _install(monkeypatch, provided)
    every = strategies()
    mine = every["mine"]
    assert not isinstance(mine, Mine), "nothing of it is here"
    assert (mine.sees, mine.moves, mine.requires) == (Mine.sees, Mine.moves, ())
    assert list(every) == sorted(every)


# The variable that tells the processes apart is everybody's without a wall.
@pytest.mark.skipif(kind() is Kind.UNCONFINED, reason="bubblewrap builds no wall here")
def test_strategies_of_others_plan_in_processes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, "Learner")
    learner = get_strategy("learner")
    problem = cases()[0].problem
    assert strategy_version("learner")
    answer = evaluate(RulesOnly(problem), learner, Budget(), 0)
    assert isinstance(answer, Answer), answer
    assert answer.plan.notes == {"learned": 1, "here": 0}
    learner.fit([problem], Budget(), 0)
    learner.fit([problem], Budget(), 0)
    assert learner.plan(problem, Budget(), 0).notes == {"learned": 2, "here": 0}
    assert [plan.notes["learned"] for plan in learner.plans(problem, Budget(), 0, 3)] == [2]
    assert get_strategy("learner").plan(problem, Budget(), 0).notes["learned"] == 0
    with pytest.raises(TypeError, match="opened in a process that plans"):
        pickle.loads(pickle.dumps(learner))


class Learner(Mine):
    """Counts what it learned, and whether it is in the process of the tests."""

    name = "learner"
    learned = 0

    def fit(self, problems: Any, budget: Budget, seed: int) -> None:
        self.learned += len(problems)

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        made = super().plan(problem, budget, seed)
        made.notes.update(learned=self.learned, here=int("PYTEST_CURRENT_TEST" in os.environ and os.getpid() > 9))
        return made


def test_what_others_do_while_they_are_described_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(os.environ, "TOUCHED", raising=False)
    _install(monkeypatch, "Touches")
    assert strategies()["touches"].moves == {Move.TABLE}
    assert "TOUCHED" not in os.environ
    assert evaluate_module.validate is validate


class Touches(Mine):
    """Would make every plan valid where it is looked at."""

    name = "touches"

    @property
    def moves(self) -> frozenset[Move]:  # type: ignore[override]
        os.environ["TOUCHED"] = "yes"
        evaluate_module.validate = lambda *_: None  # type: ignore[assignment]
        return frozenset({Move.TABLE})


@pytest.mark.usefixtures("unconfined")
def test_a_package_that_takes_for_ever_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = list(strategies())
    (tmp_path / "hangs.py").write_text("import time\ntime.sleep(1e6)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(described, "LOADS_S", 1.0)
    _install(monkeypatch, "anything", "hangs")
    assert list(strategies()) == whole
    (cause,) = broken_packages()
    assert "their-package" in cause
    assert cause.endswith("cannot be imported: TimeoutError: took more than 1 s")


def boom() -> Any:
    raise RuntimeError("first\nsecond")


def leave() -> Any:
    sys.exit(0)


def with_three() -> Any:
    return [Mine(), 3]


def none() -> Any:
    return None


THREE = 3
LEAVES, BOOMS = "import sys; sys.exit(0)", "raise RuntimeError('first\\nsecond')"


@pytest.mark.usefixtures("unconfined")
@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("x", LEAVES, "cannot be imported: SystemExit: 0"),
        ("leave", "", "failed to make its strategies: SystemExit: 0"),
        (
            "Taken",
            "",
            f"'shuffle' of their-package (entry point x = {__name__}:Taken) is already taken by",
        ),
        ("Spaced", "", "Spaced must state a name of letters, digits"),
        ("Listed", "", "Listed must state moves as a frozenset of Move"),
        ("with_three", "", "gives 3, which is not a Strategy"),
        ("THREE", "", "gives 3, not an iterable of Strategy"),
        ("none", "", "gives None, not an iterable of Strategy"),
        ("boom", "", "failed to make its strategies: RuntimeError: first second"),
        ("x", BOOMS, "cannot be imported: RuntimeError: first second"),
        ("Strategy", "", "failed to make its strategies: TypeError"),
    ],
)
def test_faults_are_one_line_that_names_the_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, source: str, message: str
) -> None:
    faulty = f"faulty_{len(source)}"
    # What is held here is the line and not the seconds, which pass by themselves on a busy machine.
    monkeypatch.setattr(described, "LOADS_S", 60.0)
    (tmp_path / f"{faulty}.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    _install(monkeypatch, name, faulty if source else __name__)
    (cause,) = broken_packages()
    assert message in cause
    assert "their-package" in cause
    assert "\n" not in cause


def test_what_is_not_theirs_is_there_and_broken_packages_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _install(monkeypatch, "leave")
    with pytest.raises(
        BadInput,
        match=r"unknown strategy 'mine'; \d+ are known \(see: shardbench list strategies\); left out: .*their-package",
    ):
        get_strategy("mine")
    assert run_command(["list", "strategies"]) == 0
    printed = capsys.readouterr()
    assert "shuffle" in printed.out
    assert printed.err.startswith(
        f"left out: package their-package (entry point x = {__name__}:leave) failed to make its strategies: SystemE"
    )


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("broken/__init__.py", "import no_such_module", r"package shardbench.baselines.broken cannot be im.*no_such"),
        ("silent/__init__.py", "", r"package shardbench.baselines.silent has no strategies\(\): add "),
        ("mine/__init__.py", "def strategies():\n    return []\n", None),
        ("mine/plans.py", "", r"{folder}/mine has Python files but no __init__.py"),
        ("single.py", "", r"{folder}/single.py is in no folder of its own: make it .*__init__.py"),
        ("__pycache__/x.py", "", None),
        (".hidden/x.py", "", None),
        ("notes/README.md", "", None),
    ],
)
def test_a_folder_of_ours_that_is_no_package_of_strategies_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str, message: str | None
) -> None:
    monkeypatch.setattr(baselines, "__path__", [*baselines.__path__, str(tmp_path)])
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(text)
    causes = broken_packages()
    assert len(causes) == (message is not None)
    assert all(re.match(message.format(folder=re.escape(str(tmp_path))), cause) for cause in causes)


@pytest.mark.usefixtures("unconfined")
def test_strategies_with_missing_modules_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    _install(monkeypatch, "Needy")
    assert missing_modules(strategies()["needy"]) == ("no_such_module", "no_such_package.part")


HARNESS_WORDS = frozenset({"search"})
"""Strategy names that are also a word of the harness (it has a search's role): only their use as a name counts."""


def _naming(names: set[str]) -> re.Pattern[str]:
    every, telling = ("|".join(map(re.escape, sorted(n))) for n in (names, names - HARNESS_WORDS))
    imported = rf"baselines[./](?:{every})\b|import (?:{every})\b"
    quoted = rf"""["'](?:{telling})["']"""
    looked_up = rf"""(?:==|!=|\bin|get_strategy\(|strategies\(\)\[)\s*[(\[{{]?\s*["'](?:{every})["']"""
    return re.compile(f"{imported}|{quoted}|{looked_up}")


def test_the_harness_names_no_baseline() -> None:
    words = _naming({*FOLDERS, *strategies()})
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if words.search(line)
    ]
    assert found == []


def test_baselines_start_no_process_groups() -> None:
    for path in (ROOT / "baselines").rglob("*.py"):
        assert "torch.distributed" not in path.read_text().replace("torchrec.distributed", ""), path


PROGRAM = """
import json, sys
sys.path.insert(0, sys.argv[1])
from problems import RandomWorkload, machine
from shardbench.trials.discovery import get_strategy
from shardbench.model.strategy import Budget

problem = RandomWorkload([(500, 8), (300, 8), (50, 8)], 64).problem(machine(2, 2))
planned = []
for name in sys.argv[2:]:
    plan = get_strategy(name).plan(problem, Budget(plan_s=0.2), 0)
    planned.append(len(plan.segments))
json.dump({"planned": planned, "torch": [m for m in ("torch", "torchrec") if m in sys.modules]}, sys.stdout)
"""


def test_who_is_said_not_to_need_the_engine_plans_without_it():
    spared = [name for name, strategy in strategies().items() if not may_need_engine(strategy)]
    assert {"joint", "recshard", "row-wise"} <= set(spared)
    here = str(Path(__file__).parent)
    done = subprocess.run([sys.executable, "-c", PROGRAM, here, *spared], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert all(said["planned"])
    assert said["torch"] == []


@pytest.mark.parametrize("name", ["dreamshard", "torchrec-fused"])
def test_who_learns_or_requires_modules_may_need_the_engine(name):
    assert may_need_engine(strategies()[name])
