"""shardbench plan: from tables and a machine to one answer."""

import json
from pathlib import Path
from typing import Any

import pytest

from shardbench.base.errors import BadInput
from shardbench.cli import main as cli
from shardbench.model.constraints import Constraints
from shardbench.model.discovery import get_strategy
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import OnRank, Plan, whole_tables
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Strategy
from shardbench.runs.best_plan import best_plan, default_strategies
from shardbench.workloads.kinds import workload_config

TABLES = """
batch_size = 256
[[tables]]
name = "user"
rows = 400_000
alpha = 0.8
[[tables]]
name = "items"
rows = 50_000
pooling = 20.5
coverage = 0.7
[[tables]]
name = "city"
rows = 5000
"""


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    path = tmp_path / "ours.toml"
    path.write_text(TABLES)
    return path


def run(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    assert cli.run_command(["plan", *map(str, arguments)]) == code
    printed = capsys.readouterr()
    return printed.err if code == 2 else printed.out


def test_one_screen_says_all(tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, tables, "a100-40gb-2x8", "--budget", 2, "--out", tmp_path / "p.json")
    said = text.splitlines()
    assert len(said) <= 40
    assert all(len(line) <= 80 for line in said if str(tmp_path) not in line)
    assert said[0] == "ours: 3 tables, 0.108 GiB, batch 256"
    assert "(predicted, not measured)" in said[1]
    for part in ("best: ", " ms a step, ", " ms by what is known of the machine (95 %)", "% over the proven bound of"):
        assert part in text
    assert "least room: device" in text
    assert f"shardbench export {tmp_path / 'p.json'} --devices-per-node 8)" in text
    assert {s.table for s in Plan.from_json((tmp_path / "p.json").read_text()).segments} == {"user", "items", "city"}


def test_json_has_the_best_and_all_that_was_asked(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ["greedy-size", "row-wise", "joint"]
    arguments = [part for name in names for part in ("--strategy", name)]
    told: dict[str, Any] = json.loads(run(capsys, tables, "a100-40gb-2x8", "--budget", 2, "--json", *arguments))
    best, steps = told["best"], [one["step_ms"] for one in told["tried"]]
    assert steps == sorted(steps)
    assert (best["strategy"], best["step_ms"]) == (told["tried"][0]["strategy"], steps[0])
    assert sorted(one["strategy"] for one in told["tried"]) == sorted(names)
    assert best["band_ms"][0] < best["step_ms"] < best["band_ms"][1]
    assert best["bound_ms"] <= best["step_ms"]
    assert best["over_bound_pct"] == pytest.approx(100 * (best["step_ms"] / best["bound_ms"] - 1))
    assert sum(best["sharding_types"].values()) == 3
    assert told["backend"] == "simulated"


def test_precision_and_optimizer_decide_what_a_table_takes(tables: Path, capsys: pytest.CaptureFixture[str]) -> None:
    used = {}
    for option in ((), ("--precision", "fp16"), ("--optimizer", "adam")):
        told = json.loads(run(capsys, tables, "cpu-1x2", "--strategy", "greedy-size", "--json", *option))
        used[option] = sum(told["best"]["hbm_used_bytes"])
    half, adam = list(used.values())[1:]
    assert half == used[()] / 2
    assert adam == 3 * used[()]


def test_constraints_of_a_file_are_kept(tables: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "keep.toml"
    kept.write_text(
        'same_device = [["city", "items"]]\nreserved_bytes = 1_000_000\n[sharding_types]\nuser = ["row_wise"]\n'
    )
    arguments = [tables, "a100-40gb-2x8", "--constraints", kept, "--strategy", "greedy-size"]
    told = json.loads(run(capsys, *arguments, "--json"))
    assert told["best"]["sharding_types"] == {"row_wise": 1, "table_wise": 2}
    assert told["best"]["hbm_room_bytes"][0] == load_machine("a100-40gb-2x8").topology.hbm_bytes - 1_000_000
    assert "tables were placed anew to keep the constraints" in run(capsys, *arguments)
    kept.write_text('same_device = [["city", "cty"]]\n')
    assert "constraints name table 'cty'" in run(capsys, *arguments, code=2)
    kept.write_text("same_devices = []\n")
    assert "same_devices" in run(capsys, *arguments, code=2)


class Stubborn(Strategy):
    """Puts all tables on the first device, whatever it is told, and fails where there are three."""

    name = "stubborn"
    sees = frozenset({Sees.TABLES})
    moves = frozenset({Move.TABLE})

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        segments = whole_tables(problem.tables, [0] * len(problem.tables))
        return Plan(world_size=problem.world_size, segments=segments)


def described(**changes: Any) -> Any:
    tables = [{"name": name, "rows": 10_000} for name in "abc"]
    data = {"dataset": "described", "name": "w", "batch_size": 64, "tables": tables, **changes}
    return workload_config(data, "test").build(Path())


def test_a_plan_that_does_not_fit_is_refused_and_said() -> None:
    machine = load_machine("a100-40gb-2x8")
    sizes = (3_000_000, *(10_000_000,) * 15)  # a table has 2,560,000 bytes
    unequal = Constraints(device_hbm_bytes=sizes)
    found = best_plan(described(), machine, [Stubborn(), get_strategy("greedy-size")], constraints=unequal)
    assert found.best is not None
    assert found.best.strategy == "greedy-size"
    assert found.best.hbm_room_bytes == sizes
    assert max(found.best.hbm_used_bytes) <= 3_000_000
    assert found.tried[-1].strategy == "stubborn"
    assert found.tried[-1].cause.startswith("invalid: device 0 needs 7680000 bytes of HBM but has 3000000")
    types = Constraints(sharding_types={"a": ("by_frequency",)})
    refused = best_plan(described(), machine, [Stubborn()], constraints=types)
    assert refused.tried[0].cause == "infeasible: constraints: no device has room or a type for a"
    nobody = best_plan(described(), machine, [Stubborn()], constraints=unequal)
    assert nobody.best is None


def test_without_constraints_a_plan_is_left_alone() -> None:
    found = best_plan(described(), load_machine("a100-40gb-2x8"), [Stubborn()])
    assert found.best is not None
    assert {segment.placement for segment in found.best.plan.segments} == {OnRank(rank=0)}


def test_those_that_are_asked_unless_some_are_named() -> None:
    names = {strategy.name for strategy in default_strategies()}
    assert {"joint", "greedy-lookup", "recshard", "row-wise"} <= names
    assert not {"fae", "dreamshard", "torchrec-fused", "search", "cpu-only"} & names
    with pytest.raises(BadInput, match="no strategy is asked"):
        best_plan(described(), load_machine("a100-40gb-2x8"), [])


def test_lists_of_tables_and_suites(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listed = tmp_path / "ours.csv"
    listed.write_text("name,rows,dim,pooling\na,1000,64,2.5\nb,20000,32,\n")
    arguments = ["a100-40gb-2x8", "--strategy", "greedy-size", "--budget", "1"]
    assert run(capsys, listed, *arguments, "--batch-size", 64).startswith("ours: 2 tables")
    suite = tmp_path / "suite.toml"
    text = "".join(
        f'[[workloads]]\nname = "{n}"\ndataset = "described"\nbatch_size = 64\ntables = [{{name = "t", rows = 999}}]\n'
        for n in ("one", "two")
    )
    suite.write_text(text)
    assert "say which by --workload: one, two" in run(capsys, suite, *arguments, code=2)
    assert run(capsys, suite, *arguments, "--workload", "two").startswith("two: 1 tables")
    assert "unknown workload of " in run(capsys, suite, *arguments, "--workload", "three", code=2)
    assert "prepared.json" in run(capsys, tmp_path, *arguments, "--batch-size", 64, code=2)
    listed.write_text("name,rows\na,none\n")
    assert "rows" in run(capsys, listed, *arguments, code=2)
    suite.write_text("x = 1\n")
    assert "neither [[workloads]] nor [[tables]]" in run(capsys, suite, *arguments, code=2)
