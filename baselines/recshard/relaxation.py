"""A proven lower bound on the slowest device, and the prices of memory that belong to it."""

import time

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.base.errors import Infeasible
from shardbench.base.highs import highspy
from shardbench.cost.bounds.embedding import ROUNDING, pigeonhole_ms
from shardbench.model.problem import Problem

from .milp import CAPACITY, TIME, SolverFailed, new_solver, pass_program
from .steps import RowSteps


def relax(steps: RowSteps, problem: Problem, deadline: float) -> tuple[float, Floats]:
    """Bound all plans from below, in ms, and price each choice: its ms with the prices of its HBM and UVM, [steps].

    Raises Infeasible where even all devices' memory taken together is too small.

    All devices are taken as one of their summed capacities whose time is at least the sum over
    tables divided by the devices, and at least every table's own; choices may be mixed (a linear
    program). Its prices give the bound by Lagrange's argument in plain arithmetic, so that the
    solver's tolerances cannot lift it: any prices give a bound, none where the deadline came first.
    To that comes the pigeonhole principle over devices.
    """
    world = problem.world_size
    size = int(steps.hbm_bytes[steps.first[:-1]].sum() + steps.uvm_bytes[steps.first[:-1]].sum())
    limits = (world * problem.topology.hbm_bytes, world * problem.topology.uvm_bytes)
    least = steps.least(steps.cost_ms)
    _check_sums(steps, size, world, limits)
    reference = max(float(least.sum()) / world, float(least.max()))
    bound = pigeonhole_ms(least, world) * (1.0 - ROUNDING)
    if reference <= 0.0:
        return bound, steps.cost_ms
    hbm, uvm, own = _prices(steps, world, limits, reference, deadline)
    weight = world * 1.0 + own.sum()
    priced = steps.cost_ms + hbm * steps.hbm_bytes + uvm * steps.uvm_bytes
    lagrange = steps.least(priced + own[steps.table] * steps.cost_ms).sum() - hbm * limits[0] - uvm * limits[1]
    return max(bound, float(lagrange) / weight * (1.0 - ROUNDING)), priced


def _check_sums(steps: RowSteps, size: int, world: int, limits: tuple[int, int]) -> None:
    # UVM falls as HBM grows: the first choice of a table needs least HBM, its last one least UVM.
    needs = (
        ("HBM", int(steps.hbm_bytes[steps.first[:-1]].sum()), limits[0]),
        ("UVM", int(steps.uvm_bytes[steps.first[1:] - 1].sum()), limits[1]),
        ("HBM and UVM", size, sum(limits)),
    )
    for memory, need, limit in needs:
        if need > limit:
            raise Infeasible(
                f"the tables need at least {need} bytes of {memory}, the {world} devices have {limit} together; "
                "use more or larger devices"
            )


def _prices(
    steps: RowSteps, world: int, limits: tuple[int, int], reference_ms: float, deadline: float
) -> tuple[float, float, Floats]:
    """Return prices (ms a byte of HBM, of UVM, multiplier of each table's own time) for a weight of one on the sum."""
    corner = hull(steps)
    table, j = steps.table[corner], steps.tables
    n = len(corner)
    cost = steps.cost_ms[corner] * (TIME / reference_ms)
    heavy = j + 3 + np.arange(j)
    row = np.concatenate([table, np.full(n, j), np.full(n, j + 1), np.full(n, j + 2), heavy[table], [j + 2], heavy])
    column = np.concatenate([np.tile(np.arange(n), 5), np.full(j + 1, n)])
    scale = (CAPACITY / limits[0], CAPACITY / max(1, limits[1]))
    memory = (steps.hbm_bytes[corner] * scale[0], steps.uvm_bytes[corner] * scale[1])
    value = np.concatenate([np.ones(n), *memory, cost, cost, [-float(world)], np.full(j, -1.0)])
    lower = np.concatenate([np.ones(j), np.full(3 + j, -np.inf)])
    upper = np.concatenate([np.ones(j), [CAPACITY, CAPACITY], np.zeros(1 + j)])
    solver = new_solver()
    pass_program(
        solver, np.append(np.zeros(n), 1.0), np.append(np.ones(n), np.inf), (lower, upper), (row, column, value)
    )
    solver.setOptionValue("time_limit", max(0.01, deadline - time.monotonic()))
    solver.run()
    status = solver.getModelStatus()
    if status == highspy.HighsModelStatus.kInfeasible:
        raise Infeasible(
            f"no choice of steps fits the {world} devices' {limits[0]} bytes of HBM and {limits[1]} of UVM together; "
            "use more or larger devices"
        )
    if status == highspy.HighsModelStatus.kTimeLimit:
        return 0.0, 0.0, np.zeros(j)
    if status != highspy.HighsModelStatus.kOptimal:
        raise SolverFailed(f"HiGHS failed on the relaxation: {solver.modelStatusToString(status)}; report the problem")
    duals = np.maximum(-np.array(solver.getSolution().row_dual)[j:], 0.0)
    # A weight of one on the sum of all times; a sum that does not matter keeps a tiny one.
    weight = max(float(duals[2]), 1e-12)
    unit = reference_ms / TIME / weight
    return float(duals[0] * scale[0] * unit), float(duals[1] * scale[1] * unit), duals[3:] / weight


def hull(steps: RowSteps) -> Ints:
    """Return the numbers of the choices on each table's lower convex hull of cost over HBM bytes, ascending.

    Never-seen rows cost nothing, so that a whole table of the same cost stays on it.
    """
    keep = np.ones(len(steps.table), dtype=bool)
    while True:
        at = np.flatnonzero(keep)
        x, y, table = steps.hbm_bytes[at].astype(np.float64), steps.cost_ms[at], steps.table[at]
        inner = np.flatnonzero((table[1:-1] == table[:-2]) & (table[1:-1] == table[2:])) + 1
        before = (y[inner] - y[inner - 1]) / (x[inner] - x[inner - 1])
        after = (y[inner + 1] - y[inner]) / (x[inner + 1] - x[inner])
        above = inner[after < before]
        if not len(above):
            return at
        # Neighbours judge each other: only every other one of a run may go at once.
        run = np.concatenate([[True], np.diff(above) > 1])
        nth = np.arange(len(above)) - np.maximum.accumulate(np.where(run, np.arange(len(above)), 0))
        keep[at[above[nth % 2 == 0]]] = False
