"""The card's tiny calls and steps captured in CUDA graphs: what is left of them without the host's time.

The committed model has no number for a captured step; a captured call is predicted to take what its launches take.
A capture that fails leaves torch as it was in the middle of it: its stream, its generator, its memory. Hence this part
is the last, and nothing runs after a failure in the same process.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from box import Box, CardLost
from card import LOOP_TABLES, TINY_TABLES, TinyCall, of_call, of_step, tiny_loop
from torchrec.distributed import dist_data

RUNS = 200
SETTLING = 11
"""Steps before a capture: DDP times its first ten."""


def measure(box: Box) -> None:
    """Capture calls first: of them a capture is likelier to succeed."""
    aside = None if box.cpu else torch.cuda.Stream()
    launches_ms = 2e3 * box.whole_machine.constants.launch_s
    for tables in TINY_TABLES[: 1 if box.small else None]:
        what = of_call(tables) | {"phase": "forward and backward"}
        _captured(box, aside, lambda: TinyCall(box, tables).both, launches_ms, what)  # noqa: B023 - called at once
    # One rank does not use the order that TorchRec copies to the device in each step, and no graph holds such a copy.
    dist_data._get_recat = lambda *_, **__: None
    for tables in LOOP_TABLES[: 1 if box.small else None]:
        _captured(box, aside, lambda: tiny_loop(box, tables).step, None, of_step(tables))  # noqa: B023


def _captured(
    box: Box,
    aside: "torch.cuda.Stream | None",
    make: Callable[[], Callable[[], object]],
    predicted_ms: float | None,
    what: dict[str, object],
) -> None:
    """Make, warm up and capture on the stream ``aside``, and time the replay; raises CardLost where a capture fails.

    DDP keeps the stream on which it was made, and would leave a capture on another one.
    """
    label = f"{what['of']}, {what['tables']} tables, captured"
    if box.over(1.0):
        box.skip(label, f"{box.left_s():.0f} s are left")
        return
    with box.attempt(label):
        on_stream: AbstractContextManager[object] = nullcontext() if aside is None else torch.cuda.stream(aside)
        with on_stream:
            work = make()
            for _ in range(SETTLING):
                work()
        if aside is None:
            box.skip(label, "a CPU has no CUDA graphs")
            return
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=aside):
                work()
        except Exception as error:
            raise CardLost(f"a capture failed: {type(error).__name__}: {error}") from error
        box.add("host", box.host_times(graph.replay, warmups=10, runs=RUNS), predicted_ms, how="captured", **what)
