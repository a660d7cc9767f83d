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
from shardbench.calibrate.correction import Corrected, corrected, lines, mape, step_errors, update_file
from shardbench.calibrate.fit import STEP
from shardbench.calibrate.raced import raced_plans
from shardbench.model.calibrated import calibrated_on, is_calibrated
from shardbench.model.machine import Machine, dense_key
from shardbench.model.machine_file import load_machine, scaled
from shardbench.model.plan import BatchSchedule, OnRank, Phase, PhaseKind, Plan, RowWise, Tier, whole_table
from shardbench.model.table import Precision, StepSchedule
from shardbench.records.record import RankTiming, Record, Tiers, Timing
from shardbench.records.trial import Backend, Outcome
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
    """A trial of ranks that obey the cost model under the true constants, to a factor of their own."""
    problem, rng = question.problem, np.random.default_rng(seed)
    asked = CountedQuestion(replace(problem, machine=truth), question.batches, question.dense)
    foreseen = asked.judge(plan).timing(1, by_rank=True)
    assert foreseen.ranks is not None
    ranks = []
    for rank in foreseen.ranks:
        ms = {phase: ms * math.exp(noise * rng.standard_normal()) for phase, ms in rank.phases_ms.items()}
        for phase in ("input", "output", "output_backward", "dense"):
            ms[phase] = foreseen.phases_ms[phase] * math.exp(noise * rng.standard_normal())
        ms["output_backward"] += foreseen.phases_ms["all_reduce"]
        ranks.append(RankTiming(phases_ms={**ms, "update": 0.0}))
    step = foreseen.step_ms[0] * math.exp(noise * rng.standard_normal())
    timing = Timing(step_ms=(step,), phases_ms={}, embedding_ms=foreseen.embedding_ms, ranks=tuple(ranks))
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
def after(machine: Machine, slow: Machine) -> Corrected:
    question = question_of(machine)
    return corrected(machine, question, race(question, slow, noise=0.03), chip=CHIP)


def test_the_fit_finds_a_slower_machine_and_predicts_other_tables_of_it(machine, slow, after):
    assert mape(after.race.steps_ms(machine)) > 25.0
    assert mape(after.race.steps_ms(after.machine)) < 4.0
    assert after.machine.trust is not None
    assert (after.machine.trust.plans, 1.0 < after.machine.trust.step_error < 1.1) == (6, True)
    assert "as predicted after a correction by the other half" in after.machine.trust.source
    other = question_of(machine, seed=7, shapes=[(40_000, 32), (2_000, 64), (80_000, 128), (7_000, 16)], pooling=8)
    held_out = race(other, slow, trials=1)
    before, now = (mape(step_errors(m, other, held_out)) for m in (machine, after.machine))
    assert before > 20.0
    assert now < before / 3.0


def test_errors_are_those_of_the_file_or_of_plans_left_out_and_never_smaller(machine, slow, after):
    assert all(after.machine.errors[name] >= error for name, error in machine.errors.items())
    question = question_of(machine)
    raced = race(question, slow)
    # One plan's exchanges take thrice as long, which the other half does not foresee.
    for number, (plan, record) in enumerate(raced[:2]):
        ranks = [
            rank.model_copy(update={"phases_ms": rank.phases_ms | {"output": 3.0 * rank.phases_ms["output"]}})
            for rank in record.timing.ranks
        ]
        timing = record.timing.model_copy(update={"ranks": tuple(ranks)})
        raced[number] = (plan, record.model_copy(update={"timing": timing}))
    errors = corrected(machine, question, raced, chip=CHIP).machine.errors
    # Six plans, of which one is off by a factor of 3.
    assert errors["intra_bytes_per_s"] == pytest.approx(math.exp(math.log(3.0) / math.sqrt(6.0)), rel=0.1)
    assert errors["launch_s"] == machine.errors["launch_s"]


def test_a_plan_is_judged_by_the_others_and_one_plan_by_the_file_alone(machine, slow):
    question = question_of(machine)
    found = corrected(machine, question, [trial(question, plans_of(question)[0], slow)], chip=CHIP)
    ((predicted, measured),) = found.race.steps_ms(machine)
    assert found.machine.trust is not None
    assert found.machine.trust.step_error == pytest.approx(measured / predicted, abs=0.001)
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
        assert after == pytest.approx(before, rel=0.01), one.name
    assert "no constant moved beyond its error" in lines(machine, found)


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


def test_constants_of_other_processors_are_guesses_and_their_dense_models_are_forgotten(machine, slow):
    question = question_of(machine)
    raced = race(question, slow)
    known = replace(machine, dense_steps={"other": 1.0})
    here, there = (corrected(known, question, raced, chip=chip) for chip in (CHIP, "Another CPU"))
    problem = question.problem
    key = dense_key(question.dense, problem.tables, problem.batch_size, problem.world_size)
    assert here.machine.dense_steps.keys() == {"other", key}
    assert there.machine.dense_steps.keys() == {key}
    # Guesses give way.
    assert mape(there.race.steps_ms(there.machine)) < 0.5 * mape(here.race.steps_ms(here.machine))


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
        assert new == pytest.approx(old, rel=0.25), one.name


def test_placeholders_for_which_nothing_is_charged_start_from_guesses():
    machine = load_machine("cpu-2x2")
    question = question_of(machine)
    first = plans_of(question)[0]
    homes = (OnRank(rank=0, tier=Tier.HBM), OnRank(rank=3, tier=Tier.HBM), RowWise(ranks=(0, 1, 2, 3), tier=Tier.HBM))
    placed = [replace(first, segments=tuple(replace(s, placement=at) for s in first.segments)) for at in homes]
    truth = replace(machine, constants=replace(machine.constants, module_s=4e-4, vector_copy_bytes_per_s=2e9))
    found = corrected(machine, question, [trial(question, plan, truth) for plan in placed], chip=CHIP).machine
    assert machine.constants.module_s == 0.0
    assert found.constants.module_s > 0.0
    assert found.constants.vector_copy_bytes_per_s < 1e11
    # Emulated nodes have one link.
    assert found.constants.intra_latency_s == found.constants.inter_latency_s


def test_a_file_is_written_read_and_corrected_again_but_not_twice_by_one_race(tmp_path, monkeypatch, machine):
    question = question_of(load_machine("cpu-1x2"))
    shipped = question.problem.machine
    truth = moved(shipped, launch_s=2.0, dense_flop_per_s=0.5, hbm_bytes_per_s=0.5, cache_bytes_per_s=0.5)
    raced, out = race(question, truth), tmp_path / "mine.toml"
    said = update_file("cpu-1x2", out, question, raced)
    assert max(map(len, said[:-1])) <= 79
    assert said[0] == "corrected by 6 plans in 12 trials"
    assert any("(in sample)" in line for line in said)
    written, text = load_machine(str(out)), out.read_text()
    assert text.startswith("# Written by shardbench plan --race --update")
    assert written.name == "mine"
    assert written.sources["launch_s"].startswith("corrected by a race on ")
    assert "random, 6 plans in 12 trials, from 41.72 us" in written.sources["launch_s"]
    assert not is_calibrated(written, "intra_bytes_per_s")
    key = dense_key(question.dense, question.problem.tables, 512, 2)
    assert key in written.dense_steps
    assert mape(raced_plans(question, raced).steps_ms(written)) < 5.0
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
    assert twice.dense_steps.keys() > {key} or twice.dense_steps.keys() == {key}
    with pytest.raises(BadInput, match="another environment"):
        elsewhere = [(plan, record.model_copy(update={"environment": "f" * 16})) for plan, record in raced]
        update_file("cpu-1x2", tmp_path / "other.toml", question, elsewhere)
    assert not (tmp_path / "other.toml").exists()
    with pytest.raises(BadInput, match=r"must end in \.toml"):
        update_file("cpu-1x2", tmp_path / "other.json", question, raced)


def test_failed_trials_and_batch_schedules_are_left_out_in_words(machine):
    question = question_of(machine)
    raced = race(question, machine)
    plan = raced[0][0]
    scheduled = replace(plan, schedule=BatchSchedule(phases=(Phase(kind=PhaseKind.HOT, batches=1),)))
    raced += [(plan, records.failed(Outcome.OOM)), (scheduled, raced[0][1])]
    assert raced_plans(question, raced).skipped == (
        "1 trials did not end well: left out",
        "1 trials of batch schedules, whose steps are of two kinds: left out",
    )
    with pytest.raises(BadInput, match="no trial of the race ended well"):
        corrected(machine, question, [(plan, records.failed(Outcome.OOM))], chip=CHIP)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"exchange": Precision.FP16}, "with exchange fp16, the question has fp32"),
        ({"schedule": StepSchedule.PIPELINED}, "with schedule pipelined, the question has sequential"),
        ({"backend": Backend.SIMULATED}, "was simulated"),
        ({"record": {"environment": "f" * 16}}, "several environments"),
        ({"record": {"planned": records.planned()}}, "not a trial of the plan"),
    ],
)
def test_trials_of_another_question_are_refused(machine, changes, says):
    question = question_of(machine)
    raced = race(question, machine, trials=1)
    raced[0] = trial(question, raced[0][0], machine, **changes)
    with pytest.raises(BadInput, match=says):
        corrected(machine, question, raced, chip=CHIP)


def test_machines_of_another_shape_or_without_errors_are_refused(machine):
    question = question_of(machine)
    raced = race(question, machine, trials=1)
    with pytest.raises(BadInput, match="not the device or the ranks"):
        corrected(load_machine("cpu-2x2"), question, raced, chip=CHIP)
    with pytest.raises(BadInput, match="state their errors"):
        corrected(replace(machine, errors={}), question, raced, chip=CHIP)


def test_exchanges_of_ranks_that_share_cores_take_what_is_left_of_the_step(machine):
    question = question_of(machine)
    plan, record = trial(question, plans_of(question)[0], machine)
    assert record.timing is not None
    longer = record.timing.model_copy(update={"step_ms": (2.0 * record.timing.step_ms[0],)})
    shared = record.model_copy(update={"timing": longer, "cores": 1, "tiers": Tiers.COUNTED})
    assert shared.shares_cores
    (found,) = raced_plans(question, [(plan, shared)]).plans
    parts = {kind: max(ms for (k, _), (ms,) in found.times.items() if k == kind) for kind, _ in found.times}
    assert sum(ms for kind, ms in parts.items() if kind != STEP) == pytest.approx(parts[STEP])


def test_a_file_that_states_what_differs_from_its_base_is_written_whole(tmp_path: Path):
    mine = tmp_path / "mine.toml"
    own = 'value = 60\nunit = "us"\nsource = "read off a clock"\nerror = 1.5\nerror_source = "a guess of mine"\n'
    mine.write_text(f'base = "cpu-1x2"\nname = "mine"\ndescription = "mine"\n[constants.launch]\n{own}')
    question = question_of(load_machine(str(mine)))
    update_file(str(mine), mine, question, race(question, question.problem.machine, trials=1))
    written = load_machine(str(mine))
    assert written.constants.launch_s == pytest.approx(6e-5, rel=0.01)
    assert "base =" not in mine.read_text()
