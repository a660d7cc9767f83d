"""Column shards that a table can be halved into, and what is needed of each to place it."""

from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.learned.tasks.task import TableSet
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
