"""shardbench plan: from tables and a machine to one answer."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from toy_machine import machine_file

from shardbench.model.machine_file import load_machine
from shardbench.model.plan import Plan

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


def test_one_screen_says_all(tables: Path, tmp_path: Path, command) -> None:
    text = command("plan", tables, "a100-40gb-2x8", "--budget", 20, "--out", tmp_path / "p.json")
    said = text.splitlines()
    assert len(said) <= 40
    assert all(len(line) <= 80 for line in said if str(tmp_path) not in line)
    assert said[0] == "ours: 3 tables, 0.108 GiB, batch 256"
    assert "(predicted, not measured)" in said[1]
    for part in ("best: ", " ms a step, ", " ms by what is known of the machine (95 %)", "% over the proven bound of"):
        assert part in text
    assert "% under the profile that plans are made by" in " ".join(text.split())
    assert "least room: device" in text
    assert "peak of a step without the dense model, which is not stated: device" in " ".join(text.split())
    assert f"shardbench export {tmp_path / 'p.json'} --devices-per-node 8)" in text
    assert {s.table for s in Plan.from_json((tmp_path / "p.json").read_text()).segments} == {"user", "items", "city"}


def test_json_has_the_best_and_all_that_was_asked(tables: Path, command) -> None:
    names = ["greedy-size", "row-wise", "joint"]
    arguments = [part for name in names for part in ("--strategy", name)]
    told: dict[str, Any] = json.loads(command("plan", tables, "a100-40gb-2x8", "--budget", 2, "--json", *arguments))
    best, steps = told["best"], [one["step_ms"] for one in told["tried"]]
    assert steps == sorted(steps)
    assert (best["strategy"], best["step_ms"]) == (told["tried"][0]["strategy"], steps[0])
    assert sorted(one["strategy"] for one in told["tried"]) == sorted(names)
    assert best["band_ms"][0] < best["step_ms"] < best["band_ms"][1]
    assert best["bound_ms"] <= best["step_ms"]
    assert best["over_bound_pct"] == pytest.approx(100 * (best["step_ms"] / best["bound_ms"] - 1))
    assert 0 <= best["over_profile_bound_pct"] < 100
    assert sum(best["sharding_types"].values()) == 3
    assert told["backend"] == "simulated"


def test_precision_and_optimizer_decide_what_a_table_takes(tables: Path, command) -> None:
    used = {}
    for option in ((), ("--precision", "fp16"), ("--optimizer", "adam")):
        told = json.loads(command("plan", tables, "cpu-1x2", "--strategy", "greedy-size", "--json", *option))
        used[option] = sum(told["best"]["hbm_used_bytes"])
    half, adam = list(used.values())[1:]
    assert half == used[()] / 2
    assert adam == 3 * used[()]


def test_constraints_of_a_file_are_kept(tables: Path, tmp_path: Path, command) -> None:
    kept = tmp_path / "keep.toml"
    kept.write_text(
        'same_device = [["city", "items"]]\nreserved_bytes = 1_000_000\n[sharding_types]\nuser = ["row_wise"]\n'
    )
    arguments = [tables, "a100-40gb-2x8", "--constraints", kept, "--strategy", "greedy-size"]
    told = json.loads(command("plan", *arguments, "--json"))
    assert told["best"]["sharding_types"] == {"row_wise": 1, "table_wise": 2}
    assert told["best"]["hbm_room_bytes"][0] == load_machine("a100-40gb-2x8").topology.hbm_bytes - 1_000_000
    assert "tables were placed anew to keep the constraints" in command("plan", *arguments)
    kept.write_text('same_device = [["city", "cty"]]\n')
    assert "constraints name table 'cty'" in command("plan", *arguments, code=2)
    kept.write_text("same_devices = []\n")
    assert "same_devices" in command("plan", *arguments, code=2)


def test_nothing_fits_and_the_answer_says_what_is_needed(tmp_path: Path, command) -> None:
    listed = tmp_path / "large.csv"
    listed.write_text("name,rows,dim\nsmall,1000,4\nlarge,4000000000,128\n")
    said = command("plan", listed, "a100-40gb-2x8", "--batch-size", 64, "--strategy", "row-wise", code=1).splitlines()
    assert "no strategy has a plan" in said
    assert all(len(line) <= 80 for line in said)
    whole = " ".join(" ".join(said).split())
    needed = 4_000_000_000 * 512 + 1000 * 16
    assert f"tables need {needed} bytes (weights and sgd state), 16 devices have {16 * 2**35} of HBM" in whole
    assert f"the largest is 'large' with {needed - 16_000}, which alone fits no device" in whole


LISTING = "name,rows,dim,pooling\n" + "".join(f"t{n},{1000 * (1 + n)},64,{1 + n % 30}\n" for n in range(120))


def test_ctrl_c_answers_with_the_best_so_far(tmp_path: Path) -> None:
    listed = tmp_path / "many.csv"
    listed.write_text(LISTING)
    program = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    program += "from shardbench.cli.main import main; main()"
    arguments = ["plan", str(listed), "a100-40gb-2x8", "--budget", "300", "--json", "--out", str(tmp_path / "p.json")]
    command = [sys.executable, "-c", program, *arguments, "--strategy", "joint", "--strategy", "greedy-size"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        while "joint has" not in (line := process.stderr.readline()):
            assert line, "it ended before it had said anything"
        process.send_signal(signal.SIGINT)
        told = json.loads(process.stdout.read())
    assert process.returncode == 0
    assert told["interrupted"]
    assert told["best"]["strategy"] == "joint"
    assert len(Plan.from_json((tmp_path / "p.json").read_text()).by_table()) == 120


def test_lists_of_tables_and_suites(tmp_path: Path, command) -> None:
    listed = tmp_path / "ours.csv"
    listed.write_text("name,rows,dim,pooling\na,1000,64,2.5\nb,20000,32,\n")
    arguments = ["a100-40gb-2x8", "--strategy", "greedy-size", "--budget", "1"]
    assert command("plan", listed, *arguments, "--batch-size", 64).startswith("ours: 2 tables")
    (tmp_path / "mine.tsv").write_text(listed.read_text().replace(",", "\t"))
    assert command("plan", tmp_path / "mine.tsv", *arguments, "--batch-size", 64).startswith("mine: 2 tables")
    suite = tmp_path / "suite.toml"
    text = "".join(
        f'[[workloads]]\nname = "{n}"\ndataset = "described"\nbatch_size = 64\ntables = [{{name = "t", rows = 999}}]\n'
        for n in ("one", "two")
    )
    suite.write_text(text)
    assert "say which by --workload: one, two" in command("plan", suite, *arguments, code=2)
    assert command("plan", suite, *arguments, "--workload", "two").startswith("two: 1 tables")
    assert "unknown workload of " in command("plan", suite, *arguments, "--workload", "three", code=2)
    assert "prepared.json" in command("plan", tmp_path, *arguments, "--batch-size", 64, code=2)
    listed.write_text("name,rows\na,none\n")
    assert "rows" in command("plan", listed, *arguments, code=2)
    for workloads in ("5", "[5]", "[]", "'x'", "{}"):
        suite.write_text(f"workloads = {workloads}")
        assert f"{suite}: workloads" in command("plan", suite, *arguments, code=2)
    suite.write_text("x = 1\n")
    assert "neither [[workloads]] nor [[tables]]" in command("plan", suite, *arguments, code=2)


LARGE = "name,rows,dim\n" + "".join(f"t{n},1000000,16\n" for n in range(5))
"""Five tables of 64 MB."""


def test_machines_have_a_line_each_whether_they_hold_the_tables_or_not(tmp_path: Path, command) -> None:
    listed, toy, small = tmp_path / "large.csv", machine_file(tmp_path), tmp_path / "small.toml"
    listed.write_text("\n".join(LARGE.splitlines()[:4]))
    text = Path(toy).read_text().replace('name = "toy"', 'name = "small"')
    small.write_text(text.replace('value = 100, unit = "MB"', 'value = 40, unit = "MB"'))
    machines, arguments = f"{toy},{small},a100-40gb-2x8", ("--batch-size", 64, "--strategy", "greedy-size", "--json")
    told = json.loads(command("plan", listed, machines, *arguments))
    ours, without, large = told["machines"]
    assert [one["machine"] for one in told["machines"]] == ["toy", "small", "a100-40gb-2x8"]
    # A table of 64 MB is in each device's 100 MB and the third one beside; nobody stated what devices have in all.
    assert (ours["fits"], ours["spare_bytes"], ours["devices"]) == (None, 36e6, 2)
    assert ours["samples_per_s"] == 2 * ours["samples_per_s_per_device"] == 64e3 / ours["best"]["step_ms"]
    assert (without["fits"], without["good"], without["best"], without["spare_bytes"]) == (False, False, None, None)
    assert "all memory together is too small; tables need 192000000 bytes" in without["cause"]
    peak = large["best"]["peak"]
    assert (large["fits"], large["spare_bytes"]) == (True, peak["device_bytes"] - peak["bytes"])


def test_wrong_questions_about_machines_are_one_line(tables: Path, tmp_path: Path, command) -> None:
    two = "a100-40gb-2x8,h100-1x8"
    assert "--out is for one plan: name one machine" in command("plan", tables, two, "--out", tmp_path / "p", code=2)
    fewest = ("plan", tables, "a100-40gb-2x8", "--fewest")
    assert "--race is for one plan" in command(*fewest, 5, "--race", tmp_path, code=2)
    for wrong in ("0", "nan", "-1"):
        assert f"--fewest {wrong} is no longest step" in command(*fewest, wrong, code=2)
    assert "unknown machine 'h101-1x8'" in command("plan", tables, "a100-40gb-2x8,h101-1x8", code=2)
    assert "unknown machine ''" in command("plan", tables, "a100-40gb-2x8,", code=2)
    uneven = command("plan", tables, two, "--batch-size", 12, code=2)
    assert "batch size 12 is not a multiple of any machine's devices, 16, 8: set --batch-size" in uneven


def test_a_machine_that_cannot_share_the_batch_out_evenly_has_a_line_that_says_so(tables: Path, command) -> None:
    arguments = ("plan", tables, "a100-40gb-2x8,h100-1x8", "--batch-size", 24, "--strategy", "greedy-size")
    without, with_plan = json.loads(command(*arguments, "--json"))["machines"]
    assert (without["machine"], without["devices"], without["best"], without["good"]) == (
        "a100-40gb-2x8",
        16,
        None,
        False,
    )
    assert without["cause"] == "the batch is not a multiple of its 16 devices"
    assert with_plan["best"] is not None
    said = command(*arguments)
    assert "a100-40gb-2x8: the batch is not a multiple of its 16 devices" in said


def test_the_fewest_devices_that_hold_the_tables(tmp_path: Path, command) -> None:
    """Dealt by rows, 320 MB take 80 of 100 on each of four devices, and more on fewer."""
    listed, toy = tmp_path / "large.csv", machine_file(tmp_path)
    listed.write_text(LARGE)
    arguments = ["plan", listed, toy, "--batch-size", 64, "--strategy", "row-wise", "--fewest"]
    (one,) = json.loads(command(*arguments, "inf", "--json"))["machines"]
    assert (one["machine"], one["nodes"], one["devices"], one["spare_bytes"]) == ("toy+2x2", 2, 4, 20e6)
    assert [(size["devices"], size["step_ms"] is None) for size in one["sizes"]] == [
        (1, True), (2, True), (4, False), (8, False),
    ]  # fmt: skip
    said = command(*arguments, one["best"]["step_ms"] / 1000.0, code=1)
    assert "toy+" in said
    assert "no size is within" in " ".join(said.split())
