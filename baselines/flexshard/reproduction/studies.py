"""Studies: communication latency and memory by strategy and nodes, and the rule's optimality gap."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from shardbench.base.errors import BadInput
from shardbench.model.machine import Machine
from shardbench.model.machine_file import load_machine, scaled
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Pooling, Table
from shardbench.model.validate import memory_bytes
from shardbench.studies.study import Cell, Plot, Row, Study, Tables
from shardbench.trials.discovery import get_strategy

from ..rule import RowTiers, has_warm_tier
from ..search import communication_s, search
from ..shape import find_homes, least_bytes, make_plan, runnable
from .conditions import (
    BASE_NODES,
    COMPARED,
    CONDITION,
    DRAWS,
    DRAWS_OF_MANY,
    HISTORY_SCALE,
    LOCAL_BATCH,
    NODES,
    SHORT_LOCAL_BATCH,
    YAMBDA,
    YAMBDA_DISTINCT,
    YAMBDA_DRAWS,
    YAMBDA_MACHINE,
    cluster,
    condition,
    gains,
    outcome,
)
from .region import REGION

OTHERS = ("row-wise", "table-row-wise", "column-wise", "greedy-size", "greedy-lookup", "torchrec-fused")
OURS = ("flexshard", "flexshard-no-warm-tier", "flexshard-whole-table-budget")
SMALL_LOCAL_BATCH = 8
"""Samples a device at which a row is looked up about once a step on a rank, so that the tiers are a close choice."""
MEMORY = ("fullest_device_bytes", "mean_device_bytes")


def _conditions(quick: bool) -> list[Cell]:
    """List draws on every number of nodes, the contrast and the Taobao form; where quick, one draw on two nodes."""
    draws_of = {2: DRAWS[:1]} if quick else {n: DRAWS_OF_MANY if n == max(NODES) else DRAWS for n in NODES}
    cases = [("production", LOCAL_BATCH, HISTORY_SCALE, n, draw) for n, draws in draws_of.items() for draw in draws]
    cases += [("production", SHORT_LOCAL_BATCH, 1.0, n, 0) for n in draws_of]
    cases += [("taobao", LOCAL_BATCH, 1.0, n, 0) for n in draws_of]
    if not quick:
        cases += [
            (name, LOCAL_BATCH, 1.0, BASE_NODES, draw) for name in (YAMBDA, YAMBDA_DISTINCT) for draw in YAMBDA_DRAWS
        ]
    return [dict(zip(CONDITION, case)) for case in cases]


def _ask_all(_: Path, workload: str, local_batch: int, history_scale: float, nodes: int, draw: int) -> list[Row]:
    """Return one row for each strategy; variants of ours are asked on the first draw alone."""
    if workload in (YAMBDA, YAMBDA_DISTINCT):
        question = condition(workload, load_machine(YAMBDA_MACHINE), local_batch, seed=draw)
    else:
        question = condition(workload, cluster(nodes), local_batch, history_scale=history_scale, draw=draw, seed=draw)
    names = (*OURS, *OTHERS) if draw == 0 else (OURS[0], *OTHERS)
    return [outcome(get_strategy(name), question) for name in names]


def communication_tables(rows: pd.DataFrame) -> Tables:
    """Return ``latency`` (milliseconds and bytes a step), ``memory`` (bytes a device) and ``gains`` (ratios)."""
    memory = rows[[*CONDITION, "strategy", *MEMORY, "backend"]].copy()
    keys = [memory[name] for name in CONDITION]
    fullest, at = memory["fullest_device_bytes"], len(CONDITION) + 3
    reference = fullest.where(memory["strategy"] == COMPARED).groupby(keys).transform("max")
    memory.insert(at, "over_table_row_wise_pct", 100.0 * (fullest / reference - 1.0))
    least = fullest.groupby(keys).transform("min")
    memory.insert(at + 1, "over_least_pct", 100.0 * (fullest / least - 1.0))
    return {"latency": rows.drop(columns=list(MEMORY)), "memory": memory, "gains": gains(rows, OURS[0], OURS[1:])}


COMMUNICATION = Study(
    name="communication",
    title="Communication of a step and memory, by strategy, workload, nodes and draw of the features. Histories of the "
    "Taobao form keep the public scripts' bound. The contrast is the first draw at fewer samples a device and shorter "
    "histories.",
    version=3,
    cells=_conditions,
    judge=_ask_all,
    summary=communication_tables,
    uses=(*OURS, *OTHERS),
    columns=("strategy", "backend", "communication_ms", "expected_communication_ms", "exchanged_between_nodes_bytes"),
    plots=(
        Plot(
            title="Communication latency of table-row-wise sharding over FlexShard's, simulated, by draw of the "
            "features",
            table="gains", x="nodes", y="latency_x", series="draw", facet="case",
        ),
    ),
)  # fmt: skip


def best_of_all(problem: Problem, limit_bytes: int, step: int) -> tuple[float, RowTiers]:
    """Return the least expected communication seconds of all plans that cut each table at multiples of ``step`` rows.

    Plans have a warm tier only where it is one of its own. Tables are sequences.
    """
    homes = find_homes(problem, over_all=False)
    cuts, with_warm = [], has_warm_tier(problem.topology)
    for table in problem.tables:
        ends = sorted({*range(0, table.rows, step), table.rows})
        cuts.append([(a, b - a) for a in ends for b in ends if b == a or (b > a and with_warm)])
    best: tuple[float, RowTiers] | None = None
    for chosen in product(*cuts):
        hot, warm = np.array(chosen, dtype=np.int64).T
        tiers = RowTiers(hot=hot, warm=warm)
        if runnable(tiers, problem) != tiers:
            continue
        if memory_bytes(make_plan(problem, homes, tiers), problem).hbm.max() > limit_bytes:
            continue
        seconds = communication_s(problem, homes, tiers)
        if best is None or seconds < best[0]:
            best = seconds, tiers
    if best is None:
        raise BadInput(f"no plan of problem {problem.name} fits {limit_bytes} bytes a device")
    return best


def _gap_cells(quick: bool) -> list[Cell]:
    """List small problems, where quick those of one table."""
    return [
        {"case": case, "budget": budget, "seed": seed}
        for case, seeds in (("one-table", 10), ("two-tables", 3), ("two-widths", 3))[: 1 if quick else None]
        for budget in (1.1, 1.5, 3.0)
        for seed in range(seeds)
    ]


def _gap(_: Path, case: str, budget: float, seed: int) -> Row:
    """Return the expected communication of the rule and of the best plan, in ms."""
    problem = _small(case, cluster(2), seed)
    limit = int(budget * least_bytes(problem))
    rule_plan = search(problem, limit, with_warm=True)
    best_s, _tiers = best_of_all(problem, limit, step=1)
    return {
        "budget_over_row_wise_pct": 100.0 * (limit / least_bytes(problem) - 1.0),
        "rule_ms": 1e3 * rule_plan.seconds,
        "best_ms": 1e3 * best_s,
        "over_best_pct": 100.0 * (rule_plan.seconds / best_s - 1.0),
        "hot_rows": int(rule_plan.tiers.hot.sum()),
        "warm_rows": int(rule_plan.tiers.warm.sum()),
    }


def _small(case: str, machine: Machine, seed: int) -> Problem:
    """Return a problem of one table of 64 rows, or of two of 16 and 12 or of 12 and 8, of random skew.

    It is on nodes of two devices without latencies, or with a thousandth of them.
    """
    rng = np.random.default_rng(seed)
    sizes = {"one-table": (64,), "two-tables": (16, 12), "two-widths": (12, 8)}[case]
    latency = 1e-3 if case == "two-widths" else 0.0
    machine = scaled(machine, dict.fromkeys(("intra_latency_s", "inter_latency_s", "peer_latency_s"), latency))
    machine = replace(machine, topology=replace(machine.topology, devices_per_node=2))
    samples = 1024
    dims = (64, 32 if case == "two-widths" else 64)
    tables = tuple(
        Table(name=f"s{i}", rows=n, dim=d, pooling=Pooling.NONE) for i, (n, d) in enumerate(zip(sizes, dims))
    )
    laws = [np.arange(1, n + 1) ** -rng.uniform(0.5, 2.5) for n in sizes]
    profiles = tuple(
        AccessProfile.from_counts(
            rng.multinomial(int(rng.uniform(0.02, 0.2) * samples * len(law)), law / law.sum()),
            rows=len(law),
            samples=samples,
            present=samples,
        )
        for law in laws
    )
    batch = SMALL_LOCAL_BATCH * machine.topology.world_size
    return Problem.of(case, tables, profiles, machine, batch_size=batch)


GAP = Study(
    name="gap",
    title="The rule beside the best of all plans of one or two small tables. They are on two nodes of two devices, "
    "without latencies, which would hide the gap, or (`two-widths`, in calls of their own) with a thousandth of them. "
    "`budget` multiplies the memory that no copies need.",
    version=3,
    cells=_gap_cells,
    judge=_gap,
)


def studies() -> Sequence[Study]:
    """Return all studies of FlexShard in the order that they run."""
    return (COMMUNICATION, REGION, GAP)
