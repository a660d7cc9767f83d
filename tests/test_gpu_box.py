"""The programme for a lent GPU (tools/gpu_box), rehearsed on CPUs: nothing that was measured is ever lost."""

import gzip
import importlib.util
import json
import lzma
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
import weakref
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from shardbench.base.errors import BadInput
from shardbench.base.generated import check_files

ROOT = Path(__file__).parents[1]
TOOL = ROOT / "tools" / "gpu_box"
PARTS = ("smoke", "card", "tiers", "fae", "kernels", "slide", "distinct", "captured")


@pytest.fixture
def tool(monkeypatch):
    """Import a module of the programme, whose modules import each other by bare names."""
    monkeypatch.syspath_prepend(TOOL)
    names = {path.stem for path in TOOL.glob("*.py")}
    # Other tools have modules of these names, which other tests may have imported.
    for name in names & sys.modules.keys():
        monkeypatch.delitem(sys.modules, name)
    yield importlib.import_module
    for name in names & sys.modules.keys():
        del sys.modules[name]


def started(out, *options):
    command = [sys.executable, str(TOOL), "--cpu", "--minutes", "8", "--out", str(out), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=out.parent)


def numbers(out):
    """Read all entries that are on disk; the last line may be cut by a kill, and then is no entry."""
    lines = (out / "numbers.jsonl").read_text().split("\n")
    return [json.loads(line) for line in lines[:-1]]


def test_every_part_runs_on_cpus_and_its_numbers_make_tables(tmp_path, tool):
    out = tmp_path / "results" / "gpu" / "card-2026-11-27"
    out.parent.mkdir(parents=True)
    with started(out) as process:
        printed = process.communicate(timeout=120)[0]
    assert process.returncode == 0, printed
    entries = numbers(out)
    assert {entry["part"] for entry in entries} == {"start", *PARTS}, printed
    broken = [entry for entry in entries if entry.get("skipped") == "the rest of the part"]
    assert broken == [], printed
    assert {entry["table"] for entry in entries if "table" in entry} == set(tool("tables").NAMES)
    assert sorted(path.name for path in out.iterdir()) == ["about.json", "numbers.jsonl", "printed.log"]
    with pytest.raises(BadInput, match="rehearsal"):
        tool("tables").tables(tmp_path / "results")
    about = json.loads((out / "about.json").read_text())
    assert about["processes"] == [{"parts": list(PARTS), "exit_code": 0}]
    (out / "about.json").write_text(json.dumps(about | {"cpu": False}))
    texts = tool("tables").tables(tmp_path / "results")
    assert len(texts) == 7
    for path, text in texts.items():
        assert len(text.splitlines()) > 1, path


def killed_after(out, lines):
    """Start the programme, kill all of it after so many printed lines, and return how many numbers it had printed."""
    with started(out, "--only", "smoke", "--only", "card") as process:
        printed = []
        for line in process.stdout:
            printed.append(line)
            if len(printed) == lines:
                break
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        for pid in (process.pid, *map(int, children)):
            os.kill(pid, signal.SIGKILL)
    return sum(line.startswith(("host:", "smoke:", "card:")) for line in printed)


@pytest.mark.parametrize("turn", [0, *(pytest.param(turn, marks=pytest.mark.slow) for turn in range(1, 5))])
def test_what_was_measured_is_on_disk_whenever_all_is_killed(tmp_path, turn):
    out = tmp_path / "out"
    printed = killed_after(out, random.randint(2, 12))
    assert len(numbers(out)) >= printed
    assert json.loads((out / "about.json").read_text())["ended"] == "not yet"


def test_a_signal_ends_it_and_says_so(tmp_path):
    out = tmp_path / "out"
    with started(out, "--only", "card") as process:
        assert any(line.startswith("== part") for line in process.stdout)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 1
    assert json.loads((out / "about.json").read_text())["ended"] == "ended by SIGTERM"


def test_a_folder_with_files_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with started(tmp_path) as process:
        printed = process.communicate(timeout=30)[0]
    assert process.returncode == 2
    assert "is not empty" in printed


WORKER = """
import os, subprocess, sys, time
print("== part one 0.2", flush=True)
if "hangs" in sys.argv: time.sleep(600)
print("== part two 0.2", flush=True)
if "leaves" in sys.argv: print(subprocess.Popen(["sleep", "600"], stdout=-3, stderr=-3).pid, flush=True)
if "dies" in sys.argv: os.abort()
"""


@pytest.fixture
def programme(tool):
    spec = importlib.util.spec_from_file_location("gpu_box_main", TOOL / "__main__.py")
    main = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(main)
    return main


def watched(programme, printed, *how):
    with printed.open("w") as file:
        return programme._watch([sys.executable, "-c", WORKER, *how], dict(os.environ), time.monotonic(), file)


def test_a_part_that_hangs_is_ended_and_the_next_one_begins(tmp_path, programme, monkeypatch):
    monkeypatch.setattr(programme, "GRACE_S", 0.3)
    assert watched(programme, tmp_path / "printed", "hangs") == (["one"], None)
    assert "one did not end in its time" in (tmp_path / "printed").read_text()
    assert watched(programme, tmp_path / "printed") == (["one", "two"], 0)
    assert watched(programme, tmp_path / "printed", "dies") == (["one", "two"], -signal.SIGABRT)


def test_what_a_process_started_ends_with_it(tmp_path, programme):
    watched(programme, tmp_path / "printed", "leaves", "dies")
    pid = int((tmp_path / "printed").read_text().split()[-1])
    state = Path(f"/proc/{pid}/stat")
    for _ in range(100):
        if not state.exists() or state.read_text().split()[2] == "Z":
            return
        time.sleep(0.1)
    pytest.fail("it runs on")


def test_how_a_process_ended_is_kept(tmp_path, programme, monkeypatch):
    ends = iter([(["smoke"], -11), (["card"], 3), (["tiers"], None), (["fae"], 0)])
    monkeypatch.setattr(programme, "_watch", lambda *_: next(ends))
    facts = {"parts": ["smoke", "card", "tiers", "fae"], "processes": []}
    given = SimpleNamespace(out=tmp_path, cpu=True, minutes=1.0)
    programme._run(given, facts, 0.0, (tmp_path, tmp_path), None)
    assert json.loads((tmp_path / "about.json").read_text())["processes"] == [
        {"parts": ["smoke"], "exit_code": -11}, {"parts": ["card"], "exit_code": 3},
        {"parts": ["tiers"], "exit_code": None}, {"parts": ["fae"], "exit_code": 0},
    ]  # fmt: skip
    assert [(row["part"], row["why"]) for row in numbers(tmp_path)] == [
        ("smoke", "its process ended with exit code -11"), ("tiers", "it did not end in its time"),
    ]  # fmt: skip


def test_a_kernel_that_the_device_reached_early_is_marked_and_comes_later_from_then_on(tmp_path, tool):
    cases = tool("cases")
    box = tool("box").Box(tool("log").Log(tmp_path), cpu=True, data=tmp_path)
    box.clock = SimpleNamespace(
        now=lambda: SimpleNamespace(query=lambda: True), ms=lambda *_: 1.0, thread_ms=lambda *_: None, settle=int
    )
    stopwatch = cases.Stopwatch(box)
    assert stopwatch.of(int, how=cases.BEHIND, warmups=1, runs=2) == ([1.0, 1.0], {"overtaken": 2})
    assert stopwatch._writes == cases.MOST_WRITES
    assert stopwatch.of(int, how=cases.IDLE, warmups=0, runs=1) == ([1.0], {})
    assert stopwatch.marks({"overtaken": [1.0, 2.0]}) == {"overtaken": 3.0}


def test_tables_that_were_not_drawn_in_time_wait_no_more(tool):
    waiting = [Future(), Future()]
    processes = SimpleNamespace(submit=lambda *_: waiting[_[1]])
    with pytest.raises(TimeoutError):
        list(tool("pool_lookups").draw_all(processes, [0, 1], 1, 0.0))
    assert all(future.cancelled() for future in waiting)


def test_managed_memory_beyond_what_is_free_is_refused_and_host_tables_are_mapped(tool):
    box, calls = tool("box"), []
    operators = SimpleNamespace(
        new_managed_tensor=lambda like, sizes: calls.append(("managed", sizes)),
        new_unified_tensor=lambda like, sizes, is_host_mapped: calls.append((is_host_mapped, sizes)),
    )
    box.ManagedMemory(lambda: 1000, lambda: 10_000).guard(operators)
    like = torch.zeros(1)
    operators.new_managed_tensor(like, [100])
    with pytest.raises(box.Refused, match="400 \\+ 800 bytes"):
        operators.new_managed_tensor(like, [10, 20])
    operators.new_unified_tensor(like, [1000])
    with pytest.raises(box.Refused, match="8000 bytes"):
        operators.new_unified_tensor(like, [2000], False)
    assert calls == [("managed", [100]), (True, [1000])]


def test_guarded_operators_work_under_a_mode_that_looks_at_every_operator(tool):
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
            return operator(*args, **(kwargs or {}))

    operator = torch.ops.fbgemm.new_unified_tensor
    try:
        tool("box").ManagedMemory(lambda: 1000, lambda: 10_000).guard(torch.ops.fbgemm)
        with Mode():  # TorchRec builds its modules under one
            assert torch.ops.fbgemm.new_unified_tensor(torch.zeros(1), [4]).dtype == torch.float32
    finally:
        torch.ops.fbgemm.new_unified_tensor = operator


def test_a_failed_measurement_is_kept_with_its_reason(tmp_path, tool, monkeypatch):
    module, released = tool("box"), []
    box = module.Box(tool("log").Log(tmp_path), cpu=True, data=tmp_path)
    box.begin("card", 1.0)

    def fail():
        tensors = torch.zeros(1)
        weakref.finalize(tensors, released.append, True)
        raise ValueError("no\nroom")

    monkeypatch.setattr(box, "free", lambda: released.append("asked to free"))
    with box.attempt("this"):
        fail()
    assert numbers(tmp_path)[1:] == [{"part": "card", "skipped": "this", "why": "ValueError: no room"}]
    assert released == [True, "asked to free"], "its tensors go before memory is given back"


def test_nothing_runs_on_a_lost_device(tmp_path, tool, monkeypatch):
    module = tool("box")
    box = module.Box(tool("log").Log(tmp_path), cpu=True, data=tmp_path)
    with pytest.raises(module.CardLost, match="a capture failed"), box.attempt("outer"), box.attempt("inner"):
        raise module.CardLost("a capture failed")
    monkeypatch.setattr(box.clock, "settle", lambda: 1 / 0)
    with pytest.raises(module.CardLost, match="lost: division"), box.attempt("this"):
        raise ValueError("an illegal address")
    assert [entry["skipped"] for entry in numbers(tmp_path)[1:]] == ["this"]


def test_tables_of_a_run_by_hand(tmp_path, tool):
    run = tmp_path / "gpu" / "h100-2026-12-01"
    run.mkdir(parents=True)
    (run / "about.json").write_text(json.dumps({"cpu": False, "backend": "measured"}))
    host, slide = {"part": "card", "table": "host"}, {"part": "slide", "table": "slide"}
    rows = [
        {**host, "what": {"of": "a step"}, "unit": "ms", "measured": [1, 2, 3], "predicted": 4.0},
        {**host, "what": {"of": "b", "rows": 7}, "unit": "ms", "measured": [3.0], "predicted": None},
        {"part": "card", "note": {"clock": "1980 MHz"}},
        {"part": "card", "skipped": "c", "why": "none"},
        {**slide, "what": {}, "unit": "ms", "measured": [], "predicted": 2.0},
    ]
    (run / "numbers.jsonl.gz").write_bytes(gzip.compress("".join(json.dumps(row) + "\n" for row in rows).encode()))
    texts = {path.name: text for path, text in tool("tables").tables(tmp_path).items()}
    assert texts.keys() == {"host.csv", "slide.csv", "summary.csv"}
    assert texts["host.csv"] == (
        "run,backend,part,of,rows,unit,n,measured,measured_low,measured_high,predicted,measured_over_predicted\n"
        "h100-2026-12-01,measured,card,a step,,ms,3,2.0,1.0,3.0,4.0,0.5\n"
        "h100-2026-12-01,measured,card,b,7,ms,1,3.0,3.0,3.0,,\n"
    )
    assert texts["summary.csv"] == (
        "run,backend,table,rows,compared,median_ratio,median_off_pct,within_1_6_pct,skipped\n"
        "h100-2026-12-01,measured,slide,1,0,,,,0\n"
        "h100-2026-12-01,measured,host,2,1,0.5,100.0,0.0,1\n"
    )


def test_committed_tables_are_what_the_runs_give(tool):
    assert check_files(tool("tables").tables(ROOT / "results"), "nox -s tables -- gpu") == []


def test_what_travels_comes_back_whole_or_not_at_all(tmp_path, tool):
    trips = tool("trips")
    site = tmp_path / "site"
    (tmp_path / "fbgemm_gpu").mkdir()
    (tmp_path / "fbgemm_gpu" / "file").write_bytes(os.urandom(1000))
    with lzma.open(tmp_path / "packed", "wb") as out, tarfile.open(fileobj=out, mode="w|") as archive:
        archive.add(tmp_path / "fbgemm_gpu", arcname="fbgemm_gpu")
    packed = (tmp_path / "packed").read_bytes()
    for name, part, number in ((trips.TRIPS[0], packed[:500], 0), (trips.TRIPS[1], packed[500:], 1)):
        (tmp_path / name).mkdir()
        with pytest.raises(SystemExit, match="some are missing"):
            trips.unpack(tmp_path, site)
        (tmp_path / name / f"fbgemm.tar.xz.{number:02d}-of-02").write_bytes(part)
    trips.unpack(tmp_path, site)
    assert (site / "fbgemm_gpu" / "file").read_bytes() == (tmp_path / "fbgemm_gpu" / "file").read_bytes()
