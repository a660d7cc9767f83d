"""The card and its host: clocks, copies, random reads of host memory, and the time of the host itself.

The host's time is what a step takes whose kernels take none: hundreds of tiny steps one after the other, eager and
captured in a CUDA graph. The committed model has one number for TorchRec's (``host_step_s``), one for a call of FBGEMM
(``dispatch_s``), and none for a captured step: that is predicted to take what its launches take.
"""

import subprocess
from collections.abc import Callable
from typing import Any

import torch
from box import Box
from tbe import even_bags, fused_tables
from torchrec_loop import TorchRecLoop

from shardbench.cost.published.gpus import shared

QUERIES = (
    ("name", "driver_version", "memory.total", "clocks.sm", "clocks.mem", "clocks.max.sm"),
    ("temperature.gpu", "power.draw", "power.limit"),
    ("clocks_event_reasons.active",),
    ("pcie.link.gen.current", "pcie.link.width.current"),
)
"""What the driver is asked, apart: it answers nothing where it does not know one of several words."""
WIDTHS = (16, 32, 64, 128, 256)
LOOP_TABLES = (4, 26, 100)


def measure(box: Box) -> None:
    """Measure the host's time first: nothing else tells it. What may lose the device, a failed capture, is last."""
    note_clocks(box, "before")
    _host_of_kernels(box)
    _host_of_steps(box, captured=False)
    _copies(box)
    _host_rows(box)
    note_clocks(box, "after")
    _host_of_steps(box, captured=True)


def note_clocks(box: Box, when: str) -> None:
    """Keep what the driver says of clocks, temperature, power and the reasons of low clocks."""
    if box.cpu:
        box.skip(f"clocks {when}", "a CPU has no nvidia-smi")
        return
    for query in QUERIES:
        with box.attempt(f"{', '.join(query)} {when}"):
            command = ["nvidia-smi", f"--query-gpu={','.join(query)}", "--format=csv,noheader", "--id=0"]
            answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout
            box.note(when=when, **dict(zip(query, (word.strip() for word in answer.split(",")))))


def _host_of_kernels(box: Box) -> None:
    """Time calls of a fused module on next to nothing, eager and captured; forward alone, and with its backward."""
    constants, runs = box.whole_machine.constants, 20 if box.small else 100 if box.cpu else 300
    for tables in (1,) if box.small else (1, 26):
        with box.attempt(f"host time of a call, {tables} tables"):
            module = fused_tables(box, [(1000, 64)] * tables)
            ids, offsets = even_bags(box, tables, 1000, 8, 1)
            gradient = torch.ones(8, 64 * tables, device=box.device)
            what: dict[str, Any] = {"of": "FBGEMM's call", "tables": tables, "lookups": len(ids)}

            def forward() -> torch.Tensor:
                vectors: torch.Tensor = module(ids, offsets)  # noqa: B023 - called before the next turn
                return vectors

            def both() -> None:
                forward().backward(gradient)  # noqa: B023

            both_ms = 1e3 * (max(constants.dispatch_s, constants.launch_s) + constants.launch_s)
            eager_ms = 1e3 * max(constants.dispatch_s, constants.launch_s)
            calls = (("forward", forward, eager_ms), ("forward and backward", both, both_ms))
            for phase, work, predicted_ms in calls:
                times = box.host_times(work, warmups=10, runs=runs)
                box.add("host", times, predicted_ms, how="eager", phase=phase, **what)
            launches_ms = 2e3 * constants.launch_s
            _captured(box, both, launches_ms, runs, phase="forward and backward", **what)


def _host_of_steps(box: Box, *, captured: bool) -> None:
    """Time whole steps of TorchRec's loop on next to nothing, eager or captured."""
    runs = 10 if box.small else 50 if box.cpu else 200
    floor_ms = None if box.cpu else 1e3 * shared()["host_step_s"]
    for tables in LOOP_TABLES[:1] if box.small else LOOP_TABLES:
        if box.over():
            return
        what: dict[str, Any] = {"of": "TorchRec's step", "tables": tables, "lookups": 8 * tables, "phase": "step"}
        with box.attempt(f"host time of TorchRec's step, {tables} tables"):
            loop = TorchRecLoop(box, tables=tables, rows=1000, batch=8)
            if captured:
                _captured(box, loop.step, None, runs, **what)
                continue
            box.add("host", box.host_times(loop.step, warmups=10, runs=runs), floor_ms, how="eager", **what)


def _captured(box: Box, work: Callable[[], object], predicted_ms: float | None, runs: int, **what: Any) -> None:
    """Time the replay of a captured call."""
    label = f"{what['of']}, {what['tables']} tables, captured"
    if box.cpu:
        box.skip(label, "a CPU has no CUDA graphs")
        return
    with box.attempt(label):
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            # DDP looks at its first steps before it settles.
            for _ in range(11):
                work()
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            work()
        times = box.host_times(graph.replay, warmups=10, runs=runs)
        box.add("host", times, predicted_ms, how="captured", **what)


def _copies(box: Box) -> None:
    """Time copies in HBM and over the link to the host, both ways, of pinned memory."""
    constants, size = box.whole_machine.constants, 2**20 if box.small else 2**26 if box.cpu else 2**30
    with box.attempt("a copy in device memory"):
        source = torch.zeros(size // 4, device=box.device)
        target = torch.empty_like(source)
        times = box.times(lambda: target.copy_(source), warmups=2, runs=5 if box.cpu else 20)
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
            times = box.times(lambda: pair[0].copy_(pair[1], non_blocking=True), warmups=2, runs=10)  # noqa: B023
            predicted = 1e3 * (size // 4) / constants.uvm_bytes_per_s
            box.add("host", times, predicted, of=f"a copy {way}", bytes=size // 4, how="eager", phase="copy")


def _host_rows(box: Box) -> None:
    """Time random reads of rows of several widths in host memory, by FBGEMM's forward kernel."""
    if box.cpu:
        box.skip("random rows of host memory", "a CPU has one memory")
        return
    for width in WIDTHS:
        if box.over():
            return
        with box.attempt(f"random rows of {width} columns in host memory"):
            _rows_of(box, width)


def _rows_of(box: Box, width: int) -> None:
    constants, rows, lookups = box.whole_machine.constants, 2**31 // (4 * width), 500_000
    module = fused_tables(box, [(rows, width)], tier="uvm")
    ids, offsets = even_bags(box, 1, rows, lookups // 10, 10)
    times = box.times(lambda: module(ids, offsets), warmups=2, runs=8)
    row_bytes = 4 * width + constants.access_overhead_bytes
    predicted = 1e3 * (constants.launch_s + lookups * row_bytes / constants.uvm_bytes_per_s)
    what: dict[str, Any] = {"of": "random rows of host memory", "columns": width, "lookups": lookups, "rows": rows}
    box.add("host", times, predicted, how="eager", phase="forward", **what)
