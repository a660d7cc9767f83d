"""How much memory a rank holds at each moment of a step: the stamps of a step, in bytes instead of seconds.

A CPU rank's memory is what its process wrote to and has not given back (resident, without files and shared memory),
whose peak the kernel keeps and forgets when it is told to; a GPU rank's is what torch's allocator has handed out.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from shardbench.cost.phases import MEASURED_PHASES, StepPhase
from shardbench.engine.clock import Clock
from shardbench.engine.heap import give_free_pages_back
from shardbench.engine.pipelined import PipelinedStamps
from shardbench.engine.step import Stamps

_STATUS, _REFERENCES = Path("/proc/self/status"), Path("/proc/self/clear_refs")
_PEAK = "5"
"""What makes Linux forget the peak of a process (proc(5), clear_refs)."""


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


def peaks(stamps: Stamps, clock: PeakClock) -> dict[StepPhase, float]:
    """Return the most bytes that were held in each phase of a step; kernels of the backward pass are told apart."""
    held = dict.fromkeys(MEASURED_PHASES, 0.0)
    for phase, first, stop in _spans(stamps):
        start, inner = first, []
        if phase is StepPhase.OUTPUT_BACKWARD:
            start, inner = (stamps.vectors_ready or [first])[0], sorted(stamps.lookups)
            held[StepPhase.DENSE] = max(held[StepPhase.DENSE], clock.ms(first, start))
        edges = [start, *(edge for lookup in inner for edge in lookup), stop]
        for number, (low, high) in enumerate(pairwise(edges)):
            part = StepPhase.LOOKUP_BACKWARD if number % 2 else phase
            held[part] = max(held[part], clock.ms(low, high))
    return held


def _spans(stamps: Stamps) -> Iterator[tuple[StepPhase, Any, Any]]:
    if isinstance(stamps, PipelinedStamps):
        laps = stamps.laps
    else:
        laps = [
            StepPhase.INPUT, StepPhase.LOOKUP, StepPhase.OUTPUT, StepPhase.DENSE, StepPhase.OUTPUT_BACKWARD,
            StepPhase.UPDATE,
        ]  # fmt: skip
    for phase, (start, stop) in zip(laps, pairwise(stamps.marks), strict=True):
        yield phase, start, stop
