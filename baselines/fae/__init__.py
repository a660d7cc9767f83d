"""FAE (VLDB 2022): hot rows on every device, the rest on the CPUs, and pure hot and cold mini-batches."""

from collections.abc import Iterable
from dataclasses import dataclass

from shardbench.base.errors import BadInput, Infeasible
from shardbench.model.plan import BatchSchedule, Host, Plan, Replicated, Segment, row_ranges
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Role, Strategy

from .calibrator import BUDGET_BYTES, HotChoice, calibrate, expected_hot_share
from .scheduler import START_RATE_PCT, check_rate, turns

SAMPLE_RATE = 0.05
"""Share of an epoch's inputs that the calibrator logs; the profile is that log (deviations 5 and 15)."""


@dataclass(kw_only=True, eq=False)
class Fae(Strategy):
    """Replicate the rows above an access threshold within a budget; schedule pure mini-batches at a rate."""

    name = "fae"
    sees = frozenset({Sees.TABLES, Sees.ACCESS_PROFILE, Sees.INPUTS})
    moves = frozenset({Move.TABLE, Move.ROWS, Move.REPLICATE, Move.HOST, Move.SCHEDULE})

    budget_bytes: int = BUDGET_BYTES
    rate_pct: float = START_RATE_PCT
    sample_rate: float = SAMPLE_RATE
    fill: bool = False

    def __post_init__(self) -> None:
        check_rate(self.rate_pct)
        if not 0.0 < self.sample_rate <= 1.0:
            raise BadInput(f"sample rate {self.sample_rate:g} is not within 0 (not 0 itself) and 1")

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """Replicate the hottest rows on all devices and leave the rest on hosts (no randomness).

        Where no hot mini-batch is expected, nothing is replicated and every mini-batch is cold: the
        note ``hot_batches`` is 0. Raises Infeasible where the budget, or a device, holds not one
        row, or the hosts not the rest.
        """
        choice = self._choose(problem)
        # Counted on inputs that chose no row, or, where there are none to look at, by columns (deviation 3).
        sample = problem.inputs
        share = expected_hot_share(problem.profiles, choice) if sample is None else sample.hot_share(choice.rows)
        cold, hot = self._epoch(problem, choice, share)
        nodes = _nodes(problem, choice.rows)
        ranks = tuple(range(problem.world_size))
        segments: list[Segment] = []
        for table, rows, node in zip(problem.tables, choice.rows, nodes):
            replicated_rows = rows if hot else 0
            segments += row_ranges(table, (replicated_rows, Replicated(ranks=ranks)), (table.rows, Host(node=node)))
        return Plan(
            world_size=problem.world_size,
            segments=tuple(segments),
            # What a hot mini-batch exchanges and a switch copies follows from it in the engine: deviations 6 and 7.
            schedule=BatchSchedule(phases=tuple(turns(cold, hot, self.rate_pct))),
            notes={
                "hot_rows": sum(choice.rows) if hot else 0,
                "hot_bytes": choice.bytes if hot else 0,
                "least_count": choice.least_count,
                "expected_hot_pct": 100.0 * share,
                "expected_from_inputs": int(sample is not None),
                "rate_pct": self.rate_pct,
                "hot_batches": hot,
                "cold_batches": cold,
            },
        )

    def _choose(self, problem: Problem) -> HotChoice:
        row_bytes = [problem.weight_bytes(table) // table.rows for table in problem.tables]
        limit_bytes = min(self.budget_bytes, problem.topology.hbm_bytes)
        try:
            return calibrate(problem.profiles, row_bytes, limit_bytes, fill=self.fill)
        except BadInput as error:
            raise Infeasible(str(error)) from error

    def _epoch(self, problem: Problem, choice: HotChoice, share: float) -> tuple[int, int]:
        """Return how many cold and how many hot mini-batches an epoch is expected to have."""
        inputs = problem.inputs.train_inputs if problem.inputs is not None else None
        if inputs is None:
            # No data set has an end here: the log is said to be a share of one (deviation 5).
            inputs = round(max(profile.samples for profile in problem.profiles) / self.sample_rate)
        total = max(1, round(inputs / problem.batch_size))
        if all(rows == table.rows for rows, table in zip(choice.rows, problem.tables)):
            return 0, total
        if not any(choice.rows):
            # Inputs without a lookup would be hot ones, but there is nothing to replicate for them.
            return total, 0
        hot = min(round(share * total), total - 1)
        return total - hot, hot


def _nodes(problem: Problem, hot_rows: tuple[int, ...]) -> list[int]:
    """Return the node of every table's master: largest first, each on the node with the most host memory left."""
    free = [problem.topology.host_bytes] * problem.topology.nodes
    nodes = [0] * len(problem.tables)
    if all(rows == table.rows for rows, table in zip(hot_rows, problem.tables)):
        return nodes
    for i in sorted(range(len(nodes)), key=lambda i: -problem.weight_bytes(problem.tables[i])):
        size = problem.weight_bytes(problem.tables[i])
        # What is wholly hot has its master on the first node (plan.master_node).
        node = 0 if hot_rows[i] == problem.tables[i].rows else max(range(len(free)), key=free.__getitem__)
        if size > free[node]:
            raise Infeasible(
                f"table '{problem.tables[i].name}' needs {size} bytes of host memory, "
                f"{free[node]} are left on node {node}"
            )
        free[node] -= size
        nodes[i] = node
    return nodes


@dataclass(kw_only=True, eq=False)
class Fae512(Fae):
    """FAE with twice the budget."""

    name = "fae-512mb"
    role = Role.VARIANT
    budget_bytes: int = 2 * BUDGET_BYTES


@dataclass(kw_only=True, eq=False)
class FaeFilled(Fae):
    """FAE with never-seen rows in what room is left, as the public code has it (deviation 14)."""

    name = "fae-filled"
    role = Role.VARIANT
    fill: bool = True


@dataclass(kw_only=True, eq=False)
class Fae20(Fae):
    """FAE with a log of 20 % of an epoch, as the public Taobao script has it (deviation 15)."""

    name = "fae-20pct"
    role = Role.VARIANT
    sample_rate: float = 0.2


@dataclass(kw_only=True, eq=False)
class Fae20Filled(Fae20):
    """FAE with a log of 20 % of an epoch and never-seen rows in what room is left (deviations 14 and 15)."""

    name = "fae-20pct-filled"
    fill: bool = True


def strategies() -> Iterable[Strategy]:
    """Return FAE with the public code's budget, and with twice as much, its log for Taobao, and its full budget."""
    return (Fae(), Fae512(), FaeFilled(), Fae20(), Fae20Filled())
