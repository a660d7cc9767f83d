"""Two runs of one suite, in which orders and noise are worked out by hand."""

import csv
import json

import pytest
import records as make
from thin import thin_file

from shardbench.base.errors import BadInput
from shardbench.records.store import trial_store
from shardbench.records.trial import Backend, Outcome
from shardbench.report.compare.order import agreement, text_line


def run(steps, *, plans=None, **spec):
    """Two repeats 0.1 % apart of each strategy, of a plan of its own where ``plans`` says no other."""
    return [
        make.ok(
            name, (ms * share,) * 4, repeat=i,
            changes={"planned": make.planned(plan_hash=(plans or {}).get(name, name) * 16)}, **spec,
        )
        for name, ms in steps.items()
        for i, share in enumerate((1.0, 1.001))
    ]  # fmt: skip


FIRST = {"a": 10.0, "b": 20.0, "c": 30.0, "d": 30.0}


def test_pairs_that_one_run_tells_apart_are_looked_up_in_the_other():
    # b and c change places; d is told apart from c this time, which the first run did not claim.
    (group,) = agreement(run(FIRST), run({"a": 10.0, "b": 35.0, "c": 30.0, "d": 40.0}))
    assert (group.strategies, group.n, group.again_n) == (4, 2, 2)
    assert (group.pairs, group.pairs_beyond_noise, group.beyond_noise_pct) == (6, 5, pytest.approx(500 / 6))
    assert (group.same_order, group.same_order_pct, group.opposite_beyond_noise) == (4, 80.0, 1)
    assert text_line(group) == (
        "dlrm20 on cpu-1x2: 5 of 6 pairs (83.3 %) are beyond the noise, of which 4 (80.0 %) come in the same order "
        "again and 1 in the other one beyond its noise; of 0 pairs of one plan, 0 seem to differ"
    )


def test_a_strategy_that_the_second_run_lacks_is_in_no_same_order():
    (group,) = agreement(run(FIRST), run({"a": 10.0, "b": 20.0, "c": 30.0}))
    # d is apart from a and b.
    assert (group.pairs_beyond_noise, group.same_order, group.opposite_beyond_noise) == (5, 3, 0)
    failed = [make.failed(Outcome.OOM, "d")]
    assert agreement(run(FIRST), [*run({"a": 10.0, "b": 20.0, "c": 30.0}), *failed])[0].same_order == 3


def test_strategies_of_one_plan_that_seem_to_differ_are_counted():
    plans = {"b": "a", "d": "c"}
    (group,) = agreement(run(FIRST, plans=plans), run(FIRST, plans=plans))
    # a and b have one plan and different times, c and d one plan and one time.
    assert (group.same_plan_pairs, group.same_plan_beyond_noise) == (2, 1)


def test_groups_are_matched_and_summed():
    other = {"a": 10.0, "b": 20.0}
    first = [*run(FIRST), *run(other, workload="w"), *run(other, workload="gone")]
    again = [*run(FIRST), *run({"a": 20.0, "b": 10.0}, workload="w"), *run(other, workload="new")]
    found = agreement(first, again)
    assert [(one.workload, one.pairs, one.pairs_beyond_noise, one.same_order) for one in found] == [
        ("dlrm20", 6, 5, 5), ("w", 1, 1, 0), ("all", 7, 6, 5),
    ]  # fmt: skip
    assert text_line(found[-1]).startswith("all workloads: 6 of 7 pairs")


def test_thin_records_agree_as_whole_ones_do(tmp_path):
    store = trial_store(tmp_path, "quick")
    full = {"draws": make.draws(10.0), "measured_bytes": {"input_all_to_all": 1.0}, "control": make.control(*[9.0] * 4)}
    whole = [one.model_copy(update=full) for one in run(FIRST)]
    for record in whole:
        store.append(record)
    thin_file(store.path)
    kept = store.read()
    assert agreement(whole, kept) == agreement(whole, whole)
    for one, thin in zip(whole, kept, strict=True):
        assert thin.timing.step_ms == thin.predicted.step_ms == one.timing.step_ms
        assert (thin.spec, thin.planned, thin.provenance, thin.control) == (
            one.spec, one.planned, one.provenance, one.control,
        )  # fmt: skip
        assert thin.draws is thin.traffic is thin.measured_bytes is thin.timing.ranks is None
    assert set(json.loads(store.path.read_bytes().splitlines()[0])["timing"]) == {
        "embedding_ms", "phases_ms", "step_ms",
    }, "what is None is not written"  # fmt: skip


def test_unknown_noise_tells_nothing_apart():
    first = [make.ok("a", (10.0,)), make.ok("b", (99.0,))]
    (group,) = agreement(first, first)
    assert (group.pairs, group.pairs_beyond_noise, group.same_order, group.same_order_pct) == (1, None, None, None)
    together = agreement(*[[*first, *(make.ok(n, (10.0,), workload="w") for n in "ab")]] * 2)[-1]
    assert (together.pairs, together.pairs_beyond_noise, together.same_order_pct) == (2, 0, None)
    assert "noise unknown" in text_line(group)


def test_simulated_records_have_nothing_to_compare():
    records = [make.ok("a", backend=Backend.SIMULATED)]
    with pytest.raises(BadInput, match="nothing to compare"):
        agreement(records, records)


def test_the_command(tmp_path, command):
    results, again = tmp_path / "results", tmp_path / "again"
    for folder, steps in ((results, FIRST), (again, {"a": 10.0, "b": 35.0, "c": 30.0, "d": 30.0})):
        make.kept(folder, *run(steps))
    line = ["compare", str(results), "--with", str(again), "--order", "quick"]
    missing = command(*line, "--check", code=1)
    assert f"agreement.csv: missing; run: shardbench {' '.join(line)}" in missing
    assert "dlrm20 on cpu-1x2: 5 of 6 pairs" in command(*line)
    (group,) = csv.DictReader((results / "tables" / "quick" / "agreement.csv").read_text().splitlines())
    assert (group["compared_by"], group["same_order"], group["same_order_pct"]) == ("step, step", "3", "60")
    assert command(*line, "--check") == "quick: tables and records agree\n"
    assert len(json.loads(command(*line, "--json"))["agreement"]) == 1
    assert "name the suite" in command(*line[:-2], "--check", code=2)
    none = command("compare", results, "--with", tmp_path / "none", "--order", "quick", code=2)
    assert "holds no records" in none
