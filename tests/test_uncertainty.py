"""Draws of the constants: their spread, that trials compare draw by draw, and what a record keeps of them."""

import math
from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from problems import RandomWorkload, machine

from shardbench.base.errors import BadInput
from shardbench.cost.costmodel import step_time
from shardbench.cost.traffic import count
from shardbench.cost.uncertainty import (
    DRAWS,
    KERNEL_FORM,
    HeldOutStep,
    band,
    deviations,
    drawn_machines,
    form_of,
    judged_steps,
    off_text,
    p_larger,
    pair_error,
    trust,
    with_form,
)
from shardbench.model.machine import HostConstants, NcclConstants, Trust
from shardbench.model.machine_file import load_machine, uncertain
from shardbench.model.plan import Plan, Tier, whole_tables
from shardbench.model.problem import Problem
from shardbench.trials.simulate import simulate
from shardbench.workloads.materialise import materialise
from shardbench.workloads.trace import Split

TOY = machine()
KNOWN = replace(TOY, errors=dict.fromkeys(uncertain(TOY), 1.2))
WORKLOAD = RandomWorkload([(300, 32), (200, 16)], 64, pooling=8)


def problem_on(device) -> Problem:
    return Problem.of("random", WORKLOAD.tables, WORKLOAD.profiles, device, batch_size=64)


def plan(*placed: tuple[int, Tier]) -> Plan:
    return Plan(world_size=2, segments=whole_tables(WORKLOAD.tables, *zip(*placed)))


def test_deviations_are_standard_normal_and_of_the_name_alone():
    drawn = deviations("hbm_bytes_per_s")
    assert sorted(drawn) == pytest.approx([NormalDist().inv_cdf((i + 0.5) / DRAWS) for i in range(DRAWS)])
    assert np.array_equal(drawn, deviations("hbm_bytes_per_s"))
    # Independent of one another: no correlation beyond five times what chance gives.
    others = [deviations(name) for name in uncertain(load_machine("v100-16gb-1x4"))]
    correlations = np.corrcoef(others) - np.eye(len(others))
    assert np.abs(correlations).max() < 5 / np.sqrt(DRAWS)


def test_constants_spread_by_their_stated_error_and_shares_stay_shares():
    known = {"launch_s": 1.5, "gather_efficiency_ratio": 2.0, "uvm_bytes_per_s": 1.0}
    drawn = [m.constants for m in drawn_machines(replace(KNOWN, errors=KNOWN.errors | known))]
    logs = np.log([c.launch_s / TOY.constants.launch_s for c in drawn])
    assert logs.std() == pytest.approx(np.log(1.5), rel=0.02)
    assert np.median(logs) == pytest.approx(0.0, abs=0.01)
    assert max(c.gather_efficiency_ratio for c in drawn) == 1.0
    assert {c.uvm_bytes_per_s for c in drawn} == {TOY.constants.uvm_bytes_per_s}
    assert {c.cache_bytes for c in drawn} == {TOY.constants.cache_bytes}


def test_a_host_has_draws_of_its_own():
    known = replace(
        KNOWN, host=HostConstants(link_bytes_per_s=1e10, dense_flop_per_s=1e12, dense_step_s=1e-3, dense_layer_s=0.0)
    )
    with pytest.raises(BadInput, match="toy does not say how well 'host_dense_layer' is known"):
        drawn_machines(known)
    errors = dict.fromkeys(uncertain(known), 1.5) | {"host_link": 1.0}
    drawn = drawn_machines(replace(known, errors=errors))
    hosts = [m.host for m in drawn if m.host is not None]
    assert len({h.dense_flop_per_s for h in hosts}) == DRAWS
    assert {h.link_bytes_per_s for h in hosts} == {1e10}
    # What no switch adds up stays nothing, whatever its error.
    gpu = replace(KNOWN, nccl=NcclConstants(call_s=1e-6, switch_ratio=0.0))
    parts = [m.nccl for m in drawn_machines(replace(gpu, errors=dict.fromkeys(uncertain(gpu), 1.5))) if m.nccl]
    assert len({part.call_s for part in parts}) == DRAWS
    assert {part.switch_ratio for part in parts} == {0.0}


def test_machines_with_the_same_constants_err_alike():
    two, sixteen = (drawn_machines(load_machine(f"a100-40gb-{n}x8")) for n in (2, 16))
    assert [m.constants for m in two] == [m.constants for m in sixteen]


def test_draws_are_the_step_under_each_machine_and_certain_where_constants_are(tmp_path):
    batches = materialise(WORKLOAD, tmp_path / "b", range(2))
    problem, dense = problem_on(KNOWN), WORKLOAD.dense
    found = simulate(plan((0, Tier.HBM), (1, Tier.UVM)), problem, batches, dense, 2)
    draws = found.draws(problem, dense)
    assert draws is not None
    assert len(draws.step_ms) == len(draws.embedding_ms) == DRAWS
    chosen = drawn_machines(KNOWN)[17]
    placed = plan((0, Tier.HBM), (1, Tier.UVM))
    traffics = [count(placed, problem, lambda i, n=n: batches.bags(n, i), dense) for n in range(2)]
    times = [with_form(step_time(t, chosen, dense, problem.tables, 64), 17, form_of(found.times)) for t in traffics]
    assert draws.step_ms[17] == pytest.approx(np.mean([t.step_ms for t in times]), rel=1e-5)
    assert draws.embedding_ms[17] == pytest.approx(np.mean([t.embedding_ms for t in times], axis=0).max(), rel=1e-5)
    assert min(draws.step_ms) < found.step_ms < max(draws.step_ms)
    exact = problem_on(replace(KNOWN, errors=dict.fromkeys(KNOWN.errors, 1.0)))
    certain = found.draws(exact, dense)
    assert certain is not None
    # The form is drawn even where every constant is exact.
    assert 1.0 < max(certain.step_ms) / min(certain.step_ms) < max(draws.step_ms) / min(draws.step_ms)
    assert found.draws(problem_on(TOY), dense) is None


def test_the_form_of_a_phase_is_drawn_for_all_ranks_and_exchanges_err_together():
    problem = problem_on(KNOWN)
    traffic = count(
        plan((0, Tier.HBM), (1, Tier.UVM)), problem, lambda i: WORKLOAD._bags(Split.TEST, 0, i), WORKLOAD.dense
    )
    plain = step_time(traffic, KNOWN, WORKLOAD.dense, WORKLOAD.tables, 64)
    drawn = [with_form(plain, i, "plan") for i in range(DRAWS)]
    logs = np.log([time.forward_ms / plain.forward_ms for time in drawn])
    assert np.ptp(logs, axis=1).max() < 1e-12
    assert logs[:, 0].std() == pytest.approx(np.log(KERNEL_FORM), rel=0.02)
    changes = {
        phase: np.array([time.phases_ms[phase] / ms for time in drawn]) for phase, ms in plain.phases_ms.items() if ms
    }
    assert changes["input"] == pytest.approx(changes["output"], rel=1e-12)
    assert changes["lookup"] == pytest.approx(np.exp(logs[:, 0]), rel=1e-12)
    assert abs(np.corrcoef(changes["lookup"], changes["lookup_backward"])[0, 1]) < 5 / np.sqrt(DRAWS)
    assert set(changes["dense"]) == {1.0}
    # Another plan errs on its own, an equal one alike.
    other = [with_form(plain, i, form_of([plain])).phases_ms["lookup"] for i in range(DRAWS)]
    assert abs(np.corrcoef(changes["lookup"], other)[0, 1]) < 5 / np.sqrt(DRAWS)
    assert form_of([plain]) == form_of([replace(plain)])
    assert form_of([plain]) != form_of([drawn[0]])


def test_times_compare_draw_by_draw_and_every_pair_of_seeds_counts():
    base = np.exp(deviations("hbm_bytes_per_s"))
    # Wide bands that overlap almost wholly, and yet one is always 1 % above the other.
    assert p_larger([1.01 * base], [base]) == 1.0
    assert band([base]) == pytest.approx((np.exp(-1.96), np.exp(1.96)), rel=0.05)
    assert p_larger([base], [base]) == 0.5
    assert 0.4 < p_larger([1.01 * base], [np.exp(deviations("launch_s"))]) < 0.6
    assert p_larger([0.9 * base, 1.1 * base], [base, 1.2 * base]) == 0.25
    with pytest.raises(BadInput, match="records have 1 and 2 draws of a time"):
        p_larger([[1.0, 2.0]], [[1.0]])
    with pytest.raises(BadInput, match="records have 1 and 2 draws of a time"):
        band([[1.0, 2.0], [1.0]])


PLENTY = 10**9
"""Held-out steps that leave nothing to chance."""


def spread(logs) -> float:
    return float(np.sqrt(np.mean(np.square(logs))))


def trusted(step_error: float, pair_error: float | None = None, plans: int = PLENTY) -> Trust:
    return Trust(step_error=step_error, pair_error=pair_error, plans=plans, source="made up for this test")


def test_judged_steps_are_as_far_off_as_held_out_ones_and_so_are_ratios_of_plans():
    # Constants that err by 5 % alike in both plans.
    constants = np.exp(np.log(1.05) * deviations("hbm_bytes_per_s"))
    found = trusted(1.2, 1.03)
    a, b = (np.array(judged_steps(ms, ms * constants, found, plan)) for ms, plan in ((100.0, "a"), (103.0, "b")))
    assert spread(np.log(a / 100.0)) == pytest.approx(np.log(1.2), rel=0.05)
    assert spread(np.log(b / a) - np.log(1.03)) == pytest.approx(np.log(1.03), rel=0.15)
    # A lead as large as the error of a ratio comes about in 84 of 100 draws, twice as large a one is sure.
    assert p_larger([b], [a]) == pytest.approx(NormalDist().cdf(1.0), abs=0.06)
    assert p_larger([judged_steps(106.1, 106.1 * constants, found, "b")], [a]) > 0.95
    assert judged_steps(100.0, 100.0 * constants, found, "a") == tuple(a)
    # Constants that spread further than held-out steps were off are taken at their word.
    assert judged_steps(100.0, 100.0 * constants, trusted(1.02), "a") == pytest.approx(100.0 * constants)
    assert judged_steps(100.0, [100.0] * DRAWS, trusted(1.0, 1.0), "a") == (100.0,) * DRAWS


def test_few_held_out_steps_widen_the_band():
    of_one, of_plenty = (judged_steps(1.0, [1.0] * DRAWS, trusted(1.1, plans=n), "a") for n in (1, PLENTY))
    low, high = band([of_plenty])
    assert (low, high) == pytest.approx((1.1**-1.96, 1.1**1.96), rel=0.02)
    # 12.7 is Student's t of one degree of freedom.
    assert band([of_one]) == pytest.approx((1.1**-12.7, 1.1**12.7), rel=0.1)


def test_held_out_steps_judge_the_step_and_not_its_kernels(tmp_path):
    batches = materialise(WORKLOAD, tmp_path / "b", range(1))
    placed = plan((0, Tier.HBM), (1, Tier.UVM))

    def draws(found: Trust | None):
        problem = problem_on(replace(KNOWN, errors=dict.fromkeys(KNOWN.errors, 1.0), trust=found))
        return simulate(placed, problem, batches, WORKLOAD.dense, 1).draws(problem, WORKLOAD.dense)

    plain, judged, alone = draws(None), draws(trusted(1.3, 1.05)), draws(trusted(1.3))
    assert plain.embedding_ms == judged.embedding_ms == alone.embedding_ms
    step_ms = simulate(placed, problem_on(KNOWN), batches, WORKLOAD.dense, 1).step_ms
    assert spread(np.log(plain.step_ms) - np.log(step_ms)) < np.log(1.1)
    for found in (judged, alone):
        assert spread(np.log(found.step_ms) - np.log(step_ms)) == pytest.approx(np.log(1.3), rel=0.05)


def held_out(tables: str, predicted_ms: float, measured_ms: float) -> HeldOutStep:
    return HeldOutStep(tables=tables, predicted_ms=predicted_ms, measured_ms=measured_ms)


def test_trust_is_of_whole_steps_and_of_ratios_without_what_all_plans_share():
    # All are predicted at half of what they take, and one by a tenth more.
    steps = [held_out("a", 50, 100), held_out("a", 55 * 1.2, 100 * 1.2), held_out("b", 10, 20)]
    found = trust(steps, 0.05, "made up for this test")
    half, more = np.log(0.5), np.log(0.55)
    assert found.step_error == pytest.approx(np.exp(np.sqrt((2 * half**2 + more**2) / 3)), abs=1e-3)
    assert found.pair_error == 1.1
    assert (found.plans, found.pairs, found.pairs_right) == (3, 1, 1)
    # A fifth is within a noise of a quarter, and plans of other tables are no pair.
    assert trust(steps, np.log(1.25), "made up for this test").pairs == 0
    assert trust(steps[1:], 0.05, "made up for this test").pair_error is None
    wrong = [held_out("a", 1.0, 2.0), held_out("a", 1.0, 3.0), held_out("a", 0.9, 4.0)]
    found = trust(wrong, 0.05, "made up for this test")
    assert (found.pairs, found.pairs_right) == (3, 0), "plans that are predicted as equal are in no order"
    with pytest.raises(BadInput, match="no held-out step"):
        trust([], 0.05, "made up for this test")


def test_a_pairs_error_is_of_what_plans_of_the_same_tables_do_not_share():
    # All of the first tables are off by the same, all of the second by another: their ratios are right.
    right = pair_error({"a": [[0.7, 0.7, 0.7], [-0.2, -0.2]]})
    assert (right.factor, right.low, right.high) == pytest.approx((1.0, 1.0, 1.0))
    # Two plans that are 0.2 off each other: the pair itself; of three plans each pair counts.
    two, three = pair_error({"a": [[0.5, 0.7]]}), pair_error({"a": [[0.0, 0.1, 0.2]]})
    assert math.log(two.factor) == pytest.approx(0.2)
    assert math.log(three.factor) == pytest.approx(math.sqrt((0.1**2 + 0.1**2 + 0.2**2) / 3))
    assert pair_error({"a": [[0.5]], "b": []}) is None


def test_sources_of_pairs_weigh_alike_and_their_scatter_is_in_the_interval():
    rng = np.random.default_rng(4)
    quiet, loud = ([list(rng.normal(0.0, own, 2)) for _ in range(40)] for own in (0.02, 0.1))
    many = pair_error({"quiet": quiet, "loud": loud[:10]})
    assert math.log(many.factor) == pytest.approx(math.sqrt(0.02**2 + 0.1**2), rel=0.25)
    narrow, wide = pair_error({"loud": loud}), pair_error({"loud": loud[:20], "quiet": quiet[:20]})
    assert math.log(wide.high / wide.low) / math.log(wide.factor) > math.log(narrow.high / narrow.low) / math.log(
        narrow.factor
    )


def test_the_interval_of_a_pairs_error_holds_the_truth():
    rng, held = np.random.default_rng(6), []
    for _ in range(600):
        found = pair_error({"a": [list(rng.normal(0.3, 0.07, 4)) for _ in range(3)]})
        held.append(found.low <= math.exp(0.07 * math.sqrt(2.0)) <= found.high)
    assert np.mean(held) == pytest.approx(0.95, abs=0.03)


@pytest.mark.parametrize(
    ("factor", "low", "high", "text"),
    [(1.195, 1.126, 1.424, "20 % (13 to 42)"), (1.062, 1.053, 1.075, "6.2 % (5.3 to 7.5)"), (1.1, 1.1, 1.1, "10.0 %")],
)
def test_errors_are_stated_to_the_digits_that_their_interval_allows(factor, low, high, text):
    assert off_text(factor, low, high).startswith(text)
