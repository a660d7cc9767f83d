"""shardbench drift: a plan of one day, judged on a log of the next one."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from toy_machine import machine_file
from two_days import ROWS, write_days, write_log

from shardbench.cli.main import run_command
from shardbench.cost.resharding import resharding
from shardbench.datasets.access_log import AccessLogConfig
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem

PAGE = Path(__file__).parent.parent / "docs" / "when_to_reshard.md"
BATCH = 256
STRATEGY = "recshard"
"""Its plans have hot rows in HBM and others off it, where two tables do not fit."""


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a machine of little HBM and slow host memory, a day's log, and the plan made for it."""
    folder = tmp_path_factory.mktemp("planned")
    path = Path(machine_file(folder))
    text = path.read_text()
    for name, was, now in (("hbm_capacity", 100, 0.32), ("uvm_bandwidth", 10, 0.1), ("dense_rate", 1, 1e6)):
        assert f"{name} = {{ value = {was}," in text
        text = text.replace(f"{name} = {{ value = {was},", f"{name} = {{ value = {now},")
    path.write_text(text)
    write_days(folder, folder="monday", days=(0,))
    options = ("--batch-size", str(BATCH), "--strategy", STRATEGY, "--out", "plan.json")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run_command(["plan", "monday", path.name, *options]) == 0
    return folder


@pytest.fixture
def place(planned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, and the tests' working folder."""
    shutil.copytree(planned, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def drift(newer: str, *more: str, plan: str = "plan.json", older: str = "monday") -> list[str]:
    options = ["--profile", older, "--machine", "toy.toml", "--batch-size", str(BATCH), "--strategy", STRATEGY]
    return ["drift", plan, newer, *options, *more]


def told(command, newer: str, *more: str) -> dict[str, Any]:
    return json.loads(command(*drift(newer, "--json", *more)))


def test_a_day_with_other_hot_rows_costs_and_a_new_plan_pays(place: Path, command) -> None:
    write_days(place, folder="tuesday", days=(1,), seed=1)
    found = told(command, "tuesday", "--out", "new.json")
    new = found["new"]
    assert found["lost_pct"] == pytest.approx(100 * (found["now_ms"] / found["made_for_ms"] - 1))
    assert found["lost_pct"] > 10
    assert new["saved_ms"] == pytest.approx(found["now_ms"] - new["best"]["step_ms"])
    assert new["sure"] is True
    assert new["pays_after_steps"] == -(-1e3 * new["reshard_s"] // new["saved_ms"])
    logs = [
        AccessLogConfig(prepared=name, batch_size=BATCH, test_batches=1).build(place) for name in ("monday", "tuesday")
    ]
    on = load_machine("toy.toml")
    problem = Problem.of("p", logs[0].tables, logs[0].profiles, on, batch_size=BATCH)
    plans = [Plan.from_json(Path(name).read_text()) for name in ("plan.json", "new.json")]
    moved = resharding(*plans, problem, logs[0].ranking, logs[1].ranking)
    assert 0 < new["moved_bytes"] == moved.moved_bytes
    assert new["reshard_s"] == pytest.approx(moved.seconds(on))


def test_a_day_with_longer_bags_takes_more_memory(place: Path, command) -> None:
    write_days(place, folder="tuesday", days=(1,), bag=64)
    found = told(command, "tuesday")
    older, now = found["made_for_peak"], found["now_peak"]
    assert older["device"] == now["device"]
    # A vector for each sample is what it was; what is looked up is eight times as much.
    lookups = [peak["terms_bytes"]["lookups"] for peak in (older, now)]
    assert 1.5 * lookups[0] < lookups[1]
    assert older["bytes"] < now["bytes"]


def test_one_screen_says_it(place: Path, command) -> None:
    write_days(place, folder="tuesday", days=(1,), seed=1)
    said = command(*drift("tuesday")).splitlines()
    assert len(said) < 20
    assert all(len(line) < 80 for line in said)
    assert said[3].startswith("this plan has lost ")
    assert " steps" in " ".join(said[3:5])
    assert "  peak of a step without the dense model: " in "\n".join(said)


def test_the_same_days_cost_nothing_and_nothing_is_sure(place: Path, command) -> None:
    found = told(command, "monday")
    assert found["lost_pct"] == 0.0
    assert found["new"]["saved_ms"] == 0.0
    assert found["new"]["pays_after_steps"] is None
    assert found["new"]["moved_bytes"] == 0
    assert "this plan has lost nothing; a new one never pays" in command(*drift("monday"))


def test_what_is_within_the_models_error_is_not_sure(place: Path, command) -> None:
    write_days(place, folder="another", days=(0,), seed=7)
    found = told(command, "another")
    assert abs(found["lost_pct"]) < 10
    assert found["new"]["sure"] is False
    said = " ".join(command(*drift("another")).split())
    assert "not sure" in said or "never pays" in said


@pytest.mark.parametrize(
    ("newer", "words"),
    [
        ({"rows": {**ROWS, "item": 4_000}}, "table item has rows 5000 in monday and 4000 in other"),
        ({"dim": 32}, "table user has dim 64 in monday and 32 in other"),
        ({"mode": "hash"}, "monday was profiled with mode ids, other with hash: values are other rows"),
        ({"mode": "vocabulary"}, "profile both with --mode hash or --mode ids"),
        ({"rows": {"user": 20_000}}, "other is of other tables (user) than monday (user, item)"),
    ],
)
def test_logs_of_other_tables_are_refused_in_a_line(newer: dict[str, Any], words: str, place: Path, command) -> None:
    write_days(place, folder="other", days=(1,), **newer)
    assert words in command(*drift("other"), code=2)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (drift("nowhere"), "nowhere/prepared.json: write it with: shardbench profile"),
        (drift("monday", older="nowhere"), "nowhere/prepared.json: write it with: shardbench profile"),
        (drift("monday", plan="none.json"), "none.json: No such file or directory"),
        (["drift", "plan.json", "monday", "--machine", "toy.toml"], "--profile"),
        (drift("monday", "--machine", "cpu-1x4"), "plan plan.json is for 2 devices, cpu-1x4 has 4"),
        (drift("monday", plan="other.json"), "the plan is none of monday on toy: "),
        (drift("monday", plan="monday/prepared.json"), "plan monday/prepared.json"),
    ],
)
def test_bad_input_is_one_line(line: list[str], words: str, place: Path, command) -> None:
    text = Path("plan.json").read_text().replace('"table":"item"', '"table":"thing"')
    Path("other.json").write_text(text)
    assert words in command(*line, code=2)


def test_the_page_runs_as_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command) -> None:
    monkeypatch.chdir(tmp_path)
    for number, day in enumerate(("monday", "tuesday")):
        write_log(Path(f"{day}.csv"), (number,), seed=number)
    Path("tables.csv").write_text("name,rows,dim\n" + "".join(f"{name},{rows},16\n" for name, rows in ROWS.items()))
    lines = [line.split()[2:] for line in PAGE.read_text().splitlines() if line.startswith("$ shardbench ")]
    assert [line[0] for line in lines] == ["profile", "plan", "profile", "drift"]
    # Every strategy is asked, as on the page, each for less of the time.
    said = [command(*line, *(["--budget", "3"] if line[0] == "drift" else [])) for line in lines]
    assert "this plan " in said[-1]
    assert Plan.from_json(Path("new.json").read_text()).world_size == 2
