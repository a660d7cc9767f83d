"""FlexShard's studies and claims: cells, one small cell of each kind, and what claims read off the tables."""

from pathlib import Path

import pytest
from records import COLLECTIVES, failed, ok, planned, timing, totals

from shardbench.baselines.flexshard.reproduction.claims import COMMUNICATION, observations
from shardbench.baselines.flexshard.reproduction.conditions import cluster, condition, outcome
from shardbench.baselines.flexshard.reproduction.studies import FACTORS, Gap, Sensitivity, _gains, studies
from shardbench.model.discovery import get_strategy
from shardbench.records.record import Record
from shardbench.records.trial import Backend, Outcome
from shardbench.runs.suite import load_suite
from shardbench.studies.claim import Evidence
from shardbench.studies.reproduction import find_reproduction


def test_cells_of_a_quick_run_are_some_of_the_full_run() -> None:
    for study in studies():
        quick, full = study.cells(True), study.cells(False)
        assert all(cell in full for cell in quick)
        assert len(quick) < len(full)
    assert {cell["factor"] for cell in Sensitivity().cells(False)} == set(FACTORS)


@pytest.mark.parametrize(("case", "seed"), [("one-table", 1), ("one-table", 4), ("one-table", 6)])
def test_a_small_problem_has_no_plan_below_the_best(case: str, seed: int) -> None:
    (row,) = Gap().run({"case": case, "budget": 1.5, "nodes": 2, "seed": seed}, Path())
    assert row["backend"] == "simulated"
    assert -1e-9 <= float(row["over_best_pct"] or 0) < 1.0
    bound, best, rule = (float(row[name] or 0) for name in ("bound_ms", "best_ms", "rule_ms"))
    assert 0 < bound <= best * (1 + 1e-9) <= rule * (1 + 2e-9)


def test_the_gap_is_shown_at_the_suites_own_budgets() -> None:
    own = [cell["nodes"] for cell in Gap().cells(False) if cell["budget"] is None]
    assert own == [2, 4, 16]


def test_gains_are_those_of_the_claims_and_over_row_wise() -> None:
    reference = {"communication_ms": 6.0, "exchanged_bytes": 8.0, "exchanged_between_nodes_bytes": 0.0}
    row = {"communication_ms": 2.0, "exchanged_bytes": 2.0, "exchanged_between_nodes_bytes": 0.0}
    assert _gains(row, reference, "_over_row_wise") == {
        "latency_gain_over_row_wise_x": 3.0,
        "exchanged_saved_over_row_wise_pct": 75.0,
        "between_nodes_saved_over_row_wise_pct": None,
    }


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


def trial(strategy: str, ms: float, size: int, workload: str = "production") -> Record:
    """A simulated trial that waits ``ms``, sends ``size`` bytes between nodes and holds them on its fullest device."""
    times = timing((ms,), (1.0, 1.0), lookup=9.0, **dict.fromkeys(COMMUNICATION, ms / 4))
    sent = COLLECTIVES | {"input_splits": (0.0, 0.0), "input_all_to_all": (0.0, 0.0), "backward_all_to_all": (0.0, 0.0)}
    return ok(
        strategy,
        backend=Backend.SIMULATED,
        workload=workload,
        changes={
            "timing": times,
            "traffic": totals(collectives=sent | {"output_all_to_all": (50.0, float(size))}),
            "planned": planned(hbm_memory_bytes=(size, 1)),
        },
    )


def test_every_claim_is_against_one_plan_the_fastest_or_the_compared() -> None:
    # Variants of ours are no other plan, whatever they send; the best is the one that waits least, not sends least.
    trials = [
        trial("flexshard", 2.0, 200), trial("flexshard-no-warm-tier", 1.0, 1), trial("table-row-wise", 8.0, 400),
        trial("row-wise", 5.0, 100), trial("torchrec-fused", 6.0, 250), failed(Outcome.TIMEOUT, "greedy-size"),
    ]  # fmt: skip
    found = observations(Evidence(records=tuple(trials), tables={}))
    assert dict(found) == {
        "traffic": [2.0], "traffic-vs-best": [0.5], "latency": [4.0], "latency-vs-best": [2.5],
        "traffic-all-links": [pytest.approx(450 / 250)],
        "traffic-all-links-vs-best": [pytest.approx(150 / 250)],
        "memory": [0.5], "memory-vs-best": [2.0], "memory-vs-row-wise": [2.0],
        "memory-vs-torchrec": [pytest.approx(0.8)],
    }  # fmt: skip
    small = [trial(r.spec.strategy, t, 10, "taobao") for r, t in zip(trials, (5.0, 1.0, 10.0, 4.0))]
    found = observations(Evidence(records=tuple(small), tables={}))
    assert dict(found) == {"taobao-traffic": [1.0], "taobao-latency-vs-best": [0.8]}
    assert observations(Evidence(records=(), tables={})) == {}


def test_claims_are_those_of_the_abstract() -> None:
    claims = {claim.name: claim for claim in find_reproduction("flexshard").claims}
    sourced = {name: claim for name, claim in claims.items() if claim.sourced}
    assert set(sourced) == {
        "traffic", "traffic-vs-best", "traffic-all-links", "traffic-all-links-vs-best", "latency", "latency-vs-best",
        "memory", "memory-vs-best", "memory-vs-row-wise", "memory-vs-torchrec",
    }  # fmt: skip
    assert all("abstract" in claim.source for claim in sourced.values())
    controls = set(claims) - set(sourced)
    assert controls == {"taobao-traffic", "taobao-latency-vs-best"}
    assert all("no claim of the paper" in claims[name].statement for name in controls)
    assert (claims["traffic"].paper, claims["latency"].paper, claims["memory"].paper) == (85, 6, 0)


def test_the_suite_compares_at_the_same_samples_a_device() -> None:
    suite = load_suite("flexshard")
    for job in suite.jobs:
        world = job.load_machine().topology.world_size
        assert suite.workload(job).batch_size // world in (256, 128)
    assert any(job.quick for job in suite.jobs)
