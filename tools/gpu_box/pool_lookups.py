"""Draws the lookups of the papers' test tables in one test batch, table by table, in processes of their own.

Nothing here imports torch, so that a process starts quickly and never touches the device.
"""

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, as_completed
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from shardbench.base.arrays import Ints32
from shardbench.base.host import cores
from shardbench.cost.lookups import CountedLookups
from shardbench.learned.tasks.pools import POOL_TABLES
from shardbench.workloads.kinds import workload_config
from shardbench.workloads.trace import Split
from shardbench.workloads.workload import Workload

WIDTH = 16
MOST_PROCESSES = 14
"""Two of a machine's 16 cores stay for the process that measures."""


class TableLookups(NamedTuple):
    """A table's lookups in one batch."""

    table: int
    """Number of the table in the test pool."""
    ids: Ints32
    lengths: Ints32
    counts: tuple[int, int, int]
    """Lookups, distinct rows and the longest bag."""


@lru_cache(maxsize=4)
def tables_of_pool(batch: int) -> Workload:
    """Return the test pool of ``shardbench.learned.tasks.pools`` with batches of so many samples."""
    sizes = {"batch_size": batch, "profile_samples": batch}
    config = {"dataset": "synthetic", "name": "pool-test", "pool": "test", "tables": POOL_TABLES, "dim": WIDTH, **sizes}
    return workload_config(config, "pool test").build(Path())


def draw(table: int, batch: int) -> TableLookups:
    """Draw and count a table's lookups."""
    pool = tables_of_pool(batch)
    rows, bags = pool.tables[table].rows, pool.bags(Split.TEST, 0, table)
    lookups = CountedLookups(bags, rows, 1, f"table {table}")
    counts = (
        int(lookups.by_source(0, rows).sum()),
        int(lookups.distinct(0, rows, 1)[0]),
        int(lookups.longest_bag(0, rows, 1, 1)[0, 0]),
    )
    return TableLookups(table, bags.values.astype(np.int32), bags.lengths.astype(np.int32), counts)


def draw_all(processes: Executor | None, tables: Sequence[int], batch: int, seconds: float) -> Iterator[TableLookups]:
    """Draw tables in the processes, as they are ready, or here where there are none or they fail.

    Raises TimeoutError where it takes more than ``seconds``.
    """
    one, until, waiting = partial(draw, batch=batch), time.monotonic() + seconds, set(tables)
    if processes is not None:
        futures = [processes.submit(one, table) for table in tables]
        try:
            for future in as_completed(futures, timeout=seconds):
                lookups = future.result()
                waiting.remove(lookups.table)
                yield lookups
        except (OSError, BrokenExecutor) as error:
            if isinstance(error, TimeoutError):
                raise
            print(f"lookups are drawn in this process: {type(error).__name__}: {error}", flush=True)
        finally:
            # Tables that are drawn no more for this task would keep the next one's waiting.
            for future in futures:
                future.cancel()
    for table in waiting:
        if time.monotonic() > until:
            raise TimeoutError(f"{len(tables)} tables were not drawn in {seconds:.0f} s")
        yield one(table)


def processes_here() -> int:
    """Return how many processes draw on this machine."""
    return min(MOST_PROCESSES, cores())
