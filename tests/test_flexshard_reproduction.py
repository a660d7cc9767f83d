"""FlexShard's studies and claims: cells, one small cell of each kind, and what claims read off the tables."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from shardbench.baselines.flexshard.reproduction.claims import observations
from shardbench.baselines.flexshard.reproduction.conditions import (
    CONDITION,
    HISTORY_SCALE,
    LOCAL_BATCH,
    RATIOS,
    SHORT_LOCAL_BATCH,
    SampledQuestion,
    all_links_bytes,
    between_nodes_bytes,
    cluster,
    communication_ms,
    condition,
    outcome,
    workload,
)
from shardbench.baselines.flexshard.reproduction.region import KNOBS, REGION, measure
from shardbench.baselines.flexshard.reproduction.studies import GAP
from shardbench.cost.collectives import ALL_REDUCES, CollectiveName
from shardbench.model.table import DenseShape
from shardbench.records.trial import Backend
from shardbench.studies.claim import Evidence
from shardbench.studies.reproduction import find_reproduction
from shardbench.trials.discovery import get_strategy
from shardbench.trials.evaluate import answer_of
from shardbench.trials.simulate import CountedQuestion
from shardbench.trials.suite import load_suite
from shardbench.workloads.materialise import DrawnBatches

SMALL = {"tables": 6, "row_scale": 0.01, "profile_samples": 512}


@pytest.mark.parametrize(("case", "seed"), [("one-table", 1), ("one-table", 4), ("one-table", 6)])
def test_a_small_problem_has_no_plan_below_the_best(case: str, seed: int) -> None:
    (row,) = GAP.run({"case": case, "budget": 1.5, "seed": seed}, Path())
    assert row["backend"] == "simulated"
    assert -1e-9 <= float(row["over_best_pct"] or 0) < 1.0
    best, rule = (float(row[name] or 0) for name in ("best_ms", "rule_ms"))
    assert 0 < best <= rule * (1 + 1e-9)


def test_an_outcome_adds_up() -> None:
    given = condition("production", cluster(2), local_batch=16, **SMALL)
    row = outcome(get_strategy("flexshard"), given)
    parts = [name for name in row if name.endswith("_ms") and name not in ("step_ms",) and "communication" not in name]
    assert sum(float(row[name] or 0) for name in parts) == pytest.approx(row["communication_ms"])
    assert float(row["exchanged_between_nodes_bytes"] or 0) < float(row["exchanged_bytes"] or 0)
    assert 0 <= float(row["hot_lookups_pct"] or 0) + float(row["warm_lookups_pct"] or 0) <= 100


def test_the_bandwidth_ratio_changes_the_link_between_nodes_alone() -> None:
    constants = cluster(4, bandwidth_ratio=5.0).constants
    assert constants.intra_bytes_per_s == cluster(4).constants.intra_bytes_per_s == 5.0 * constants.inter_bytes_per_s
    assert cluster(16).topology.world_size == 128


def test_samples_scaled_up_are_the_whole_batch() -> None:
    machine, strategy = cluster(2), get_strategy("flexshard-no-warm-tier")
    sampled = SampledQuestion(workload("production", 16 * 32, **SMALL), machine, local_batch=128)
    whole = CountedQuestion(
        sampled.problem, DrawnBatches(workload("production", 16 * 128, **SMALL)), DenseShape(bottom=(512, 256, 64))
    )
    found, exact = answer_of(sampled, strategy).judged, answer_of(whole, strategy).judged.traffic.collectives
    assert between_nodes_bytes(found) == pytest.approx(between_nodes_bytes(exact), rel=0.05)
    assert all_links_bytes(found) == pytest.approx(all_links_bytes(exact), rel=0.05)
    for name in {*ALL_REDUCES, CollectiveName.INPUT_SPLITS}:
        np.testing.assert_array_equal(found[name].sent, exact[name].sent)
    # Fewer samples differ more by device, and a step waits for the slowest.
    assert communication_ms(found, machine) == pytest.approx(communication_ms(exact, machine), rel=0.1)


def test_a_point_of_the_region_is_the_ratio_of_two_plans() -> None:
    point = {"samples": 64.0, "history_scale": 0.5, "exponent_scale": 1.4, "nodes": 2, "budget_pct": 150.0}
    slow, fast = (
        measure(Path(), point=0, **point, link_ratio=ratio, counted_samples=16, **SMALL) for ratio in (40.0, 2.5)
    )
    assert slow["traffic_x"] > 1.5 and slow["latency_x"] >= slow["latency_vs_best_x"] > 1.0
    assert slow["latency_x"] > fast["latency_x"]
    assert slow["lookups_a_sample"] == fast["lookups_a_sample"]


def test_a_claim_has_one_number_a_draw_or_one_a_number_of_nodes() -> None:
    def ratios(workload: str, nodes: int, draw: int, ratio: float, batch: int = LOCAL_BATCH) -> dict[str, object]:
        condition = dict(zip(CONDITION, (workload, batch, HISTORY_SCALE, nodes, draw)))
        return condition | dict.fromkeys(RATIOS, ratio)

    table = pd.DataFrame(
        [
            ratios("production", 4, 1, 8.0), ratios("production", 4, 0, 2.0), ratios("production", 2, 0, 3.0),
            ratios("production", 4, 0, 99.0, batch=SHORT_LOCAL_BATCH),
        ]
    )  # fmt: skip
    taobao = pd.DataFrame([ratios("taobao", 16, 0, 0.5), ratios("taobao", 2, 0, 0.75)]).assign(history_scale=1.0)
    yambda = [ratios(name, 4, draw, 5.0) for name in ("yambda", "yambda-distinct") for draw in range(2)]
    listeners = pd.DataFrame(yambda).assign(history_scale=1.0)
    found = observations(Evidence(records=(), tables={"gains": pd.concat([table, taobao, listeners])}))
    claims = {claim.name: claim for claim in find_reproduction("flexshard").claims}
    assert set(found) == {name for name, claim in claims.items() if not claim.not_testable}
    for name, numbers in found.items():
        sampled = [5.0, 5.0] if "yambda" in name else [2.0, 8.0]
        expected = sampled if claims[name].sample else [0.75, 0.5] if "taobao" in name else [3.0, 4.0]
        assert numbers == pytest.approx(expected), name
    assert observations(Evidence(records=(), tables={})) == {}


def test_claims_are_those_of_the_abstract_and_say_whose_definition_they_take() -> None:
    claims = find_reproduction("flexshard").claims
    assert {claim.definition_of for claim in claims} == {"ours"}
    sourced = {claim.name: claim for claim in claims if claim.sourced}
    assert all("abstract" in claim.source for claim in sourced.values())
    assert {(c.paper, c.relation) for c in sourced.values() if c.scale == "ratio" and c.paper} == {(6.0, "about")}
    assert {(c.paper, c.relation) for c in sourced.values() if c.paper == 85.0} == {(85.0, "at least")}
    assert all("no claim of the paper" in c.statement and c.paper is None for c in claims if not c.sourced)
    columns = {claim.region.column for claim in claims if claim.region is not None}
    made = REGION.tables(pd.DataFrame(REGION.cells(False)).assign(**dict.fromkeys(columns, 1.0)))
    assert columns == set(made["region_knobs"]["outcome"])


def test_the_region_holds_the_base_condition_and_the_contrast() -> None:
    for name, value in {"samples": LOCAL_BATCH, "history_scale": HISTORY_SCALE, "exponent_scale": 1.0}.items():
        knob = next(knob for knob in KNOBS if knob.name == name)
        assert knob.low < value < knob.high
    (samples,) = (knob for knob in KNOBS if knob.name == "samples")
    assert samples.low == SHORT_LOCAL_BATCH
    assert len(REGION.cells(False)) >= 64


def test_the_suite_compares_at_the_same_samples_a_device() -> None:
    suite = load_suite("flexshard")
    for job in suite.jobs:
        world = job.load_machine().topology.world_size
        simulated = job.backend is Backend.SIMULATED
        assert suite.workload(job).batch_size // world in ((LOCAL_BATCH,) if simulated else (256, 128))
    assert any(job.quick for job in suite.jobs)
