"""What a race measured corrects a machine file: truth is found, silence changes nothing, errors stay honest."""

import math
from dataclasses import fields, replace
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest
import records
from problems import RandomWorkload

from shardbench.base.errors import BadInput
from shardbench.base.host import Environment
from shardbench.base.serialise import content_hash
from shardbench.calibrate.correction import Corrected, corrected, off_pct, raced_plans, update_file
from shardbench.model.calibrated import calibrated_on, is_calibrated
from shardbench.model.machine import Machine
from shardbench.model.machine_file import load_machine, scaled
from shardbench.model.plan import BatchSchedule, OnRank, Phase, PhaseKind, Plan, RowWise, Tier, whole_table
from shardbench.records.record import Record, Timing
from shardbench.records.trial import Outcome
from shardbench.trials.simulate import CountedQuestion
from shardbench.workloads.materialise import DrawnBatches

CHIP = "Some CPU, 2 cores"
SHAPES = [(20_000, 64), (9_000, 32), (50_000, 16), (3_000, 128)]


def own_file(machine: str = "cpu-1x2") -> Machine:
    """The shipped machine as if it had been calibrated on ``CHIP``, without measured dense models."""
    shipped = load_machine(machine)
    chip = calibrated_on(shipped)
    sources = {name: source.replace(str(chip), CHIP) for name, source in shipped.sources.items()}
    return replace(shipped, sources=sources, dense_steps={})


def question_of(machine: Machine, seed: int = 0, shapes=SHAPES, pooling: int = 20, unpooled=frozenset({1})):
    """Tables of lookups at random, judged on two batches."""
    workload = RandomWorkload(shapes, 512, pooling=pooling, seed=seed, unpooled=unpooled)
    return CountedQuestion.of_batches(workload, machine, DrawnBatches(workload, 2))


def plans_of(question: CountedQuestion) -> list[Plan]:
    """Whole tables on either rank, and rows dealt, in six ways."""
    found = []
    for kinds in ("0101", "0011", "r011", "rrrr", "1r00", "000r"):
        placed = [
            RowWise(ranks=(0, 1), tier=Tier.HBM) if kind == "r" else OnRank(rank=int(kind), tier=Tier.HBM)
            for kind in kinds
        ]
        segments = tuple(map(whole_table, question.problem.tables, placed))
        found.append(Plan(world_size=question.problem.world_size, segments=segments))
    return found


def trial(question: CountedQuestion, plan: Plan, truth: Machine, noise: float = 0.0, seed: int = 0, **changes):
    """A trial of ranks that obey the cost model under the true constants, to a factor of the trial."""
    problem, rng = question.problem, np.random.default_rng(seed)
    asked = CountedQuestion(replace(problem, machine=truth), question.batches, question.dense)
    foreseen = asked.judge(plan).timing(1)
    step = foreseen.step_ms[0] * math.exp(noise * rng.standard_normal())
    timing = Timing(step_ms=(step,), phases_ms={}, embedding_ms=foreseen.embedding_ms)
    world, nodes = problem.world_size, problem.topology.nodes
    memory = {"hbm_memory_bytes": (1,) * world, "uvm_memory_bytes": (0,) * world, "host_memory_bytes": (0,) * nodes}
    totals = records.totals(distinct_rows=(1.0,) * world)
    planned = records.planned(plan_hash=content_hash(plan), **memory)
    given = {"timing": timing, "predicted": None, "planned": planned, "traffic": totals}
    given |= {"environment": Environment.here().hash} | changes.pop("record", {})
    settings: dict = {"batch_size": problem.batch_size, "machine_hash": content_hash(problem.machine), "repeat": seed}
    return plan, records.ok(changes=given, **(settings | changes))


def race(question: CountedQuestion, truth: Machine, noise: float = 0.0, trials: int = 2) -> list[tuple[Plan, Record]]:
    seeds = cycle(range(1000))
    return [trial(question, plan, truth, noise, next(seeds)) for plan in plans_of(question) for _ in range(trials)]


def moved(machine: Machine, **factors: float) -> Machine:
    return replace(scaled(machine, factors), dense_steps={})


@pytest.fixture(scope="module")
def machine() -> Machine:
    return own_file()


@pytest.fixture(scope="module")
def slow(machine: Machine) -> Machine:
    """All kernels and the dense model take longer, and links are slower."""
    kernels = dict.fromkeys(("hbm_bytes_per_s", "cache_bytes_per_s"), 1 / 1.8)
    kernels |= dict.fromkeys(("launch_s", "table_s", "bag_s", "page_s", "sequence_row_s", "module_s"), 1.8)
    dense = {"dense_flop_per_s": 1 / 1.5, "dense_step_s": 1.5, "dense_layer_s": 1.5, "activation_bytes_per_s": 1 / 1.5}
    return moved(machine, **kernels, **dense, intra_bytes_per_s=1 / 1.6, intra_latency_s=1.6)


@pytest.fixture(scope="module")
def known(machine: Machine) -> Machine:
    """The machine with the measured dense model of another workload."""
    return replace(machine, dense_steps={"other": 1.0})


@pytest.fixture(scope="module")
def after(machine: Machine, known: Machine, slow: Machine) -> Corrected:
    question = question_of(machine)
    return corrected(known, question, race(question, slow, noise=0.03), chip=CHIP)


def test_the_fit_finds_a_slower_machine_and_predicts_other_tables_of_it(machine, slow, after):
    assert off_pct(after.plans, machine) > 25.0
    assert off_pct(after.plans, after.machine) < 5.0
    assert after.machine.trust is not None
    assert (after.machine.trust.plans, 1.0 < after.machine.trust.step_error < 1.1) == (6, True)
    assert "as predicted after a correction by the other half" in after.machine.trust.source
    other = question_of(machine, seed=7, shapes=[(40_000, 32), (2_000, 64), (80_000, 128), (7_000, 16)], pooling=8)
    held_out = raced_plans(other, race(other, slow, trials=1))
    before, now = (off_pct(held_out, m) for m in (machine, after.machine))
    assert before > 20.0
    assert now < before / 3.0


def test_a_plan_is_judged_by_the_others_and_one_plan_by_the_file_alone(machine, slow):
    question = question_of(machine)
    found = corrected(machine, question, [trial(question, plans_of(question)[0], slow)], chip=CHIP)
    (plan,) = found.plans
    assert found.machine.trust is not None
    assert found.machine.trust.step_error == pytest.approx(math.exp(-plan.step.log_error(machine)), abs=0.001)
    assert found.machine.trust.step_error > 1.2


def test_what_a_race_does_not_touch_stays(machine, slow):
    question = question_of(machine, unpooled=frozenset())
    found = corrected(machine, question, race(question, slow), chip=CHIP).machine
    for name in ("sequence_row_s", "inter_bytes_per_s", "cache_bytes"):
        assert getattr(found.constants, name) == getattr(machine.constants, name)
        assert found.sources[name] == machine.sources[name]
        assert found.errors.get(name) == machine.errors.get(name)


def test_a_race_that_agrees_with_the_file_changes_next_to_nothing(machine):
    question = question_of(machine)
    found = corrected(machine, question, race(question, machine), chip=CHIP)
    for one in fields(machine.constants):
        before, after = (getattr(m.constants, one.name) for m in (machine, found.machine))
        assert after == (before if before is None else pytest.approx(before, rel=0.01)), one.name


def test_ties_of_a_cpu_and_the_order_of_links_hold(machine, after):
    old, new = machine.constants, after.machine.constants
    assert new.host_launch_s / old.host_launch_s == pytest.approx(new.launch_s / old.launch_s)
    gather = [c.hbm_bytes_per_s * c.gather_efficiency_ratio for c in (old, new)]
    for name in ("uvm_bytes_per_s", "host_bytes_per_s"):
        assert getattr(new, name) / getattr(old, name) == pytest.approx(gather[1] / gather[0])
    assert new.inter_bytes_per_s <= new.intra_bytes_per_s
    assert new.inter_latency_s >= new.intra_latency_s
    assert new.gather_efficiency_ratio <= 1.0
    assert after.machine.topology == machine.topology


def test_constants_of_other_processors_are_guesses_and_their_dense_models_are_forgotten(machine, known, slow, after):
    question = question_of(machine)
    there = corrected(known, question, race(question, slow, noise=0.03), chip="Another CPU")
    assert (after.machine.dense_steps, there.machine.dense_steps) == ({"other": 1.0}, {})
    # Guesses give way.
    assert off_pct(there.plans, there.machine) < off_pct(after.plans, after.machine)


def test_an_outlier_decides_nothing(machine, slow, after):
    question = question_of(machine)
    raced = race(question, slow, noise=0.03)
    plan, record = raced[0]
    assert record.timing is not None
    wild = record.timing.model_copy(update={"step_ms": (40.0 * record.timing.step_ms[0],)})
    raced[:2] = [(plan, record.model_copy(update={"timing": wild}))] * 2
    found = corrected(machine, question, raced, chip=CHIP)
    for one in fields(found.machine.constants):
        old, new = (getattr(c.machine.constants, one.name) for c in (after, found))
        assert new == (old if old is None else pytest.approx(old, rel=0.25)), one.name


def test_a_file_is_written_read_and_corrected_again_but_not_twice_by_one_race(tmp_path, monkeypatch, machine):
    question = question_of(load_machine("cpu-1x2"))
    shipped = question.problem.machine
    truth = moved(shipped, launch_s=2.0, dense_flop_per_s=0.5, hbm_bytes_per_s=0.5, cache_bytes_per_s=0.5)
    raced, out = race(question, truth), tmp_path / "mine.toml"
    said = update_file("cpu-1x2", out, question, raced)
    assert max(map(len, said[:-1])) <= 79
    assert said[0] == "corrected by 6 plans in 12 trials"
    assert said[1].endswith(" % after (in sample)")
    written, text = load_machine(str(out)), out.read_text()
    assert text.startswith("# Written by shardbench run --update")
    assert written.name == "mine"
    assert written.sources["launch_s"].startswith("corrected by a race on ")
    assert "random, 6 plans in 12 trials, from 41.72 us" in written.sources["launch_s"]
    assert not is_calibrated(written, "intra_bytes_per_s")
    # Agreement on a few tables makes no constant surer.
    assert written.errors == shipped.errors
    assert off_pct(raced_plans(question, raced), written) < 5.0
    with pytest.raises(BadInput, match="name another one for --update"):
        update_file("cpu-1x2", out, question, raced)
    with pytest.raises(BadInput, match="another version of machine mine"):
        update_file(str(out), out, question, raced)
    assert out.read_text() == text
    # A new race under the corrected file corrects it where it lies.
    again = question_of(written, seed=3)
    update_file(str(out), out, again, race(again, truth))
    twice = load_machine(str(out))
    assert "random, 6 plans in 12 trials, from " in twice.sources["launch_s"]
    assert twice.trust is not None
    assert twice.trust.step_error < 1.03
    assert abs(math.log(twice.constants.dense_flop_per_s / truth.constants.dense_flop_per_s)) < math.log(2.0)
    with pytest.raises(BadInput, match="another environment"):
        elsewhere = [(plan, record.model_copy(update={"environment": "f" * 16})) for plan, record in raced]
        update_file("cpu-1x2", tmp_path / "other.toml", question, elsewhere)
    assert not (tmp_path / "other.toml").exists()
    with pytest.raises(BadInput, match=r"must end in \.toml"):
        update_file("cpu-1x2", tmp_path / "other.json", question, raced)


def test_failed_trials_and_batch_schedules_are_left_out(machine):
    question = question_of(machine)
    raced = race(question, machine)
    plan = raced[0][0]
    scheduled = replace(plan, schedule=BatchSchedule(phases=(Phase(kind=PhaseKind.HOT, batches=1),)))
    raced += [(plan, records.failed(Outcome.OOM)), (scheduled, raced[0][1])]
    assert sum(len(one.steps_s) for one in raced_plans(question, raced)) == len(raced) - 2
    with pytest.raises(BadInput, match="no trial of the race ended well"):
        corrected(machine, question, [(plan, records.failed(Outcome.OOM))], chip=CHIP)


def test_a_machine_without_errors_is_refused(machine):
    question = question_of(machine)
    raced = race(question, machine, trials=1)
    with pytest.raises(BadInput, match="state their errors"):
        corrected(replace(machine, errors={}), question, raced, chip=CHIP)


def test_a_file_that_states_what_differs_from_its_base_is_written_whole(tmp_path: Path):
    mine = tmp_path / "mine.toml"
    own = 'value = 60\nunit = "us"\nsource = "read off a clock"\nerror = 1.5\nerror_source = "a guess of mine"\n'
    mine.write_text(f'base = "cpu-1x2"\nname = "mine"\ndescription = "mine"\n[constants.launch]\n{own}')
    question = question_of(load_machine(str(mine)))
    update_file(str(mine), mine, question, race(question, question.problem.machine, trials=1))
    written = load_machine(str(mine))
    assert written.constants.launch_s == pytest.approx(6e-5, rel=0.01)
    assert "base =" not in mine.read_text()
