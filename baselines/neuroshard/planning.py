"""From tables and trained networks to a plan's segments."""

from typing import TYPE_CHECKING

from shardbench.base.errors import Infeasible
from shardbench.model.plan import OnRank, Segment
from shardbench.model.problem import Problem
from shardbench.tasks.task import TableSet

from .beam_search import Found, search
from .effort import EVALUATIONS_A_SECOND, Effort
from .placement import Placer
from .shards import Shards
from .simulator import Simulator

if TYPE_CHECKING:
    from shardbench.learning.training import AnyTrained


def sharded(
    trained: "AnyTrained", tables: TableSet, effort: Effort, plan_s: float = float("inf")
) -> tuple[Shards, Found]:
    """The shards that tables can be cut into, and the plan of them that the networks call the fastest.

    Raises Infeasible where no plan of the search fits, BadInput for another number of devices than was trained for.
    """
    shards = Shards.of(tables)
    simulator = Simulator(trained, tables.devices)
    placer = Placer.of(simulator, shards, tables.devices, tables.capacity_bytes, effort.caps)
    found = search(placer, effort, EVALUATIONS_A_SECOND * plan_s)
    if found.ms == float("inf"):
        raise Infeasible(
            f"task {tables.problem.name}: no plan of at most {effort.splits} column splits fits: "
            f"{int(tables.sizes_bytes.sum())} bytes of tables, the largest of {int(tables.sizes_bytes.max())}, "
            f"on {tables.devices} devices of {tables.capacity_bytes}"
        )
    return shards, found


def segments(problem: Problem, shards: Shards, found: Found) -> tuple[Segment, ...]:
    """A table's shards side by side, in the order of the plan, each on its rank; none are joined (deviation 9)."""
    starts = [0] * len(problem.tables)
    made = []
    for shard, rank in zip(found.shards.tolist(), found.ranks.tolist()):
        number, columns = int(shards.table[shard]), int(shards.columns[shard])
        table, start = problem.tables[number], starts[number]
        starts[number] += columns
        made.append(
            Segment(
                table=table.name,
                row_stop=table.rows,
                column_start=start,
                column_stop=start + columns,
                placement=OnRank(rank=rank),
            )
        )
    return tuple(made)
