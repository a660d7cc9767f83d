"""`shardbench explain` on records whose numbers are worked out by hand."""

import json
import math

import pytest
import records as make
from hypothesis import given
from hypothesis import strategies as st

from shardbench.base.errors import BadInput
from shardbench.records.record import RankTiming
from shardbench.records.trial import Backend, Outcome
from shardbench.report.compare.explain import explain, find
from shardbench.report.compare.explain_text import sentences
from shardbench.report.tables.text import readable_count

SIMULATED = {"backend": Backend.SIMULATED, "machine": "a100-40gb-2x8"}
FAST = make.ok(
    "fast",
    (10.0, 10.0),
    (3.0, 5.0),
    changes={
        "timing": make.timing((10.0, 10.0), (3.0, 5.0), lookup=4.0, dense=6.0),
        "bound_ms": 4.0,
        "draws": make.draws(10.0),
        "planned": make.planned(hbm_memory_bytes=(1000, 3000)),
        "traffic": make.totals(distinct_rows=(40.0, 60.0), off_hbm_lookups=0.0),
    },
    **SIMULATED,
)
SLOW = make.ok(
    "slow",
    (15.0, 15.0),
    (9.0, 3.0),
    changes={
        "timing": make.timing((15.0, 15.0), (9.0, 3.0), lookup=8.0, dense=7.0),
        "bound_ms": 4.0,
        "draws": make.draws(15.0),
        "planned": make.planned(hbm_memory_bytes=(4000, 2000)),
        "traffic": make.totals(
            distinct_rows=(90.0, 10.0), collectives={**make.COLLECTIVES, "output_all_to_all": (5100.0, 200.0)}
        ),
    },
    **SIMULATED,
)


def test_sentences_worked_out_by_hand():
    said = sentences(explain(SLOW, FAST, [FAST, SLOW]))
    assert said == [
        "fast beats slow: 10.0 against 15.0 ms a step, 1.50x (dlrm20 on a100-40gb-2x8, simulated, batch 1000).",
        "fast is the faster one in all draws of the model's constants and form within their held-out errors.",
        "What differs on the critical path is lookup: 4.00 against 8.00 ms, 4.00 ms less, 80 % of the difference.",
        "Then dense: 6.00 against 7.00 ms, 1.00 ms less, 20 % of the difference.",
        "Straggler of fast: rank 1 with 5.00 ms of embedding time, 1.25x the mean; it reads 60 distinct rows (1.20x) "
        "and holds 3.00 kB (1.50x).",
        "Straggler of slow: rank 0 with 9.00 ms of embedding time, 1.50x the mean; it reads 90 distinct rows (1.80x) "
        "and holds 4.00 kB (1.33x).",
        "Bytes a step: 1.14 kB inside nodes and 2.27 kB across (fast), 6.14 kB and 2.27 kB (slow).",
        "They differ most in the output all to all: 5.00 kB less.",
        "Lookups off HBM: 0.0 % (fast), 25.0 % (slow).",
        "Slowest rank over the lower bound: +25.0 % (fast), +125 % (slow).",
    ]


def test_an_order_that_too_few_draws_have_counts_as_open():
    doubted = SLOW.model_copy(update={"draws": make.draws(10.3, errors=(0.7, 1.0, 1.2, 1.3))})
    said = sentences(explain(doubted, FAST, [FAST, doubted]))
    assert said[0].startswith("fast is not told apart from slow: ")
    assert said[1] == (
        "fast is the faster one in 75 % of the draws of the model's constants and form within their held-out errors, "
        "and below 95 % the order counts as open (~)."
    )
    assert said[2] == (
        "On the critical path they differ most in lookup: 4.00 against 8.00 ms, 4.00 ms less; like the whole, that may "
        "be none."
    )
    assert "beat" not in "\n".join(said)
    assert "of the difference" not in "\n".join(said)
    unknown = SLOW.model_copy(update={"draws": None})
    said = sentences(explain(unknown, FAST, [FAST, unknown]))
    assert said[0].startswith("It is not known which of fast and slow is faster: ")
    assert "beat" not in "\n".join(said)
    assert said[0].endswith("batch 1000).")
    assert said[1] == "How sure the model is of that is unknown: the records have no draws of its constants."


def test_measured_records_are_held_against_the_noise_floor():
    records = [
        make.ok("a", (10.0,), repeat=0), make.ok("a", (11.0,), repeat=1), make.ok("b", (10.5,)), make.ok("c", (60.0,)),
    ]  # fmt: skip
    close, far = explain(records[0], records[2], records), explain(records[0], records[3], records)
    # Two single trials: t of one degree of freedom times the deviation ln 1.1 / sqrt 2, times sqrt 2.
    assert close.noise_pct == pytest.approx(100 * (1.1 ** math.tan(0.475 * math.pi) - 1))
    assert (close.beyond_noise, far.beyond_noise) == (False, True)
    assert sentences(close)[0].startswith("a is not told apart from b: 10.0 against 10.5 ms")
    assert sentences(close)[0].endswith("; within the noise floor of 236 %.")
    assert sentences(far)[0].startswith("a beats c: ")
    assert sentences(far)[0].endswith("; beyond the noise floor of 236 %.")
    assert sentences(far)[1:3] == [
        "Compared by their steps: the trials have no common control plan, so drift is not told apart.",
        "Noise floor: two single trials of one plan differ by less than 236 % in 95 % of cases.",
    ]
    assert "need not add up to the step" in "\n".join(sentences(far))
    alone = explain(records[2], records[3], records[2:])
    assert alone.beyond_noise is None
    assert sentences(alone)[0].startswith("It is not known which of b and c is faster: ")
    assert "nothing was repeated" in sentences(alone)[0]
    assert "The noise floor is unknown and no order is claimed" in sentences(alone)[2]


def test_measured_records_are_compared_by_their_ratio_to_the_control():
    controls = {"a": (10.0, 10.2), "b": (20.0, 20.4)}
    records = [
        make.ok(name, (step, step), repeat=i, changes={"control": make.control(ms, ms)})
        for name, step in (("a", 11.0), ("b", 15.0))
        for i, ms in enumerate(controls[name])
    ]
    found = explain(records[0], records[2], records)
    # a has the shorter step and the longer one beside its control: the machine was slower under b.
    assert (found.faster.name, found.by_control) == ("b", True)
    assert found.ratio == pytest.approx(1.1 / 0.75)
    assert found.beyond_noise is True
    assert sentences(found)[1].endswith("0.750x (b) and 1.10x (a), 1.47x apart.")
    assert sentences(found)[0].startswith("b beats a: 15.0 against 11.0 ms a step (dlrm20 on")


def test_what_single_trials_leave_open_all_trials_may_decide():
    steps = {"a": (10.0, 10.4, 10.8, 10.2, 10.6), "b": (10.9, 11.3, 11.7, 11.1, 11.5)}
    records = [make.ok(name, (ms,), repeat=i) for name, five in steps.items() for i, ms in enumerate(five)]
    found = explain(records[0], records[5], records)
    whole = found.all_trials
    assert (found.beyond_noise, whole.beyond_noise) == (False, True)
    assert (whole.faster, whole.slower, whole.trials) == ("a", "b", (5, 5))
    ratios = math.prod(steps["b"]) / math.prod(steps["a"])
    assert whole.slower_pct == pytest.approx(100 * (ratios**0.2 - 1))
    said = sentences(found)
    assert said[0].startswith("a is not told apart from b: ")
    assert said[3] == "Over all their trials (5 of a, 5 of b) b is 8.7 % slower, beyond the noise of so many."
    # The trial of b that went well is ahead of a's worst, and b is the slower strategy all the same.
    other = explain(records[2].model_copy(update={"timing": make.timing((12.0,), (2.0, 4.0))}), records[5], records)
    assert (other.faster.name, other.all_trials.faster) == ("b", "a")
    assert explain(records[0], records[1], records).all_trials is None, "one strategy"
    assert explain(records[0], records[5], [records[0], records[5]]).all_trials is None, "no more than these"


def timed(step_ms, *ranks):
    """A measured step with the phases of each rank; the slowest rank's stand beside it."""
    slowest = {name: max(rank[name] for rank in ranks) for name in ranks[0]}
    return make.timing((step_ms, step_ms), (1.0, 1.0), **slowest).model_copy(
        update={"ranks": tuple(RankTiming(phases_ms=rank) for rank in ranks)}
    )


def test_the_phase_of_the_critical_path_is_named_and_not_the_wait_for_it():
    # In b rank 0 looks up for 9 ms, so that rank 1 waits for it in the exchange: its 8 ms are no slower exchange.
    a = timed(10.0, {"lookup": 3.0, "output": 1.5, "dense": 5.0}, {"lookup": 3.0, "output": 1.5, "dense": 5.0})
    b = timed(16.0, {"lookup": 9.0, "output": 1.0, "dense": 5.0}, {"lookup": 2.0, "output": 8.0, "dense": 5.0})
    records = [make.ok(n, repeat=i, changes={"timing": t}) for n, t in (("a", a), ("b", b)) for i in (0, 1)]
    found = explain(records[0], records[2], records)
    assert found.beyond_noise
    assert [(p.phase, p.saved_ms) for p in found.phases] == [("lookup", 6.0), ("dense", 0.0), ("output", -0.5)]
    said = sentences(found)
    assert said[4:7] == [
        "What differs on the critical path is lookup: 3.00 against 9.00 ms, 6.00 ms less.",
        "Then output: 1.50 against 1.00 ms, 0.500 ms more.",
        "Measured phases are the slowest rank's, of exchanges the time of the rank that waited least; they need not "
        "add up to the step.",
    ]


def test_phases_are_at_one_speed_of_the_machine_where_a_control_says_it():
    # The machine was half as fast under b: its phases count half, and its lookup is the shorter one.
    slow = {"timing": timed(24.0, {"lookup": 10.0, "dense": 14.0}), "control": make.control(20.0, 20.0)}
    fast = {"timing": timed(15.0, {"lookup": 8.0, "dense": 7.0}), "control": make.control(10.0, 10.0)}
    a = [make.ok("a", repeat=i, changes=fast) for i in (0, 1)]
    b = [make.ok("b", repeat=i, changes=slow) for i in (0, 1)]
    found = explain(a[0], b[0], [*a, *b])
    assert (found.faster.name, found.by_control, found.beyond_noise) == ("b", True, True)
    assert [(p.phase, p.faster_ms, p.slower_ms) for p in found.phases] == [
        ("lookup", 10.0, 16.0), ("dense", 14.0, 14.0),
    ]  # fmt: skip
    assert "a's at the speed that the machine had for b" in "\n".join(sentences(found))


@given(st.floats(0.0, 1e12))
def test_counts_for_readers_keep_three_digits(value):
    text = readable_count(value)
    size = {"billion": 1e9, "million": 1e6}.get(text.split()[-1], 1.0)
    assert float(text.split()[0].replace(",", "")) * size == pytest.approx(value, rel=6e-3, abs=0.5)
    assert len(text) <= 12


def test_numbers_that_differ_are_shown_with_the_digits_in_which_they_do():
    steps = {"a": 10.01, "b": 10.02}
    a, b = (make.ok(n, (ms,), changes={"draws": make.draws(ms)}, **SIMULATED) for n, ms in steps.items())
    assert "a beats b: 10.01 against 10.02 ms a step" in sentences(explain(a, b, [a, b]))[0]


def test_two_repeats_are_told_apart_by_seed_and_repeat():
    a, b = make.ok("a", (10.0,), repeat=0), make.ok("a", (11.0,), repeat=1)
    assert sentences(explain(a, b, [a, b]))[0].startswith(
        "a (seed 0, repeat 0) is not told apart from a (seed 0, repeat 1): "
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"workload": "other"}, "differ in workload"),
        ({"batch_size": 2000}, "differ in batch size (1000 and 2000)"),
        ({"backend": Backend.SIMULATED}, "differ in backend"),
        ({"machine_hash": "b" * 16}, "differ in version of the machine"),
    ],
)
def test_records_of_different_conditions_are_refused(changes, says):
    a, b = make.ok("a"), make.ok("b", **changes)
    with pytest.raises(BadInput) as caught:
        explain(a, b, [a, b])
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_failed_records_are_refused():
    failed = make.failed(Outcome.OOM, "b")
    with pytest.raises(BadInput, match="ended in oom"):
        explain(make.ok("a"), failed, [])


def test_find_by_key_prefix_and_by_names():
    records = [make.ok("a", repeat=1), make.ok("a", repeat=0), make.ok("b", seed=3)]
    assert find(records[0].key[:8], records) is records[0]
    assert find("quick/dlrm20/cpu-1x2/measured/a", records) is records[1]
    assert find("quick/dlrm20/cpu-1x2/measured/a/0/1", records) is records[0]
    assert find("quick/dlrm20/cpu-1x2/measured/b", records) is records[2]
    narrow, piped = (make.ok("c", **{name: way}) for name, way in (("exchange", "bf16"), ("schedule", "pipelined")))
    assert find("quick/dlrm20/cpu-1x2/measured/c", [narrow]) is narrow
    with pytest.raises(BadInput, match="trained in several ways: name a trial by the begin of its key"):
        find("quick/dlrm20/cpu-1x2/measured/c", [narrow, piped])
    usual = make.ok("c")
    assert find("quick/dlrm20/cpu-1x2/measured/c", [narrow, piped, usual]) is usual
    for selector, says in (
        ("zzzz", "no record has a key"), ("", "no record has a key"), (records[0].key[:2], "at least 4 digits"),
        ("quick/dlrm20", "is not suite/workload"), ("quick/dlrm20/cpu-1x2/measured/z", "no record is"),
        ("quick/dlrm20/cpu-1x2/measred/b", "did you mean quick/dlrm20/cpu-1x2/measured/b"),
    ):  # fmt: skip
        with pytest.raises(BadInput, match=says):
            find(selector, records)


def test_the_command(tmp_path, command):
    make.kept(tmp_path, FAST, SLOW)
    line = ["explain", SLOW.key[:10], "quick/dlrm20/a100-40gb-2x8/simulated/fast", "--results", tmp_path]
    assert command(*line).startswith("fast beats slow: ")
    document = json.loads(command(*line, "--json"))
    assert document["faster"]["strategy"] == "fast"
    assert len(document["sentences"]) == 10
    assert document["phases"][0]["phase"] == "lookup"
    command("explain", "nosuch", "nosuch", "--results", tmp_path, code=2)
    nothing = command("explain", "a", "b", "--results", tmp_path / "nothing", code=2)
    assert "holds no records; run: shardbench run quick" in nothing
