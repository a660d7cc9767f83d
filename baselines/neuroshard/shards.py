"""Column shards: some of a table's columns, with all of its rows, on one device.

A shard of a table is looked up as often as the table, at the same rows: it is a narrower table with the
same lookups.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.cost.load import Load, longest_lookups, segment_load
from shardbench.learned.tasks.features import table_features
from shardbench.learned.tasks.task import TableSet, Task
from shardbench.model.plan import Tier
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import Pooling, Table
from shardbench.model.validate import COLUMN_MULTIPLE

NO_HALVES = -1
WIDTH = 0
"""Column of the raw features that a shard has of its own; size, another one, is not looked at."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ColumnShards:
    """Every kind of shard of a problem's tables: whole, half, quarter and so on; a plan is a list of their numbers.

    ``table``, ``columns``, ``bytes`` (weights and optimiser state) and ``half`` (number of the shard that it halves
    into, or NO_HALVES) int64 [shards]; ``vectors`` float64 [shards] is how many numbers a sample it sends;
    ``features`` float64 [shards, 21] raw; ``whole`` int64 [tables] are those of uncut tables.
    """

    table: Ints
    columns: Ints
    bytes: Ints
    half: Ints
    vectors: Floats
    features: Floats
    whole: Ints

    @classmethod
    def of(cls, tables: TableSet) -> "ColumnShards":
        """List the shards of all tables of a problem; halves are multiples of four columns."""
        problem = tables.problem
        shards: list[tuple[int, int, int, float]] = []
        half, whole = [], []
        for number, (table, profile) in enumerate(zip(problem.tables, problem.profiles)):
            whole.append(len(shards))
            columns = table.dim
            while True:
                shards.append((number, columns, shard_bytes(problem, table, columns), vectors(table, profile, columns)))
                if columns % (2 * COLUMN_MULTIPLE):
                    half.append(NO_HALVES)
                    break
                half.append(len(shards))
                columns //= 2
        table_of, columns_of, bytes_of, vectors_of = zip(*shards)
        features = tables.features[list(table_of)]
        features[:, WIDTH] = columns_of
        return cls(
            table=np.array(table_of, dtype=np.int64),
            columns=np.array(columns_of, dtype=np.int64),
            bytes=np.array(bytes_of, dtype=np.int64),
            half=np.array(half, dtype=np.int64),
            vectors=np.array(vectors_of),
            features=features,
            whole=np.array(whole, dtype=np.int64),
        )


def shard_bytes(problem: Problem, table: Table, columns: int) -> int:
    """Count the bytes of weights and optimiser state of some of a table's columns."""
    return table.rows * (columns * problem.precision.bytes + problem.optimizer.state_bytes(columns))


def vectors(table: Table, profile: AccessProfile, columns: int) -> float:
    """Count the numbers of a sample's vectors of a table: a pooled table has its columns, once a feature."""
    return columns * (float(table.features) if table.pooling is Pooling.SUM else profile.mean_pooling)


def shard_loads(task: Task, tables: Ints, columns: Ints, *, counted: bool) -> Load:
    """Give each shard's load alone in device memory, [shards]; ``columns`` int64 [shards] of ``tables`` int64 [shards].

    Raises BadInput where counted loads are wanted and the task has none.
    """
    problem, whole = task.problem, task.loads(counted=counted)[tables]
    rows = np.array([table.rows for table in problem.tables], dtype=np.float64)[tables]
    dims = np.array([table.dim for table in problem.tables], dtype=np.float64)[tables]
    longest = longest_lookups(whole.chain, dims)
    unpooled = np.array([table.pooling is Pooling.NONE for table in problem.tables])[tables]
    loads = Load.zeros(len(tables))
    # Optimiser state and the kind of pooling are one for all shards of a call: few widths, two kinds.
    for width in np.unique(columns).tolist():
        for sequence in (False, True):
            at = np.flatnonzero((columns == width) & (unpooled == sequence))
            part = segment_load(
                lookups=whole.lookups[at],
                distinct=whole.distinct[at],
                bags=whole.bags[at],
                longest_bag=longest[at],
                rows=rows[at],
                columns=width,
                unpooled=sequence,
                tier=Tier.HBM,
                precision=problem.precision,
                state=problem.optimizer.state_bytes(width),
            )
            part.tables[...] = whole.tables[at]
            loads.values[at] = part.values
    return loads


def augmented(tasks: Sequence[Task], widths: Sequence[int]) -> Task:
    """List every different table of the tasks once at every width, as one task on the first one's machine.

    Tables are different where their rows or their lookups are; a table's own width counts among ``widths`` only
    where it is listed. Nothing is counted in it: it is there for training.
    """
    everything = np.concatenate([task.features for task in tasks])
    # Width and size are what is varied.
    _, first = np.unique(np.delete(everything, (0, 3), axis=1), axis=0, return_index=True)
    starts = np.cumsum([0, *(task.tables for task in tasks)])
    homes = np.searchsorted(starts, first, side="right") - 1
    table_places = [(tasks[home], int(at - starts[home])) for home, at in zip(homes.tolist(), first.tolist())]
    loads, tables, profiles = [], [], []
    for number, (task, at) in enumerate(table_places):
        table = task.problem.tables[at]
        loads.append(shard_loads(task, np.full(len(widths), at), np.asarray(widths, dtype=np.int64), counted=False))
        tables += [replace(table, name=f"{number}-{width}", dim=width) for width in widths]
        profiles += [task.problem.profiles[at]] * len(widths)
    problem = replace(tasks[0].problem, name="augmented", tables=tuple(tables), profiles=tuple(profiles), inputs=None)
    return Task(problem=problem, features=table_features(problem), expected=Load.joined(loads))
