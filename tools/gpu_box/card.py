"""The card and its host: clocks, copies, random reads of host memory, and the time of the host itself.

The host's time is what a step takes whose kernels take none: hundreds of tiny steps one after the other. The committed
model has one number for TorchRec's (``host_step_s``), and one for a call of FBGEMM (``dispatch_s``). The same calls and
steps captured in CUDA graphs are the part ``captured``.
"""

import subprocess
from typing import Any

import torch
from box import Box
from cases import IDLE, Case, Stopwatch, counted, draw, predicted_ms, traffic_of
from tbe import even_bags, fused_tables
from torchrec_loop import TorchRecLoop

from shardbench.cost.published.gpus import shared
from shardbench.model.plan import Tier

WIDTHS = (16, 32, 64, 128, 256)
HOST_BYTES = 2**29
"""A table in host memory, ten times a card's cache: making it takes half a second."""
LOOP_TABLES = (4, 26, 100)


TINY_TABLES = (1, 26)
"""Tables of a call of FBGEMM."""


def measure(box: Box) -> None:
    """Measure the host's time first: nothing else tells it."""
    note_clocks(box, "before")
    _host_of_kernels(box)
    _host_of_steps(box)
    stopwatch = Stopwatch(box)
    _copies(box, stopwatch)
    _host_rows(box, stopwatch)
    note_clocks(box, "after")


def note_clocks(box: Box, when: str) -> None:
    """Keep all that the driver says: clocks and the reasons of low ones, temperature, power, memory, links."""
    if box.cpu:
        box.skip(f"clocks {when}", "a CPU has no nvidia-smi")
        return
    with box.attempt(f"clocks {when}"):
        # Words to ask for are other ones in other versions.
        command = ["nvidia-smi", "--query", "--id=0"]
        answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
        box.note(when=when, nvidia_smi=answer)


class TinyCall:
    """A call of a fused module on next to nothing."""

    def __init__(self, box: Box, tables: int) -> None:
        self._module = fused_tables(box, [(1000, 64)] * tables)
        self._ids, self._offsets = even_bags(box, tables, 1000, 8, 1)
        self._gradient = torch.ones(8, 64 * tables, device=box.device)

    def forward(self) -> torch.Tensor:
        """Return the vectors."""
        vectors: torch.Tensor = self._module(self._ids, self._offsets)
        return vectors

    def both(self) -> None:
        """Look up, and train."""
        self.forward().backward(self._gradient)  # type: ignore[no-untyped-call]


def of_call(tables: int) -> dict[str, Any]:
    """Return what a tiny call is of, as a row of numbers states it."""
    return {"of": "FBGEMM's call", "tables": tables, "lookups": 8 * tables}


def of_step(tables: int) -> dict[str, Any]:
    """Return what a step of TorchRec's on next to nothing is of, as a row of numbers states it."""
    return {"of": "TorchRec's step", "tables": tables, "lookups": 8 * tables, "phase": "step", "plan": "table-wise"}


def tiny_loop(box: Box, tables: int) -> TorchRecLoop:
    """Return TorchRec's loop on next to nothing."""
    return TorchRecLoop(box, tables=tables, rows=1000, batch=8)


def _host_of_kernels(box: Box) -> None:
    """Time calls of a fused module; forward alone, and with its backward."""
    constants, runs = box.whole_machine.constants, 20 if box.small else 100 if box.cpu else 300
    forward_ms = 1e3 * max(constants.dispatch_s, constants.launch_s)
    for tables in TINY_TABLES[: 1 if box.small else None]:
        with box.attempt(f"host time of a call, {tables} tables"):
            call = TinyCall(box, tables)
            both_ms = forward_ms + 1e3 * constants.launch_s
            calls = (("forward", call.forward, forward_ms), ("forward and backward", call.both, both_ms))
            for phase, work, predicted in calls:
                times = box.host_times(work, warmups=10, runs=runs)
                box.add("host", times, predicted, how="eager", phase=phase, **of_call(tables))


def _host_of_steps(box: Box) -> None:
    """Time whole steps of TorchRec's loop."""
    runs = 10 if box.small else 50 if box.cpu else 200
    floor_ms = None if box.cpu else 1e3 * shared()["host_step_s"]
    for tables in LOOP_TABLES[: 1 if box.small else None]:
        label = f"host time of TorchRec's step, {tables} tables"
        if box.over(0.03 * tables):
            box.skip(label, f"{box.left_s():.0f} s are left")
            continue
        with box.attempt(label):
            times = box.host_times(tiny_loop(box, tables).step, warmups=10, runs=runs)
            box.add("host", times, floor_ms, how="eager", **of_step(tables))


def _copies(box: Box, stopwatch: Stopwatch) -> None:
    """Time copies in HBM and over the link to the host, both ways, of pinned memory."""
    constants, size = box.whole_machine.constants, 2**20 if box.small else 2**26 if box.cpu else 2**30
    with box.attempt("a copy in device memory"):
        source = torch.zeros(size // 4, device=box.device)
        target = torch.empty_like(source)
        times, _ = stopwatch.of(lambda: target.copy_(source), how=IDLE, warmups=2, runs=5 if box.cpu else 20)
        predicted = 1e3 * size / constants.vector_copy_bytes_per_s if constants.vector_copy_bytes_per_s else None
        box.add("host", times, predicted, of="a copy in device memory", bytes=size, how="eager", phase="copy")
    if box.cpu:
        box.skip("copies over the link to the host", "a CPU has none")
        return
    for way in ("to the device", "to the host"):
        with box.attempt(f"a copy {way}"):
            pinned = torch.zeros(size // 16, pin_memory=True)
            on_device = torch.zeros(size // 16, device=box.device)
            pair = (on_device, pinned) if way == "to the device" else (pinned, on_device)

            def copy() -> object:
                return pair[0].copy_(pair[1], non_blocking=True)  # noqa: B023 - called before the next turn

            times, _ = stopwatch.of(copy, how=IDLE, warmups=2, runs=10)
            predicted = 1e3 * (size // 4) / constants.uvm_bytes_per_s
            box.add("host", times, predicted, of=f"a copy {way}", bytes=size // 4, how="eager", phase="copy")


def _host_rows(box: Box, stopwatch: Stopwatch) -> None:
    """Time random reads of rows of several widths in host memory, by FBGEMM's forward kernel."""
    if box.cpu:
        box.skip("random rows of host memory", "a CPU has one memory")
        return
    for width in WIDTHS:
        label = f"random rows of {width} columns in host memory"
        if box.over(2.0):
            box.skip(label, f"{box.left_s():.0f} s are left")
            continue
        with box.attempt(label):
            case = Case(tables=1, rows=HOST_BYTES // (4 * width), dim=width, batch=20_000, pooling=10, tier=Tier.UVM)
            lookups = draw(box, case)
            traffic = traffic_of(case, box.whole_machine, lookups)
            module = fused_tables(box, [(case.rows, width)], tier="uvm")
            times, _ = stopwatch.of(lambda: module(lookups.ids, lookups.offsets), how=IDLE, warmups=2, runs=8)  # noqa: B023
            predicted = predicted_ms(traffic, box.whole_machine)["forward", IDLE]
            what = case.what() | counted(traffic) | {"of": "random rows of host memory", "phase": "forward"}
            box.add("host", times, predicted, how=IDLE, **what)
