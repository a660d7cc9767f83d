"""What training does, iteration by iteration: cost of the policy's plans, error of the cost network."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.baselines.dreamshard.estimates import Policy
from shardbench.baselines.dreamshard.placing import place
from shardbench.baselines.dreamshard.training import Settings, Trained, snapshot, train, training_key, untrained
from shardbench.studies.study import Row
from shardbench.tasks.bound import placement_bound_ms
from shardbench.tasks.oracle import SimulatedOracle
from shardbench.tasks.task import Task, one_hot, random_placements


def learning_curve(
    train_tasks: Sequence[Task], test_tasks: Sequence[Task], seed: int, folder: Path, held_out: int
) -> list[Row]:
    """One row an iteration, 0 being untrained.

    ``*_cost_ms`` are means over tasks on a counted test batch. ``random_error_pct`` and
    ``policy_error_pct``: mean absolute relative error of the predicted overall cost against the
    oracle that the network learns from, on ``held_out`` random placements a test task and on the
    policy's own placements of test tasks; ``policy_bias_pct`` the latter with its sign.
    ``test_bound_ms`` is the mean proven bound of the test tasks' costs.
    """
    oracle, settings = SimulatedOracle(), Settings()
    key = training_key(train_tasks, oracle, seed, settings)
    train(train_tasks, oracle, seed, settings, folder=folder)
    stages = [untrained(train_tasks, seed)]
    stages += [snapshot(folder, key, number) for number in range(1, settings.iterations + 1)]
    rng = np.random.default_rng([seed, 2])
    randoms = [random_placements(task, held_out, rng) for task in test_tasks]
    bound_ms = float(np.mean([placement_bound_ms(task, counted=True) for task in test_tasks]))
    return [
        _row(number, stage, train_tasks, test_tasks, randoms, bound_ms=bound_ms) for number, stage in enumerate(stages)
    ]


def longer(train_tasks: Sequence[Task], test_tasks: Sequence[Task], seed: int, iterations: int) -> Row:
    """Mean cost (ms, counted test batch) of the plans after a training of that many iterations, all else as it is."""
    start = time.process_time()
    trained = train(train_tasks, SimulatedOracle(), seed, Settings(iterations=iterations))
    fit_cpu_s = time.process_time() - start
    return {
        "backend": "simulated",
        "train_cost_ms": _cost_ms(trained, train_tasks),
        "test_cost_ms": _cost_ms(trained, test_tasks),
        "oracle_calls": trained.oracle_calls,
        "fit_cpu_s": fit_cpu_s,
    }


def _cost_ms(stage: Trained, tasks: Sequence[Task]) -> float:
    judged = SimulatedOracle(counted=True)
    placements = place(stage, tasks)
    return float(np.mean([judged.measure(t, p[None]).overall_ms[0] for t, p in zip(tasks, placements, strict=True)]))


def _row(
    number: int,
    stage: Trained,
    train_tasks: Sequence[Task],
    test_tasks: Sequence[Task],
    randoms: Sequence[Ints],
    *,
    bound_ms: float,
) -> Row:
    learned_from = SimulatedOracle()
    own = place(stage, test_tasks)
    of_random = np.concatenate([_errors(stage, t, p, learned_from) for t, p in zip(test_tasks, randoms)])
    of_policy = np.concatenate([_errors(stage, t, p[None], learned_from) for t, p in zip(test_tasks, own)])
    test_ms = _cost_ms(stage, test_tasks)
    return {
        "backend": "simulated",
        "iteration": number,
        "train_cost_ms": _cost_ms(stage, train_tasks),
        "test_cost_ms": test_ms,
        "test_bound_ms": bound_ms,
        "test_over_bound_pct": 100.0 * (test_ms / bound_ms - 1.0),
        "random_error_pct": 100.0 * float(np.abs(of_random).mean()),
        "policy_error_pct": 100.0 * float(np.abs(of_policy).mean()),
        "policy_bias_pct": 100.0 * float(of_policy.mean()),
        "oracle_calls": stage.oracle_calls,
    }


def _errors(stage: Trained, task: Task, placements: Ints, oracle: SimulatedOracle) -> Floats:
    """Relative errors of the predicted overall cost, [placements]."""
    policy = Policy(stage.networks, stage.scaling)
    holds = one_hot(placements, task.devices).astype(np.float32)
    sums = holds @ policy.encode(task.features)
    held = holds.sum(axis=2).astype(np.int64)
    predicted = policy.overall_ms(sums, held, np.ones(held.shape, dtype=np.bool_))
    true = oracle.measure(task, placements).overall_ms
    return np.asarray(predicted / true - 1.0, dtype=np.float64)
