import json
import os
import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import records as make

from shardbench.base.errors import BadInput
from shardbench.cli import main as cli
from shardbench.cli.progress import finished_line
from shardbench.conformance import checks as conformance
from shardbench.model.machine_file import load_machine
from shardbench.records.provenance import Provenance
from shardbench.records.store import trial_store
from shardbench.records.trial import Backend, Outcome
from shardbench.report.compare import versions
from shardbench.trials import discovery, runner
from shardbench.trials.discovery import strategies, strategy_version

SUITE = """
name = "tiny"
description = "for the tests of the command line"
[[workloads]]
name = "drawn"
dataset = "{dataset}"
batch_size = 4096
[[grids]]
machines = ["{machine}"]
backends = ["simulated"]
iterations = 1
strategies = ["greedy-size", "shuffle", "row-wise"]
"""


def suite_file(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(SUITE.format(dataset="synthetic", machine="cpu-1x2"))
    return path


@pytest.fixture
def results(tmp_path):
    make.kept(tmp_path / "results", *make.sample())
    return tmp_path / "results"


@pytest.fixture
def fake_run(monkeypatch):
    """Replaces the runner: 'runs' the given records, and keeps the options it was called with."""
    called = {}

    def replace(records, settled=0, interrupt_after=None):
        def run_suite(suite, options, listener):
            called["suite"], called["options"] = suite, options
            store = trial_store(options.results, suite.name)
            listener.planned(f"suite {suite.name}", "trial", len(records) + settled, settled)
            for number, record in enumerate(records, 1):
                if interrupt_after is not None and number > interrupt_after:
                    raise KeyboardInterrupt
                listener.started(record.spec.text)
                store.append(record)
                listener.finished(number, record)
            return records

        monkeypatch.setattr(runner, "run_suite", run_suite)
        return called

    return replace


# What goes wrong: one line, exit code 2.


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["frobnicate"], "No such command 'frobnicate'"),
        (["--frobnicate"], "No such option: --frobnicate"),
        (["run", "quick", "--frobnicate"], "No such option: --frobnicate"),
        (["run"], "Missing argument"),
        (["run", "nosuch"], "unknown suite 'nosuch'; known: "),
        (["run", "nosuch.toml"], "suite file nosuch.toml does not exist"),
        (["run", "quick", "--backend", "guessed"], "'guessed' is not one of 'simulated', 'measured'"),
        (["run", "quick", "--seed", "-1"], "'--seed'"),
        (["run", "quick", "--retry", "oom,never"], "unknown outcome 'never'; known: failed, ok, infeasible"),
        (["plan", "quick", "cpu-1x2", "--budget", "nan"], "'--budget'"),
        (["plan", "quick", "cpu-1x2", "--budget", "inf"], "inf is no number of seconds up to"),
        (["run", "quick", "--seed", str(10**30)], "'--seed'"),
        (["list", "planets"], "'planets' is not one of"),
        (["status", "nosuch"], "unknown suite"),
        (["report", "nosuch"], "unknown suite"),
        (["test", "nosuch"], " are known (see: shardbench list strategies)"),
        (["export", "tables.csv"], "no file tables.csv: make one with: shardbench plan TABLES MACHINE --out"),
        (["export", __file__], "test_cli.py is no plan: make one with: shardbench plan"),
        (["compare", "nosuch"], "no folder nosuch: name the results of a run"),
        (["prepare", "criteo_kaggle", "no-such-file", "target", "--mode", "guess"], "'guess' is not one of"),
        (["prepare", "criteo_kaggle", "no-such-file", "HERE/target"], "no-such-file"),
        (["run", "quick", "--strategy", "nosuch", "--results", "HERE/results"], "unknown strategy 'nosuch'"),
        (["status", "quick", "--strategy", "nosuch", "--results", "HERE/results"], "unknown strategy 'nosuch'"),
        (["report", "quick", "--results", "HERE"], "run: shardbench run quick"),
    ],
)
def test_bad_input(command, tmp_path, arguments, says):
    assert says in command(*(part.replace("HERE", str(tmp_path)) for part in arguments), code=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("suite", "says"),
    [
        (SUITE.format(dataset="synthetic", machine="nosuch"), "^error: unknown machine 'nosuch'; .*known .see: shard"),
        (SUITE.format(dataset="nosuch", machine="cpu-1x2"), "unknown dataset 'nosuch'; known: "),
        (SUITE.format(dataset="criteo_kaggle", machine="cpu-1x2"), "shardbench prepare"),
        ("name = ", "not TOML"),
    ],
)
def test_bad_suites(command, tmp_path, suite, says):
    path = tmp_path / "tiny.toml"
    path.write_text(suite)
    said = command("run", path, "--results", tmp_path / "results", "--data", tmp_path / "data", code=2)
    assert re.search(says, said)
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.toml"]


@pytest.mark.parametrize("options", [[], ["--page"], ["--check"], ["--json"]])
def test_truncated_records(command, results, options):
    path = results / "records" / "quick.jsonl"
    data = path.read_bytes()[:-5]
    path.write_bytes(data)
    assert "line 10 is truncated" in command("report", *options, "quick", "--results", results, code=2)
    assert path.read_bytes() == data


def test_results_that_cannot_be_written(command, results):
    (results / "tables").write_text("in the way")
    assert str(results / "tables") in command("report", "quick", "--results", results, code=2)


def test_errors_stay_one_ascii_line(command, monkeypatch):
    def fail(*_):
        raise BadInput("first\nsecond \u00e9")

    monkeypatch.setattr(runner, "run_suite", fail)
    assert command("run", "quick", code=2) == "error: first second \\xe9\n"


# What goes right.


def test_no_arguments_is_help(command):
    assert "Usage: shardbench" in command()


def test_list_names_everything(command):
    listed = json.loads(command("list", "--json"))
    assert [entry["name"] for entry in listed["strategies"]] == list(strategies())
    assert "quick" in [entry["name"] for entry in listed["suites"]]
    assert "dlrm20" in [entry["name"] for entry in listed["workloads"]]
    assert all(entry["description"] for entries in listed.values() for entry in entries)


def test_list_one_kind_is_a_line_each(command):
    lines = command("list", "machines").splitlines()
    assert any(line.startswith("cpu-1x2 ") for line in lines)
    assert all(line.isascii() and not line.startswith(" ") for line in lines)


def test_run_hands_over_its_options(command, tmp_path, fake_run):
    called = fake_run([make.ok()])
    arguments = "run quick --backend measured --strategy a --strategy b --seed 1 --seed 2 --force --retry oom,timeout"
    command(*arguments.split(), "--results", tmp_path, "--data", "d", "--work", "w")
    options = called["options"]
    assert (options.backend, options.strategies, options.seeds, options.force) == ("measured", ("a", "b"), (1, 2), True)
    assert options.retry == {Outcome.OOM, Outcome.TIMEOUT}
    assert (options.results, str(options.data), options.work) == (tmp_path, "d", Path("w"))


def test_run_puts_a_suite_on_another_machine(command, tmp_path, fake_run):
    called = fake_run([make.ok()])
    file = tmp_path / "mine.toml"
    file.write_text('base = "h100-1x8"\nname = "mine"\ndescription = "ours"\n')
    for given, on in (("cpu-2x2", "cpu-2x2"), (str(file), str(file.resolve()))):
        command("run", "quick", "--machine", given, "--results", tmp_path)
        assert {job.machine for job in called["suite"].jobs} == {on}
    for missing, says in (("cpu-2x3", "unknown machine 'cpu-2x3'"), ("none.toml", "none.toml")):
        assert says in command("run", "quick", "--machine", missing, "--results", tmp_path, code=2)


@pytest.mark.parametrize("tables", [[], ["--tables"]])
def test_run_prints_a_line_a_trial_the_answer_and_where_all_of_it_lies(command, tmp_path, fake_run, tables):
    fake_run([make.ok(), make.ok(repeat=1), make.failed(Outcome.OOM, "big")], settled=3)
    out = command("run", "quick", "--results", tmp_path, *tables)
    lines = out.splitlines()
    assert lines[0] == "suite quick: 6 trials, 3 settled, 3 to run"
    assert lines[1] == "[1/3] measured dlrm20 cpu-1x2 greedy-size r0: ok 25 ms/step (n=4)"
    assert lines[3] == "[3/3] measured dlrm20 cpu-1x2 big r0: oom in build (rank 1): rank 1 was killed by signal 9"
    assert ("Throughput: dlrm20 on cpu-1x2: measured on real ranks" in out) == bool(tables)
    assert "dlrm20 on cpu-1x2, measured, batch 1000:" in lines
    assert any(line.startswith("  best: greedy-size, 20.0 ms a step") for line in lines)
    assert f"records: {tmp_path / 'records' / 'quick.jsonl'}" in lines
    again = f" (shardbench report quick --results {tmp_path})" if not tables else ""
    assert f"tables: {tmp_path / 'tables' / 'quick'}{again}" in lines
    assert lines[-1] == "3 trials: 2 ok; not ok: 1 oom (again: --retry oom)"
    assert out.isascii()
    assert (tmp_path / "tables" / "quick" / "balance.csv").is_file()


def test_run_exits_with_1_where_a_trial_ended_in_error(command, tmp_path, fake_run):
    fake_run([make.ok(), make.failed(Outcome.ERROR, "broken")])
    command("run", "quick", "--results", tmp_path, code=1)


def test_run_ends_with_causes_and_logs_of_what_failed(command, tmp_path, fake_run):
    bad, unlogged = make.failed(Outcome.OOM, "big"), make.failed(Outcome.INFEASIBLE, "picky", rank=None)
    log = tmp_path / "logs" / f"{bad.key}.log"
    log.parent.mkdir()
    log.write_text("what the ranks printed")
    fake_run([bad, make.ok(), unlogged])
    lines = command("run", "quick", "--results", tmp_path).splitlines()
    first = lines.index("  failed: big: oom: build of rank 1: rank 1 was killed by signal 9")
    assert lines[first + 1 : first + 3] == [
        f"    log: {log}",
        "  failed: picky: infeasible: build: rank 1 was killed by signal 9",
    ]


def test_run_of_nothing_is_refused(capsys, tmp_path, fake_run):
    fake_run([])
    assert cli.run_command(["run", "quick", "--results", str(tmp_path)]) == 2
    assert "no trial for this selection" in capsys.readouterr().err


def test_run_json_is_lines_of_json(command, tmp_path, fake_run):
    fake_run([make.ok(), make.failed(Outcome.OOM, "big")])
    said = command("run", "quick", "--json", "--results", tmp_path)
    events = [json.loads(line) for line in said.splitlines()]
    assert [event["event"] for event in events] == ["planned", "finished", "finished", "done"]
    assert events[2]["record"]["failure"]["cause"] == "rank 1 was killed by signal 9"
    assert events[3]["outcomes"] == {"ok": 1, "oom": 1}
    (answer,) = events[3]["answers"]
    assert [fault["strategy"] for fault in answer["faults"]] == ["big"]


@pytest.mark.parametrize("extra", [[], ["--json"]])
def test_interrupt_loses_nothing(capsys, tmp_path, fake_run, extra):
    fake_run([make.ok(), make.ok("other")], interrupt_after=1)
    assert cli.run_command(["run", "quick", "--results", str(tmp_path), *extra]) == 130
    err = capsys.readouterr().err
    assert err.startswith("error: interrupted")
    assert err.count("\n") == 1
    assert len(trial_store(tmp_path, "quick").read()) == 1


def test_status_counts(command, tmp_path, monkeypatch):
    simulated = {"backend": Backend.SIMULATED}
    trials = [make.spec(name, **simulated) for name in ("a", "b", "c", "d", "e")] + [make.spec("measured-elsewhere")]
    job = SimpleNamespace(load_machine=lambda: load_machine("cpu-1x2"))
    entrants = {trial.strategy: SimpleNamespace(name=trial.strategy) for trial in trials}
    listed = runner._ListedJob(job=job, workload=None, entrants=entrants, specs=tuple(trials))
    monkeypatch.setattr(runner, "_list_jobs", lambda suite, options: [listed])
    for module in (discovery, versions):
        monkeypatch.setattr(module, "strategy_version", lambda name: "2" if name == "d" else "1")
    here = (make.ok("a", **simulated), make.failed(Outcome.OOM, "b", **simulated), make.ok("d", **simulated))
    unstated = make.ok("e", **simulated, changes={"provenance": None})
    make.kept(tmp_path, *here, make.ok("measured-elsewhere"), make.ok("gone"), unstated)
    state = json.loads(command("status", "quick", "--json", "--results", tmp_path))
    assert state == {
        "suite": "quick", "trials": 6, "settled": 2, "open": 4, "outcomes": {"ok": 1, "oom": 1}, "other_records": 1,
        "other_versions": {"records": 5, "other": {"d": 1, "e": 1}},
    }  # fmt: skip
    out = command("status", "quick", "--results", tmp_path)
    assert "quick: 6 trials, 2 settled, 4 open" in out
    assert "  2 of 5 records are of other versions, a run makes them again: d (1), e (1)\n" in out


def test_report_json_is_one_document(command, results):
    document = json.loads(command("report", "quick", "--json", "--results", results))
    assert set(document["tables"]) == {"throughput", "balance", "traffic"}
    assert document["tables"]["throughput"][4]["step_ms"] == pytest.approx((20.0 * 21.0) ** 0.5)
    assert len(document["files"]) == 3


def test_report_check(command, results):
    line = ("report", "quick", "--check", "--results", results)
    assert len(command(*line, code=1).splitlines()) == 3
    assert not (results / "tables").exists(), "a check writes nothing"
    command("report", "quick", "--results", results)
    assert command(*line) == "quick: tables and records agree\n"


@pytest.mark.parametrize(("name", "why"), [("quick", ""), ("autoshard", "neither a suite nor a study of it has")])
def test_a_check_of_nothing_fails(command, tmp_path, name, why):
    said = command("report", name, "--check", "--results", tmp_path, code=1)
    assert said.startswith(f"{name}: nothing to check: {why}")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("option", "kept", "made"),
    [
        (["--strategy", "greedy-size"], ["shuffle", "gone"], ["greedy-size"]),
        (["--strategy", "greedy-size", "--seed", "7"], ["greedy-size", "shuffle", "gone"], ["greedy-size"]),
        (["--strategy", "greedy-size", "--backend", "simulated"], ["shuffle", "gone"], ["greedy-size"]),
        ([], [], ["greedy-size", "shuffle", "row-wise"]),
    ],
)
def test_a_fresh_run_deletes_the_records_of_what_is_chosen_and_none_for_a_mistyped_name(
    command, tmp_path, option, kept, made
):
    suite = suite_file(tmp_path)
    asked = ["run", str(suite), "--results", str(tmp_path)]
    command(*asked, "--strategy", "greedy-size", "--strategy", "shuffle")
    store = trial_store(tmp_path, "tiny")
    store.append(make.ok("gone", suite="tiny", backend=Backend.SIMULATED))
    before = store.path.read_bytes()
    mistyped = ("--strategy", "greedy-size", "--strategy", "greedy-sizee")
    assert "did you mean 'greedy-size'" in command(*asked, "--fresh", *mistyped, code=2)
    assert store.path.read_bytes() == before
    command(*asked, "--fresh", *option)
    assert [record.spec.strategy for record in store.read()] == [*kept, *made]


def test_a_fresh_reproduction_is_of_all_of_a_paper(command, tmp_path, monkeypatch):
    path = tmp_path / "studies" / "recshard" / "scaling.jsonl"
    committed = Path(__file__).parent.parent / "results" / "studies" / "recshard" / "scaling.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(committed.read_bytes())
    trial_store(tmp_path, "recshard").append(make.ok(suite="recshard"))
    for option in (["--quick"], ["--study", "scaling"], ["--strategy", "recshard"]):
        for which in ("--fresh", "--outdated"):
            asked = ("reproduce", "recshard", which, *option, "--results", str(tmp_path))
            assert "are about all of a paper" in command(*asked, code=2)
    assert path.exists()
    # What cells and trials give is not the matter here.
    monkeypatch.setattr("shardbench.studies.session.run_studies", lambda *_: [])
    monkeypatch.setattr("shardbench.trials.runner.run_suite", lambda *_: [])
    command("reproduce", "recshard", "--fresh", "--results", tmp_path)
    assert not path.exists()
    assert not trial_store(tmp_path, "recshard").path.exists()


def test_outdated_records_go_and_those_of_these_versions_stay(command, tmp_path, monkeypatch):
    here = Provenance.begin(strategy_version("greedy-size"))
    kept = make.ok("greedy-size", suite="recshard").model_copy(update={"provenance": here})
    others = (
        make.ok("row-wise", suite="recshard", changes={"provenance": None}),  # it does not state its version
        make.ok("joint", suite="recshard").model_copy(update={"provenance": here.model_copy(update={"made_by": "0"})}),
        make.ok("greedy-size", suite="recshard", repeat=1).model_copy(
            update={"provenance": here.model_copy(update={"judge_version": 99})}
        ),
    )
    store = make.kept(tmp_path, kept, *others, suite="recshard")
    monkeypatch.setattr("shardbench.studies.session.run_studies", lambda *_: [])
    monkeypatch.setattr("shardbench.trials.runner.run_suite", lambda *_: [])
    command("reproduce", "recshard", "--outdated", "--results", tmp_path)
    assert [record.key for record in store.read()] == [kept.key]


def test_report_page(command, results):
    assert (
        command("report", "quick", "--page", "--results", results).splitlines()[-1]
        == f"page: {results / 'pages' / 'quick.html'}"
    )
    assert "What lies where" in (results / "pages" / "quick.html").read_text(encoding="utf-8")


def test_conformance_of_a_strategy(command, monkeypatch):
    asked = []
    monkeypatch.setattr(conformance, "check", asked.append)
    assert json.loads(command("test", "greedy-size", "--json"))["passed"] is True
    assert [strategy.name for strategy in asked] == ["greedy-size"]
    monkeypatch.setattr(conformance, "check", Mock(side_effect=conformance.ConformanceError("valid", "no plan")))
    failed = json.loads(command("test", "greedy-size", "--json", code=1))
    assert (failed["passed"], failed["check"], failed["cause"]) == (False, "valid", "no plan")


def test_line_of_a_record_with_newlines_is_one_line():
    record = make.failed(rank=None)
    failure = record.failure.model_copy(update={"cause": "a\nb"})
    line = finished_line(3, 120, record.model_copy(update={"failure": failure}))
    assert line == "[  3/120] measured dlrm20 cpu-1x2 greedy-size r0: oom in build: a b"


def test_a_folder_nested_too_deeply_is_refused(command, tmp_path, monkeypatch):
    lines = (
        "claims --results .",
        "run quick --results {}",
        "report quick --results {}",
        "plan t.csv cpu-1x2 --strategy shuffle --budget 0.1 --out {}/p",
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.csv").write_text("name,rows\na,100\n")
    folder = tmp_path / "tables"
    for _ in range(1_000):
        folder.mkdir()
        folder /= "d"
    try:
        for line, depth in product(lines, (1_500, 3_000)):
            command(*line.format("d/" * depth).split(), code=2)
            assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv", "tables"], line
    finally:
        subprocess.run(["rm", "-rf", "tables"], check=True)


# As a program.


def test_sigterm_interrupts(tmp_path):
    code = """
import time
from shardbench.cli import main as cli
from shardbench.trials import runner
def run_suite(*_):
    print("ready", flush=True)
    time.sleep(60)
runner.run_suite = run_suite
cli.main(["run", "quick"])
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as running:
        assert running.stdout.readline() == "ready\n"
        running.terminate()
        err = running.communicate(timeout=30)[1]
    assert (running.returncode, err.count("\n")) == (130, 1)
    assert err.startswith("error: interrupted")


def test_list_imports_nothing_heavy_and_bad_input_ends_the_program_with_2(tmp_path):
    # What makes a start slow are imports; seconds would be those of a busy machine.
    code = """
import sys
from shardbench.cli.main import main, run_command
heavy = [m for m in ('torch', 'pandas', 'jinja2', 'scipy') if m in sys.modules]
assert run_command(["list"]) == 0
print(heavy, [m for m in ('torch', 'jinja2', 'scipy.stats') if m in sys.modules])
main(["report", "quick", "--results", sys.argv[1]])
"""
    command = [sys.executable, "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines()[-1] == "[] []"
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_processes_start_under_pythons_own_checks_and_without_stderr() -> None:
    # One problem starts as many kinds of processes as ten.
    code = """
import runpy, sys
from shardbench.conformance import checks
problems = checks.cases()[:1]
checks.cases = lambda: problems
sys.argv[1:] = ["test", "greedy-size"]
runpy.run_module("shardbench", run_name="__main__")
"""
    command, environment = f'exec {sys.executable} -c "$CODE" 2>&-', {**os.environ, "PYTHONDEVMODE": "1", "CODE": code}
    done = subprocess.run(
        command, shell=True, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.split(":")[0]) == (0, "greedy-size")
