"""Child processes: what crosses to them, what they inherit, and that none outlives its starter."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardbench.engine.failures import TrialFailed
from shardbench.engine.launch import call_in_child
from shardbench.records.trial import Outcome

TESTS = Path(__file__).parent


def text_hash() -> int:
    return hash("shardbench")


def hang_with_child(pids: str) -> None:
    """Hangs, and so does a process of its own; leaves both ids."""
    child = os.fork()
    if child:
        Path(f"{pids}.partial").write_text(f"{os.getpid()} {child}")
        Path(f"{pids}.partial").rename(pids)
    time.sleep(1e6)


def runs(pid: int) -> bool:
    try:
        # A killed process may wait long for whoever adopted it.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def within(seconds: float, condition) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def started(code: str, **options) -> subprocess.Popen:
    """A program that runs ``code`` with the tests at hand; its output is piped."""
    code = f"import sys; sys.path.insert(0, {str(TESTS)!r})\n{code}"
    return subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def test_what_cannot_be_pickled_is_an_outcome(tmp_path):
    with pytest.raises(TrialFailed, match="cannot be pickled") as caught:
        call_in_child(text_hash, (lambda: 0,), timeout_s=10, phase="plan", log=tmp_path / "log")
    assert (caught.value.failure.outcome, caught.value.failure.phase) == (Outcome.ERROR, "plan")
    assert "\n" not in caught.value.failure.cause


def test_children_hash_text_alike_in_every_run(tmp_path):
    here = call_in_child(text_hash, (), timeout_s=60, phase="plan", log=tmp_path / "log")
    environment = {**os.environ, "PYTHONHASHSEED": os.environ["PYTHONHASHSEED"]}
    other = started("import test_launch; print(test_launch.text_hash())", env=environment)
    assert int(other.communicate(timeout=60)[0]) == here


def sleep_long(pid_file: str) -> None:
    Path(f"{pid_file}.partial").write_text(str(os.getpid()))
    Path(f"{pid_file}.partial").rename(pid_file)
    time.sleep(1e6)


def test_a_pools_workers_end_with_a_killed_starter(tmp_path):
    pids = [tmp_path / f"pid{i}" for i in range(2)]
    program = started(f"""
import multiprocessing as mp
from concurrent.futures import ProcessPoolExecutor
import test_launch
from shardbench.engine.launch import end_with, own_lifeline
context = mp.get_context("forkserver")
with ProcessPoolExecutor(2, mp_context=context, initializer=end_with, initargs=(own_lifeline(),)) as pool:
    list(pool.map(test_launch.sleep_long, {[str(path) for path in pids]!r}))
""")
    try:
        assert within(60, lambda: all(path.exists() for path in pids))
        workers = [int(path.read_text()) for path in pids]
        assert all(runs(pid) for pid in workers)
    finally:
        program.kill()
        said = program.communicate(timeout=20)
    assert within(60, lambda: not any(runs(pid) for pid in workers)), said


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_children_end_with_the_process_that_started_them(tmp_path, how):
    pids = tmp_path / "pids"
    program = started(f"""
from pathlib import Path
import test_launch
from shardbench.engine.launch import call_in_child
log = Path({str(tmp_path / "log")!r})
call_in_child(test_launch.hang_with_child, ({str(pids)!r},), timeout_s=600, phase="plan", log=log)
""")
    try:
        assert within(60, pids.exists)
        children = [int(pid) for pid in pids.read_text().split()]
        assert all(runs(pid) for pid in children)
        program.send_signal(how)
        # Ends only when nobody holds the output: neither the fork server nor a child.
        program.communicate(timeout=60)
    finally:
        program.kill()
    assert within(60, lambda: not any(runs(pid) for pid in children))
