"""What stamps say: wall time, the calling thread's CPU time and the process's; and contenders that take turns."""

import os
import threading
import time

import pytest
import torch
import torch.distributed as dist
from problems import RandomWorkload, machine

from shardbench.cost.phases import KERNELS, StepPhase
from shardbench.engine import clock
from shardbench.engine.clock import Contender, CpuClock, CpuStamp, take_turns
from shardbench.engine.contenders import build
from shardbench.engine.measure import rank_job
from shardbench.engine.processes.launch import call_in_child
from shardbench.engine.rank import Rank
from shardbench.engine.step import Stamps
from shardbench.model.plan import Plan, whole_tables
from shardbench.workloads.materialise import materialise

SPIN_S = 0.03


def spin():
    """Keep a core busy until this thread has had SPIN_S of CPU time, however long that takes."""
    end = time.thread_time() + SPIN_S
    while time.thread_time() < end:
        pass


def stamped(work):
    clock = CpuClock()
    start = clock.now()
    work()
    stop = clock.now()
    return clock.ms(start, stop), clock.thread_ms(start, stop), clock.process_ms(start, stop)


def test_sleep_takes_wall_time_and_no_cpu_time():
    wall, thread, _ = stamped(lambda: time.sleep(SPIN_S))
    assert thread < 0.5 * 1e3 * SPIN_S <= wall


def test_work_takes_cpu_time_of_its_thread():
    _, thread, process = stamped(spin)
    assert thread >= 1e3 * SPIN_S
    assert process == pytest.approx(thread, rel=0.1)


def test_another_threads_work_is_the_process_s_and_not_the_caller_s():
    def elsewhere():
        thread = threading.Thread(target=spin)
        thread.start()
        thread.join()

    _, thread, process = stamped(elsewhere)
    assert thread < 0.5 * 1e3 * SPIN_S
    assert process >= 0.9e3 * SPIN_S


def stamp(wall, thread, process):
    return CpuStamp(1e-3 * wall, 1e-3 * thread, 1e-3 * process)


def test_kernels_have_their_thread_s_time_and_all_other_phases_the_process_s():
    # Thread: 10 ms of work in every phase; gloo's threads another 3, in the backward kernel too.
    stamps = Stamps(
        marks=[stamp(100.0 * i, 10.0 * i, 13.0 * i) for i in range(5)] + [stamp(700, 80, 104), stamp(800, 90, 117)],
        vectors_ready=[stamp(500, 50, 65)],
        lookups=[(stamp(500, 50, 65), stamp(600, 60, 78))],
    )
    wall_ms, cpu_ms = stamps.read(CpuClock())
    assert wall_ms == pytest.approx(
        {
            "input": 100, "lookup": 100, "output": 100, "dense": 200, "output_backward": 100, "lookup_backward": 100,
            "update": 100, "step": 800,
        }
    )  # fmt: skip
    assert cpu_ms == pytest.approx(
        {
            "input": 13, "lookup": 10, "output": 13, "dense": 26, "output_backward": 29, "lookup_backward": 10,
            "update": 13, "step": 117,
        }
    )  # fmt: skip


class Named:
    """A step that notes when it is called, and with what."""

    def __init__(self, name, log):
        self.name, self.log = name, log

    def __call__(self, batch):
        self.log.append((self.name, batch))
        return torch.zeros(1), self

    def read(self, clock):
        return {"step": float(len(self.log))}, {}


def test_contenders_take_turns_and_who_goes_first_goes_last_next(monkeypatch):
    log = []
    monkeypatch.setattr(clock.dist, "barrier", lambda: log.append("barrier"))
    a, b = Contender(step=Named("a", log), batches=[0, 1]), Contender(step=Named("b", log), batches=[7])
    times = take_turns([a, b], 3, CpuClock())
    order = [("a", 0), ("b", 7), ("b", 7), ("a", 1), ("a", 0), ("b", 7)]
    assert log == [entry for turn in order for entry in ("barrier", turn)]
    assert [t.ms for t in times] == [{"step": [2.0, 8.0, 10.0]}, {"step": [4.0, 6.0, 12.0]}]
    assert [t.cpu_ms for t in times] == [{}, {}]


def alone(folder, job):
    """CPU times of a one-rank step, and whether its backward kernels ran in this thread: a process of its own."""
    (folder / "job.json").write_text(job.model_dump_json())

    os.environ.update(RANK="0", WORLD_SIZE="1")
    rank = Rank(folder)
    clock = Threads()
    own = build(job, job.plan, (0, 1, rank.device), clock)
    contender, (step,) = own.contender, own.steps
    (module,) = step.modules
    looked_up, sent = module.compute, module.input
    module.compute = lambda received: (spin(), looked_up(received))[1]
    module.input = lambda lookups: (time.sleep(SPIN_S), sent(lookups))[1]
    contender.take(0)
    _, stamps = contender.take(0)
    kernels = [stamps.lookups, [(stamps.marks[1], stamps.marks[2])]]
    thread_ms, process_ms = (
        sum(ms(a, b) for pairs in kernels for a, b in pairs) for ms in (clock.thread_ms, clock.process_ms)
    )
    dist.destroy_process_group()
    return *stamps.read(clock), thread_ms, process_ms, len(clock.seen)


class Threads(CpuClock):
    """Notes which threads take stamps."""

    def __init__(self):
        self.seen = set()

    def now(self):
        self.seen.add(threading.get_ident())
        return super().now()


def test_a_rank_s_kernels_run_in_one_thread_and_waits_take_no_cpu_time(tmp_path):
    workload = RandomWorkload([(20000, 64)] * 6, 2048)
    problem = workload.problem(machine(1, 1))
    materialise(workload, tmp_path / "batches", range(1))
    plan = Plan(world_size=1, segments=whole_tables(workload.tables, [0] * 6))
    settings = {"warmup": 1, "iterations": 1, "seed": 0, "timeout_s": 60}
    job = rank_job(plan, problem, workload.dense, tmp_path / "batches", **settings)
    wall, cpu, thread_ms, process_ms, threads = call_in_child(
        alone, (tmp_path, job), timeout_s=100, phase="time", log=tmp_path / "log"
    )
    assert threads == 1
    # No other thread works for the kernels: the thread's clock misses nothing of them.
    assert thread_ms == pytest.approx(sum(cpu[phase] for phase in KERNELS))
    assert process_ms < 1.1 * thread_ms
    assert cpu[StepPhase.LOOKUP] >= 1e3 * SPIN_S
    assert wall[StepPhase.INPUT] - cpu[StepPhase.INPUT] > 0.5 * 1e3 * SPIN_S
