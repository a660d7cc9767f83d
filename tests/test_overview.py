import pandas as pd
import pytest
import records as make

from shardbench.model.strategy import Role
from shardbench.records.trial import Backend, Outcome
from shardbench.report.groups import groups, suite_standings
from shardbench.report.page.overview import matrix
from shardbench.report.page.overview_charts import frontier, pareto, profiles
from shardbench.report.page.profiles import performance_profiles
from shardbench.report.standing import COLUMNS, states_standings, table_standings

SIMULATED = {"backend": Backend.SIMULATED, "machine": "a100-40gb-2x8"}


def simulated(strategy, ms, *, plan_s=0.5, workload="w", sure=True, role=Role.COMPETITOR, **more):
    errors = (0.99, 1.0, 1.01, 1.0) if sure else (0.2, 0.8, 1.5, 4.0)
    changes = {"draws": make.draws(ms, errors=errors), "planned": make.planned(plan_s=plan_s)}
    return make.ok(strategy, (ms, ms), role=role, changes=changes, workload=workload, **{**SIMULATED, **more})


def entry(*records):
    (_, (found,)) = matrix(suite_standings(groups(records))).rows[0]
    return found


def test_the_best_and_the_next_are_named():
    found = entry(simulated("a", 10.0), simulated("b", 12.0))
    assert (found.best, found.step, found.ties) == ("a", "10.0 ms (9.91 to 10.1)", "")
    assert (found.sure, found.certain, found.failed) == ("next is b +20.0 %, beyond the model's error", True, 0)


def test_ties_are_named_with_their_marks():
    records = [simulated("a", 10.0, sure=False), simulated("b", 10.1, sure=False), simulated("c", 10.0, sure=False)]
    draws = {"b": (2.0, 8.5, 14.0, 40.0)}
    records[1] = records[1].model_copy(update={"draws": records[1].draws.model_copy(update={"step_ms": draws["b"]})})
    found = entry(*records)
    assert (found.best, found.certain) == ("a", False)
    assert "b ~" in found.ties
    assert found.sure.endswith("within the model's error")


def test_a_reference_does_not_win():
    found = entry(simulated("search", 5.0, role=Role.SEARCH), simulated("a", 10.0), simulated("b", 15.0))
    assert found.best == "a"
    assert found.sure == "next is b +50.0 %, beyond the model's error"


def test_where_nothing_was_repeated_no_order_is_claimed():
    found = entry(make.ok("a", (10.0, 11.0)), make.ok("b", (20.0, 21.0)), make.failed(Outcome.OOM, "c"))
    assert (found.sure, found.certain, found.failed) == ("order unknown: the noise is not known", False, 1)


def test_groups_of_one_cell_are_told_apart():
    table = suite_standings(groups([simulated("a", 10.0), simulated("a", 5.0, batch_size=512)]))
    assert [one.workload for one in table] == ["w, batch 512", "w, batch 1000"]


def test_simulated_and_measured_are_columns_of_their_own():
    records = [simulated("a", 10.0), make.ok("a", (3.0, 3.0), workload="w", machine="a100-40gb-2x8")]
    found = matrix(suite_standings(groups(records)))
    assert found.machines == (("a100-40gb-2x8", "simulated"), ("a100-40gb-2x8", "measured"))
    assert [one.number for one in found.rows[0][1]] == [1, 0]


def sample():
    """Three problems: ``fails`` fails one; ``best`` is best twice, ``quick`` once."""
    steps = {"best": (10.0, 10.0, 11.0), "quick": (20.0, 15.0, 10.0), "fails": (10.5, 10.5, None)}
    seconds = {"best": 100.0, "quick": 0.01, "fails": 1.0}
    return [
        simulated(name, ms, plan_s=seconds[name], workload=f"w{i}")
        if ms is not None
        else make.failed(Outcome.TIMEOUT, name, workload=f"w{i}", **SIMULATED)
        for name, values in steps.items()
        for i, ms in enumerate(values)
    ]


def test_profiles_count_problems_and_failures():
    found = {
        one.strategy: one for one in performance_profiles(suite_standings(groups(sample())))["simulated", "as run"]
    }
    best, quick, fails = found["best"], found["quick"], found["fails"]
    assert [best.within(x) for x in (1.0, 1.05, 1.1)] == pytest.approx([2 / 3, 2 / 3, 1.0])
    assert [quick.within(x) for x in (1.0, 1.5, 2.0)] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert fails.within(100.0) == pytest.approx(2 / 3)
    assert (best.complete, fails.complete) == (True, False)
    assert quick.mean_ratio == pytest.approx((2.0 * 1.5 * 1.0) ** (1 / 3))
    assert (quick.plan_s, fails.plan_s) == (0.01, 1.0)


def test_the_frontier_leaves_out_who_failed_and_who_is_beaten():
    listed = performance_profiles(
        suite_standings(groups([*sample(), *(simulated("slow", 30.0, workload=f"w{i}") for i in range(3))]))
    )
    found = frontier(listed["simulated", "as run"])
    assert [seconds for seconds, _ in found] == [0.01, 100.0]
    assert found[0][1] > found[1][1]


def test_charts_name_everybody_and_their_problems():
    found = performance_profiles(suite_standings(groups(sample())))
    numbers = {"best": 0, "fails": 1, "quick": 2}
    for chart in (profiles(found, numbers), pareto(found, numbers)):
        assert chart.titles == ("simulated: 3 problems",)
        assert all(f">{name}</text>" in chart.drawings[0] for name in numbers)
    assert "hollow" in pareto(found, numbers).drawings[0]
    alone = performance_profiles(suite_standings(groups([simulated("best", 1.0)])))
    assert profiles(alone, numbers) is None, "of one problem there is no profile"


def test_a_table_of_budgets_has_a_chart_each():
    rows = [
        {**dict.fromkeys(COLUMNS), "workload": w, "machine": "m", "backend": "simulated", "strategy": s, "budget": b,
         "role": "competitor", "outcome": "ok", "step_ms": ms, "over_best_pct": 10 * ms, "tie": "", "plan_s": 1.0}
        for w in ("u", "v") for s, ms in (("a", 1.0), ("b", 2.0)) for b in ("1 s", "60 s")
    ]  # fmt: skip
    table = pd.DataFrame(rows)
    assert states_standings(table)
    assert not states_standings(table.drop(columns="tie"))
    found = performance_profiles(table_standings(table))
    assert profiles(found, {"a": 0, "b": 1}).titles == (
        "simulated, budget 1 s: 2 problems", "simulated, budget 60 s: 2 problems"
    )  # fmt: skip
    cells = matrix(table_standings(table)).rows
    assert [workload for workload, _ in cells] == ["u", "v"]
    assert cells[1][1][0].number == 1
    assert cells[0][1][0].best == "a (1 s)"
    assert cells[0][1][0].sure == "next is b (1 s) +9.1 %, beyond the model's error", "a's other budget is no rival"


def test_where_a_reference_leads_its_ties_are_not_the_competitors():
    told = (("search", "search", 1.0, ""), ("a", "competitor", 1.02, "~"), ("b", "competitor", 1.5, ""))
    problem = {"workload": "u", "machine": "m", "backend": "simulated", "budget": "1 s", "outcome": "ok"}
    rows = [
        {**dict.fromkeys(COLUMNS), **problem, "strategy": s, "role": r, "step_ms": ms, "over_best_pct": 100 * ms - 100,
         "tie": tie}
        for s, r, ms, tie in told
    ]  # fmt: skip
    (_, (found,)) = matrix(table_standings(pd.DataFrame(rows))).rows[0]
    assert (found.best, found.ties, found.certain) == ("a (1 s)", "", False)
    assert found.sure == "+2.0 % over search (1 s) (reference), tie ~; order of the others not judged"


def test_a_budget_has_the_problems_that_were_asked_with_it():
    rows = [
        {**dict.fromkeys(COLUMNS), "workload": w, "machine": "m", "backend": "simulated", "strategy": s, "budget": b,
         "role": "competitor", "outcome": "ok", "step_ms": 1.0, "over_best_pct": 0.0, "tie": "", "plan_s": 1.0}
        for w, s, b in (("u", "a", "1 s"), ("v", "a", "1 s"), ("u", "b", "1 s"), ("u", "a", "published"))
    ]  # fmt: skip
    found = performance_profiles(table_standings(pd.DataFrame(rows)))
    assert {one.strategy: one.complete for one in found["simulated", "1 s"]} == {"a": True, "b": False}
    assert found["simulated", "published"][0].complete
