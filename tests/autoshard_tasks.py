"""Made-up placement tasks for AutoShard's tests."""

import numpy as np
from problems import RandomWorkload, machine

from shardbench.baselines.autoshard.training import AutoShardSettings
from shardbench.learned.tasks.task import Task

SMALL = AutoShardSettings(total_steps=960, unroll=20, environments=4, cost_batch=32, cost_updates=3)


def make_task(tables, devices, seed=0, hbm=10**9, rows=1000):
    rng = np.random.default_rng(seed)
    shapes = [(int(rng.integers(rows // 10, rows)), int(rng.choice([8, 16, 32]))) for _ in range(tables)]
    workload = RandomWorkload(shapes, batch_size=64, pooling=int(rng.integers(2, 9)), seed=seed)
    return Task.of(workload.problem(machine(devices=devices, hbm=hbm)))


TASKS = (make_task(7, 2, 1), make_task(12, 3, 2), make_task(5, 3, 3))
