"""Faults of the place in which the program runs: a full disk, output that nobody takes, little memory, no network."""

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from kept_folders import Silent

from faults.case import Fault, Seen
from faults.stores import RECORDS, made_results
from faults.suites import MEASURED, TRIALS, suite_file
from shardbench.base.errors import BadInput
from shardbench.engine.processes.failures import LEAST_BYTES
from shardbench.records.store import trial_store
from shardbench.records.trial import Outcome
from shardbench.trials.runner import RunOptions, run_suite
from shardbench.trials.suite import load_suite

DISK_KB = 3072
KB_LEFT = (4, 8, 20, 60, 200, 290)
COMMANDS = {"run": (), "report": (), "status": (), "list": (), "plan": ("--budget", "1")}
"""Commands whose output nobody takes, with more of their options."""
LIMITS_KB = (250_000, 350_000, 600_000, 800_000)
PROGRAM = [sys.executable, "-c", "from shardbench.cli.main import main; main()"]
# A disk of its own that goes with its namespace; it is filled but for a few KB, and where FILL_AT lines are written.
ON_DISK = """
mount -t tmpfs -o size={kb}k faults "$DISK" && mkdir "$DISK/tmp" || exit 99
[ -z "$KEPT" ] || cp -r "$KEPT" "$DISK/results"
left=$(df -k --output=avail "$DISK" | tail -1)
head -c $(( (left - LEFT) * 1024 )) /dev/zero > "$DISK/filled"
(
    [ -n "$FILL_AT" ] || exit 0
    until [ "$(cat "$DISK/{records}" 2> /dev/null | wc -l)" -ge "$FILL_AT" ]; do sleep 0.01; done
    cat /dev/zero > "$DISK/filled too" 2> /dev/null
) & filler=$!
"$@"
code=$?
kill $filler 2> /dev/null
rm -rf "$DISK/filled" "$DISK/filled too"
cp -r "$DISK/." "$DISK.left"
exit $code
"""


def faults() -> Iterator[Fault]:
    """All of them."""
    for left in KB_LEFT:
        yield Fault("disk", "run", f"{left} KB left", partial(_little_room, left))
    for lines in (1, 2, 3):
        yield Fault("disk", "run", f"filled after {lines} records", partial(_filled, lines))
    for left in (0, 2, 4, 8):
        yield Fault("disk", "report", f"{left} KB left", partial(_report, left))
    yield Fault("disk", "run", "no room for temporary files", _no_temporary)
    for command in COMMANDS:
        yield Fault("output", command, "/dev/full", partial(_not_taken, command))
    for kind in "vd":
        for limit in LIMITS_KB:
            yield Fault("memory", "run", f"ulimit -{kind} {limit}", partial(_little_memory, kind, limit))
    yield Fault("network", "start", "no loopback", partial(_no_network, ("unshare", "-rn"), "lo"))
    yield Fault("network", "start", "no interface of that name", partial(_no_network, (), "nosuch9"))


def _ran(command: list[str], **environment: str) -> tuple[int, list[str], list[str]]:
    """Exit code, and the lines of output and of errors, of a program."""
    all_of = {**os.environ, "TMPDIR": tempfile.gettempdir(), "COLUMNS": "200", **environment}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200, env=all_of)
    return ended.returncode, ended.stdout.splitlines(), ended.stderr.splitlines()


def _run_command(suite: Path, results: Path) -> list[str]:
    return [*PROGRAM, "run", str(suite), "--json", "--results", str(results), "--data", str(suite.parent)]


def _acknowledged(lines: list[str]) -> list[dict]:
    events = [json.loads(line) for line in lines if line.startswith("{")]
    return [event["record"] for event in events if event["event"] == "finished"]


def _on_disk(folder: Path, command: list[str], left: int, **environment: str) -> tuple[int, list[str], list[str]]:
    (folder / "disk").mkdir()
    script = ON_DISK.format(kb=DISK_KB, records=Path("results") / RECORDS)
    command = ["unshare", "-rm", "sh", "-c", script, "sh", *command]
    return _ran(command, DISK=str(folder / "disk"), LEFT=str(left), **{"KEPT": "", "FILL_AT": "", **environment})


def _goes_on(folder: Path, suite: Path, ran: tuple[int, list[str], list[str]], least: int = 0) -> Seen:
    """Whether it ended in one line, and all that was acknowledged is there, and the next run goes on from it."""
    (code, out, errors), results = ran, folder / "disk.left" / "results"
    told = {record["key"] for record in _acknowledged(out)}
    try:
        kept = {record.key for record in trial_store(results, "tiny").read()}
        run_suite(load_suite(str(suite)), RunOptions(results=results, data=suite.parent), Silent())
        after = trial_store(results, "tiny").read()
    except BadInput as error:
        return Seen(f"exit {code}: {errors}; then {error}", outcome_right=False, lost=len(told))
    whole = len(after) == len({record.key for record in after}) == TRIALS
    whole = whole and all(record.outcome is Outcome.OK for record in after) and len(kept) >= least
    lost = len(told - kept)
    if code == 0:
        # There was room for all of it.
        return Seen("exit 0", whole and len(kept) == TRIALS and not errors, lost=lost)
    said = len(errors) == 1 and errors[0].startswith("error: ") and "No space left on device" in errors[0]
    return Seen(f"exit {code}, {len(kept)} kept: {errors}", whole and code == 2, cause_right=said, lost=lost)


def _little_room(left: int, folder: Path, rng: random.Random) -> Seen:
    suite = suite_file(folder / "suite")
    return _goes_on(folder, suite, _on_disk(folder, _run_command(suite, folder / "disk" / "results"), left))


def _filled(lines: int, folder: Path, rng: random.Random) -> Seen:
    """Somebody fills the disk while the program runs."""
    suite = suite_file(folder / "suite")
    command = _run_command(suite, folder / "disk" / "results")
    return _goes_on(folder, suite, _on_disk(folder, command, 1500, FILL_AT=str(lines)), lines)


def _no_temporary(folder: Path, rng: random.Random) -> Seen:
    suite, temporary = suite_file(folder / "suite"), folder / "disk" / "tmp"
    command = ["env", f"TMPDIR={temporary}", *_run_command(suite, folder / "results")]
    ran = _on_disk(folder, command, 0)
    (folder / "disk.left").mkdir(exist_ok=True)
    if (folder / "results").is_dir():
        shutil.move(folder / "results", folder / "disk.left" / "results")
    return _goes_on(folder, suite, ran)


def _report(left: int, folder: Path, rng: random.Random) -> Seen:
    """The tables do not fit; the records stay as they are."""
    kept, suite = made_results(folder), suite_file(folder / "suite")
    shutil.rmtree(kept / "tables", ignore_errors=True)
    command = [*PROGRAM, "report", str(suite), "--results", str(folder / "disk" / "results")]
    code, _, errors = _on_disk(folder, command, left, KEPT=str(kept))
    same = (folder / "disk.left" / "results" / RECORDS).read_bytes() == (kept / RECORDS).read_bytes()
    said = len(errors) == 1 and "tables/tiny" in errors[0] and "No space left on device" in errors[0]
    return Seen(f"exit {code}: {errors}", code == 2 and same, cause_right=said)


def _not_taken(command: str, folder: Path, rng: random.Random) -> Seen:
    suite = suite_file(folder / "suite")
    results = made_results(folder)
    where = {
        "list": [],
        "plan": [str(suite), str(suite.parent / "toy.toml"), "--data", str(suite.parent)],
        "run": [str(suite), "--results", str(folder / "new"), "--data", str(suite.parent)],
    }.get(command, [str(suite), "--results", str(results)])
    script = 'exec "$@" > /dev/full'
    code, _, errors = _ran(["sh", "-c", script, "sh", *PROGRAM, command, *where, *COMMANDS[command]])
    said = len(errors) == 1 and "No space left on device: make room where the output" in errors[0]
    return Seen(f"exit {code}: {errors}", code == 2, cause_right=said)


def _failure(out: list[str]) -> dict:
    failures = [record["failure"] for record in _acknowledged(out) if record["failure"] is not None]
    return failures[0] if failures else {}


def _little_memory(kind: str, limit: int, folder: Path, rng: random.Random) -> Seen:
    """The program, or its trial, has no memory, and says how much there may be and what to do; or it has enough."""
    suite = suite_file(folder / "suite", MEASURED, warmup=1, iterations=3)
    script = f'ulimit -{kind} {limit}; exec "$@"'
    code, out, errors = _ran(["sh", "-c", script, "sh", *_run_command(suite, folder / "results")])
    words = f"may take {limit >> 10} MiB each|{limit >> 10} MiB are the limit"
    failure = _failure(out)
    said = failure.get("cause") or " ".join(errors)
    right = failure.get("outcome") == "oom" if failure else code == 2 and len(errors) == 1
    told = any(word in said for word in words.split("|")) and "raise" in said
    if code == 0 and not failure and limit << 10 >= LEAST_BYTES:
        return Seen("done", outcome_right=True)
    return Seen(f"exit {code}: {said}", right, cause_right=told)


def _no_network(namespace: tuple[str, ...], name: str, folder: Path, rng: random.Random) -> Seen:
    suite = suite_file(folder / "suite", MEASURED, warmup=1, iterations=3)
    command = [*namespace, *_run_command(suite, folder / "results")]
    code, out, errors = _ran(command, GLOO_SOCKET_IFNAME=name)
    failure = _failure(out)
    said = failure.get("cause") or " ".join(errors)
    right = failure.get("outcome") == "error" and failure.get("phase") == "start"
    return Seen(f"exit {code}: {said}", right, cause_right=f"no network interface {name} is up" in said)
