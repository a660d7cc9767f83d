"""What a strategy's process has to import before it plans."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from shardbench.trials.discovery import strategies
from shardbench.trials.planning import may_need_engine

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
