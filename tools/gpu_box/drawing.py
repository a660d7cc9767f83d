"""Draws a workload once, table by table and in several processes, and keeps its batches in memory.

Nothing here imports torch, so that a process that draws is there in a moment.
"""

import multiprocessing
import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from shardbench.model.profile import AccessProfile
from shardbench.workloads.ranking_cache import Survey
from shardbench.workloads.trace import Bags, Split
from shardbench.workloads.workload import SAMPLED_INPUTS, Workload, WorkloadConfig


@dataclass(frozen=True, kw_only=True)
class TableDraws:
    """What is drawn of one table: its profile, its bags in every test batch, and those of some train inputs."""

    profile: AccessProfile
    bags: tuple[Bags, ...]
    inputs: Bags | None


class KeptWorkload(Workload):
    """A workload whose draws are in memory; ``samples`` cuts each batch into several of so many samples, in order."""

    drawn = False

    def __init__(
        self, config: WorkloadConfig, workload: Workload, draws: Sequence[TableDraws], samples: int | None = None
    ) -> None:
        self._configure(config)
        self.config, self.source, self._draws = config, workload, draws
        self.tables, self.profile_samples = workload.tables, workload.profile_samples
        self._cuts = 1 if samples is None else workload.batch_size // samples
        self.batch_size = workload.batch_size // self._cuts
        self.test_batches = self._cuts * len(draws[0].bags)
        self.table_profiles = tuple(table.profile for table in draws)

    def cut(self, samples: int) -> "KeptWorkload":
        """Return the same lookups in batches of ``samples``, which divide a batch."""
        return KeptWorkload(self.config, self.source, self._draws, samples)

    def recipe(self) -> object:
        """Return the recipe of the workload that was drawn, and the batches that its own were cut into."""
        return [self.source.recipe(), self.batch_size, self.test_batches]

    def _bags(self, split: Split, batch: int, table: int) -> Bags:
        place, part = divmod(batch, self._cuts)
        return self._draws[table].bags[place].samples(part * self.batch_size, (part + 1) * self.batch_size)

    def _survey(self, table: int) -> Survey:
        raise NotImplementedError("its rankings are not kept")

    def _unprofiled(self, table: int, inputs: int) -> Bags | None:
        bags = self._draws[table].inputs
        return None if bags is None else bags.samples(0, min(inputs, bags.batch_size))


def draw(config: WorkloadConfig, *, processes: int, inputs: bool = False) -> KeptWorkload:
    """Draw a workload's profiles and all its test batches; ``inputs``: some of its train inputs, too.

    Processes draw a table each; where the machine has none to give, this one draws.
    """
    workload = config.build(Path())
    one = partial(draw_table, config, inputs)
    # What takes longest goes first.
    order = sorted(range(len(workload.tables)), key=lambda table: -workload.tables[table].rows)
    draws: list[TableDraws] = []
    try:
        with drawing_processes(processes if processes > 1 else 0) as pool:
            draws = list(pool.map(one, order)) if pool is not None else []
    except (OSError, BrokenExecutor) as error:
        print(f"drawn in one process: {type(error).__name__}: {error}", flush=True)
    draws = draws or [one(table) for table in order]
    by_table = dict(zip(order, draws, strict=True))
    return KeptWorkload(config, workload, [by_table[table] for table in range(len(order))])


def draw_table(config: WorkloadConfig, inputs: bool, table: int) -> TableDraws:
    """Draw one table of a workload, in a process that may draw no other."""
    workload = config.build(Path())
    profile = workload.profile(table)
    bags = [workload.bags(Split.TEST, number, table) for number in range(workload.test_batches)]
    return TableDraws(
        profile=profile,
        # Half the bytes on their way from one process to another.
        bags=tuple(replace(one, values=one.values.astype(np.int32)) for one in bags),
        inputs=workload._unprofiled(table, SAMPLED_INPUTS) if inputs else None,
    )


@contextmanager
def drawing_processes(count: int) -> Iterator[Executor | None]:
    """Give so many processes that draw, which end after the block; None for none."""
    if count == 0:
        yield None
        return
    # A copy of this process would have a copy of its device's state, which must not be used.
    context = multiprocessing.get_context("spawn")
    processes = ProcessPoolExecutor(count, mp_context=context, initializer=_end_with_parent)
    try:
        yield processes
    finally:
        processes.shutdown(wait=False, cancel_futures=True)


def _end_with_parent() -> None:
    """End this process when the one that measures is gone, even where it was killed: it holds a line to its watcher."""
    threading.Thread(target=_wait_for_parent, daemon=True).start()


def _wait_for_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
