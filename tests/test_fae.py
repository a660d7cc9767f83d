"""FAE: calibrator, scheduler and plans, against hand-computed cases and the statistics they promise."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import machine

from shardbench.base.errors import BadInput, Infeasible
from shardbench.baselines.fae import Fae
from shardbench.baselines.fae.calibrator import (
    calibrate,
    expected_hot_share,
    hot_access_share,
)
from shardbench.baselines.fae.scheduler import RateRule, next_turn, turns
from shardbench.model.plan import Host, PhaseKind, Replicated
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile, InputSample
from shardbench.model.strategy import Budget
from shardbench.model.table import Table
from shardbench.model.validate import validate

MB = 10**6


def profile(rows, runs, samples=100, present=None):
    counts, row_counts = zip(*runs) if runs else ((), ())
    present = present if present is not None else samples if runs else 0
    return AccessProfile(rows=rows, samples=samples, present=present, counts=counts, row_counts=row_counts)


# Two large tables (of 1,000 bytes a row) and a small one (of 10).
LARGE = profile(2000, [(50, 2), (9, 10), (3, 100), (1, 500)])
OTHER = profile(5000, [(20, 1), (9, 5), (2, 40)])
SMALL = profile(70, [(4, 3)])
TABLES = (LARGE, OTHER, SMALL)
BYTES = (1000, 1000, 10)


@pytest.mark.parametrize(
    ("budget", "least", "rows"),
    [
        # The small table takes 700 bytes whole, its never-seen rows too.
        (700, 0, (0, 0, 70)),
        (2_700, 50, (2, 0, 70)),
        (3_700, 20, (2, 1, 70)),
        (18_699, 20, (2, 1, 70)),
        (18_700, 9, (12, 6, 70)),  # all rows with 9 lookups, in both tables, or none
        (118_700, 3, (112, 6, 70)),
        (158_700, 2, (112, 46, 70)),
        (658_700, 1, (612, 46, 70)),
        (10**9, 1, (612, 46, 70)),  # rows that were never seen are not hot, however much room there is
    ],
)
def test_one_threshold_for_all_large_tables(budget, least, rows):
    choice = calibrate(TABLES, BYTES, budget)
    assert (choice.least_count, choice.rows) == (least, rows)
    assert choice.bytes == sum(n * b for n, b in zip(rows, BYTES)) <= budget


def test_small_tables_that_exceed_the_budget_are_treated_as_large():
    choice = calibrate(TABLES, BYTES, 699)
    assert choice.rows == (0, 0, 0)  # 50 lookups: two rows of 1,000 bytes do not fit, nor does anything colder
    assert calibrate((SMALL,), (10,), 30).rows == (3,)
    with pytest.raises(BadInput, match="a budget of 9 bytes holds no row of 10 bytes: raise it"):
        calibrate(TABLES, BYTES, 9)
    for tables, row_bytes in (((), ()), (TABLES, (10,))):
        with pytest.raises(BadInput, match="at least one table and a row size for each"):
            calibrate(tables, row_bytes, 10)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_the_threshold_is_the_lowest_that_fits(data):
    def one():
        values = data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=30))
        rows = len(values) + data.draw(st.integers(0, 20))
        return AccessProfile.from_counts(np.array(values), rows=rows, samples=50, present=50)

    profiles = [one() for _ in range(data.draw(st.integers(1, 4)))]
    size = 2 * MB  # one row makes a table large
    budget = data.draw(st.integers(size, 60 * size))
    choice = calibrate(profiles, [size] * len(profiles), budget)
    sizes = {
        least: sum(size * n for p in profiles for c, n in zip(p.counts, p.row_counts) if c >= least)
        for least in range(1, 14)
    }
    fitting = [least for least, total in sizes.items() if total <= budget]
    lowest = min(fitting)
    assert choice.bytes == sizes[lowest]
    assert choice.rows == tuple(sum(n for c, n in zip(p.counts, p.row_counts) if c >= lowest) for p in profiles)
    if choice.bytes:
        assert sizes[choice.least_count] == sizes[lowest]


def test_shares_are_judged_without_the_lookup_itself():
    # LARGE: 100 + 90 + 300 + 500 lookups. With a threshold of 3 a row needs four to stay hot without one of them.
    assert hot_access_share(LARGE, 112, 3) == pytest.approx(190 / 990)
    assert hot_access_share(LARGE, 612, 1) == pytest.approx(490 / 990)  # Good and Turing: 1 - singletons / lookups
    assert hot_access_share(LARGE, 0, 9) == 0.0
    assert hot_access_share(SMALL, 70, 9) == 1.0
    choice = calibrate(TABLES, BYTES, 658_700)
    per_table = [1 - (1 - (490 / 990) ** 9.9), (1 - (1 - (145 / 145) ** 1.45))]
    assert expected_hot_share(TABLES, choice) == pytest.approx(np.prod(per_table))
    half = AccessProfile(rows=2000, samples=100, present=50, counts=(5, 1), row_counts=(5, 25))
    found = calibrate([half], [1000], 10**9)
    assert expected_hot_share([half], found) == pytest.approx(1 - 0.5 * (1 - 0.5))


def test_never_seen_rows_fill_the_budget_where_asked() -> None:
    # 612 and 46 seen rows of 1,000 bytes and the small table's 700 bytes; then the tables' never-seen rows in turn.
    assert calibrate(TABLES, BYTES, 700_700, fill=True).rows == (654, 46, 70)
    whole = calibrate(TABLES, BYTES, 10**9, fill=True)
    assert whole.rows == (2000, 5000, 70)
    assert calibrate(TABLES, BYTES, 2_700, fill=True) == calibrate(TABLES, BYTES, 2_700), "no seen row is passed over"


def test_the_hot_share_is_counted_on_inputs_and_an_epoch_is_the_data_set() -> None:
    columns = ((0, 1, 500, -1), (3, 0, 0, 0), (-1, 0, 5, 69))
    on = problem(
        (
            profile(2000, [(500, 2), (90, 10), (1, 100)], samples=1000),
            profile(5000, [(20, 1), (9, 5), (2, 40)], samples=1000),
            profile(70, [(4, 3)], samples=1000),
        ),
        inputs=InputSample(coldest=columns, train_inputs=4000),
    )
    plan, _ = planned(Fae(budget_bytes=20_000, sample_rate=0.5), on)
    assert plan.notes["expected_hot_pct"] == 75.0, "the third input asks for a cold row of the first table"
    assert (plan.notes["hot_batches"], plan.notes["cold_batches"]) == (300, 100), "4,000 inputs, 10 a batch"
    drawn = problem(on.profiles, inputs=InputSample(coldest=columns))
    plan, _ = planned(Fae(budget_bytes=20_000, sample_rate=0.5), drawn)
    assert plan.notes["hot_batches"] + plan.notes["cold_batches"] == 200, "a log of 1,000 is half of an epoch"
    with pytest.raises(BadInput, match="3 tables, inputs of 1"):
        problem(on.profiles, inputs=InputSample(coldest=columns[:1]))
    with pytest.raises(BadInput, match="as many inputs for each"):
        InputSample(coldest=((0, 1), (0,)))


def test_rates_follow_the_test_loss():
    rule = RateRule()
    for loss in (1.0, 0.9, 0.8, 0.7):
        rule = rule.after(loss)
    assert (rule.rate_pct, rule.falls) == (50, 3)
    rule = rule.after(0.6)
    assert (rule.rate_pct, rule.falls) == (100, 0)  # the fourth fall in a row
    assert RateRule(rate_pct=100, last_loss=1.0, falls=3).after(0.5).rate_pct == 100
    rule = rule.after(0.61)
    assert (rule.rate_pct, rule.falls) == (50, 0)
    assert rule.after(0.61).rate_pct == 50
    assert RateRule(last_loss=1.0, falls=3).after(1.0).falls == 0  # neither a fall nor a rise
    low = RateRule(rate_pct=1.5, last_loss=0.0)
    assert low.after(1.0).rate_pct == 1
    assert low.after(1.0).after(2.0).rate_pct == 1
    with pytest.raises(BadInput, match="training diverged"):
        rule.after(float("nan"))
    with pytest.raises(BadInput, match="not within 1 and 100"):
        RateRule(rate_pct=0.5)


@pytest.mark.parametrize("rate", [0, -5, 0.1, 500, float("nan")])
def test_rates_outside_their_limits_are_refused_at_once(rate):
    # A rate of 0 once made a schedule without an end.
    for refuses in (lambda: Fae(rate_pct=rate), lambda: turns(5, 3, rate)):
        with pytest.raises(BadInput, match="not within 1 and 100 %"):
            refuses()
    if rate != 0.1:  # of the inputs, a share up to 1
        with pytest.raises(BadInput, match="sample rate"):
            Fae(sample_rate=rate)
    with pytest.raises(BadInput, match="-1 cold and 3 hot"):
        turns(-1, 3, 50)


@given(st.integers(0, 300), st.integers(0, 300), st.floats(1, 100))
def test_turns_run_every_batch_and_take_turns(cold, hot, rate):
    phases = list(turns(cold, hot, rate))
    for kind, total in ((PhaseKind.COLD, cold), (PhaseKind.HOT, hot)):
        sizes = [p.batches for p in phases if p.kind is kind]
        assert sum(sizes) == total
        if cold and hot:
            assert all(size == next_turn(total, total, rate) for size in sizes[:-1])
    kinds = [p.kind for p in phases]
    if cold and hot:
        assert kinds[0] is PhaseKind.COLD
        both = 2 * min(kinds.count(PhaseKind.COLD), kinds.count(PhaseKind.HOT))
        assert all(a is not b for a, b in zip(kinds[: both - 1], kinds[1:both]))


def test_turns_by_hand():
    assert [(p.kind.value, p.batches) for p in turns(5, 3, 50)] == [("cold", 3), ("hot", 2), ("cold", 2), ("hot", 1)]
    assert [(p.kind.value, p.batches) for p in turns(5, 3, 100)] == [("cold", 5), ("hot", 3)]
    assert [(p.kind.value, p.batches) for p in turns(5, 0, 1)] == [("cold", 5)]


def problem(profiles, nodes=1, **kind):
    tables = tuple(Table(name=f"t{i}", rows=p.rows, dim=4 if p.rows < 100 else 252) for i, p in enumerate(profiles))
    return Problem.of("fae", tables, profiles, machine(nodes, 2), batch_size=10, **kind)


def planned(strategy, on):
    plan = strategy.plan(on.restricted_to(strategy.sees), Budget(), 0)
    memory = validate(plan, on, strategy.moves)
    return plan, memory


def test_plans_replicate_hot_prefixes_and_schedule_the_expected_share():
    on = problem(
        (
            profile(2000, [(500, 2), (90, 10), (1, 100)], samples=1000),
            profile(5000, [(20, 1), (9, 5), (2, 40)], samples=1000),
            profile(70, [(4, 3)], samples=1000),
        )
    )
    plan, memory = planned(Fae(budget_bytes=20_000, sample_rate=0.5), on)
    placed = {(s.table, s.row_start, s.row_stop): s.placement for s in plan.segments}
    # Rows of 1,008 bytes; the small table's 70 of 16 bytes are all hot.
    assert placed == {
        ("t0", 0, 12): Replicated(ranks=(0, 1)), ("t0", 12, 2000): Host(node=0),
        ("t1", 0, 6): Replicated(ranks=(0, 1)), ("t1", 6, 5000): Host(node=0),
        ("t2", 0, 70): Replicated(ranks=(0, 1)),
    }  # fmt: skip
    # A log of 1,000 inputs is half of an epoch: 200 mini-batches of 10. Bags of 2, 0.145 and 0.012 lookups on average.
    assert sum(p.batches for p in plan.schedule.phases) == 200
    assert plan.notes["expected_hot_pct"] == pytest.approx(100 * (1900 / 2000) ** 2 * (20 / 145) ** 0.145)
    assert plan.notes["hot_batches"] == round(plan.notes["expected_hot_pct"] * 200 / 100) == 135
    assert memory.hbm.tolist() == [18 * 1008 + 70 * 16] * 2 == [plan.notes["hot_bytes"]] * 2
    assert memory.host.tolist() == [7000 * 1008 + 70 * 16]  # every row has its master there


def test_no_hot_input_is_said_and_all_hot_needs_no_host():
    on = problem((LARGE, OTHER, SMALL))
    plan, memory = planned(Fae(budget_bytes=2_300), on)
    assert plan.notes["hot_batches"] == 0
    assert {p.kind for p in plan.schedule.phases} == {PhaseKind.COLD}
    assert not memory.hbm.any()
    whole = problem((SMALL,))
    plan, memory = planned(Fae(), whole)
    assert {p.kind for p in plan.schedule.phases} == {PhaseKind.HOT}
    assert not memory.host.any()
    with pytest.raises(Infeasible, match="a budget of 15 bytes holds no row of 16 bytes"):
        planned(Fae(budget_bytes=15), whole)


@pytest.mark.parametrize("present", [0, 50])
def test_inputs_without_a_lookup_make_no_hot_phase_where_no_row_is_hot(present):
    # Half of the inputs, or all, ask for nothing; the ten rows seen do not fit.
    counts = [(5, 10)] if present else []
    on = problem((profile(5000, counts, samples=100, present=present),))
    plan, memory = planned(Fae(budget_bytes=3000), on)
    assert {p.kind for p in plan.schedule.phases} == {PhaseKind.COLD}
    assert plan.notes["hot_rows"] == 0
    assert not memory.hbm.any()
