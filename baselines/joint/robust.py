"""Chooses among the good plans that a search saw by all that is known of the machine, not by its constants alone.

All plans are rated under the same draws of the machine's constants and of the model's form. The draws have names of
their own: those that judge a plan (``shardbench.cost.uncertainty``) are others.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.cost.accounting import Sources
from shardbench.cost.costmodel import sources_s
from shardbench.cost.load import Load
from shardbench.cost.uncertainty import EXCHANGE_FORM, KERNEL_FORM, deviations, drawn_machines, p_larger, sure
from shardbench.model.machine import Machine
from shardbench.model.machine_file import uncertain
from shardbench.model.plan import Segment
from shardbench.model.problem import Problem

from .limits import Limits
from .pieces import TablePiece
from .planner import Planner
from .state import PlanState

OWN = "planned: "
"""How the names of draws begin by which plans are chosen."""
MOST = 12
"""Plans of a pool, at most."""
NEAR = 1.05
"""Times the shortest step beyond which a plan is not in the pool."""
DRAWS, LEAST_DRAWS = 64, 16
"""Draws under which plans are rated, and the fewest that say anything."""
RATE_S = 5e-4
"""Nominal seconds of rating a plan under one draw."""
RATED_SHARE = 0.1
"""Share of the budget for rating plans."""
TIED = 1.005
"""Times the best plan's rating up to which another one may be taken for its fewer calls."""
ROUNDING = 1e-9
"""Share of a step by which two sums of the same parts may differ."""
PHASES = 5
"""Kernels forward and backward, exchanges, all-reduces, and what the host's floor leaves beside these and the kernels
of the dense model. These are left out: they are the same for all plans, and where they are long all would tie."""


class SeenPlan:
    """A plan as a search had it: where every table was, and the sums that a step follows from."""

    def __init__(self, planner: Planner) -> None:
        self.menu, self.placed = planner.menu, dict(planner.placed)
        self.state = planner.state.with_sums(planner.state)

    @property
    def step_ms(self) -> float:
        """Milliseconds of the step that the search predicted, without the dense model."""
        return self.state.times().step_ms

    def broken(self, limits: Limits, problem: Problem) -> int:
        """Return how many tables are in a form that limits do not allow, and how many groups are not together."""
        menu, tables, places, broken = self.menu, problem.tables, defaultdict[str, list[slice]](list), 0
        for unit, placed in self.placed.items():
            option = menu.options[placed.option]
            for table in (tables[at] for at in menu.units[unit]):
                if limits.name(table):
                    cuts = [cut for cut in menu.cuts_of(option) if tables[cut.table] is table]
                    broken += not limits.allow(table, cuts, option.shards)
        if limits.devices or limits.nodes:
            for piece, ranks in self._pieces():
                places[tables[piece.cut.table].name].append(ranks)
        for groups, devices in ((limits.devices, 1), (limits.nodes, self.state.local)):
            for group in groups:
                at = [ranks for name in group for ranks in places[name]]
                broken += max(r.stop - 1 for r in at) // devices > min(r.start for r in at) // devices
        return broken

    def _pieces(self) -> Iterator[tuple[TablePiece, slice]]:
        """Yield the pieces unit by unit, and their devices."""
        for unit in sorted(self.placed):
            placed = self.placed[unit]
            for group, place in zip(self.menu.form(placed.option), placed.places, strict=True):
                yield from ((piece, self.state.ranks(piece, place)) for piece in group)

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """The segments of all tables."""
        tables, world = self.state.problem.tables, range(self.state.world)
        return tuple(p.cut.segment(tables[p.cut.table], world[at], p.columns[0]) for p, at in self._pieces())

    @cached_property
    def size(self) -> tuple[float, int]:
        """Calls of collectives a step, and segments: of two plans that tie, the smaller one is taken."""
        lookups, vectors, sums, reduced = self.state.calls()
        return 3 * sum(lookups) + 2 * sum(vectors) + 2 * sum(sums) + sum(reduced), sum(1 for _ in self._pieces())

    @cached_property
    def _load(self) -> Load:
        load, world = Load.zeros(self.state.world), self.state.world
        loads = np.array([piece.load for piece, _ in self._pieces()])
        first, after = np.array([(ranks.start, ranks.stop) for _, ranks in self._pieces()]).T
        # Pieces of one device, of a node and of the world: each kind is added up by itself.
        for devices in np.unique(after - first):
            alike, each = after - first == devices, np.zeros((world // devices, loads.shape[1]))
            np.add.at(each, first[alike] // devices, loads[alike])
            load.values[...] += each.repeat(devices, axis=0)
        return load

    @cached_property
    def _sources(self) -> Sources:
        return Sources(*sum((piece.sent for piece, _ in self._pieces()), start=np.zeros(len(Sources._fields))))

    def under(self, machine: PlanState) -> PlanState:
        """Return the plan's sums under the problem, and so the machine, of another state, which has nothing placed."""
        state = machine.with_sums(self.state)
        state.load = machine.kernels.numbers(self._load).T
        state.sources_ms = 1e3 * float(sources_s(self._sources, machine.constants))
        return state

    def phases_ms(self, machine: PlanState) -> Floats:
        """Return milliseconds by phase under the machine of a state that has nothing placed, [PHASES].

        They add up to the step that the cost model predicts, without the dense model's kernels. What a pipeline hides
        is taken off the exchanges, what else is hidden off the all-reduces.
        """
        state = self.under(machine)
        times, overlap = state.times(), state.overlap
        reduced = times.all_reduce + overlap.reduced_ms
        beside = min(times.hidden, reduced)
        exchanges = times.input + 2.0 * times.output + times.added + sum(times.converted) - (times.hidden - beside)
        phases = np.array([times.forward, times.backward, exchanges, reduced - beside, overlap.dense_ms])
        phases[-1] = max(0.0, 1e3 * state.constants.step_floor_s - float(phases.sum()))
        return phases


def drawn_form(machine: Machine, n: int, of: str) -> Floats:
    """Return factors by which the model's form is off under ``n`` draws ``of`` a plan, or of all, [n, PHASES].

    They are those of ``shardbench.cost.uncertainty``: of each part, or of the whole step where the machine says how far
    the ratios of steps are off. The factor that all plans share changes no order and is left out.
    """
    factors = np.ones((n, PHASES))
    if machine.trust is not None and machine.trust.pair_error is not None:
        own = deviations(f"{OWN}form of the step in {of}", n)
        return np.asarray(factors * machine.trust.pair_error ** (own[:, None] / np.sqrt(2.0)))
    for phase, error in enumerate((KERNEL_FORM, KERNEL_FORM, EXCHANGE_FORM, EXCHANGE_FORM)):
        factors[:, phase] = error ** deviations(f"{OWN}form of phase {phase} in {of}", n)
    return factors


def pooled(problem: Problem, seen: Sequence[SeenPlan]) -> list[SeenPlan]:
    """Return the distinct plans within ``NEAR`` of the shortest step, at most ``MOST``, the shortest step first."""
    nominal, pool = PlanState(problem), list[tuple[float, SeenPlan]]()
    order = sorted(((float(plan.phases_ms(nominal).sum()), number) for number, plan in enumerate(seen)))
    for step_ms, number in order:
        if step_ms > NEAR * order[0][0] or len(pool) == MOST:
            break
        # Equal plans have equal steps, but for rounding.
        alike = (plan for other_ms, plan in pool if step_ms - other_ms <= ROUNDING * step_ms)
        if all(seen[number].segments != plan.segments for plan in alike):
            pool.append((step_ms, seen[number]))
    return [plan for _, plan in pool]


def ranked(problem: Problem, pool: Sequence[SeenPlan], plan_s: float, deadline: float) -> list[SeenPlan]:
    """Return the pool, best first: by the mean step, but a plan that ties with the best one and has fewer calls leads.

    As many plans are rated, under as many draws, as ``plan_s`` seconds allow; the others follow as they are in the
    pool. It stays as it is on a machine that states no errors, and after the deadline.
    """
    affordable = int(RATED_SHARE * plan_s / RATE_S)
    n = min(DRAWS, max(LEAST_DRAWS, affordable // max(len(pool), 1)))
    candidates = list(pool[: affordable // n])
    is_known = problem.machine.errors.keys() >= set(uncertain(problem.machine))
    if len(candidates) < 2 or not is_known:
        return list(pool)
    drawn = drawn_machines(problem.machine, n, OWN)
    machines = [PlanState(replace(problem, machine=machine)) for machine in drawn]
    phases = np.zeros((len(candidates), len(machines), PHASES))
    for draw, machine in enumerate(machines):
        if time.monotonic() > deadline:
            return list(pool)
        phases[:, draw] = [plan.phases_ms(machine) for plan in candidates]
    order = best_first(phases, [plan.size for plan in candidates], problem.machine)
    return [*(candidates[number] for number in order), *pool[len(candidates) :]]


def best_first(phases: Floats, sizes: Sequence[tuple[float, int]], machine: Machine) -> list[int]:
    """Return plans' numbers by mean steps of ``phases`` [plans, draws, PHASES], the one taken for its size first.

    A plan ties with the best one if its rating is within ``TIED`` of the best one's and the draws do not tell for sure
    that it is slower, where the form of each plan is drawn by itself.
    """
    n = phases.shape[1]
    form = drawn_form(machine, n, "all plans")
    ratings = [float((one * form).sum(axis=1).mean()) for one in phases]
    order = sorted(range(len(phases)), key=lambda number: (ratings[number], number))
    own = [(one * drawn_form(machine, n, f"plan {number}")).sum(axis=1).tolist() for number, one in enumerate(phases)]

    def ties(number: int) -> bool:
        is_slower = number != order[0] and sure(p_larger([own[number]], [own[order[0]]]))
        return ratings[number] <= TIED * ratings[order[0]] and not is_slower

    first = min(filter(ties, order), key=lambda number: sizes[number])
    return [first, *(number for number in order if number != first)]
