"""FlexShard's studies and claims: cells, one small cell of each kind, and what claims read off the tables."""

from pathlib import Path

import pandas as pd
import pytest

from shardbench.baselines.flexshard.claims import observations
from shardbench.baselines.flexshard.conditions import cluster, condition, outcome
from shardbench.baselines.flexshard.studies import FACTORS, Gap, Sensitivity, studies
from shardbench.discovery import get_strategy
from shardbench.reproduction.claim import Evidence
from shardbench.reproduction.found import find_reproduction
from shardbench.suite import load_suite


def test_cells_of_a_quick_run_are_some_of_the_full_run() -> None:
    for study in studies():
        quick, full = study.cells(True), study.cells(False)
        assert all(cell in full for cell in quick)
        assert len(quick) < len(full)
    assert {cell["factor"] for cell in Sensitivity().cells(False)} == set(FACTORS)


def test_a_small_problem_has_no_plan_below_the_best() -> None:
    (row,) = Gap().run({"case": "one-table", "budget": 1.5, "nodes": 2, "seed": 1}, Path())
    assert row["backend"] == "simulated"
    assert -1e-9 <= float(row["over_best_pct"] or 0) < 1.0
    assert float(row["bound_ms"] or 0) <= float(row["best_ms"] or 0) <= float(row["rule_ms"] or 0) * (1 + 1e-12)


def test_an_outcome_adds_up() -> None:
    given = condition("production", cluster(2), local_batch=16, tables=6, row_scale=0.01, profile_samples=512)
    row = outcome(get_strategy("flexshard"), given)
    parts = [name for name in row if name.endswith("_ms") and name not in ("step_ms",) and "communication" not in name]
    assert sum(float(row[name] or 0) for name in parts) == pytest.approx(row["communication_ms"])
    assert float(row["exchanged_between_nodes_bytes"] or 0) < float(row["exchanged_bytes"] or 0)
    assert 0 <= float(row["hot_lookups_pct"] or 0) + float(row["warm_lookups_pct"] or 0) <= 100


def test_the_bandwidth_ratio_changes_the_link_between_nodes_alone() -> None:
    constants = cluster(4, bandwidth_ratio=5.0).constants
    assert constants.intra_bytes_per_s == cluster(4).constants.intra_bytes_per_s == 5.0 * constants.inter_bytes_per_s
    assert cluster(16).topology.world_size == 128


def test_even_latencies_come_from_the_study_and_the_best_other_plan_counts() -> None:
    ms = {"flexshard": 2.0, "flexshard-no-warm-tier": 1.0, "table-row-wise": 8.0, "row-wise": 5.0, "greedy-size": 9.0}
    table = pd.DataFrame(
        [
            {"workload": workload, "nodes": 2, "strategy": name, "even_communication_ms": value}
            for workload in ("production", "taobao")
            for name, value in ms.items()
        ]
    )
    found = observations(Evidence(records=(), tables={"latency": table}))
    assert dict(found) == {"latency": [4.0], "latency-vs-best": [2.5]}
    assert observations(Evidence(records=(), tables={})) == {}


def test_claims_are_those_of_the_abstract() -> None:
    claims = {claim.name: claim for claim in find_reproduction("flexshard").claims}
    assert {name.removesuffix("-vs-best") for name in claims} == {
        "traffic", "traffic-all-links", "latency", "latency-counted", "memory",
    }  # fmt: skip
    assert all(claim.sourced and "abstract" in claim.source for claim in claims.values())
    assert (claims["traffic"].paper, claims["latency"].paper, claims["memory"].paper) == (85, 6, 0)


def test_the_suite_compares_at_the_same_samples_a_device() -> None:
    suite = load_suite("flexshard")
    for job in suite.jobs:
        world = job.load_machine().topology.world_size
        assert suite.workload(job).batch_size // world in (256, 128)
    assert any(job.quick for job in suite.jobs)
