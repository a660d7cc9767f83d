"""Memory of the plan that FlexShard is compared with: it may use no more on any device."""

from enum import StrEnum

import numpy as np

from shardbench.model.problem import Problem
from shardbench.model.validate import dealt


class ComparedPlan(StrEnum):
    """The plan whose fullest device sets the budget (deviation 2)."""

    TABLE_ROW_WISE = "table-row-wise"
    """Each table's rows are dealt over one node, largest first to the emptiest node; sequences are deviation 10."""
    WHOLE_TABLE = "whole-table"
    """Each table is whole on one device, largest first to the emptiest."""


def fullest_device_bytes(problem: Problem, compared: ComparedPlan) -> int:
    """Return the bytes of weights and optimiser state on the fullest device of the compared plan."""
    topology = problem.topology
    group = {
        ComparedPlan.TABLE_ROW_WISE: topology.devices_per_node,
        ComparedPlan.WHOLE_TABLE: 1,
    }[compared]
    used_bytes = np.zeros((topology.world_size // group, group), dtype=np.int64)
    for table in sorted(problem.tables, key=problem.weight_bytes, reverse=True):
        row_bytes = problem.weight_bytes(table) // table.rows
        home = int(used_bytes.sum(axis=1).argmin())
        if table.rows < group:
            used_bytes[home, used_bytes[home].argmin()] += table.rows * row_bytes
        else:
            used_bytes[home] += dealt(table.name, table.rows, group) * row_bytes
    return int(used_bytes.max())
