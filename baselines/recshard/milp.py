"""The mixed-integer program of some tables on some devices, and its linear relaxation, for HiGHS."""

import math
import time
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.base.errors import Infeasible
from shardbench.base.highs import highspy
from shardbench.model.machine import Topology

from .assign import Assignment
from .steps import RowSteps

CAPACITY = 1e5
"""A device's capacity in the program's units: HiGHS's tolerance of 1e-6 is then far below a row."""
TIME = 100.0
"""The reference time in the program's units."""
REGULAR_ENDS = frozenset(
    {
        highspy.HighsModelStatus.kOptimal,
        highspy.HighsModelStatus.kObjectiveTarget,
        highspy.HighsModelStatus.kSolutionLimit,
        highspy.HighsModelStatus.kTimeLimit,
    }
)
# Times are bounded below, so that "unbounded or infeasible" is the latter.
NONE = frozenset({highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible})
ROUNDING = 1e-6
"""Share by which a bound that HiGHS reports is lowered, for its tolerances."""


class SolverFailed(Infeasible):
    """HiGHS ended with neither a result nor a limit: no plan, unless one was found before."""


@dataclass(frozen=True, kw_only=True)
class Solution:
    """What the solver found for a part, and the bound that it proved."""

    assignment: Assignment | None
    """Devices and choices [tables of the part]; None where it found nothing that fits."""
    bound_ms: float
    infeasible: bool
    """True where the solver proved that there is no solution."""


def new_solver() -> highspy.Highs:
    """Return HiGHS (deviation 1) on one thread, silent, with a fixed seed."""
    solver = highspy.Highs()  # type: ignore[no-untyped-call]  # the package leaves its constructor untyped
    for name, value in (("output_flag", False), ("threads", 1), ("random_seed", 0)):
        solver.setOptionValue(name, value)
    return solver


def pass_program(
    solver: highspy.Highs,
    costs: Floats,
    upper: Floats,
    rows: tuple[Floats, Floats],
    entries: tuple[Ints, Ints, Floats],
) -> None:
    """Give the solver min costs x, 0 <= x <= upper, rows[0] <= A x <= rows[1]; A by (row, column, value)."""
    row, column, value = entries
    order = np.lexsort((row, column))
    program = highspy.HighsLp()
    program.num_col_, program.num_row_ = len(costs), len(rows[0])
    program.col_cost_, program.col_lower_, program.col_upper_ = costs, np.zeros(len(costs)), upper
    program.row_lower_, program.row_upper_ = rows
    program.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    program.a_matrix_.start_ = np.searchsorted(column[order], np.arange(len(costs) + 1)).astype(np.int32)
    program.a_matrix_.index_ = row[order].astype(np.int32)
    program.a_matrix_.value_ = value[order]
    if solver.passModel(program) == highspy.HighsStatus.kError:
        raise SolverFailed("HiGHS refused the program; report the problem with its seed")


@dataclass(frozen=True, kw_only=True)
class Program:
    """The program of some tables on some identical devices; its times are in parts of a reference."""

    steps: RowSteps
    tables: Ints
    devices: int
    choices: Ints
    """Numbers of the allowed steps, ascending, of these tables."""
    topology: Topology
    reference_ms: float

    def solve(self, start: Assignment | None, *, gap: float, nodes: int, deadline: float, enough_ms: float) -> Solution:
        """Minimise the slowest device; ``start`` is a known solution.

        A proven ``gap``, ``nodes`` (the same on every machine) or a plan of ``enough_ms`` ends it, the clock is the
        safety net. Raises SolverFailed where HiGHS fails.
        """
        solver, columns = self._stated()
        options = {
            "mip_rel_gap": gap,
            "mip_max_nodes": nodes,
            "time_limit": max(0.01, deadline - time.monotonic()),
            "objective_target": enough_ms / self.reference_ms * TIME,
        }
        for name, value in options.items():
            solver.setOptionValue(name, value)
        if start is not None:
            solver.setSolution(self._values(start, columns))
        solver.run()
        status = solver.getModelStatus()
        if status not in REGULAR_ENDS and status not in NONE:
            raise SolverFailed(f"HiGHS failed: {solver.modelStatusToString(status)}; report the problem with its seed")
        info = solver.getInfo()
        bound = info.mip_dual_bound if math.isfinite(info.mip_dual_bound) else 0.0
        assignment: Assignment | None = None
        if info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible:
            values = np.array(solver.getSolution().col_value[:columns]).reshape(self.devices, len(self.choices))
            assignment = self._assignment(values)
        return Solution(
            assignment=assignment,
            bound_ms=max(0.0, bound) * self.reference_ms / TIME * (1.0 - ROUNDING),
            infeasible=status in NONE,
        )

    def _stated(self) -> tuple[highspy.Highs, int]:
        """Return a solver that holds the program, and its number of binaries.

        Columns are x[device, choice] row by row, then T; rows are one choice a table, then HBM, UVM and time a device.
        """
        steps, choices = self.steps, self.choices
        n, m, j = len(choices), self.devices, len(self.tables)
        at = np.searchsorted(self.tables, steps.table[choices])
        device = np.repeat(np.arange(m), n)
        binaries = m * n
        column = np.arange(binaries)
        # Without UVM no choice needs any (make_steps): its row then says nothing.
        scaled = (
            steps.hbm_bytes[choices] * (CAPACITY / self.topology.hbm_bytes),
            steps.uvm_bytes[choices] * (CAPACITY / max(1, self.topology.uvm_bytes)),
            steps.cost_ms[choices] * (TIME / self.reference_ms),
        )
        row = np.concatenate([np.tile(at, m), *(j + kind * m + device for kind in range(3)), j + 2 * m + np.arange(m)])
        columns = np.concatenate([np.tile(column, 4), np.full(m, binaries)])
        value = np.concatenate([np.ones(binaries), *(np.tile(s, m) for s in scaled), np.full(m, -1.0)])
        lower = np.concatenate([np.ones(j), np.full(3 * m, -np.inf)])
        upper = np.concatenate([np.ones(j), np.full(2 * m, CAPACITY), np.zeros(m)])
        # Devices are alike: the k-th most expensive table may as well be on one of the first k.
        bounds = np.ones((m, n))
        for k, table in enumerate(self._dearest()[:m].tolist()):
            bounds[k + 1 :, at == table] = 0.0
        solver = new_solver()
        costs = np.append(np.zeros(binaries), 1.0)
        pass_program(solver, costs, np.append(bounds.ravel(), np.inf), (lower, upper), (row, columns, value))
        solver.changeColsIntegrality(binaries, column.astype(np.int32), np.ones(binaries, dtype=np.uint8))
        return solver, binaries

    def _dearest(self) -> Ints:
        return np.argsort(-self.steps.least(self.steps.cost_ms)[self.tables], kind="stable")

    def _values(self, start: Assignment, columns: int) -> highspy.HighsSolution:
        device, choice = self.in_order(start.device), start.choice
        values = np.zeros(columns + 1)
        values[device * len(self.choices) + np.searchsorted(self.choices, choice)] = 1.0
        times = np.bincount(device, weights=self.steps.cost_ms[choice], minlength=self.devices)
        values[-1] = times.max() / self.reference_ms * TIME
        solution = highspy.HighsSolution()
        solution.col_value = values.tolist()
        return solution

    def in_order(self, device: Ints) -> Ints:
        """Return the same plan with its devices renamed as the program's symmetry breaking wants them."""
        seen, first = np.unique(device[self._dearest()], return_index=True)
        names = np.full(self.devices, -1)
        names[seen[np.argsort(first)]] = np.arange(len(seen))
        return np.asarray(names[device])

    def _assignment(self, values: Floats) -> Assignment | None:
        device, number = np.nonzero(values > 0.5)
        choice = self.choices[number]
        order = np.argsort(self.steps.table[choice], kind="stable")
        assignment = Assignment(device=device[order], choice=choice[order])
        # The solver's tolerances do not count here: bytes are compared as integers.
        whole = np.array_equal(self.steps.table[assignment.choice], self.tables)
        return assignment if whole and assignment.fits(self.steps, self.topology, self.devices) else None
