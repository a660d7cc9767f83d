"""Child processes: what crosses to them, what they inherit, and that none outlives its starter."""

import fcntl
import functools
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import misbehaving
import pytest

from shardbench.base.wall import Kind, kind, wall_around
from shardbench.engine.processes import launch, server
from shardbench.engine.processes.failures import TrialFailed
from shardbench.engine.processes.launch import Worker, call_in_child
from shardbench.engine.processes.server import FORK_SERVER, server_pid
from shardbench.records.trial import Outcome

TESTS = Path(__file__).parent
ROOT = TESTS.parent


def text_hash() -> int:
    return hash("shardbench")


def hang_with_child(folder: str) -> None:
    """Hangs, and so does a process of its own; each holds a lock."""
    child = os.fork()
    hold(Path(folder, "parent" if child else "child"))
    time.sleep(1e6)


def hold(path: Path) -> None:
    """Locks a file for as long as this process runs: its number is one of its own namespace."""
    handle = os.open(path.with_suffix(".partial"), os.O_CREAT | os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    path.with_suffix(".partial").rename(path)


def held(path: Path) -> bool:
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


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


def leave_behind(lock: str, *, ends: bool) -> None:
    """Starts a process whose parent ends."""
    middle = os.fork()
    if middle == 0:
        if os.fork() == 0:
            hold(Path(lock))
            time.sleep(1e6)
        os._exit(0)
    os.waitpid(middle, 0)
    while not Path(lock).exists():
        time.sleep(0.01)
    if ends:
        os._exit(3)


@pytest.mark.parametrize("ends", [False, True])
def test_what_a_call_leaves_behind_ends_with_it(tmp_path, ends):
    lock = tmp_path / "lock"
    call = functools.partial(leave_behind, str(lock), ends=ends)
    if ends:
        with pytest.raises(TrialFailed, match="the process exited with 3 in phase plan"):
            call_in_child(call, (), timeout_s=60, phase="plan", log=tmp_path / "log")
    else:
        call_in_child(call, (), timeout_s=60, phase="plan", log=tmp_path / "log")
    assert within(10, lambda: not held(lock))


def leave_a_child(folder: Path) -> int:
    """A rank that goes, and whose child would not."""
    leave_behind(str(folder / f"lock{os.environ['RANK']}"), ends=False)
    return 0


def test_what_ranks_leave_behind_ends_with_them(tmp_path):
    with pytest.raises(TrialFailed, match="left no result"):
        launch.run_ranks(leave_a_child, tmp_path, 2, 60.0)
    locks = list(tmp_path.glob("lock?"))
    assert locks
    assert within(10, lambda: not any(map(held, locks)))


def end_answering(*, held: dict) -> None:
    os.close(misbehaving.answer_pipe().fileno())
    time.sleep(1e6)


def answer(said: bytes, *, held: dict) -> None:
    misbehaving.answer_pipe().send_bytes(said)
    time.sleep(1e6)


def write(said: bytes, *, held: dict) -> None:
    os.write(misbehaving.answer_pipe().fileno(), said)
    time.sleep(1e6)


@pytest.mark.parametrize(
    ("call", "given", "cause"),
    [
        (end_answering, (), "the process closed the pipe for its answer in phase plan and went on"),
        (answer, (b"nonsense",), "an answer that cannot be read: .*JSON"),
        (answer, (b"",), "an answer that cannot be read: .*JSON"),
        (answer, (b"+no text: \xff",), "an answer that cannot be read: UnicodeDecodeError"),
        (answer, (b'-{"outcome": "ok", "cause": "x", "phase": "plan"}',), "what ended well is no failure"),
        (write, (struct.pack("!i", launch.LONGEST + 1),), "an answer that cannot be read: it has more than"),
        (write, (struct.pack("!i", 1000) + b"half",), "no result from plan after 2 s"),
    ],
)
def test_what_is_no_answer_is_an_error(tmp_path, monkeypatch, call, given, cause):
    monkeypatch.setattr(server, "ENDS_S", 1.0)
    with Worker(tmp_path / "log") as worker, pytest.raises(TrialFailed, match=cause):
        worker.call(call, given, timeout_s=2, phase="plan", text=True)


def stop_soon() -> None:
    """Stops this process, which then reads nothing, once it has answered."""
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGSTOP)).start()


def test_who_reads_nothing_is_not_waited_for(tmp_path):
    with Worker(tmp_path / "log") as worker:
        worker.call(stop_soon, (), timeout_s=60, phase="start")
        time.sleep(0.5)
        with pytest.raises(TrialFailed, match="no result from plan after 1 s"):
            worker.call(len, (bytes(1 << 20),), timeout_s=1, phase="plan")
        assert worker.call(len, (b"anew",), timeout_s=60, phase="plan") == 4


@pytest.mark.skipif(kind() is Kind.UNCONFINED, reason="bubblewrap builds no wall here")
@pytest.mark.parametrize(("code", "how"), [(3, "exited with 3"), (200, "exited with 200"), (139, "signal 11")])
def test_an_exit_behind_a_wall_is_told_from_a_signal(tmp_path, code, how):
    with Worker(tmp_path / "log", wall=wall_around([ROOT], [])) as worker, pytest.raises(TrialFailed, match=how):
        worker.call(os._exit, (code,), timeout_s=60, phase="plan")


class PicklesForEver:
    def __getstate__(self):
        time.sleep(1e6)


@pytest.mark.parametrize("aside", [False, True])
def test_what_takes_for_ever_to_pickle_is_a_timeout(tmp_path, monkeypatch, aside):
    monkeypatch.setattr(launch, "PICKLING_S", 0.5)
    call = functools.partial(
        call_in_child, text_hash, (PicklesForEver(),), timeout_s=60, phase="plan", log=tmp_path / "log"
    )
    with pytest.raises(TrialFailed, match=r"cannot be pickled .* took more than 0.5 s") as caught:
        if aside:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(call).result()
        else:
            call()
    assert caught.value.failure.outcome is Outcome.TIMEOUT


@pytest.fixture
def small_server(monkeypatch):
    """A fork server that imports little, since the test has it started again and again."""
    with monkeypatch.context() as patch:
        patch.setattr(server, "ENGINE", "tabnanny")
        patch.setattr(server, "PRELOAD", ())
        # Whoever needs one next ends the one that runs.
        patch.setattr(FORK_SERVER, "loaded", None)
        yield
    FORK_SERVER.loaded = None


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_fork_server_that_was_ended_or_stopped_is_made_anew(tmp_path, small_server, monkeypatch, how):
    here = call_in_child(text_hash, (), timeout_s=60, phase="plan", log=tmp_path / "log")
    old = server_pid()
    os.kill(old, how)
    monkeypatch.setattr(server, "ANSWERS_S", 3.0)
    assert call_in_child(text_hash, (), timeout_s=60, phase="plan", log=tmp_path / "log") == here
    assert server_pid() != old
    assert not runs(old)


def has(module: str) -> bool:
    return module in sys.modules


def test_the_fork_server_is_spared_the_engine_until_it_is_needed(tmp_path, small_server):
    def loaded() -> bool:
        return call_in_child(has, (server.ENGINE,), timeout_s=60, phase="plan", log=tmp_path / "log")

    with FORK_SERVER.without_engine(), FORK_SERVER.without_engine():
        assert not loaded()
    light = server_pid()
    assert loaded()
    assert not runs(light)
    full = server_pid()
    with FORK_SERVER.without_engine():
        assert loaded()
    assert server_pid() == full


def test_an_engine_that_cannot_be_loaded_does_not_end_the_fork_server(tmp_path, small_server, monkeypatch):
    monkeypatch.setattr(server, "missing_driver", lambda: "no driver")
    assert not call_in_child(has, (server.ENGINE,), timeout_s=60, phase="plan", log=tmp_path / "log")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_children_end_with_the_process_that_started_them(tmp_path, how):
    locks = [tmp_path / "parent", tmp_path / "child"]
    program = started(f"""
from pathlib import Path
import test_launch
from shardbench.engine.processes.launch import call_in_child
from shardbench.engine.processes.server import FORK_SERVER
log = Path({str(tmp_path / "log")!r})
with FORK_SERVER.without_engine():
    call_in_child(test_launch.hang_with_child, ({str(tmp_path)!r},), timeout_s=600, phase="plan", log=log)
""")
    try:
        assert within(60, lambda: all(lock.exists() for lock in locks))
        assert all(held(lock) for lock in locks)
        program.send_signal(how)
        # Ends only when nobody holds the output: neither the fork server nor a child.
        program.communicate(timeout=60)
    finally:
        program.kill()
    assert within(60, lambda: not any(held(lock) for lock in locks))


def test_blocked_signals_and_a_long_path_of_temporary_folders_are_the_callers_own(tmp_path):
    """The fork server hears of ends by a signal, and its socket has room for a path of 107 bytes."""
    temporary = tmp_path / ("long" * 25)
    temporary.mkdir()
    program = started(
        f"""
import os, signal
from pathlib import Path
from shardbench.engine.processes.failures import TrialFailed
from shardbench.engine.processes.launch import call_in_child
from shardbench.engine.processes.server import FORK_SERVER
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
with FORK_SERVER.without_engine():
    try:
        call_in_child(os._exit, (3,), timeout_s=30, phase="plan", log=Path({str(tmp_path / "log")!r}))
    except TrialFailed as error:
        print(error)
print(signal.SIGCHLD in signal.pthread_sigmask(signal.SIG_BLOCK, []))
""",
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    said, errors = program.communicate(timeout=100)
    assert said.split("\n") == ["error: the process exited with 3 in phase plan", "True", ""], errors
    assert list(temporary.iterdir()) == []
