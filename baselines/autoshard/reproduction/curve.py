"""What training does, stage by stage: reward, kernel time of the policy's plans, error of the cost network."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.studies.contest import Placed, judge
from shardbench.studies.study import Row
from shardbench.tasks.oracle import SimulatedOracle
from shardbench.tasks.task import Task, one_hot, random_placements

from ..acting import Policy
from ..kept_training import snapshot, train
from ..placing import place
from ..rewards import kernel_ms
from ..training import Settings, Trained, training_key, untrained


def learning_curve(
    train_tasks: Sequence[Task], test_tasks: Sequence[Task], seed: int, folder: Path, held_out: int
) -> list[Row]:
    """One row a stage, 0 being untrained, of a training with the published settings.

    ``reward`` is the mean of the episodes sampled in the stage. ``*_kernel_ms`` are means over tasks
    of the slowest device's kernel time on a counted test batch, ``test_balance`` of smallest over
    largest. ``random_error_pct`` and ``policy_error_pct``: mean absolute relative error of the
    predicted kernel time of a device that has tables, against the oracle that the network learns
    from, on ``held_out`` random placements a test task and on the policy's own placements.
    """
    oracle, settings = SimulatedOracle(), Settings()
    key = training_key(train_tasks, oracle, seed, settings)
    history = train(train_tasks, oracle, seed, settings, folder=folder).history
    rng = np.random.default_rng([seed, 2])
    randoms = [random_placements(task, held_out, rng) for task in test_tasks]
    begun = _row(untrained(train_tasks, seed), train_tasks, test_tasks, randoms)
    rows: list[Row] = [{"stage": 0, "updates": 0, "reward": None, **begun}]
    for number, stage in enumerate(history, 1):
        learned = snapshot(folder, key, stage.updates)
        found = _row(learned, train_tasks, test_tasks, randoms)
        rows.append({"stage": number, "updates": stage.updates, "reward": stage.reward, **found})
    return rows


def _row(learned: Trained, train_tasks: Sequence[Task], test_tasks: Sequence[Task], randoms: Sequence[Ints]) -> Row:
    own = place(learned, test_tasks)
    of_train = judge(Placed(placements=tuple(place(learned, train_tasks)), plan_cpu_s=0.0), train_tasks)
    of_test = judge(Placed(placements=tuple(own), plan_cpu_s=0.0), test_tasks)
    of_random = np.concatenate([_errors(learned, t, p) for t, p in zip(test_tasks, randoms, strict=True)])
    of_policy = np.concatenate([_errors(learned, t, p[None]) for t, p in zip(test_tasks, own, strict=True)])
    return {
        "backend": "simulated",
        "train_kernel_ms": of_train["kernel_ms"],
        "test_kernel_ms": of_test["kernel_ms"],
        "test_balance": of_test["balance"],
        "random_error_pct": 100.0 * float(np.abs(of_random).mean()),
        "policy_error_pct": 100.0 * float(np.abs(of_policy).mean()),
        "oracle_calls": learned.oracle_calls,
    }


def _errors(learned: Trained, task: Task, placements: Ints) -> Floats:
    """Relative errors of the predicted ms of every device with tables, one after the other."""
    policy = Policy(learned.networks, learned.scaling)
    holds = one_hot(placements, task.devices).astype(np.float32)
    sums = holds @ policy.encode(task.features) + policy.dummy
    predicted = policy.device_ms(sums.reshape(-1, sums.shape[-1]))
    true = kernel_ms(SimulatedOracle().measure(task, placements)).reshape(-1)
    busy = true > 0.0
    return np.asarray(predicted[busy] / true[busy] - 1.0, dtype=np.float64)
