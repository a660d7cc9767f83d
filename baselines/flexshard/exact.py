"""How far the rule is from the best: every plan of small problems, and a proven bound for large ones."""

from itertools import product

import highspy
import numpy as np
from numpy.typing import NDArray

from shardbench.accounting import INDEX_BYTES, LENGTH_BYTES
from shardbench.errors import BadInput
from shardbench.load import VECTOR_BYTES
from shardbench.problem import Problem
from shardbench.validate import memory_bytes

from .rule import Tiers, added_bytes
from .search import communication_s
from .shape import find_homes, make_plan, runnable
from .units import Floats, is_split, link_shares, make_units

MAX_PLANS = 50_000


def best_of_all(problem: Problem, limit_bytes: int, step: int) -> tuple[float, Tiers]:
    """Smallest expected communication seconds of all plans that cut each table at multiples of ``step`` rows.

    Tables are sequences; raises BadInput for more than 50,000 plans.
    """
    _check_split(problem)
    homes = find_homes(problem, over_all=False)
    cuts = []
    for table in problem.tables:
        ends = sorted({*range(0, table.rows, step), table.rows})
        cuts.append([(a, b - a) for a in ends for b in ends if b >= a])
    if np.prod([float(len(options)) for options in cuts]) > MAX_PLANS:
        raise BadInput(f"problem {problem.name} has more than {MAX_PLANS} plans: use fewer tables or a larger step")
    best: tuple[float, Tiers] | None = None
    for chosen in product(*cuts):
        hot, warm = np.array(chosen, dtype=np.int64).T
        tiers = Tiers(hot=hot, warm=warm)
        if runnable(tiers, problem) != tiers:
            continue
        if memory_bytes(make_plan(problem, homes, tiers), problem).hbm.max() > limit_bytes:
            continue
        seconds = communication_s(problem, homes, tiers)
        if best is None or seconds < best[0]:
            best = seconds, tiers
    if best is None:
        raise BadInput(f"no plan of problem {problem.name} fits {limit_bytes} bytes a device")
    return best


def _check_split(problem: Problem) -> None:
    for table in problem.tables:
        if not is_split(table, problem.world_size):
            raise BadInput(f"table '{table.name}' is not split into tiers: leave it out of the problem")


def bound_s(problem: Problem, limit_bytes: int, time_limit_s: float = 60.0) -> float:
    """A proven lower bound on the expected communication seconds of any tiers, by a mixed-integer program.

    Row numbers are relaxed; whether a table has a cold and a warm tier at all is integer, since
    each costs a message of lengths. Tables are sequences; raises BadInput otherwise.
    """
    _check_split(problem)
    homes = find_homes(problem, over_all=False)
    none = np.zeros(len(problem.tables), dtype=np.int64)
    without = communication_s(problem, homes, Tiers(hot=none, warm=none))
    # Relaxed too: as if rows could be dealt evenly to a fraction.
    left = limit_bytes - sum(problem.weight_bytes(table) for table in problem.tables) / problem.world_size
    if left <= 0:
        return without
    return min(without, _Program(problem, left).solve(time_limit_s))


Terms = tuple[NDArray[np.int64], Floats]
"""Columns of the program and their coefficients in one row of it."""


class _Program:
    """The program of plans that replicate something.

    Columns are shares of runs, so between 0 and 1, and time is in microseconds: in bytes and
    seconds the coefficients would lie beyond the solver's tolerances.
    """

    def __init__(self, problem: Problem, left: float) -> None:
        self.problem, self.left = problem, left
        self.units, self.shares = make_units(problem, with_warm=True), link_shares(problem)
        self.solver = highspy.Highs()  # type: ignore[no-untyped-call]  # the package leaves its constructor untyped
        self.solver.setOptionValue("output_flag", False)
        n, tables = len(self.units.table), len(problem.tables)
        self.hot, self.warm = np.arange(n), n + np.arange(n)
        self.waits = 2 * n + np.arange(3)
        """Microseconds of the input, of the vectors (their gradients travel alike), of the synchronisation."""
        self.has_cold = 2 * n + 3 + np.arange(tables)
        self.has_warm = self.has_cold + tables
        self.sends = int(self.has_warm[-1]) + 1 + np.arange(2)
        """Whether lookups are exchanged at all, and whether vectors are."""
        upper = np.ones(2 * n + 5 + 2 * tables)
        upper[self.warm] = self.units.warm
        upper[self.waits] = highspy.kHighsInf
        self.solver.addVars(len(upper), np.zeros(len(upper)), upper)
        cost = np.array([1.0, 2.0, 1.0, *(2e6 * self._latency_s() for _ in self.sends)])
        self.solver.changeColsCost(5, np.concatenate([self.waits, self.sends]).astype(np.int32), cost)
        binary = np.concatenate([self.has_cold, self.has_warm, self.sends]).astype(np.int32)
        kinds = np.full(len(binary), highspy.HighsVarType.kInteger, dtype=object)
        self.solver.changeColsIntegrality(len(binary), binary, kinds)

    def solve(self, time_limit_s: float) -> float:
        """The program's proven bound, seconds."""
        self._memory()
        self._tiers_exist()
        self._exchanges()
        self._synchronisation()
        self.solver.setOptionValue("time_limit", time_limit_s)
        self.solver.setOptionValue("mip_rel_gap", 1e-4)
        self.solver.run()
        return 1e-6 * float(self.solver.getInfo().mip_dual_bound) + self._latency_s()

    def _row(self, low: float, high: float, *terms: Terms) -> None:
        index = np.concatenate([at for at, _ in terms]).astype(np.int32)
        self.solver.addRow(low, high, len(index), index, np.concatenate([value for _, value in terms]))

    def _memory(self) -> None:
        n = len(self.hot)
        warm, hot = added_bytes(self.units, self.problem)
        parts = self.units.number / self.left
        self._row(-highspy.kHighsInf, 1.0, (self.hot, hot * parts), (self.warm, warm * parts))
        # A run's hot and warm shares together are at most 1.
        index = np.stack([self.hot, self.warm], axis=1).ravel().astype(np.int32)
        starts = np.arange(0, 2 * n, 2, dtype=np.int32)
        self.solver.addRows(
            n, np.full(n, -highspy.kHighsInf), np.ones(n), 2 * n, starts, index, np.ones(2 * n)
        )  # fmt: skip

    def _tiers_exist(self) -> None:
        one = np.ones(1)
        for t, table in enumerate(self.problem.tables):
            own = np.flatnonzero(self.units.table == t)
            share = self.units.number[own] / table.rows
            self._row(
                1.0, highspy.kHighsInf, (self.hot[own], share), (self.warm[own], share), (self.has_cold[[t]], one)
            )
            self._row(-highspy.kHighsInf, 0.0, (self.warm[own], share), (self.has_warm[[t]], -one))
            for tier in (self.has_cold, self.has_warm):
                self._row(0.0, highspy.kHighsInf, (self.sends[[0]], one), (tier[[t]], -one))
            looked_up = own[self.units.exchanged[own] > 0]
            share = self.units.number[looked_up] / self.units.number[looked_up].sum()
            if len(looked_up):
                self._row(1.0, highspy.kHighsInf, (self.sends[[1]], one), (self.hot[looked_up], share))

    def _rates(self) -> tuple[float, float]:
        constants = self.problem.machine.constants
        return 1e-6 * constants.intra_bytes_per_s, 1e-6 * constants.inter_bytes_per_s

    def _exchanges(self) -> None:
        units, shares, problem = self.units, self.shares, self.problem
        dims = np.array([table.dim for table in problem.tables])[units.table]
        lookups = units.number * units.exchanged / (INDEX_BYTES + 2.0 * VECTOR_BYTES * dims)
        # Lengths go to every rank of a group alike: as many times what is dealt as the group has ranks.
        lengths = np.full(len(problem.tables), float(problem.batch_size // problem.world_size * LENGTH_BYTES))
        for link, rate in enumerate(self._rates()):
            for wait, each in ((0, lookups * INDEX_BYTES), (1, lookups * VECTOR_BYTES * dims)):
                cold, warm = each * shares.cold[link] / rate, each * shares.warm[link] / rate
                # wait >= cold (1 - hot - warm) + warm
                terms: list[Terms] = [(self.waits[[wait]], np.ones(1)), (self.hot, cold), (self.warm, cold - warm)]
                if wait == 0:
                    there = lengths * problem.world_size * shares.cold[link] / rate
                    in_node = lengths * problem.topology.devices_per_node * shares.warm[link] / rate
                    terms += [(self.has_cold, -there), (self.has_warm, -in_node)]
                self._row(float(cold.sum()), highspy.kHighsInf, *terms)

    def _synchronisation(self) -> None:
        weights = self.units.number * self.units.weights
        for link, rate in enumerate(self._rates()):
            hot, warm = (weights * share[link] / rate for share in (self.shares.hot_sync, self.shares.warm_sync))
            self._row(0.0, highspy.kHighsInf, (self.waits[[2]], np.ones(1)), (self.hot, -hot), (self.warm, -warm))

    def _latency_s(self) -> float:
        """Of one collective: the synchronisation has one, each of the two exchanges two (splits or the way back)."""
        constants, topology = self.problem.machine.constants, self.problem.topology
        first = constants.inter_latency_s if topology.nodes > 1 else constants.intra_latency_s
        return first + constants.peer_latency_s * (topology.world_size - 1)
