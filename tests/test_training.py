"""The training that all learned strategies share: repeatable, kept, found again, stopped in time."""

from dataclasses import asdict, replace

import pytest
import torch
from autoshard_tasks import SMALL, TASKS, make_task

from shardbench.base.errors import BadInput
from shardbench.baselines.autoshard.training import AutoShardTraining
from shardbench.baselines.dreamshard.training import DreamShardSettings, DreamShardTraining
from shardbench.baselines.neuroshard.training import NeuroShardSettings, NeuroShardTraining
from shardbench.baselines.rnn_placer.training import RnnSettings, RnnTraining
from shardbench.learned.tasks.oracle import SimulatedOracle
from shardbench.learned.training import affordable_updates, opened
from shardbench.model.strategy import Budget
from shardbench.model.validate import validate
from shardbench.trials.discovery import get_strategy

ALIKE = (make_task(7, 2, 1), make_task(12, 2, 2), make_task(5, 2, 3))
KINDS = {
    "autoshard": (AutoShardTraining, SMALL, TASKS),
    "dreamshard": (
        DreamShardTraining,
        DreamShardSettings(iterations=4, measured=4, cost_updates=5, policy_updates=2, episodes=4),
        TASKS,
    ),
    "rnn-rl": (RnnTraining, RnnSettings(updates=12, episodes=6), TASKS),
    "neuroshard": (NeuroShardTraining, NeuroShardSettings(samples=300, epochs=4, batch=64), ALIKE),
}
every = pytest.mark.parametrize("kind", list(KINDS))


def training(kind, seed=1, tasks=None, oracle=None, **changed):
    made, settings, own = KINDS[kind]
    return made(own if tasks is None else tasks, oracle or SimulatedOracle(), seed, replace(settings, **changed))


def same(a, b):
    pairs = zip(a.networks.parameters(), b.networks.parameters(), strict=True)
    return all(torch.equal(x, y) for x, y in pairs)


@every
def test_training_repeats_and_counts_what_it_asked(kind):
    oracle = SimulatedOracle()
    one, again = training(kind, oracle=oracle).train(), training(kind).train()
    assert same(one, again)
    assert one.history == again.history
    assert not same(one, training(kind, seed=2).train())
    assert not same(one, training(kind).untrained())
    assert one.oracle_calls == oracle.calls > 0
    assert (len(one.history), one.out_of_time) == (KINDS[kind][1].updates, False)


@every
def test_a_whole_training_is_read_back_with_its_seconds_and_asks_nothing(kind, tmp_path, monkeypatch):
    seconds = [100.0]
    monkeypatch.setattr("shardbench.learned.training.time.process_time", lambda: seconds[0])
    first, oracle = training(kind), SimulatedOracle()
    seconds[0] += 7.0
    whole = first.train(folder=tmp_path)
    assert list(tmp_path.iterdir()) == [first.path(tmp_path)]
    second = training(kind, oracle=oracle)
    again = second.train(folder=tmp_path)
    assert same(again, whole)
    assert (again.history, again.oracle_calls, again.out_of_time) == (whole.history, whole.oracle_calls, False)
    assert oracle.calls == 0
    seconds[0] += 5.0
    assert (first.cpu_s, second.earlier_cpu_s, second.cpu_s) == (12.0, 7.0, 12.0)


@every
def test_other_files_are_refused_in_one_line(kind, tmp_path):
    run = training(kind)
    run.train(folder=tmp_path)
    path = run.path(tmp_path)
    other = training(kind, seed=2)
    other.path(tmp_path).write_bytes(path.read_bytes())
    with pytest.raises(BadInput, match=f"is broken or no checkpoint .it was written as {path.name}"):
        other.train(folder=tmp_path)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(BadInput, match="is broken or no checkpoint"):
        training(kind).train(folder=tmp_path)


@every
def test_training_stops_at_its_deadline_and_needs_a_task(kind, tmp_path):
    # One update is always made: its seconds are those of imports on a slow machine.
    stopped = training(kind).train(folder=tmp_path, limit_cpu_s=0.0)
    assert (len(stopped.history), stopped.out_of_time) == (1, True)
    assert not list(tmp_path.iterdir()), "only a whole training is kept"
    assert not same(stopped, training(kind).untrained())
    with pytest.raises(BadInput, match="at least one task"):
        training(kind, tasks=[])


@every
def test_other_tasks_seeds_settings_and_oracles_are_other_trainings(kind):
    runs = [
        training(kind),
        training(kind, tasks=KINDS[kind][2][:2]),
        training(kind, seed=2),
        training(kind, oracle=SimulatedOracle(counted=True)),
        *(
            training(kind, **{name: 2 * value})
            for name, value in asdict(KINDS[kind][1]).items()
            if isinstance(value, int) and not isinstance(value, bool)
        ),
    ]
    assert len({run.key for run in runs}) == len(runs)


@pytest.mark.parametrize(
    ("kind", "part", "version"),
    [("dreamshard", "JUDGE_VERSION", 99), ("rnn-rl", "others_code", lambda *_: "edited since")],
)
def test_another_version_is_another_training(kind, part, version, monkeypatch, tmp_path):
    before = training(kind)
    before.train(folder=tmp_path)
    monkeypatch.setattr(f"shardbench.learned.training.{part}", version)
    after = training(kind)
    assert after.key != before.key
    after.train(folder=tmp_path)
    assert after.calls == before.calls > 0, "trained again, not read"
    assert len(list(tmp_path.glob(f"{kind}-{after.key}*"))) == len(list(tmp_path.glob(f"{kind}-{before.key}*"))) > 0


@every
def test_the_learning_rate_falls_linearly_to_zero(kind, monkeypatch):
    run, rates = training(kind), []
    monkeypatch.setattr(run.adam, "step", lambda: rates.append(run.adam.param_groups[0]["lr"]))
    first, updates, of_each = run.settings.learning_rate, run.settings.updates, []
    while not run.done:
        rates.clear()
        run.step()
        assert len(set(rates)) == 1, "one rate an update, for whatever it steps"
        of_each.append(rates[0])
    assert of_each == pytest.approx([first * (1 - i / updates) for i in range(updates)], rel=1e-12)


@pytest.mark.parametrize("name", ["autoshard", "autoshard-untrained", "dreamshard", "dreamshard-untrained", "rnn-rl"])
def test_the_strategy_plans_what_it_was_fitted_on(name):
    problem, budget, strategy = TASKS[1].problem, Budget(fit_s=1.5), get_strategy(name)
    with pytest.raises(BadInput, match=r"call fit\(\) before plan\(\)"):
        strategy.plan(problem, budget, 0)
    strategy.fit((problem.restricted_to(strategy.sees),), budget, 0)
    plan = strategy.plan(problem.restricted_to(strategy.sees), budget, 0)
    validate(plan, problem, strategy.moves)
    trains = not strategy.role.named_only
    assert (plan.notes["oracle_calls"] > 0) == trains
    assert plan.notes.get("training", "complete") == "complete"
    assert (plan.notes.get("environment_steps", 1) > 0) == (name != "autoshard-untrained")
    if name != "rnn-rl":
        # They also plan what they were not fitted on, with other numbers of tables and devices.
        other = TASKS[0].problem
        validate(strategy.plan(other, budget, 0), other, strategy.moves)


@every
def test_fit_finds_a_whole_training_again(kind, tmp_path):
    problem, budget = make_task(12, 3, 2).problem, Budget(fit_s=1.0)
    first, again = get_strategy(kind), get_strategy(kind)
    first.folder = again.folder = tmp_path
    first.fit((problem,), budget, 0)
    (path,) = tmp_path.iterdir()
    made_at = path.stat().st_mtime_ns
    again.fit((problem,), budget, 0)
    assert path.stat().st_mtime_ns == made_at, "nothing is trained twice"
    assert same(first.trained, again.trained)
    assert first.plan(problem, budget, 0).segments == again.plan(problem, budget, 0).segments
    with opened(path) as contents:
        # What the first one spent on updates, without what it spent on the tasks.
        assert 0.0 < contents["cpu_s"] < first.fit_cpu_s
        assert again.fit_cpu_s > contents["cpu_s"]


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        *(("autoshard", field, 0) for field in ("total_steps", "unroll", "environments", "cost_batch", "shards")),
        ("autoshard", "total_steps", -5), ("autoshard", "unroll", 2.5),
        ("autoshard", "learning_rate", 0.0),
        ("autoshard", "discount", 1.5), ("autoshard", "baseline_weight", -1.0), ("autoshard", "grad_norm", 0.0),
        ("autoshard", "entropy_weight", float("inf")), ("autoshard", "cost_updates", -1),
        *(("dreamshard", field, 0) for field in ("iterations", "measured", "cost_updates", "cost_batch", "episodes")),
        ("dreamshard", "policy_updates", 0), ("dreamshard", "entropy_weight", -1.0), ("dreamshard", "episodes", 2.5),
        *(("rnn-rl", field, 0) for field in ("updates", "episodes")),
        ("rnn-rl", "entropy_weight", -1.0), ("rnn-rl", "decay", 1.1),
        *((kind, "learning_rate", float("nan")) for kind in KINDS),
    ],
)  # fmt: skip
def test_impossible_settings_are_refused_in_one_line(kind, field, value):
    settings = KINDS[kind][1]
    with pytest.raises(BadInput, match=f"Settings, field {field} = ") as error:
        type(settings)(**{field: value})
    assert "\n" not in str(error.value)
    with pytest.raises(BadInput, match=f"field {field}"):
        replace(settings, **{field: value})


def test_updates_are_planned_for_a_quarter_of_the_budget():
    assert affordable_updates(Budget(fit_s=40.0), 0.5, 1000) == 20
    assert affordable_updates(Budget(fit_s=40.0), 0.5, 7) == 7
    assert affordable_updates(Budget(fit_s=0.001), 0.5, 7) == 1
