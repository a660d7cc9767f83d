"""The card and its host: clocks, copies, and the time of the host itself.

The host's time is what a step takes whose kernels take none: hundreds of tiny steps one after the other. The committed
model has one number for TorchRec's (``host_step_s``), one for a call of FBGEMM (``dispatch_s``), and none for what is
captured in a CUDA graph (the part ``captured``): that is predicted to take what its launches take.
"""

import subprocess
from collections.abc import Callable
from typing import Any

import torch
from box import Box
from cases import IDLE, Stopwatch, even_bags
from torchrec_loop import TorchRecLoop

from shardbench.calibrate.kernels import fused_tables
from shardbench.cost.published.gpus import shared

EAGER, CAPTURED = "eager", "captured"
Timer = Callable[[Callable[[], object]], list[float]]
"""Returns the milliseconds of calls of some work."""
LOOP_TABLES = (4, 26, 100)


def measure(box: Box) -> None:
    """Measure the host's time first: nothing else tells it."""
    runs = 20 if box.cpu else 200

    def eager(work: Callable[[], object]) -> list[float]:
        return box.host_times(work, warmups=10, runs=runs)

    note_clocks(box, "before")
    host_of_calls(box, EAGER, eager)
    host_of_steps(box, EAGER, eager)
    _copies(box)
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


def host_of_calls(box: Box, how: str, time: Timer) -> None:
    """Time calls of a fused module on next to nothing; forward alone, and with its backward."""
    constants = box.whole_machine.constants
    launch_ms, forward_ms = 1e3 * constants.launch_s, 1e3 * max(constants.dispatch_s, constants.launch_s)
    for tables in (1,) if box.cpu else (1, 26):
        with box.attempt(f"host time of a call, {tables} tables, {how}"):
            module = fused_tables(box.device, [(1000, 64)] * tables)
            ids, offsets = even_bags(box, tables, 1000, 8, 1)
            gradient = torch.ones(8, 64 * tables, device=box.device)

            def forward() -> torch.Tensor:
                vectors: torch.Tensor = module(ids, offsets)  # noqa: B023 - called before the next turn
                return vectors

            def both() -> None:
                forward().backward(gradient)  # noqa: B023

            both_ms = 2.0 * launch_ms if how == CAPTURED else forward_ms + launch_ms
            calls = (("forward and backward", both, both_ms), ("forward", forward, forward_ms))
            for phase, work, predicted in calls[: 1 if how == CAPTURED else None]:
                what: dict[str, Any] = {"of": "FBGEMM's call", "tables": tables, "lookups": len(ids), "phase": phase}
                box.add("host", time(work), predicted, how=how, **what)


def host_of_steps(box: Box, how: str, time: Timer) -> None:
    """Time whole steps of TorchRec's loop on next to nothing."""
    floor_ms = None if box.cpu or how == CAPTURED else 1e3 * shared()["host_step_s"]
    for tables in LOOP_TABLES[: 1 if box.cpu else None]:
        label = f"host time of TorchRec's step, {tables} tables, {how}"
        if box.over(0.03 * tables):
            box.skip(label, f"{box.left_s():.0f} s are left")
            continue
        with box.attempt(label):
            loop = TorchRecLoop(box, tables=tables, rows=1000, batch=8)
            what: dict[str, Any] = {"of": "TorchRec's step", "tables": tables, "lookups": 8 * tables, "phase": "step"}
            box.add("host", time(loop.step), floor_ms, how=how, plan="table-wise", **what)


def _copies(box: Box) -> None:
    """Time copies in HBM and over the link to the host, both ways, of pinned memory."""
    stopwatch, constants = Stopwatch(box), box.whole_machine.constants
    size = 2**20 if box.cpu else 2**30
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
