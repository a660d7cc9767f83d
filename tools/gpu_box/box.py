"""What every part of the programme measures with: the device, its clock, the log, and the guard over managed memory.

A part is a module with ``measure(box)``. It adds each number to the log as soon as it has it, and stops when
``box.over()`` says so: the file is flushed before the next number is measured, so that an end at any moment loses none.
"""

import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from log import Log

from shardbench.base.memory import free_memory_bytes
from shardbench.engine.clock import Clock, clock_of
from shardbench.model.machine import Machine, Topology
from shardbench.model.machine_file import load_machine

CPU_MACHINE = "cpu-1x2"
CARDS = {
    "NVIDIA H100 80GB HBM3": "h100-1x8", "NVIDIA H100 PCIe": "h100-pcie-80gb-1x8", "NVIDIA H200": "h200-1x8",
}  # fmt: skip
"""The committed machine file of a card, by the name that the driver gives it."""
UNKNOWN_CARD = "h100-1x8"
"""What predicts for a card that no file is of."""


class CardLost(Exception):
    """The device fails whatever it is asked: this process can measure nothing more."""


class Refused(Exception):
    """An allocation that the device, or the host, has no room for."""


class Box:
    """The machine that a part measures on, and the time that it has."""

    def __init__(self, log: Log, *, cpu: bool, data: Path) -> None:
        """``cpu`` is a rehearsal, in the smallest sizes that touch all code; ``data`` a folder for what is drawn."""
        self.cpu, self.data = cpu, data
        self.device = torch.device("cpu") if cpu else torch.device("cuda", 0)
        self.clock: Clock = clock_of(self.device)
        self.part, self.deadline = "start", time.monotonic()
        self._log = log
        name = "" if cpu else torch.cuda.get_device_name(0)
        self.machine_name = CPU_MACHINE if cpu else CARDS.get(name, UNKNOWN_CARD)
        self.whole_machine = load_machine(self.machine_name)
        # Made now: a device without free memory is not lost.
        self._probe = torch.ones(1, device=self.device)
        memory_bytes = 0 if cpu else torch.cuda.get_device_properties(0).total_memory
        self.note(
            device=name or "CPU", memory_bytes=memory_bytes, cuda=torch.version.cuda, machine=self.machine_name,
            machine_is_of_this_device=cpu or name in CARDS,
        )  # fmt: skip

    def begin(self, part: str, seconds: float) -> None:
        """Give a part its time from now on."""
        self.part, self.deadline = part, time.monotonic() + seconds

    def left_s(self) -> float:
        """Return the seconds that the part has left."""
        return self.deadline - time.monotonic()

    def over(self, needed_s: float = 0.0) -> bool:
        """Say whether the part has no time for what takes ``needed_s`` seconds."""
        return self.left_s() <= needed_s

    def machine(self, *, hbm_bytes: int, uvm_bytes: int, host_bytes: int | None = None) -> Machine:
        """Return one device of the committed machine file, with so much memory for tables: it makes predictions."""
        host = uvm_bytes if host_bytes is None else host_bytes
        topology = Topology(nodes=1, devices_per_node=1, hbm_bytes=hbm_bytes, uvm_bytes=uvm_bytes, host_bytes=host)
        return replace(self.whole_machine, topology=topology)

    def add(
        self, table: str, numbers: Sequence[float], predicted: float | None, *, unit: str = "ms", **what: object
    ) -> None:
        """Keep a number: all its repeats, what the committed machine file predicts (or None), and what it is of.

        ``table`` is one of kernels, tiers, fae, slide, host, dedup. The values of ``what`` are strings and numbers.
        """
        repeats = [float(f"{one:.6g}") for one in numbers]
        own = None if predicted is None else float(f"{predicted:.6g}")
        row = {"part": self.part, "table": table, "what": what, "unit": unit, "measured": repeats, "predicted": own}
        self._log.add(row)
        text = " ".join(f"{name}={_short(value)}" for name, value in what.items())
        beside = "no prediction" if own is None else f"predicted {own:.4g} {unit}"
        if repeats:
            print(f"{table}: {text}: {np.median(repeats):.4g} {unit} (n = {len(repeats)}), {beside}", flush=True)
        else:
            print(f"{table}: {text}: {beside}", flush=True)

    def note(self, **facts: object) -> None:
        """Keep something that is no time: clocks, versions, counts."""
        self._log.add({"part": self.part, "note": facts})
        print(f"{self.part}: " + " ".join(f"{name}={_short(value)}" for name, value in facts.items()), flush=True)

    def skip(self, what: str, why: object) -> None:
        """Keep what could not be measured, and why."""
        reason = " ".join(str(why).split())[:400] or type(why).__name__
        self._log.skip(self.part, what, reason)
        print(f"{self.part}: skipped {what}: {reason}", flush=True)

    @contextmanager
    def attempt(self, what: str) -> Iterator[None]:
        """Run a measurement whose failure is kept as its reason; raises CardLost where the device is lost with it."""
        failure = ""
        try:
            yield
        except CardLost:
            raise
        except Exception as error:
            failure = f"{type(error).__name__}: {error}"
            traceback.print_exc()
            # They hold tensors, for whose memory there may be no room.
            traceback.clear_frames(error.__traceback__)
        if failure:
            self.skip(what, failure)
            self.check_device()
            self.free()

    def check_device(self) -> None:
        """Raise CardLost where the device does not do the simplest thing any more."""
        try:
            self._probe.add_(1.0)
            self.clock.settle()
        except Exception as error:
            raise CardLost(f"the device is lost: {error}") from error

    def free(self) -> None:
        """Give memory that is not in use back to the device."""
        if not self.cpu:
            torch.cuda.empty_cache()

    def check_room(self, needed_bytes: int) -> None:
        """Raise Refused where something would take more than half of the memory that the device has free."""
        self.free()
        free = free_memory_bytes() if self.cpu else torch.cuda.mem_get_info()[0]
        if needed_bytes > free // 2:
            raise Refused(f"{needed_bytes} bytes are more than half of the {free} that the device has free")

    def host_times(self, work: Callable[[], object], *, warmups: int, runs: int) -> list[float]:
        """Return the milliseconds a call of ``runs`` calls without a wait between them, in ten groups, by wall time."""
        for _ in range(warmups):
            work()
        times, group = [], max(1, runs // 10)
        for _ in range(10):
            self.clock.settle()
            start = time.perf_counter()
            for _ in range(group):
                work()
            self.clock.settle()
            times.append(1e3 * (time.perf_counter() - start) / group)
        return times


def _short(value: object) -> str:
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    # A plan's JSON is in the log.
    return text if len(text) <= 80 else f"{text[:76]} ..."


class ManagedMemory:
    """Refuses managed memory beyond what the card has free, and makes FBGEMM's host tables host-mapped instead.

    A program that asks for more managed memory than the card has free can hang it. FBGEMM makes the memory of host
    tables by three operators; the one with a flag is told to map host memory, which is no managed memory.
    """

    def __init__(self, free_bytes: Callable[[], int], host_bytes: Callable[[], int]) -> None:
        """``free_bytes`` and ``host_bytes`` say what the card and the host have free."""
        self._free_bytes, self._host_bytes = free_bytes, host_bytes
        self.managed_bytes = 0

    def guard(self, operators: Any) -> None:
        """Put the guard before FBGEMM's operators (``torch.ops.fbgemm``)."""
        guards = {"new_managed_tensor": self._managed, "new_vanilla_managed_tensor": self._managed}
        for name, guard in (guards | {"new_unified_tensor": self._mapped}).items():
            if hasattr(operators, name):
                operator = getattr(operators, name)
                guarded = guard(operator)
                # Under a dispatch mode (TorchRec builds modules under one) torch looks the overload up by this name.
                guarded.default = getattr(operator, "default", operator)
                setattr(operators, name, guarded)

    def _managed(self, operator: Callable[..., Any]) -> Any:
        def checked(like: torch.Tensor, sizes: Sequence[int]) -> Any:
            nbytes = int(np.prod(sizes, dtype=np.int64)) * like.element_size()
            # What was asked for before counts, whether it was freed or not.
            if self.managed_bytes + nbytes > self._free_bytes():
                raise Refused(f"{self.managed_bytes} + {nbytes} bytes of managed memory, {self._free_bytes()} are free")
            self.managed_bytes += nbytes
            return operator(like, sizes)

        return checked

    def _mapped(self, operator: Callable[..., Any]) -> Any:
        def mapped(like: torch.Tensor, sizes: Sequence[int], is_host_mapped: bool = False) -> Any:
            nbytes = int(np.prod(sizes, dtype=np.int64)) * like.element_size()
            if 2 * nbytes > self._host_bytes():
                raise Refused(f"{nbytes} bytes of host memory, {self._host_bytes()} are free")
            return operator(like, sizes, True)

        return mapped
