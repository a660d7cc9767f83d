"""`shardbench explain` on records whose numbers are worked out by hand.

``explained`` has what is told of them. A changed text is a decision: edit the file by hand.
"""

import json
import math
from pathlib import Path

import pytest
import records as make
from hypothesis import given
from hypothesis import strategies as st

from shardbench.base.errors import BadInput
from shardbench.records.record import RankTiming
from shardbench.records.trial import Backend, Outcome
from shardbench.report.compare.explain import explain, find, lines, sentences
from shardbench.report.tables.text import readable_count

EXPLAINED = Path(__file__).parent / "explained"
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


def timed(step_ms, *ranks):
    """A measured step with the phases of each rank; the slowest rank's stand beside it."""
    slowest = {name: max(rank[name] for rank in ranks) for name in ranks[0]}
    return make.timing((step_ms, step_ms), (1.0, 1.0), **slowest).model_copy(
        update={"ranks": tuple(RankTiming(phases_ms=rank) for rank in ranks)}
    )


DOUBTED = SLOW.model_copy(update={"draws": make.draws(10.3, errors=(0.7, 1.0, 1.2, 1.3))})
UNDRAWN = SLOW.model_copy(update={"draws": None})
NOISY = [
    make.ok("a", (10.0,), repeat=0), make.ok("a", (11.0,), repeat=1), make.ok("b", (10.5,)), make.ok("c", (60.0,)),
]  # fmt: skip
# a has the shorter step and the longer one at one speed of the machine, which was a third as fast under b.
CONTROLLED = make.drifting("a", 11.0, (1.0, 2.0), 0.001) + make.drifting("b", 9.0, (3.0, 6.0), -0.001)
FIVE = {"a": (10.0, 10.4, 10.8, 10.2, 10.6), "b": (10.9, 11.3, 11.7, 11.1, 11.5)}
REPEATED = [make.ok(name, (ms,), repeat=i) for name, five in FIVE.items() for i, ms in enumerate(five)]
# In b rank 0 looks up for 9 ms, so that rank 1 waits for it in the exchange: its 8 ms are no slower exchange.
PHASES = {
    "a": timed(10.0, {"lookup": 3.0, "output": 1.5, "dense": 5.0}, {"lookup": 3.0, "output": 1.5, "dense": 5.0}),
    "b": timed(16.0, {"lookup": 9.0, "output": 1.0, "dense": 5.0}, {"lookup": 2.0, "output": 8.0, "dense": 5.0}),
}
WAITING = [make.ok(name, repeat=i, changes={"timing": of}) for name, of in PHASES.items() for i in (0, 1)]
# The machine was half as fast under b: its phases count half, and its lookup is the shorter one.
AT_SPEEDS = [
    record.model_copy(
        update={
            "timing": timed(record.timing.step_ms[0], {"lookup": lookup * slow, "dense": 7.0 * slow}),
            "control": make.control(10.0 * slow, 10.0 * slow),
        }
    )
    for name, own, lookup, speeds, off in (("a", 15.0, 8.0, (1.0, 2.0), 0.001), ("b", 12.0, 6.0, (2.0, 4.0), -0.001))
    for slow, record in zip(speeds, make.drifting(name, own, speeds, off))
]
NEAR = [make.ok(n, (ms,), changes={"draws": make.draws(ms)}, **SIMULATED) for n, ms in (("a", 10.01), ("b", 10.02))]
ASKED = {
    "simulated": (SLOW, FAST, [FAST, SLOW]),
    "too-few-draws": (DOUBTED, FAST, [FAST, DOUBTED]),
    "no-draws": (UNDRAWN, FAST, [FAST, UNDRAWN]),
    "within-noise": (NOISY[0], NOISY[2], NOISY),
    "beyond-noise": (NOISY[0], NOISY[3], NOISY),
    "nothing-repeated": (NOISY[2], NOISY[3], NOISY[2:]),
    "by-control": (CONTROLLED[0], CONTROLLED[2], CONTROLLED),
    "by-all-trials": (REPEATED[0], REPEATED[5], REPEATED),
    "critical-path": (WAITING[0], WAITING[2], WAITING),
    "at-one-speed": (AT_SPEEDS[0], AT_SPEEDS[2], AT_SPEEDS),
    "digits-that-differ": (*NEAR, NEAR),
    "two-repeats": (NOISY[0], NOISY[1], NOISY[:2]),
}
"""Two records and those that they stand among, by the file of ``explained`` that says what is told of them."""
WITH_TABLE = {"simulated", "at-one-speed", "digits-that-differ"}
"""Of these the file has the table, too."""


@pytest.mark.parametrize("name", ASKED)
def test_what_is_told_is_the_golden_text(name):
    told = (lines if name in WITH_TABLE else sentences)(explain(*ASKED[name]))
    assert "\n".join(told) + "\n" == (EXPLAINED / f"{name}.txt").read_text()


def test_measured_records_are_held_against_the_noise_floor():
    close, far, alone = (explain(*ASKED[name]) for name in ("within-noise", "beyond-noise", "nothing-repeated"))
    # Two single trials: t of one degree of freedom times the deviation ln 1.1 / sqrt 2, times sqrt 2.
    assert close.noise_pct == pytest.approx(100 * (1.1 ** math.tan(0.475 * math.pi) - 1))
    assert (close.beyond_noise, far.beyond_noise, alone.beyond_noise) == (False, True, None)


def test_measured_records_are_compared_at_one_speed_of_the_machine():
    found = explain(*ASKED["by-control"])
    assert (found.names[0], found.by_control, found.beyond_noise) == ("b", True, True)
    assert found.steps_ms[1] / found.steps_ms[0] == pytest.approx(11 / 9, rel=3e-3)


def test_what_single_trials_leave_open_all_trials_may_decide():
    found = explain(*ASKED["by-all-trials"])
    whole = found.all_trials
    assert (found.beyond_noise, whole.beyond_noise) == (False, True)
    assert (whole.faster, whole.slower, whole.trials) == ("a", "b", (5, 5))
    ratios = math.prod(FIVE["b"]) / math.prod(FIVE["a"])
    assert whole.slower_pct == pytest.approx(100 * (ratios**0.2 - 1))
    # The trial of b that went well is ahead of a's worst, and b is the slower strategy all the same.
    late = REPEATED[2].model_copy(update={"timing": make.timing((12.0,), (2.0, 4.0))})
    other = explain(late, REPEATED[5], REPEATED)
    assert (other.names[0], other.all_trials.faster) == ("b", "a")
    assert explain(REPEATED[0], REPEATED[1], REPEATED).all_trials is None, "one strategy"
    assert explain(REPEATED[0], REPEATED[5], [REPEATED[0], REPEATED[5]]).all_trials is None, "no more than these"


def test_phases_are_those_of_the_critical_path_at_one_speed_of_the_machine():
    waited, slowed = explain(*ASKED["critical-path"]), explain(*ASKED["at-one-speed"])
    assert waited.beyond_noise
    saved = waited.differences[["quantity", "difference"]].to_numpy().tolist()
    assert saved[1:4] == [["lookup_ms", 6.0], ["dense_ms", 0.0], ["output_ms", -0.5]]
    assert waited.differences["share_pct"].isna().all()
    assert (slowed.names[0], slowed.by_control, slowed.beyond_noise) == ("b", True, True)
    lookup, dense = slowed.differences[["quantity", "faster", "slower"]].to_numpy().tolist()[1:3]
    assert lookup == ["lookup_ms", pytest.approx(12.0), pytest.approx(16.0)]
    assert dense == ["dense_ms", pytest.approx(14.0), pytest.approx(14.0)]


@given(st.floats(0.0, 1e12))
def test_counts_for_readers_keep_three_digits(value):
    text = readable_count(value)
    size = {"billion": 1e9, "million": 1e6}.get(text.split()[-1], 1.0)
    assert float(text.split()[0].replace(",", "")) * size == pytest.approx(value, rel=6e-3, abs=0.5)
    assert len(text) <= 12


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
    assert len(document["sentences"]) == 2
    assert document["differences"][1] == {
        "quantity": "lookup_ms", "faster": 4.0, "slower": 8.0, "difference": 4.0, "share_pct": 80.0,
    }  # fmt: skip
    command("explain", "nosuch", "nosuch", "--results", tmp_path, code=2)
    nothing = command("explain", "a", "b", "--results", tmp_path / "nothing", code=2)
    assert "holds no records; run: shardbench run quick" in nothing


def test_an_own_record_is_held_against_a_committed_one(tmp_path, command, monkeypatch):
    own, clone = tmp_path / "own", tmp_path / "clone"
    (clone / "src" / "shardbench").mkdir(parents=True)
    make.kept(own, SLOW)
    make.kept(clone / "results", FAST, make.ok("elsewhere"))
    monkeypatch.chdir(clone)
    line = ["explain", SLOW.key[:10], "quick/dlrm20/a100-40gb-2x8/simulated/fast", "--results", own]
    assert command(*line).startswith("fast beats slow: ")
    elsewhere = command("explain", SLOW.key[:10], "quick/dlrm20/cpu-1x2/measured/elsewhere", "--results", own, code=2)
    assert "no record is quick/dlrm20/cpu-1x2/measured/elsewhere" in elsewhere
