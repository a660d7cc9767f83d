"""Any strategy under constraints: tables that break one are placed anew, and a plan that then breaks one is refused.

Most strategies know nothing of constraints (their problem has the memory that is left). What they place
against them is few tables as a rule: each is put where least is looked up, dearest table first. A strategy that plans
``under`` constraints keeps all of them by itself where it can.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.base.errors import Infeasible, InvalidPlan
from shardbench.engine.processes.failures import failed
from shardbench.model.constraints import (
    ANY_PLAN,
    CACHE_RATIO,
    TYPES,
    Constraints,
    types_of,
)
from shardbench.model.plan import OnRank, Plan, Replicated, RowWise, Segment, ShardingGroups, Tier, whole_table
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Strategy, TableLimits
from shardbench.model.table import Table
from shardbench.model.validate import COLUMN_MULTIPLE, memory_bytes
from shardbench.records.trial import Failure, Outcome
from shardbench.trials.evaluate import Answer, Planner, Question, evaluate
from shardbench.trials.planning import StandIn, traits_of

J = TypeVar("J")

EVERYWHERE = frozenset({"row_wise", "data_parallel"})
"""Types of which every device has a part."""
TABLE_MOVES = frozenset({Move.TABLE, Move.COLUMNS, Move.ROWS, Move.REPLICATE})


class Constrained(StandIn):
    """A strategy whose plans are mended to keep constraints; notes say how many tables were placed anew.

    Its problems are those that the constraints are ``applied`` to. Tables that must be on every device are set aside
    before one plans that does not keep types itself: afterwards, the room may be gone.
    """

    def __init__(self, inner: Strategy, constraints: Constraints) -> None:
        types = {name: frozenset(types_of(one)) for name, one in constraints.sharding_types.items()}
        tiers = {name: frozenset(one) for name, one in constraints.tiers.items()}
        groups = constraints.same_device, constraints.same_node
        self.inner = inner.under(
            TableLimits(types, tiers, *groups, constraints.least_columns, constraints.cache_ratios)
        )
        self.constraints = constraints.when_applied
        self._keeps_types = self.inner is not inner
        self.name = inner.name
        self.moves = inner.moves | TABLE_MOVES | _tier_moves(constraints)
        # What is placed anew is chosen by tables and profiles, whatever the strategy sees.
        self.sees = inner.sees | {Sees.TABLES, Sees.ACCESS_PROFILE}  # type: ignore[misc]
        self.requires = inner.requires  # type: ignore[misc]
        self.traits = traits_of(inner)

    def fit(self, problems: Sequence[Problem], budget: Budget, seed: int) -> None:
        """Let the strategy learn from what it declared."""
        self.inner.fit([problem.restricted_to(self.inner.sees) for problem in problems], budget, seed)

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """Plan, and place anew what breaks a constraint; raises Infeasible where a table has no place to keep them."""
        segments = [] if self._keeps_types else _everywhere(problem, self.constraints)
        rest = _without(segments, problem, self.sees)
        if rest is None:
            return _mend(
                self.inner.plan(problem.restricted_to(self.inner.sees), budget, seed), problem, self.constraints
            )
        try:
            rest_plan = self.inner.plan(rest.restricted_to(self.inner.sees), budget, seed)
        except Infeasible:
            set_aside = Plan(world_size=problem.world_size, segments=tuple(segments))
            return _all_anew(set_aside, problem, self.constraints)
        return _mend(replace(rest_plan, segments=(*rest_plan.segments, *segments)), problem, self.constraints)


def under(constraints: Constraints, strategy: Strategy) -> Strategy:
    """Return the strategy under constraints; itself where every plan keeps these."""
    return strategy if constraints == ANY_PLAN else Constrained(strategy, constraints)


def _tier_moves(constraints: Constraints) -> frozenset[Move]:
    tiers = {tier for tiers in constraints.tiers.values() for tier in tiers}
    cache_moves = {Move.CACHE} if Tier.CACHED in tiers else set()
    return frozenset(cache_moves | ({Move.UVM} if tiers - {Tier.HBM} else set()))


def evaluate_under(
    constraints: Constraints,
    question: Question[J],
    strategy: Strategy,
    budget: Budget,
    seed: int,
    *,
    slack: float,
    planner: Planner | None = None,
) -> Answer[J] | Failure:
    """Evaluate here, or by ``planner``, what ``under`` gives; a plan that breaks a constraint is invalid.

    The question is of ``constraints.applied``.
    """
    answer = evaluate(question, under(constraints, strategy), budget, seed, sealed=False, slack=slack, planner=planner)
    if isinstance(answer, Failure) or constraints == ANY_PLAN:
        return answer
    try:
        constraints.when_applied.check(answer.plan, question.problem)
    except InvalidPlan as error:
        return failed(Outcome.INVALID, str(error), "validate", error.rule).failure
    return answer


def _everywhere(problem: Problem, constraints: Constraints) -> list[Segment]:
    """Place the tables that may have one type alone, of which every device has a part."""
    everyone = tuple(range(problem.world_size))
    members = {name for group in (*constraints.same_device, *constraints.same_node) for name in group}
    segments = []
    for table in problem.tables:
        types = constraints.sharding_types.get(table.name, ())
        if table.name in members or len(types) != 1 or Tier.HBM not in constraints.tiers.get(table.name, Tier):
            continue
        if types[0] == "data_parallel":
            segments.append(whole_table(table, Replicated(ranks=everyone)))
        elif types[0] == "row_wise" and 1 < len(everyone) <= table.rows:
            segments.append(whole_table(table, RowWise(ranks=everyone)))
    return segments


def _without(segments: list[Segment], problem: Problem, sees: frozenset[Sees]) -> Problem | None:
    """Return the problem of the other tables, in the memory that these leave; None where there are or is none."""
    names = {segment.table for segment in segments}
    pairs = [(t, p) for t, p in zip(problem.tables, problem.profiles) if t.name not in names]
    if not segments or not pairs or Sees.INPUTS in sees:
        return None
    taken_bytes = int(memory_bytes(Plan(world_size=problem.world_size, segments=tuple(segments)), problem).hbm.max())
    if taken_bytes >= problem.topology.hbm_bytes:
        return None
    topology = replace(problem.topology, hbm_bytes=problem.topology.hbm_bytes - taken_bytes)
    machine = replace(problem.machine, topology=topology) if Sees.MACHINE in sees else problem.machine
    tables, profiles = zip(*pairs)
    return replace(problem, tables=tables, profiles=profiles, topology=topology, machine=machine)


def _mend(plan: Plan, problem: Problem, constraints: Constraints) -> Plan:
    """Return the plan with those tables placed anew that break a constraint."""
    groups = _groups(plan, problem, constraints)
    if not groups:
        return plan
    try:
        return _place_anew(plan, groups, problem, constraints)
    except Infeasible:
        # What the strategy placed leaves them no room: memory first, all tables are placed anew.
        return _all_anew(plan, problem, constraints)


def _all_anew(plan: Plan, problem: Problem, constraints: Constraints) -> Plan:
    """Place all tables, the largest first, each where least is looked up or, if that fails, where most room is left.

    Raises Infeasible where one has no room.
    """
    groups = [(group, "device") for group in constraints.same_device]
    groups += [(group, "node") for group in constraints.same_node]
    members = {name for group, _ in groups for name in group}
    groups += [((table.name,), "anywhere") for table in problem.tables if table.name not in members]
    try:
        return _place_anew(plan, groups, problem, constraints, by_size=True)
    except Infeasible:
        return _place_anew(plan, groups, problem, constraints, by_size=True, by_room=True)


def _place_anew(
    plan: Plan,
    groups: list[tuple[tuple[str, ...], str]],
    problem: Problem,
    constraints: Constraints,
    *,
    by_size: bool = False,
    by_room: bool = False,
) -> Plan:
    """Place some tables of a plan anew, the dearest first or the largest; raises Infeasible without room."""
    tables = {table.name: table for table in problem.tables}
    names = {name for group, _ in groups for name in group}
    placing = _Placing(
        [s for s in plan.segments if s.table not in names],
        problem,
        constraints,
        sharding_groups=plan.groups,
        by_room=by_room,
    )
    weight = {name: problem.weight_bytes(table) for name, table in tables.items()} if by_size else placing.work_of
    spread = {
        name for name, types in constraints.sharding_types.items() if by_size and EVERYWHERE.issuperset(types_of(types))
    }
    # What every device must have a part of comes first: it cannot go where room is left.
    order = sorted(groups, key=lambda entry: (spread.isdisjoint(entry[0]), -sum(weight[name] for name in entry[0])))
    for group, where in order:
        placing.place([tables[name] for name in group], where)
    return replace(plan, segments=tuple(placing.segments), notes={**plan.notes, "placed_anew": len(names)})


def _groups(plan: Plan, problem: Problem, constraints: Constraints) -> list[tuple[tuple[str, ...], str]]:
    """List the tables that are to be placed anew, together, and where: on one device, on one node, or anywhere."""
    broken = list(dict.fromkeys(names for names, _ in constraints.broken(plan, problem)))
    together = (*constraints.same_device, *constraints.same_node)
    alone = {name for names in broken if names not in together for name in names}
    groups = [(group, "device") for group in constraints.same_device if group in broken]
    # One that is placed anew for its type would leave the others.
    groups += [(group, "node") for group in constraints.same_node if group in broken or not alone.isdisjoint(group)]
    members = {name for group, _ in groups for name in group}
    return groups + [(names, "anywhere") for names in broken if names not in together and members.isdisjoint(names)]


class _Placing:
    """Segments so far, and what is looked up and held on each device."""

    def __init__(
        self,
        segments: list[Segment],
        problem: Problem,
        constraints: Constraints,
        *,
        sharding_groups: ShardingGroups | None,
        by_room: bool,
    ) -> None:
        self.sharding_groups, self.by_room = sharding_groups, by_room
        self.segments, self.problem, self.constraints = segments, problem, constraints
        hbm = np.array(constraints.device_bytes(problem.topology), dtype=np.float64)
        # Bytes that are left by tier, HBM and UVM, and by rank.
        self.room: Floats = np.stack([hbm, np.full(hbm.shape, float(problem.topology.uvm_bytes))])
        self.work: Floats = np.zeros(problem.world_size)
        self.work_of = {
            table.name: profile.mean_pooling * table.dim
            for table, profile in zip(problem.tables, problem.profiles, strict=True)
        }
        for segment in segments:
            self._hold([segment])

    def place(self, tables: list[Table], where: str) -> None:
        """Place tables together; raises Infeasible where there is no room or no type."""
        topology = self.problem.topology
        if where == "anywhere":
            spaces = [tuple(range(topology.world_size))]
        elif where == "node":
            spaces = [topology.node_ranks(node) for node in range(topology.nodes)]
        else:
            spaces = [(rank,) for rank in range(topology.world_size)]
        spaces.sort(key=lambda ranks: float(self.work[list(ranks)].mean()))
        for ranks in spaces:
            before = self.segments[:], self.room.copy(), self.work.copy()
            if all(self._table(table, ranks) for table in tables):
                return
            self.segments, self.room, self.work = before
        for table in tables:
            if not any(self._forms(table, ranks) for ranks in spaces):
                raise Infeasible(f"constraints: {self._no_form(table, where)}")
        names = ", ".join(table.name for table in tables)
        needed_bytes = sum(self.problem.weight_bytes(table) for table in tables)
        raise Infeasible(
            f"constraints: no {where.replace('anywhere', 'device')} has room for {names}, "
            f"{needed_bytes} bytes; a device has up to {self.room[0].max():.0f} left, "
            f"all have {self.room[0].clip(min=0.0).sum():.0f}"
        )

    def _table(self, table: Table, ranks: tuple[int, ...]) -> bool:
        for segments in self._forms(table, ranks):
            used_bytes = self._bytes(segments)
            if (used_bytes <= self.room).all():
                self._hold(segments)
                self.segments += segments
                return True
        return False

    def _no_form(self, table: Table, where: str) -> str:
        """Say that a table's constraints leave it no form there, and which they are."""
        types = ", ".join(self.constraints.sharding_types.get(table.name, TYPES))
        tiers = ", ".join(self.constraints.tiers.get(table.name, (Tier.HBM,)))
        together = "" if where == "anywhere" else f" on one {where}"
        return (
            f"table '{table.name}' ({table.rows} x {table.dim}) may be {types} in {tiers}{together} alone, which the "
            f"strategy did not make of it and which cannot be placed here: allow it another type or memory"
        )

    def _forms(self, table: Table, ranks: tuple[int, ...]) -> list[list[Segment]]:
        """Forms within some ranks that the table may have, the simplest first."""
        topology, types = self.problem.topology, self.constraints.sharding_types.get(table.name)
        choices = set(TYPES if types is None else types_of(types, table))
        everyone = tuple(range(topology.world_size))
        nodes = [topology.node_ranks(node) for node in range(topology.nodes)]
        inside = [node for node in nodes if set(node) <= set(ranks) and 1 < len(node) < len(everyone)]
        forms = []
        for tier in self.constraints.tiers.get(table.name, (Tier.HBM,)):
            ratio = self.constraints.cache_ratios.get(table.name, CACHE_RATIO) if tier is Tier.CACHED else None
            room = self.room[0 if tier is Tier.HBM else 1]
            order = sorted(ranks, key=lambda rank: -room[rank] if self.by_room else self.work[rank])
            if "table_wise" in choices:
                forms += [[whole_table(table, OnRank(rank=rank, tier=tier, cache_ratio=ratio))] for rank in order]
            if "data_parallel" in choices and ranks == everyone and tier is Tier.HBM:
                forms.append([whole_table(table, Replicated(ranks=everyone))])
            most = min(len(ranks), table.dim // self.constraints.least_columns.get(table.name, COLUMN_MULTIPLE))
            shards = (n for n in (2, 4, 8, 16) if n <= most and table.dim % (n * COLUMN_MULTIPLE) == 0)
            if "column_wise" in choices:
                forms += [column_ranges(table, order[:n], tier, ratio) for n in shards]
            groups = inside if "table_row_wise" in choices else []
            groups = [*groups, everyone] if "row_wise" in choices and ranks == everyone and len(ranks) > 1 else groups
            forms += [
                [whole_table(table, RowWise(ranks=ways, tier=tier, cache_ratio=ratio))]
                for ways in groups
                if table.rows >= len(ways)
            ]
        return forms

    def _bytes(self, segments: list[Segment]) -> Floats:
        plan = Plan(world_size=self.problem.world_size, segments=tuple(segments), groups=self.sharding_groups)
        memory = memory_bytes(plan, self.problem)
        return np.stack([memory.hbm, memory.uvm]).astype(np.float64)

    def _hold(self, segments: list[Segment]) -> None:
        self.room -= self._bytes(segments)
        for segment in segments:
            place = segment.placement
            table = next(table for table in self.problem.tables if table.name == segment.table)
            ranks = [place.rank] if isinstance(place, OnRank) else list(getattr(place, "ranks", range(len(self.work))))
            share = segment.columns / table.dim * segment.rows / table.rows / len(ranks)
            self.work[ranks] += self.work_of[segment.table] * share


def column_ranges(
    table: Table, ranks: Sequence[int], tier: Tier = Tier.HBM, cache_ratio: float | None = None
) -> list[Segment]:
    """Return the table in as many equal ranges of columns as there are ranks, each on one of them."""
    width, places = table.dim // len(ranks), [OnRank(rank=r, tier=tier, cache_ratio=cache_ratio) for r in ranks]
    return [whole_table(table, place, (i * width, (i + 1) * width)) for i, place in enumerate(places)]
