"""Tables, profiles, traces and problems: exact cases, properties, and what is withheld."""

import json
import math
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import RandomWorkload, machine

from shardbench.base.errors import BadInput, Undeclared
from shardbench.base.serialise import content_hash, from_json, to_json
from shardbench.learned.tasks.task import Task, part
from shardbench.model.machine import Machine
from shardbench.model.problem import Problem, Sees
from shardbench.model.profile import AccessProfile
from shardbench.model.table import DenseShape, Table
from shardbench.workloads.trace import Bags, Ranking, Split

COUNTS = st.lists(st.integers(0, 50), min_size=1, max_size=60)


def profile(counts, **rest):
    settings = {"rows": len(counts), "samples": 10, "present": 5, **rest}
    return AccessProfile.from_counts(np.array(counts, dtype=np.int64), **settings)


def test_profile_by_hand():
    p = profile([5, 0, 3, 3, 1])
    assert p.counts == (5, 3, 1)
    assert p.row_counts == (1, 2, 1)
    assert (p.lookups, p.seen_rows, p.mean_pooling, p.coverage) == (12, 4, 1.2, 0.5)
    assert p.cdf([0, 1, 2, 3, 4, 5]).tolist() == pytest.approx([0, 5 / 12, 8 / 12, 11 / 12, 1, 1])
    assert p.inverse_cdf([0, 0.1, 5 / 12, 0.5, 0.9, 1]).tolist() == [0, 1, 1, 2, 3, 4]
    assert p.share(1, 3) == pytest.approx(6 / 12)
    # Bins: 1 -> (0,1]; 3, 3 -> (2,4]; 5 -> (4,8].
    assert p.reuse_bins()[:4].tolist() == [0.25, 0, 0.5, 0.25]
    # Two of the sample's twelve lookups: a row seen c times is among them with 1 - (1 - 2/12)^c.
    assert p.expected_distinct(2) == pytest.approx(sum(1 - (10 / 12) ** c for c in (5, 3, 3, 1)))
    assert p.expected_distinct(2, 1, 3) == pytest.approx(2 * (1 - (10 / 12) ** 3))
    assert p.expected_distinct(12) == pytest.approx(4)
    # Of twelve lookups one met a row seen once: the next is expected to meet a new row with 1/12.
    assert p.unseen_share == pytest.approx(1 / 12)
    assert profile([5, 3]).unseen_share == profile([2, 2, 0]).unseen_share == 0.0
    # Twice the sample: the four rows seen; one singleton, no doubleton: at least one row unseen.
    assert p.expected_distinct(24, 0, 4) == pytest.approx(4)
    assert p.expected_distinct(24) == pytest.approx(4 + 1 - np.exp(-12 * 1 / (12 * 1 + 1)))


def test_unseen_rows_beyond_the_sample_by_hand():
    once = AccessProfile(rows=100, samples=10, present=10, counts=(3, 1), row_counts=(2, 4))
    # 10 lookups, 4 rows seen once, none twice: 4 * 3 / 2 = 6 rows wait; 16 more meet 1 - exp(-16 * 4 / (10 * 6 + 4)).
    assert once.expected_distinct(26) == pytest.approx(6 + 6 * (1 - math.exp(-1)), rel=1e-12)
    assert once.expected_distinct(26, 6, 53) == pytest.approx(3 * (1 - math.exp(-1)), rel=1e-12)
    twice = AccessProfile(rows=100, samples=10, present=10, counts=(2, 1), row_counts=(2, 4))
    # 8 lookups, 4 rows seen once, 2 twice: 4^2 / (2 * 2) = 4 rows wait; 9 more meet 1 - exp(-9 * 4 / (8 * 4 + 4)).
    assert twice.expected_distinct(17) == pytest.approx(6 + 4 * (1 - math.exp(-1)), rel=1e-12)


@given(COUNTS, st.floats(0, 500))
def test_distinct_below_is_expected_distinct_of_the_first_rows(counts, lookups):
    p, ends = profile(counts), np.arange(len(counts) + 1)
    expected = [p.expected_distinct(lookups, 0, int(end)) for end in ends]
    assert p.distinct_below(lookups, ends) == pytest.approx(np.array(expected), abs=1e-9)


@given(COUNTS)
def test_profile_equals_a_plain_count(counts):
    p = profile(counts)
    ordered = sorted(counts, reverse=True)
    total = sum(ordered)
    assert p.lookups == total
    assert p.seen_rows == sum(c > 0 for c in counts)
    if total:
        ends = np.concatenate([[0], np.cumsum(ordered)]) / total
        np.testing.assert_allclose(p.cdf(np.arange(len(counts) + 1)), ends)
        for share in (0.0, 0.25, 0.5, 0.99, 1.0):
            fewest = next(k for k in range(len(ends)) if ends[k] >= share - 1e-9)
            assert int(p.inverse_cdf(share)) == fewest
    assert from_json(AccessProfile, to_json(p)) == p


@given(COUNTS, st.floats(0, 300), st.floats(0, 300))
def test_expected_distinct_grows_without_a_jump(counts, one, other):
    p = profile(counts)
    low, high = sorted((one, other))
    assert p.expected_distinct(low) <= p.expected_distinct(high) + 1e-9
    assert p.expected_distinct(high) <= min(len(counts), high + 1e-9) or p.lookups == 0
    total = float(p.lookups)
    assert p.expected_distinct(total + 1e-9) == pytest.approx(p.expected_distinct(total), abs=1e-6)


@pytest.mark.parametrize("batch", [1_000, 10_000, 40_000])
def test_expected_distinct_rows_are_those_of_a_new_sample(batch):
    # A long-tailed law of 50,000 rows, profiled on 10,000 lookups: below, at and beyond the sample.
    rng = np.random.default_rng(0)
    p = 1 / np.arange(1, 50_001) ** 0.9
    p /= p.sum()
    sample = np.bincount(rng.choice(50_000, 10_000, p=p), minlength=50_000)
    fresh = np.mean([len(np.unique(rng.choice(50_000, batch, p=p))) for _ in range(5)])
    estimate = profile(sample, samples=10_000).expected_distinct(batch)
    assert estimate == pytest.approx(fresh, rel=0.02 if batch <= 10_000 else 0.15)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"counts": (1, 2)}, "strictly descending"),
        ({"row_counts": (1,)}, "differ in length"),
        ({"rows": 2}, "3 rows were seen but the table has 2"),
        ({"present": 11}, "present 11 exceeds samples 10"),
    ],
)
def test_bad_profiles_are_refused(change, words):
    good = {"rows": 5, "samples": 10, "present": 5, "counts": [4, 1], "row_counts": [1, 2]}
    with pytest.raises(BadInput, match=words):
        from_json(AccessProfile, json.dumps({**good, **change}))


@given(st.lists(st.integers(0, 40), max_size=80), st.lists(st.integers(0, 40), max_size=20))
def test_ranking_is_a_bijection_in_frequency_order(train, other):
    ranking = Ranking(np.array(train, dtype=np.int64), 41)
    everyone = ranking(np.arange(41))
    assert sorted(everyone.tolist()) == list(range(41))
    counts = np.bincount(train, minlength=41) if train else np.zeros(41, dtype=int)
    by_rank = np.argsort(everyone)
    expected = sorted(range(41), key=lambda i: (-counts[i], i))
    assert by_rank.tolist() == expected
    assert ranking(np.array(other, dtype=np.int64)).tolist() == [int(everyone[i]) for i in other]


def test_bags_slice_and_refuse():
    bags = Bags(values=np.array([7, 8, 9]), offsets=np.array([0, 2, 2, 3]))
    assert bags.lengths.tolist() == [2, 0, 1]
    assert bags.samples(1, 3).values.tolist() == [9]
    with pytest.raises(BadInput, match="offsets end at 2 but there are 3 values"):
        Bags(values=np.array([7, 8, 9]), offsets=np.array([0, 2]))
    with pytest.raises(ValueError, match="read-only"):
        bags.values[0] = 1


def test_dense_shape_by_hand():
    tables = (Table(name="a", rows=1, dim=16), Table(name="b", rows=1, dim=16))
    shape = DenseShape(features=13, bottom=(32, 16), top=(8, 1))
    # Three vectors: 16 + 3 dot products = 19 inputs to the top.
    assert shape.layers(tables) == ((13, 32), (32, 16), (19, 8), (8, 1))
    assert shape.parameters(tables) == 14 * 32 + 33 * 16 + 20 * 8 + 9
    mixed = (tables[0], Table(name="c", rows=1, dim=4))
    assert shape.layers(mixed)[2] == (16 + 16 + 4, 8)


def test_problem_round_trip_and_checks():
    problem = RandomWorkload([(50, 8), (20, 8)], 16).problem(machine(1, 4))
    assert from_json(Problem, to_json(problem)) == problem
    assert from_json(Machine, to_json(problem.machine)) == problem.machine
    tables, profiles = problem.tables, problem.profiles
    with pytest.raises(BadInput, match="2 tables but 1 profiles"):
        Problem.of("p", tables, profiles[:1], problem.machine, batch_size=16)
    with pytest.raises(BadInput, match="profile of table1 is for 50 rows, the table has 20"):
        Problem.of("p", tables, (profiles[0], profiles[0]), problem.machine, batch_size=16)
    with pytest.raises(BadInput, match="two tables share a name"):
        Problem.of("p", (tables[0], tables[0]), (profiles[0], profiles[0]), problem.machine, batch_size=16)
    with pytest.raises(BadInput, match="gives some of 4 ranks no sample"):
        Problem.of("p", tables, profiles, problem.machine, batch_size=3)


TOUCHES = {
    "tables": [lambda p: p.tables[0], lambda p: len(p.tables), lambda p: list(p.tables), lambda p: p.tables == ()],
    "access_profile": [lambda p: p.profiles[0], lambda p: zip(p.profiles), lambda p: bool(p.profiles)],
    "machine": [lambda p: p.machine.constants, lambda p: str(p.machine), lambda p: repr(p.machine.constants)],
}  # fmt: skip


@pytest.mark.parametrize(("needs", "touch"), [(n, t) for n, ts in TOUCHES.items() for t in ts])
def test_undeclared_information_raises_when_touched(needs, touch):
    problem = RandomWorkload([(50, 8), (20, 8)], 16).problem(machine(1, 4))
    blind = problem.restricted_to(frozenset(Sees) - {Sees(needs)})
    with pytest.raises(Undeclared, match=needs):
        touch(blind)
    touch(problem)
    assert blind.world_size == 4
    assert blind.topology.hbm_bytes == 10**9


def test_what_a_strategy_sees_may_be_copied_whatever_is_withheld():
    problem = RandomWorkload([(20, 4), (30, 8)], 8).problem(machine())
    seen = problem.restricted_to(frozenset({Sees.TABLES, Sees.ACCESS_PROFILE}))
    copy = replace(seen, name="copy")
    assert copy.tables == problem.tables
    with pytest.raises(Undeclared, match=r"Sees\.INPUTS"):
        len(copy.inputs)
    task = Task.of(problem.restricted_to(frozenset(Sees) - {Sees.INPUTS}))
    chosen = part(task, np.array([1]))
    assert [table.name for table in chosen.problem.tables] == ["table1"]


def test_what_is_withheld_is_not_in_the_pickle_either():
    problem = RandomWorkload([(20, 4), (30, 8)], 8).problem(machine())
    seen = problem.restricted_to(frozenset({Sees.TABLES}))
    copy = pickle.loads(pickle.dumps(seen))
    assert copy.tables == problem.tables
    assert copy.seen_hash() == seen.seen_hash() != problem.seen_hash()
    with pytest.raises(Undeclared, match=r"Sees\.MACHINE"):
        str(copy.machine)


def test_sealed_process_cannot_read_the_test_split():
    # In a process of its own: the seal has no key.
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from problems import RandomWorkload\n"
        "from shardbench.workloads.trace import Split, seal_test_split\n"
        "w = RandomWorkload([(50, 8)], 16); w.bags(Split.TEST, 0, 0); seal_test_split(); w.bags(Split.TRAIN, 0, 0)\n"
        "w.bags(Split.TEST, 0, 0)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(Path(__file__).parent)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "Undeclared: the test trace is never handed to a strategy" in done.stderr


def test_workload_checks_what_its_generator_gives():
    workload = RandomWorkload([(50, 8)], 16)
    first = workload.bags(Split.TEST, 0, 0)
    assert np.array_equal(first.values, workload.bags(Split.TEST, 2, 0).values)  # two test batches, in turn
    assert not np.array_equal(first.values, workload.bags(Split.TEST, 1, 0).values)
    same, other = RandomWorkload([(50, 8)], 16), RandomWorkload([(50, 8)], 16, seed=1)
    assert workload.fingerprint == same.fingerprint != other.fingerprint
    workload.batch_size = 8
    workload.__dict__["_bags"] = lambda *_: first
    with pytest.raises(BadInput, match="16 bags in a batch of 8"):
        workload.bags(Split.TEST, 0, 0)


def test_content_hash_tells_order_and_kind_apart():
    assert content_hash("a", "b") != content_hash("b", "a")
    assert content_hash(np.arange(3)) != content_hash(np.arange(3.0))
    assert content_hash({"x": 1, "y": 2}) == content_hash({"y": 2, "x": 1})


def test_a_profile_of_lookups_in_no_sample_is_refused() -> None:
    with pytest.raises(BadInput, match="500 lookups but no sample that has one: present must be at least 1"):
        AccessProfile.from_counts(np.array([500]), rows=500, samples=100, present=0)
    assert AccessProfile.from_counts(np.array([0]), rows=500, samples=100, present=0).coverage == 0.0
