"""Tests share the small problems of ``problems.py``."""

import gc
import os
import sys
import time
from pathlib import Path

import pytest
from hypothesis import settings

from shardbench.base import wall
from shardbench.cli.main import run_command
from shardbench.trials import planning
from shardbench.trials.simulate import Simulation

sys.path.insert(0, str(Path(__file__).parent))

# By it tests of faults find what processes leave behind (faults/case.py): set before the first of them starts.
os.environ["SHARDBENCH_FAULTS"] = str(os.getpid())

KIND = wall.kind

# Objects by the million, and hardly a cycle: a search at every 700th takes a tenth of the tests' time.
gc.set_threshold(20_000, 20, 100)

# Shared machines stall; pytest-timeout is what catches a hang.
settings.register_profile("shardbench", deadline=None, print_blob=True)
settings.load_profile("shardbench")


def pytest_collection_finish():
    """Leave what was imported out of every collection of garbage: millions of objects, which all stay."""
    gc.freeze()


@pytest.fixture
def stopped_clock(monkeypatch):
    """Lets counted work alone end a search: with short budgets a busy machine's clock would."""
    monkeypatch.setattr(time, "monotonic", lambda: 0.0)


@pytest.fixture
def few_draws(monkeypatch):
    """Lets trials of this process predict a plan under few draws of the constants: 200 take most of their time."""
    draws = Simulation.draws
    monkeypatch.setattr(Simulation, "draws", lambda simulated, problem, dense: draws(simulated, problem, dense, 8))


@pytest.fixture
def unconfined(monkeypatch):
    """Lets the strategies of tests plan in forks, as without bubblewrap: a new Python for each takes half a second."""
    for module in (wall, planning):
        monkeypatch.setattr(module, "kind", lambda: wall.Kind.UNCONFINED)


@pytest.fixture
def walled(unconfined, monkeypatch):
    """Undoes that for one test of a module that uses it."""
    for module in (wall, planning):
        monkeypatch.setattr(module, "kind", KIND)


@pytest.fixture
def command(capsys):
    """Runs a command line, which must end with the code, and gives its output; of code 2 the one line on stderr."""

    def run(*arguments: object, code: int = 0) -> str:
        capsys.readouterr()
        ended = run_command([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert ended == code, (arguments, ended, printed.err)
        if code != 2:
            return printed.out
        assert (printed.out, printed.err.count("\n")) == ("", 1)
        assert printed.err.startswith("error: ")
        assert "Traceback" not in printed.err
        return printed.err

    return run
