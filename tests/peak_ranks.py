"""How much memory a rank holds at each moment of a step: the stamps of a step, in bytes instead of seconds.

A CPU rank's memory is what its process wrote to and has not given back (resident, without files and shared memory),
whose peak the kernel keeps and forgets when it is told to; a GPU rank's is what torch's allocator has handed out.
"""

import ctypes
import re
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist

from shardbench.cost.phases import MEASURED_PHASES, StepPhase
from shardbench.engine.clock import Clock
from shardbench.engine.contenders import build
from shardbench.engine.heap import give_free_pages_back
from shardbench.engine.processes.job import RankJob, RankResult
from shardbench.engine.processes.launch import run_ranks
from shardbench.engine.processes.trial_folder import read_result, result_text, write_job
from shardbench.engine.rank import Rank
from shardbench.engine.step import Stamps

_STATUS, _REFERENCES = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_PEAK = "5"
"""What makes Linux forget the peak of a process (proc(5), clear_refs)."""
MALLOPT = {-3: 64 << 10, -1: 0, -2: 0}
"""Thresholds of glibc's mallopt(3): of blocks from the kernel, of trimming the heap, and what is taken ahead."""


class PeakClock(Clock):
    """A clock whose stamps tell the most bytes that were held between them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._peaks: list[int] = []

    def held_bytes(self) -> int:
        """Return the bytes that are held now."""
        if self._device.type == "cuda":
            return torch.cuda.memory_allocated(self._device)
        return _own_bytes("VmRSS")

    def now(self) -> int:
        """Note the peak since the stamp before, and begin another; return the number of the stamp."""
        if self._device.type == "cuda":
            self._peaks.append(torch.cuda.max_memory_allocated(self._device))
            torch.cuda.reset_peak_memory_stats(self._device)
        else:
            self._peaks.append(_own_bytes("VmHWM"))
            give_free_pages_back()
            _REFERENCES.write_text(_PEAK)
        return len(self._peaks) - 1

    def ms(self, start: int, stop: int) -> float:
        """Return the most bytes that were held between two stamps; no milliseconds, whatever a clock calls them."""
        return float(max(self._peaks[start + 1 : stop + 1], default=0))


def _own_bytes(name: str) -> int:
    kib = {key: int(value) for key, value in re.findall(r"^(\w+):\s+(\d+) kB$", _STATUS.read_text(), re.MULTILINE)}
    return 1024 * (kib[name] - kib["RssFile"] - kib["RssShmem"])


def measure_peaks(job: RankJob, folder: Path) -> tuple[dict[str, int], ...]:
    """Return the bytes that each local rank held at most by phase, and ``build``: those before the first step.

    They are counted from what the process held before it built anything. Raises TrialFailed.
    """
    write_job(job, folder)
    run_ranks(_hold, folder, job.topology.world_size, job.timeout_s)
    results = (read_result(folder / f"rank{rank}.json") for rank in range(job.topology.world_size))
    return tuple({phase: int(held) for phase, (held,) in result.ms.items()} for result in results)


def _hold(folder: Path) -> int:
    """Measure peaks in one rank: no control, and no freed memory that is kept."""
    rank = Rank(folder)
    give_freed_blocks_back()
    give_free_pages_back()
    clock = PeakClock(rank.device)
    before = clock.held_bytes()
    rank.phase("build")
    own = build(rank.job, rank.job.plan, (rank.rank, rank.world, rank.device), clock)
    held = {"build": float(clock.held_bytes())}
    for i in range(rank.job.iterations):
        rank.phase("peaks")
        dist.barrier()
        _, stamps = own.contender.take(i)
        assert isinstance(stamps, Stamps)
        for phase, most in peaks(stamps, clock).items():
            held[phase] = max(held.get(phase, 0.0), most)
    result = RankResult(
        rank=rank.rank, job=rank.job_hash, took_s=0.0, sent=[], calls=[], shares=[],
        ms={phase: [max(0.0, most - before)] for phase, most in held.items()},
    )  # fmt: skip
    (folder / f"rank{rank.rank}.json").write_text(result_text(result))
    dist.destroy_process_group()
    return 0


def give_freed_blocks_back() -> None:
    """Give every large block that is freed from now on back to the kernel at once: what a process has, it uses.

    glibc would keep more and more of what was freed, up to blocks of 32 MiB, and how much more a rank holds than it
    uses would hang on the order of its allocations.
    """
    library = ctypes.CDLL(None)
    for number, value in MALLOPT.items():
        library.mallopt(number, value)


def peaks(stamps: Stamps, clock: PeakClock) -> dict[StepPhase, float]:
    """Return the most bytes that were held in each phase of a step; kernels of the backward pass are told apart."""
    held = dict.fromkeys(MEASURED_PHASES, 0.0)
    for phase, (first, stop) in zip(stamps.laps, pairwise(stamps.marks), strict=True):
        start, inner = first, []
        if phase is StepPhase.OUTPUT_BACKWARD:
            start, inner = (stamps.vectors_ready or [first])[0], sorted(stamps.lookups)
            held[StepPhase.DENSE] = max(held[StepPhase.DENSE], clock.ms(first, start))
        edges = [start, *(edge for lookup in inner for edge in lookup), stop]
        for number, (low, high) in enumerate(pairwise(edges)):
            part = StepPhase.LOOKUP_BACKWARD if number % 2 else phase
            held[part] = max(held[part], clock.ms(low, high))
    return held
