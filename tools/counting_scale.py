"""Counting at cluster scale: the full synthetic workload against plans for 8, 128 and 1,024 devices.

``python tools/counting_scale.py [OUT.csv] [TABLES]`` streams one test batch of 856 tables
(65,536 samples, about 887 million lookups), table by table, into a plan that mixes whole tables,
row-wise ones and replicas, and writes lookups per second of CPU time (drawing excluded) and the
peak memory of the process.
"""

import resource
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from cases.made_up import cluster, mixed_plan

from shardbench.base.generated import csv_text
from shardbench.cost.accounting import Account
from shardbench.cost.lookups import CountedLookups
from shardbench.datasets.synthetic import CONFIG
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.workloads.trace import Split

DEVICES = (8, 128, 1024)
COLUMNS = ("devices", "tables", "lookups", "cpu_s", "lookups_per_s", "peak_bytes")
SMALL, LARGE = 10_000, 4_000_000
"""Tables of fewer rows are replicated; those of as many or more are dealt over all devices."""


def measure(tables: int = 856, devices: tuple[int, ...] = DEVICES) -> list[tuple[float, ...]]:
    """Return a row of COLUMNS for each number of devices; the batch is drawn once for all of them."""
    workload = CONFIG(tables=tables, name="scale").build(Path())
    blank = tuple(AccessProfile(rows=t.rows, samples=1, present=0, counts=(), row_counts=()) for t in workload.tables)
    problems = [
        Problem.of("scale", workload.tables, blank, cluster(n), batch_size=workload.batch_size) for n in devices
    ]
    segments = [mixed_plan(one, max(SMALL, one.world_size), LARGE).by_table() for one in problems]
    accounts = [Account(problem) for problem in problems]
    seconds, lookups = [0.0] * len(devices), 0
    for i, table in enumerate(workload.tables):
        bags = workload.bags(Split.TEST, 0, i)
        lookups += len(bags.values)
        for k, problem in enumerate(problems):
            start = time.process_time()
            accounts[k].add(table, segments[k][table.name], CountedLookups(bags, table.rows, problem.world_size))
            seconds[k] += time.process_time() - start
    rows: list[tuple[float, ...]] = []
    for k, account in enumerate(accounts):
        start = time.process_time()
        account.collectives(0)
        seconds[k] += time.process_time() - start
        assert account.load.lookups.sum() == lookups
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        rows.append((devices[k], tables, lookups, round(seconds[k], 3), round(lookups / seconds[k]), peak))
    return rows


if __name__ == "__main__":
    text = csv_text(COLUMNS, measure(int(sys.argv[2]) if len(sys.argv) > 2 else 856))
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text)
    print(text, end="")
