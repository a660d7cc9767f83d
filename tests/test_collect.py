"""Kept trial folders: run anywhere, judged and recorded once, and never overwritten."""

import json
import os
import re
import shutil
from dataclasses import replace

import kept_folders
import pytest
from kept_folders import Silent, content, leave, only, results_of

from shardbench.base.errors import BadInput
from shardbench.cli.main import run_command
from shardbench.engine.processes.job import Ran, RankError
from shardbench.engine.processes.trial_folder import next_attempt, result_text, write_job
from shardbench.engine.rank import run_rank
from shardbench.records.store import trial_store
from shardbench.records.trial import Failure, Outcome
from shardbench.trials.measured_trial import FolderState, collect, open_folders, read_trial
from shardbench.trials.runner import SuiteWork, run_suite

# Fixtures.
kept, prepared = kept_folders.kept, kept_folders.prepared


def test_results_of_ranks_become_a_record_once(kept):
    folder, results = kept
    assert only(folder, results).state is FolderState.OPEN
    assert not results.exists()
    leave(folder, results_of(folder))
    before = content(folder)
    found = only(folder.parents[1], results)
    assert (found.state, found.record.outcome) == (FolderState.RECORDED, Outcome.OK)
    assert found.record.timing.step_ms == found.record.control.step_ms == (1.0, 1.0, 1.0)
    assert found.record.hosts == 1
    assert trial_store(results, "kept").read() == [found.record]
    assert (results / "plans" / f"{found.record.planned.plan_hash}.json").is_file()
    again = only(folder, results)
    assert (again.state, again.record) == (FolderState.KNOWN, found.record)
    assert len(trial_store(results, "kept").read()) == 1
    assert content(folder) == before


def of_other_job(results):
    return [results[0], results[1].model_copy(update={"job": "0" * 16})]


def of_other_bytes(results):
    name = max(results[0].sent[0], key=lambda one: sum(results[0].sent[0][one]))
    sent = {**results[0].sent[0], name: (1.0, 0.0)}
    return [results[0].model_copy(update={"sent": [sent, sent]}), results[1]]


def of_fewer_steps(results):
    return [results[0], results[1].model_copy(update={"ms": {k: v[:2] for k, v in results[1].ms.items()}})]


def of_other_control(results):
    return [results[0], results[1].model_copy(update={"control_ms": [1.0]})]


def too_late(results):
    return [results[0], results[1].model_copy(update={"took_s": 1e6})]


def of_another_version(results):
    ran = Ran.begin()
    other = ran.model_copy(update={"provenance": ran.provenance.model_copy(update={"judge_version": 99})})
    return [result.model_copy(update={"ran": one}) for result, one in zip(results, (ran, other))]


def of_other_versions(results):
    ran = Ran.begin()
    other = ran.model_copy(update={"environment": ran.environment.model_copy(update={"cpu": "another"})})
    return [result.model_copy(update={"ran": one}) for result, one in zip(results, (ran, other))]


def partly_local(results):
    return [results[0], results[1].model_copy(update={"ran": Ran.begin()})]


def swapped(results):
    return [result.model_copy(update={"rank": 1 - result.rank}) for result in results]


BAD = [
    (of_other_job, Outcome.ERROR, "time", r"rank1\.json is of another job \(hash 0{16}, the folder's is \w{16}\)"),
    (of_other_bytes, Outcome.ERROR, "bytes", r"ranks sent 1 bytes, the counter says \d+"),
    (of_fewer_steps, Outcome.ERROR, "time", r"rank1\.json has 2 steps, the job 3"),
    (of_other_control, Outcome.ERROR, "time", r"rank1\.json has 1 steps, the job 3"),
    (too_late, Outcome.TIMEOUT, "time", r"rank 1 took 1000000\.0 s, the limit is 300 s"),
    (of_another_version, Outcome.ERROR, "start", r"rank 1 ran judge version 99, and \d+ made the folder"),
    (of_other_versions, Outcome.ERROR, "start", r"ranks 0 and 1 ran with different cpu"),
    (partly_local, Outcome.ERROR, "start", r"some ranks were started by a session's launcher and some were not"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "ended", "phase", "said"), BAD, ids=lambda one: getattr(one, "__name__", None))
def test_results_that_do_not_hold_are_recorded_as_failures(kept, change, ended, phase, said):
    folder, results = kept
    leave(folder, change(results_of(folder)))
    found = only(folder, results)
    assert (found.state, found.record.outcome) == (FolderState.RECORDED, ended)
    assert found.record.failure.phase == phase
    assert "\n" not in found.text
    assert re.search(said, found.record.failure.cause), found.record.failure.cause
    assert only(folder, results).state is FolderState.KNOWN


def test_a_result_under_another_ranks_name_is_found(kept):
    folder, results = kept
    for result in swapped(results_of(folder)):
        (folder / f"rank{1 - result.rank}.json").write_text(result_text(result))
    assert "rank0.json is of rank 1" in only(folder, results).record.failure.cause


def test_a_truncated_result_and_one_too_many_are_found(kept):
    folder, results = kept
    leave(folder, results_of(folder))
    shutil.copy(folder / "rank0.json", folder / "rank2.json")
    assert "rank2.json is of no rank of the job, which has 2" in only(folder, results).record.failure.cause
    (folder / "rank2.json").unlink()
    whole = (folder / "rank1.json").read_bytes()
    (folder / "rank1.json").write_bytes(whole[: len(whole) // 2])
    found = only(folder, results)
    assert (found.record.outcome, found.record.failure.rank) == (Outcome.ERROR, 1)
    assert "rank1.json: " in found.text
    flipped = bytearray(whole)
    flipped[whole.index(b"1.0")] ^= 2
    (folder / "rank1.json").write_bytes(flipped)
    cause = only(folder, results).record.failure.cause
    assert cause == "rank1.json: is not what its digest was made of: the line was edited or damaged"
    # A better copy takes its place.
    (folder / "rank1.json").write_bytes(whole)
    assert only(folder, results).record.outcome is Outcome.OK
    assert trial_store(results, "kept").latest()[folder.name].outcome is Outcome.OK


def test_unfinished_ranks_are_left_until_they_settle(kept):
    folder, results = kept
    left = results_of(folder)
    (folder / "rank0.phase").write_text("warmup")
    found = only(folder, results)
    assert (found.state, found.record) == (FolderState.UNFINISHED, None)
    assert "no result of rank 0 in warmup, rank 1 in start" in found.text
    leave(folder, left[:1])
    assert only(folder, results).state is FolderState.UNFINISHED
    assert not trial_store(results, "kept").path.exists()
    for path in folder.glob("rank*"):
        os.utime(path, (0, 0))
    found = only(folder, results)
    assert (found.state, found.record.failure.cause) == (FolderState.RECORDED, "rank 1 left no result")
    leave(folder, left)
    assert only(folder, results).record.outcome is Outcome.OK


def test_a_rank_that_failed_says_why_and_where(kept):
    folder, results = kept
    ran = Ran.begin()
    failure = Failure(outcome=Outcome.OOM, cause="RuntimeError: out of memory", phase="build", rank=1)
    (folder / "rank0.phase").write_text("warmup")
    (folder / "rank1.error.json").write_text(RankError(failure=failure, ran=ran).model_dump_json())
    (folder / "slurm-1.log").write_text("what it printed")
    for path in folder.glob("rank*"):
        os.utime(path, (0, 0))
    record = only(folder, results).record
    assert (record.outcome, record.failure.rank, record.timing) == (Outcome.OOM, 1, None)
    assert record.failure.cause == "RuntimeError: out of memory; no word of rank 0 (in warmup)"
    assert record.environment == ran.environment.hash
    assert (results / "environments" / f"{record.environment}.json").is_file()
    assert "what it printed" in (results / "logs" / f"{record.key}.log").read_text()


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("trial.json", None, "no trial.json: not made by"),
        ("trial.json", lambda text: text[:200], "trial.json: "),
        ("trial.json", lambda text: text.replace('"strategy":"row-wise"', '"strategy":"shuffle"'), "was edited"),
        ("job.json", None, "job.json does not exist"),
        ("job.json", lambda text: text.replace('"seed":0', '"seed":1'), "is not the one of trial.json"),
    ],
)
def test_a_folder_that_is_no_trials_is_one_clear_line(kept, capsys, name, change, said):
    folder, results = kept
    leave(folder, results_of(folder))
    text = (folder / name).read_text()
    (folder / name).unlink()
    if change is not None:
        (folder / name).write_text(change(text))
        assert change(text) != text
    found = only(folder, results)
    assert (found.state, found.record) == (FolderState.BAD, None)
    assert said in found.text
    assert "\n" not in found.text
    assert run_command(["collect", str(folder), "--results", str(results)]) == 1
    assert capsys.readouterr().out.startswith(f"not a trial: {folder}: ")


def test_a_folder_under_another_name_is_not_that_trial(kept):
    folder, results = kept
    moved = folder.rename(folder.with_name("0" * 16))
    assert "the folder's name is of another" in only(moved, results).text


def test_what_is_no_work_folder_is_refused(tmp_path):
    with pytest.raises(BadInput, match="holds no trial folders"):
        list(collect(tmp_path, tmp_path))
    with pytest.raises(BadInput, match="is no folder"):
        list(collect(tmp_path / "gone", tmp_path))


def test_the_command_writes_tables_and_json(kept, capsys):
    folder, results = kept
    assert run_command(["collect", str(folder.parents[1]), "--open"]) == 0
    assert capsys.readouterr().out.splitlines() == [str(folder)]
    leave(folder, results_of(folder))
    assert run_command(["collect", str(folder.parents[1]), "--results", str(results), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["states"] == {"recorded": 1}
    assert said["folders"][0]["outcome"] == "ok"
    assert (results / "tables" / "kept" / "throughput.csv").is_file()
    assert run_command(["collect", str(folder.parents[1]), "--results", str(results)]) == 0
    said = capsys.readouterr().out
    assert "no order is claimed (?), nothing was repeated" in said
    assert f"records: {results / 'records' / 'kept.jsonl'}" in said
    assert run_command(["collect", str(folder.parents[1]), "--open"]) == 0
    assert capsys.readouterr().out == ""


def attempts(folder):
    return sorted(path for path in folder.parent.glob(f"{folder.name}*") if path.is_dir())


def test_a_retry_takes_a_new_folder_and_the_old_one_stays(prepared, tmp_path):
    suite, options, trial = prepared
    work = tmp_path / "work"
    shutil.copytree(options.work, work)
    first = work / trial.relative_to(options.work)
    again = replace(options, work=work, results=tmp_path / "results", force=True)
    # No rank has begun there: it is made again.
    run_suite(suite, again, Silent())
    assert attempts(first) == [first]
    leave(first, [result.model_copy(update={"took_s": 1e6}) for result in results_of(first)])
    before = content(first)
    run_suite(suite, again, Silent())
    second = first.with_name(f"{first.name}.2")
    assert (attempts(first), content(first)) == ([first, second], before)
    assert open_folders(work) == [second]
    leave(second, results_of(second))
    told = list(collect(work, again.results))
    assert [one.record.outcome for one in told] == [Outcome.TIMEOUT, Outcome.OK]
    assert trial_store(again.results, "kept").latest()[first.name].outcome is Outcome.OK
    assert [one.state for one in collect(work, again.results)] == [FolderState.KNOWN] * 2
    # What came in late does not hide the attempt after it.
    (first / "rank0.phase").write_text("changed since")
    assert [one.state for one in collect(work, again.results)] == [FolderState.LEFT, FolderState.KNOWN]
    # On record from elsewhere, it is not made again where nothing is measured.
    work_here = SuiteWork(suite, replace(again, force=False))
    assert len(work_here.settled_pieces(work_here.store.latest(), "another place")) == 1
    assert next_attempt(first) == first.with_name(f"{first.name}.3")


def test_ranks_and_jobs_refuse_a_folder_with_results(kept, monkeypatch, capsys):
    folder, _ = kept
    _, job = read_trial(folder)
    leave(folder, results_of(folder))
    before = content(folder)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run_rank(folder) == 2
    assert "holds results of ranks" in capsys.readouterr().err
    with pytest.raises(BadInput, match="which nothing overwrites"):
        write_job(job, folder)
    assert content(folder) == before


@pytest.mark.parametrize(
    ("here", "batches", "said"),
    [
        ("1", False, "joins"),
        ("2", False, "joins"),
        ("1", True, "the test batches that lie here are not those of the job"),
    ],
)
def test_ranks_check_what_lies_there(kept, monkeypatch, here, batches, said):
    folder, _ = kept
    if batches:
        header = folder.parent / "batches" / "batches.json"
        header.write_text(header.read_text().replace('"crc32": ', '"crc32": 1'))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", here)
    monkeypatch.setattr("shardbench.engine.rank.Rank._join", lambda self: (_ for _ in ()).throw(BadInput("joins")))
    assert run_rank(folder) == 1
    report = RankError.model_validate_json((folder / "rank0.error.json").read_text())
    assert said in report.failure.cause


def test_a_node_is_not_spread_over_machines(kept, monkeypatch):
    folder, _ = kept
    _, job = read_trial(folder)
    one_node = replace(job.topology, nodes=1, devices_per_node=2)
    write_job(job.model_copy(update={"topology": one_node}), folder)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    assert run_rank(folder) == 1
    report = RankError.model_validate_json((folder / "rank1.error.json").read_text())
    assert "the job has 2 ranks a node, 1 were started on this machine" in report.failure.cause
    assert "the job (hash " in only(folder, folder).text, "the job was changed"
