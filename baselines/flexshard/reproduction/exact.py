"""Finds the distance of the rule from the best: every plan of small problems, and a proven bound for large ones."""

from itertools import product

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.base.errors import BadInput
from shardbench.base.highs import highspy
from shardbench.cost.accounting import INDEX_BYTES, LENGTH_BYTES, SPLIT_BYTES
from shardbench.cost.collectives import all_reduce_latencies_s, latencies_s, switched_ratio
from shardbench.model.problem import Problem
from shardbench.model.validate import memory_bytes

from ..rule import RowTiers, added_bytes
from ..search import communication_s
from ..shape import find_homes, make_plan, runnable
from ..units import has_warm_tier, is_split, link_shares, make_units

MAX_PLANS, MAX_WIDTHS = 50_000, 2
TIME_LIMIT_S = 60.0
"""Seconds that the programs of one bound may take together."""
SPLITS, LOOKUPS, VECTORS, SYNCHRONISATION = range(4)
"""Numbers of what the collectives wait for, in the program."""


def best_of_all(problem: Problem, limit_bytes: int, step: int) -> tuple[float, RowTiers]:
    """Return the least expected communication seconds of all plans that cut each table at multiples of ``step`` rows.

    Plans have a warm tier only where it is one of its own. Tables are sequences; raises BadInput for more than 50,000
    plans.
    """
    _check_split(problem)
    homes = find_homes(problem, over_all=False)
    cuts, with_warm = [], has_warm_tier(problem.topology)
    for table in problem.tables:
        ends = sorted({*range(0, table.rows, step), table.rows})
        cuts.append([(a, b - a) for a in ends for b in ends if b == a or (b > a and with_warm)])
    if np.prod([float(len(options)) for options in cuts]) > MAX_PLANS:
        raise BadInput(f"problem {problem.name} has more than {MAX_PLANS} plans: use fewer tables or a larger step")
    best: tuple[float, RowTiers] | None = None
    for chosen in product(*cuts):
        hot, warm = np.array(chosen, dtype=np.int64).T
        tiers = RowTiers(hot=hot, warm=warm)
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


def bound_s(problem: Problem, limit_bytes: int) -> float:
    """Prove a lower bound on the expected communication seconds of any tiers, by a mixed-integer program.

    Row numbers are relaxed. Which tiers a table has at all is integer, since a cold or a warm one
    costs a message of lengths; so is which tiers the tables of a width have, since every one costs
    the latency of its calls. What chunks wait on GPUs is left out, so that the bound is loose there. Tables are
    sequences of at most two widths; raises BadInput otherwise.
    """
    _check_split(problem)
    widths = {table.dim for table in problem.tables}
    if len(widths) > MAX_WIDTHS:
        raise BadInput(f"problem {problem.name} has tables of {len(widths)} widths, the bound takes {MAX_WIDTHS}")
    homes = find_homes(problem, over_all=False)
    none = np.zeros(len(problem.tables), dtype=np.int64)
    without = communication_s(problem, homes, RowTiers(hot=none, warm=none))
    # Relaxed too: as if rows could be dealt evenly to a fraction.
    free_bytes = limit_bytes - sum(problem.weight_bytes(table) for table in problem.tables) / problem.world_size
    if free_bytes <= 0:
        return without
    # Which calls are made at all is not left to the solver: of large tables a tiny share is replicated, which would
    # pay as little of a latency in the relaxation. Every choice in which something is replicated is a program.
    choices = [np.array(choice) for choice in product((0.0, 1.0), repeat=3 * len(widths)) if any(choice[len(widths) :])]
    solved = [_Program(problem, free_bytes, choice).solve(TIME_LIMIT_S / len(choices)) for choice in choices]
    return min(without, *solved)


Terms = tuple[Ints, Floats]
"""Columns of the program and their coefficients in one row of it."""


class _Program:
    """The program of plans that make given calls: ``made`` [3 x widths] are 1 for those of cold, warm and hot tiers.

    Columns are shares of runs, so between 0 and 1, and time is in microseconds: in bytes and
    seconds the coefficients would lie beyond the solver's tolerances.
    """

    def __init__(self, problem: Problem, free_bytes: float, choice: Floats) -> None:
        self.problem, self.free_bytes = problem, free_bytes
        self.latencies_us = latencies_s(problem.machine).times(1e6)
        self.units, self.shares = make_units(problem, with_warm=True), link_shares(problem)
        self.solver = highspy.Highs()  # type: ignore[no-untyped-call]  # the package leaves its constructor untyped
        self.solver.setOptionValue("output_flag", False)
        n, tables = len(self.units.table), len(problem.tables)
        widths, self.width = np.unique([table.dim for table in problem.tables], return_inverse=True)
        ends = np.cumsum([0, n, n, 4, 1, tables, tables, *([len(widths)] * 3), 1, 1])
        columns = [np.arange(start, stop) for start, stop in zip(ends, ends[1:])]
        self.hot, self.warm, self.waits, self.vector_calls, *binary = columns
        """``waits``: microseconds of the bytes of splits, of lookups, of vectors (their gradients travel alike), of
        synchronisation; ``vector_calls``: of the latencies of the calls that return vectors."""
        self.has_cold, self.has_warm, self.cold_calls, self.warm_calls, self.replicas, self.copies, self.sends = binary
        """Columns of each table (cold or warm rows), of each width (exchanges over the cluster, in nodes, all-reduce
        of replicas), of the copies' all-reduce, and of whether any vectors are sent."""
        upper = np.ones(ends[-1])
        upper[self.warm] = self.units.warm
        upper[[*self.waits, *self.vector_calls]] = highspy.kHighsInf
        lower = np.zeros(ends[-1])
        calls = np.concatenate([self.cold_calls, self.warm_calls, self.replicas])
        lower[calls] = upper[calls] = choice
        world_us, node_us, _ = self.latencies_us[:3]
        replicas_us, _, copies_us = all_reduce_latencies_s(problem.machine).times(1e6)[:3]
        cost = np.zeros(ends[-1])
        cost[self.waits] = 1.0, 1.0, 2.0, 1.0
        cost[self.vector_calls] = 2.0
        # Lookups are three calls: splits, lengths, indices.
        cost[self.cold_calls], cost[self.warm_calls] = 3.0 * world_us, 3.0 * node_us
        cost[self.replicas], cost[self.copies] = replicas_us, copies_us
        self.solver.addVars(len(upper), lower, upper)
        self.solver.changeColsCost(len(cost), np.arange(len(cost), dtype=np.int32), cost)
        integer = np.concatenate(binary).astype(np.int32)
        kinds = np.full(len(integer), highspy.HighsVarType.kInteger, dtype=object)
        self.solver.changeColsIntegrality(len(integer), integer, kinds)

    def solve(self, time_limit_s: float) -> float:
        """Return the program's proven bound in seconds; infinite where it has no solution."""
        self._memory()
        self._tiers_exist()
        self._vector_calls()
        self._exchanges()
        self._synchronisation()
        self.solver.setOptionValue("time_limit", time_limit_s)
        self.solver.setOptionValue("mip_rel_gap", 1e-4)
        self.solver.run()
        if self.solver.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
            return float("inf")
        return 1e-6 * float(self.solver.getInfo().mip_dual_bound)

    def _row(self, low: float, high: float, *terms: Terms) -> None:
        index = np.concatenate([at for at, _ in terms]).astype(np.int32)
        self.solver.addRow(low, high, len(index), index, np.concatenate([value for _, value in terms]))

    def _memory(self) -> None:
        n = len(self.hot)
        warm, hot = added_bytes(self.units, self.problem)
        parts = self.units.number / self.free_bytes
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
            hot, warm = (self.hot[own], share), (self.warm[own], share)
            self._row(1.0, highspy.kHighsInf, hot, warm, (self.has_cold[[t]], one))
            self._at_most(warm, self.has_warm[[t]])
            self._at_most(warm, self.copies)
            self._at_most(hot, self.replicas[self.width[[t]]])
            self._at_most((self.has_cold[[t]], one), self.cold_calls[self.width[[t]]])
            self._at_most((self.has_warm[[t]], one), self.warm_calls[self.width[[t]]])
            with_lookups = own[self.units.exchanged[own] > 0]
            share = self.units.number[with_lookups] / self.units.number[with_lookups].sum()
            if len(with_lookups):
                self._row(1.0, highspy.kHighsInf, (self.sends, one), (self.hot[with_lookups], share))

    def _at_most(self, terms: Terms, column: Ints) -> None:
        self._row(-highspy.kHighsInf, 0.0, terms, (column, -np.ones(1)))

    def _vector_calls(self) -> None:
        """Make every exchange return vectors, empty or not, where any vectors are sent."""
        calls = np.concatenate([self.cold_calls, self.warm_calls])
        latency = np.repeat(self.latencies_us[:2], len(self.cold_calls))
        # vector_calls >= calls - all (1 - sends)
        at_most = np.full(1, latency.sum())
        terms = (self.vector_calls, np.ones(1)), (calls, -latency), (self.sends, -at_most)
        self._row(-float(at_most[0]), highspy.kHighsInf, *terms)

    def _rates(self) -> tuple[float, float]:
        constants = self.problem.machine.constants
        return 1e-6 * constants.intra_bytes_per_s, 1e-6 * constants.inter_bytes_per_s

    def _exchanges(self) -> None:
        units, shares, problem = self.units, self.shares, self.problem
        dims = np.array([table.dim for table in problem.tables])[units.table]
        number_bytes = problem.exchange.bytes
        lookups = units.number * units.exchanged / (INDEX_BYTES + 2.0 * number_bytes * dims)
        # Lengths go to every rank of a group alike: as many times what is dealt as the group has ranks.
        bags = problem.batch_size // problem.world_size * np.array([table.features for table in problem.tables])
        lengths = bags * float(LENGTH_BYTES)
        world, local = problem.world_size, problem.topology.devices_per_node
        for link, rate in enumerate(self._rates()):
            everywhere, in_node = world * shares.cold[link] / rate, local * shares.warm[link] / rate
            for wait, each in ((LOOKUPS, lookups * INDEX_BYTES), (VECTORS, lookups * number_bytes * dims)):
                cold, warm = each * shares.cold[link] / rate, each * shares.warm[link] / rate
                # wait >= cold (1 - hot - warm) + warm
                terms: list[Terms] = [(self.waits[[wait]], np.ones(1)), (self.hot, cold), (self.warm, cold - warm)]
                if wait == LOOKUPS:
                    terms += [(self.has_cold, -everywhere * lengths), (self.has_warm, -in_node * lengths)]
                self._row(float(cold.sum()), highspy.kHighsInf, *terms)
            each = np.full(len(self.cold_calls), float(SPLIT_BYTES))
            terms = [(self.cold_calls, -everywhere * each), (self.warm_calls, -in_node * each)]
            self._row(0.0, highspy.kHighsInf, (self.waits[[SPLITS]], np.ones(1)), *terms)

    def _synchronisation(self) -> None:
        weights = self.units.number * self.units.weights
        intra, inter = self._rates()
        for link, rate in enumerate((intra / switched_ratio(self.problem.machine), inter)):
            hot, warm = (weights * share[link] / rate for share in (self.shares.hot_sync, self.shares.warm_sync))
            wait = self.waits[[SYNCHRONISATION]], np.ones(1)
            self._row(0.0, highspy.kHighsInf, wait, (self.hot, -hot), (self.warm, -warm))
