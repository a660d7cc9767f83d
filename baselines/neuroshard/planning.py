"""The way from tables and trained networks to a plan's segments."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shardbench.base.arrays import Ints
from shardbench.base.errors import Infeasible
from shardbench.learned.tasks.task import TableSet
from shardbench.model.plan import OnRank, Segment
from shardbench.model.problem import Problem

from .beam_search import ColumnPlan, search
from .placement import Placer
from .settings import EVALUATIONS_A_SECOND, SearchLimits
from .shards import ColumnShards
from .simulator import Simulator

if TYPE_CHECKING:
    from shardbench.learned.training import AnyTrained


def plan_shards(
    trained: "AnyTrained", tables: TableSet, limits: SearchLimits, plan_s: float = float("inf")
) -> tuple[ColumnShards, ColumnPlan]:
    """Give the shards that tables can be cut into, and the plan of them that the networks call the fastest.

    Raises Infeasible where no plan of the search fits, BadInput for another number of devices than was trained for.
    """
    shards = ColumnShards.of(tables)
    simulator = Simulator(trained, tables.devices)
    placer = Placer(simulator, shards, tables.devices, tables.capacity_bytes, limits.caps)
    column_plan = search(placer, limits, EVALUATIONS_A_SECOND * plan_s)
    if column_plan.ms == float("inf"):
        raise Infeasible(
            f"task {tables.problem.name}: no plan of at most {limits.splits} column splits fits: "
            f"{int(tables.sizes_bytes.sum())} bytes of tables, the largest of {int(tables.sizes_bytes.max())}, "
            f"on {tables.devices} devices of {tables.capacity_bytes}"
        )
    return shards, column_plan


def place(trained: "AnyTrained", tasks: Sequence[TableSet]) -> list[Ints]:
    """Place the whole tables of tasks, int64 [tables] a task: the search without any column split."""
    return [plan_shards(trained, task, SearchLimits(splits=0))[1].ranks for task in tasks]


def segments(problem: Problem, shards: ColumnShards, column_plan: ColumnPlan) -> tuple[Segment, ...]:
    """Lay a table's shards side by side, in the order of the plan, each on its rank; none are joined (deviation 9)."""
    starts = [0] * len(problem.tables)
    pieces = []
    for shard, rank in zip(column_plan.shards.tolist(), column_plan.ranks.tolist()):
        number, columns = int(shards.table[shard]), int(shards.columns[shard])
        table, start = problem.tables[number], starts[number]
        starts[number] += columns
        pieces.append(
            Segment(
                table=table.name,
                row_stop=table.rows,
                column_start=start,
                column_stop=start + columns,
                placement=OnRank(rank=rank),
            )
        )
    return tuple(pieces)
