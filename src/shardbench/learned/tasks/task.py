"""Placement tasks: the tables of a problem with what learned strategies compute about them once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from shardbench.base.arrays import Bools, Floats, Ints
from shardbench.base.errors import BadInput
from shardbench.base.serialise import content_hash
from shardbench.cost.bounds.embedding import expected_table_loads
from shardbench.cost.load import Load
from shardbench.learned.tasks.features import table_features
from shardbench.model.problem import Problem
from shardbench.model.table import Precision

DRAWS = 200
"""Random placements that are tried for each one that must fit."""
SUBSETS = 49
"""Training tasks drawn from a single problem's tables, besides the problem itself: 50 in all, as in the papers."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TableSet:
    """The tables of a problem as learned strategies see them: all that placing needs.

    ``features`` float64 [tables, 21] raw.
    """

    problem: Problem
    features: Floats

    @property
    def tables(self) -> int:
        """Count the tables to place."""
        return len(self.features)

    @property
    def devices(self) -> int:
        """Count the devices to place them on."""
        return self.problem.world_size

    @property
    def capacity_bytes(self) -> int:
        """Memory of one device for weights and optimiser state."""
        return self.problem.topology.hbm_bytes

    @cached_property
    def sizes_bytes(self) -> Ints:
        """Count the bytes of every table's weights and optimiser state, int64 [tables]."""
        return np.array([self.problem.weight_bytes(t) for t in self.problem.tables], dtype=np.int64)


def table_set(problem: Problem) -> TableSet:
    """List the tables of any problem, without their loads; needs its tables and profiles."""
    return TableSet(problem=problem, features=table_features(problem))


@dataclass(frozen=True, kw_only=True, eq=False)
class Task(TableSet):
    """A problem whose whole tables are to be placed in device memory, with what an oracle needs.

    ``expected`` Load [tables] is that of each table alone under its training profile; ``counted`` the
    same from a test batch, for judging only.
    """

    expected: Load
    counted: Load | None = None

    @classmethod
    def of(cls, problem: Problem) -> "Task":
        """Make a task of any problem; needs its tables, profiles and machine."""
        return cls(problem=problem, features=table_features(problem), expected=expected_table_loads(problem))

    @cached_property
    def key(self) -> str:
        """Hash what decides the costs of a placement: loads, sizes, machine, batch and precision."""
        problem = self.problem
        loads = [load.values for load in (self.expected, self.counted) if load is not None]
        facts: tuple[object, ...] = (problem.machine, problem.topology, problem.batch_size, problem.precision.value)
        if problem.exchange is not Precision.FP32:
            facts = (*facts, problem.exchange.value)
        return content_hash(*facts, problem.optimizer.value, self.features, self.sizes_bytes, *loads)

    def loads(self, *, counted: bool) -> Load:
        """Give loads by table; raises BadInput where counted ones are wanted and the task has none."""
        if not counted:
            return self.expected
        if self.counted is None:
            raise BadInput(f"task {self.problem.name} has no counted test batch: give Task(counted=...)")
        return self.counted

    def over_capacity(self, assignments: Ints) -> Bools:
        """Tell which placements int [episodes, tables] put more on a device than it holds, bool [episodes]."""
        used_bytes = one_hot(assignments, self.devices) @ self.sizes_bytes.astype(np.float64)
        return np.asarray((used_bytes > self.capacity_bytes).any(axis=1))

    def check(self, assignments: Ints) -> None:
        """Raises BadInput where placements are no int [episodes, tables] of devices, or do not fit."""
        name = self.problem.name
        if assignments.ndim != 2 or assignments.shape[1] != self.tables or assignments.dtype.kind not in "iu":
            shape = f"{assignments.dtype} {list(assignments.shape)}"
            raise BadInput(f"task {name}: placements must be integers [episodes, {self.tables}], got {shape}")
        if assignments.size and (assignments.min() < 0 or assignments.max() >= self.devices):
            raise BadInput(f"task {name}: a placement names a device outside 0..{self.devices - 1}")
        over = np.flatnonzero(self.over_capacity(assignments))
        if len(over):
            raise BadInput(
                f"task {name}: placement {over[0]} puts more than {self.capacity_bytes} bytes on a device; mask it"
            )


def one_hot(assignments: Ints, devices: int) -> Floats:
    """Mark which device holds which table, float64 [episodes, devices, tables] of 0 and 1."""
    return np.asarray(assignments[:, None, :] == np.arange(devices)[None, :, None], dtype=np.float64)


def random_placements(task: Task, count: int, rng: np.random.Generator) -> Ints:
    """Draw placements that fit, int64 [count, tables], uniformly; raises BadInput where too few of the draws do."""
    placements = rng.integers(0, task.devices, (count * DRAWS, task.tables))
    fitting = placements[~task.over_capacity(placements)][:count]
    if len(fitting) < count:
        raise BadInput(f"task {task.problem.name}: only {len(fitting)} of {len(placements)} random placements fit")
    return np.asarray(fitting, dtype=np.int64)


def training_tasks(problems: Sequence[Problem], seed: int) -> tuple[Task, ...]:
    """Make tasks of the problems; a single problem is joined by SUBSETS random parts of it.

    Each part has between half and all of the tables, so that a strategy meets other sets of them
    than the one that it will place. The papers train on many tasks; a trial has one problem.
    Raises BadInput where there is none.
    """
    if not problems:
        raise BadInput("a learned strategy needs at least one problem to train on")
    tasks = tuple(Task.of(problem) for problem in problems)
    if len(tasks) != 1:
        return tasks
    (whole,) = tasks
    rng = np.random.default_rng([seed, 2])
    counts = rng.integers((whole.tables + 1) // 2, whole.tables + 1, SUBSETS).tolist()
    return (whole, *(part(whole, np.sort(rng.permutation(whole.tables)[:count])) for count in counts))


def part(task: Task, ids: Ints) -> Task:
    """Make the task of some of a task's tables, int64 [chosen], on the same machine."""
    problem = task.problem
    part_problem = replace(
        problem,
        name=f"{problem.name}-{len(ids)}",
        tables=tuple(problem.tables[i] for i in ids),
        profiles=tuple(problem.profiles[i] for i in ids),
        inputs=None,
    )
    counted = None if task.counted is None else task.counted[ids]
    return Task(problem=part_problem, features=task.features[ids], expected=task.expected[ids], counted=counted)
