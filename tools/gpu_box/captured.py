"""The card's calls and steps captured in CUDA graphs: what is left of them without the host's time.

A capture that fails leaves torch as it was in the middle of it: its stream, its generator, its memory. Hence this part
is the last, and nothing runs after a failure in the same process.
"""

from collections.abc import Callable

import torch
from box import Box, CardLost
from card import CAPTURED, host_of_calls, host_of_steps
from torchrec.distributed import dist_data

RUNS = 200
SETTLING = 11
"""Calls before a capture: DDP times its first ten."""


def measure(box: Box) -> None:
    """Capture calls first: of them a capture is likelier to succeed."""
    aside = None if box.cpu else torch.cuda.Stream()

    def replayed(work: Callable[[], object]) -> list[float]:
        for _ in range(SETTLING):
            work()
        if aside is None:
            return []  # a CPU has no graphs
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=aside):
                work()
        except Exception as error:
            raise CardLost(f"a capture failed: {type(error).__name__}: {error}") from error
        return box.host_times(graph.replay, warmups=10, runs=RUNS)

    # DDP keeps the stream on which it is made, and would leave a capture on another one.
    with torch.cuda.stream(aside):
        host_of_calls(box, CAPTURED, replayed)
        # One rank does not use the order that TorchRec copies to the device in each step; no graph holds such a copy.
        dist_data._get_recat = lambda *_, **__: None
        host_of_steps(box, CAPTURED, replayed)
