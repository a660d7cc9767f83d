"""The check of a busy machine, on numbers of a made-up system, and on the time that processes of this one took."""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from shardbench.engine.processes.launch import call_in_child
from shardbench.trials.quiet import BUSY_SHARE, TRIES, CpuUse, MachineBusy, Others, Quiet, cpu_use, taken_by_others

TICKS = os.sysconf("SC_CLK_TCK")
ONE = sorted(os.sched_getaffinity(0))[0]


def process(proc: Path, pid: int, parent: int, *ticks: int, name: str = "a) b (c") -> None:
    """A process with user and system time, its own and of children that have ended."""
    folder = proc / str(pid)
    folder.mkdir(parents=True, exist_ok=True)
    fields = ["S", parent, *range(9), *ticks, 20, 0, 1]
    (folder / "stat").write_text(f"{pid} ({name}) {' '.join(map(str, fields))}\n")


def machine(proc: Path, user: int, system: int = 0, stolen: int = 0) -> None:
    """Counts of the one core that may be used, beside idle and interrupts, and of one that may not."""
    row = [user, 0, system, 10_000, 500, 700, 900, stolen, 0, 0]
    own, other = " ".join(map(str, row)), " ".join(["77777"] * 10)
    (proc / "stat").write_text(f"cpu  {other}\ncpu{ONE} {own}\ncpu{ONE + 1000} {other}\nintr 1\n")


@pytest.fixture
def proc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A made-up /proc of a machine on which this process may use one core."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {ONE})
    folder = tmp_path / "proc"
    folder.mkdir()
    return folder


def test_use_is_of_own_cores_and_of_the_whole_tree(proc: Path, tmp_path: Path) -> None:
    machine(proc, user=700, system=50, stolen=30)
    process(proc, 1, 0, 100, 100, 0, 0)
    process(proc, 20, 1, 10, 2, 300, 4)
    process(proc, 21, 20, 7, 0, 0, 0)
    process(proc, 22, 21, 0, 5, 0, 0)
    process(proc, 30, 1, 90, 0, 0, 0)
    found = cpu_use(proc, tmp_path / "none", of=20)
    assert found is not None
    assert found.used_s == pytest.approx(750 / TICKS)
    assert found.own_s == pytest.approx((316 + 7 + 5) / TICKS)
    assert found.stolen_s == pytest.approx(30 / TICKS)
    assert found.cores == 1


def test_time_beyond_a_quota_is_stolen_too(proc: Path, tmp_path: Path) -> None:
    machine(proc, user=1, stolen=TICKS)
    process(proc, 20, 1, 0, 0, 0, 0)
    (proc / "self").mkdir()
    (proc / "self" / "cgroup").write_text("9:cpu:/\n0::/mine\n")
    group = tmp_path / "groups" / "mine"
    group.mkdir(parents=True)
    (group / "cpu.stat").write_text("usage_usec 5\nnr_throttled 2\nthrottled_usec 2500000\n")
    found = cpu_use(proc, tmp_path / "groups", of=20)
    assert found is not None
    assert found.stolen_s == pytest.approx(3.5)


def test_use_is_unknown_where_the_system_does_not_count(proc: Path) -> None:
    assert cpu_use(proc) is None, "no such file, as on macOS"
    (proc / "stat").write_text("cpu  1 2 3\nintr 1\n")
    assert cpu_use(proc) is None, "no count of the core"


def at(at_s: float, used_s: float, own_s: float = 0.0, stolen_s: float = 0.0) -> CpuUse:
    return CpuUse(at_s=at_s, used_s=used_s, own_s=own_s, stolen_s=stolen_s, cores=2)


def test_what_others_took_is_what_is_left() -> None:
    found = taken_by_others(at(10.0, 100.0, 50.0, 1.0), at(14.0, 108.0, 56.4, 1.4))
    assert found.used_cores == pytest.approx(0.4)
    assert found.stolen_cores == pytest.approx(0.1)
    assert found.share == pytest.approx(0.25)
    assert str(found) == "other processes used 0.40 of 2 cores, 0.10 were taken from this machine"
    more = taken_by_others(at(0.0, 0.0), at(1.0, 1.9, 2.0))
    assert more == Others(used_cores=0.0, stolen_cores=0.0, cores=2), "the kernel's two clocks differ"


def spins(cpu_s: float) -> None:
    """Use a core for so much CPU time."""
    until = time.process_time() + cpu_s
    while time.process_time() < until:
        pass


def test_what_workers_did_is_ours_once_they_ended(tmp_path: Path) -> None:
    before = cpu_use()
    call_in_child(spins, (0.5,), timeout_s=120.0, phase="start", log=tmp_path / "log")
    after = cpu_use()
    assert before is not None
    assert after is not None
    assert after.own_s - before.own_s >= 0.45, "below a process that adopts what is left behind"
    assert after.used_s - before.used_s >= 0.4


class Machine:
    """One on which others take so much of two cores in one look or piece of work after the other."""

    def __init__(self, shares: Iterable[float]) -> None:
        self._shares, self._now, self._begun = list(shares), at(0.0, 0.0), False
        self.slept: list[float] = []
        self.notes: list[str] = []

    def read(self) -> CpuUse:
        if self._begun:
            used = self._now.used_s + 2.0 * self._shares.pop(0)
            self._now = at(self._now.at_s + 1.0, used)
        self._begun = not self._begun
        return self._now

    def quiet(self, limit: float | None = BUSY_SHARE) -> Quiet:
        return Quiet(limit, self.notes.append, read=self.read, sleep=self.slept.append)


def works() -> tuple[list[str], Callable[[], str]]:
    """Work that counts how often it was done."""
    done: list[str] = []

    def work() -> str:
        done.append("done")
        return f"time {len(done)}"

    return done, work


def test_work_is_done_once_on_a_quiet_machine() -> None:
    machine, (done, work) = Machine([0.01, 0.04]), works()
    assert machine.quiet().take(work, "a trial") == ("time 1", pytest.approx(0.04))
    assert len(done) == 1
    assert machine.slept == [1.0]
    assert machine.notes == []


def test_work_that_nobody_disturbed_is_the_look_before_the_next() -> None:
    machine, (_, work) = Machine([0.01, 0.02, 0.03, 0.3, 0.0, 0.04]), works()
    quiet = machine.quiet()
    assert [quiet.take(work, "a trial")[1] for _ in range(3)] == pytest.approx([0.02, 0.03, 0.04])
    assert machine.slept == [1.0, 1.0], "at first, and after what was disturbed"


def test_a_busy_machine_is_waited_for_and_disturbed_work_done_again() -> None:
    machine, (_, work) = Machine([0.5, 0.01, 0.2, 0.02, 0.03]), works()
    assert machine.quiet().take(work, "a trial") == ("time 2", pytest.approx(0.03))
    assert machine.slept == [1.0, 10.0, 1.0, 1.0]
    assert machine.notes == [
        "the machine is busy, looked at again in 10 s: other processes used 1.00 of 2 cores, 0.00 were taken from this "
        "machine",
        "a trial is taken again: meanwhile other processes used 0.40 of 2 cores, 0.00 were taken from this machine",
    ]


def test_a_machine_that_stays_busy_is_refused_in_one_line() -> None:
    machine, (done, work) = Machine([0.2] * TRIES), works()
    with pytest.raises(MachineBusy, match=r"^the machine is busy: other processes used 0\.40 of 2 cores.*--busy-ok$"):
        machine.quiet().take(work, "a trial")
    assert done == []
    assert len(machine.notes) == TRIES - 1


def test_work_that_is_always_disturbed_is_refused() -> None:
    machine, (done, work) = Machine([0.0, 0.2] * TRIES), works()
    with pytest.raises(MachineBusy, match=r"0\.40 of 2 cores"):
        machine.quiet().take(work, "a trial")
    assert len(done) == TRIES


def test_without_a_limit_what_others_took_is_only_said() -> None:
    machine, (_, work) = Machine([0.9]), works()
    assert machine.quiet(None).take(work, "a trial") == ("time 1", pytest.approx(0.9))
    assert machine.slept == []


def test_where_the_system_says_nothing_work_is_done_and_nothing_said_of_others() -> None:
    _, work = works()
    assert Quiet(BUSY_SHARE, read=lambda: None, sleep=lambda _: None).take(work, "a trial") == ("time 1", None)
