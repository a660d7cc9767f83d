"""Minimise the slowest device: proven bound, packing, then small programs that mend the slowest (deviation 1)."""

import itertools
import time
from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.base.errors import Infeasible
from shardbench.model.problem import Problem

from .assign import Assignment, fill, lowered, pack, reached, sums_of, topped_up
from .milp import Program, Solution, SolverFailed
from .relaxation import hull, relax
from .steps import RowSteps

GAP = 0.01
"""The proven relative distance to the bound at which the search ends."""
STARTS = 8
"""Packing orders that are tried."""
CHOICES = (8, 24)
"""Choices a table keeps in the program of some devices: the cheapest at the relaxation's prices."""
EXACT_BINARIES = 6000
"""Size up to which the whole program goes to the solver."""
EXACT_NODES = 2000
PART_NODES = 200
PARTNERS = 12
"""Groups of devices that are tried with the slowest one, of each size."""
TINY = 1e-300
ROUNDS = 200
"""Small programs in all; like the limits on nodes they end the search before the clock does."""


@dataclass(frozen=True, kw_only=True)
class ProvenPlan:
    """The best plan and the proven bound, in milliseconds."""

    best: Assignment
    """Devices, and the last choices that ``rows`` hold."""
    rows: Ints
    """Rows in HBM, int64 [tables]."""
    slowest_ms: float
    """Time of the slowest device at those choices."""
    bound_ms: float
    status: str
    """The reason that the search ended."""

    @property
    def gap(self) -> float:
        """Proven relative distance of the slowest device to the optimum, 0 to 1."""
        return relative_gap(self.bound_ms, self.slowest_ms)


def relative_gap(bound_ms: float, slowest_ms: float) -> float:
    """Return the relative distance of the slowest device to the bound, 0 to 1."""
    return max(0.0, 1.0 - bound_ms / slowest_ms) if slowest_ms > 0.0 else 0.0


def minimise(steps: RowSteps, problem: Problem, seed: int, deadline: float) -> ProvenPlan:
    """Return the best plan found by ``deadline`` (time.monotonic).

    Raises Infeasible where there is none (SolverFailed where the solver fails before there is one)
    and TimeoutError where none was found in time. A solver that fails later ends the search.
    """
    search = _Search(steps, problem, deadline)
    search.start(seed)
    try:
        search.improve()
    except SolverFailed:
        if search.best is None:
            raise
        search.failed = True
    return search.proven_plan()


class _Search:
    """The incumbent and the bound, and the steps that improve them."""

    def __init__(self, steps: RowSteps, problem: Problem, deadline: float) -> None:
        self.steps, self.problem, self.corners = steps, problem, hull(steps)
        self.deadline = deadline
        self.best: Assignment | None = None
        self.slowest_ms = np.inf
        self.bound_ms, self.priced_ms = relax(steps, problem, deadline)
        self.world = problem.world_size
        self.failed = False
        """True once the solver failed on one of the programs."""

    @property
    def gap(self) -> float:
        return relative_gap(self.bound_ms, self.slowest_ms)

    @property
    def late(self) -> bool:
        return time.monotonic() >= self.deadline

    def offer(self, assignment: Assignment) -> bool:
        """Take a plan if it is better; return whether it was."""
        slowest = float(assignment.times_ms(self.steps, self.world).max())
        better = assignment.fits(self.steps, self.problem.topology, self.world) and slowest < self.slowest_ms
        if better:
            self.best, self.slowest_ms = assignment, slowest
        return better

    def start(self, seed: int) -> None:
        """Take the best of some packings, if any fits: every table at the relaxation's choice, then HBM filled."""
        steps, topology = self.steps, self.problem.topology
        rng = np.random.default_rng(seed)
        choice = steps.argleast(self.priced_ms)
        even = max(float(steps.cost_ms[choice].sum()) / self.world, TINY)
        keys = np.maximum(steps.cost_ms[choice] / even, steps.hbm_bytes[choice] / topology.hbm_bytes)
        keys = np.maximum(keys, steps.uvm_bytes[choice] / max(1, topology.uvm_bytes))
        for attempt in range(STARTS):
            # Largest first; after the first attempt with noise that grows.
            noise = rng.lognormal(sigma=0.1 * attempt, size=len(keys)) if attempt else 1.0
            device = pack(steps, self.problem, choice, np.argsort(-keys * noise, kind="stable"))
            if device is not None:
                self.offer(fill(steps, self.problem, device, steps.first[:-1], self.corners))
            if self.gap <= GAP or self.late:
                return

    def improve(self) -> None:
        """Let the solver have the whole program where it is small, else find a first plan if need be; then mend."""
        if self.gap > GAP and self.world * len(self.steps.table) <= EXACT_BINARIES:
            self.exactly()
        elif self.best is None:
            self.first()
        if self.gap > GAP:
            self.mend()

    def exactly(self) -> None:
        """Solve the whole program, whose bound counts."""
        all_choices = np.arange(len(self.steps.table))
        tables = np.arange(self.steps.tables)
        solution = self._solve(tables, self.world, all_choices, start=self.best, nodes=EXACT_NODES, gap=GAP)
        if solution.infeasible and self.best is None:
            topology = self.problem.topology
            raise Infeasible(
                f"no plan fits {self.world} devices with {topology.hbm_bytes} bytes of HBM and {topology.uvm_bytes} of "
                "UVM each where every table stays on one device"
            )
        self.bound_ms = max(self.bound_ms, min(solution.bound_ms, self.slowest_ms))
        self._offer_solution(solution)

    def first(self) -> None:
        """Find a first plan where packing found none: any solution of the program with three choices a table."""
        steps = self.steps
        keep = np.concatenate([steps.first[:-1], steps.argleast(self.priced_ms), steps.first[1:] - 1])
        keep = np.unique(keep)
        self._offer_solution(
            self._solve(np.arange(steps.tables), self.world, keep, start=None, nodes=EXACT_NODES, gap=1.0)
        )

    def _offer_solution(self, solution: Solution) -> None:
        if solution.assignment is not None:
            self.offer(solution.assignment)

    def mend(self) -> None:
        """Solve programs of the slowest device with others while they help, first with few choices a table."""
        rounds = 0
        while self.best is not None and self.gap > GAP:
            slowest_first = _groups(self.best.times_ms(self.steps, self.world))
            for devices, most in ((devices, most) for most in CHOICES for devices in slowest_first):
                rounds += 1
                if self.late or rounds > ROUNDS:
                    return
                if self._mend(self.best, devices, most):
                    break
            else:
                return

    def _mend(self, best: Assignment, devices: Ints, most: int) -> bool:
        tables = np.flatnonzero(np.isin(best.device, devices))
        names = np.searchsorted(devices, best.device[tables])
        own = best.choice[tables]
        choices = np.union1d(self._cheapest(tables, most), own)
        part = Assignment(device=names, choice=own)
        solution = self._solve(tables, len(devices), choices, start=part, nodes=PART_NODES, gap=GAP / 4)
        if solution.assignment is None:
            return False
        device, choice = best.device.copy(), best.choice.copy()
        device[tables], choice[tables] = devices[solution.assignment.device], solution.assignment.choice
        before = np.sort(best.times_ms(self.steps, self.world))[::-1]
        candidate = Assignment(device=device, choice=choice)
        after = np.sort(candidate.times_ms(self.steps, self.world))[::-1]
        # Several devices may be equally slow: the sorted times must fall.
        differs = np.flatnonzero(np.abs(after - before) > 1e-9 * before[0])
        if not len(differs) or after[differs[0]] > before[differs[0]]:
            return False
        if not candidate.fits(self.steps, self.problem.topology, self.world):
            return False
        self.best, self.slowest_ms = candidate, float(after[0])
        return True

    def _cheapest(self, tables: Ints, most: int) -> Ints:
        of = self.steps.of(tables)
        order = of[np.lexsort((of, self.priced_ms[of], self.steps.table[of]))]
        place = np.searchsorted(self.steps.table[order], self.steps.table[order])
        return np.sort(order[np.arange(len(order)) - place < most])

    def _solve(
        self, tables: Ints, devices: int, choices: Ints, *, start: Assignment | None, nodes: int, gap: float
    ) -> Solution:
        program = Program(
            steps=self.steps, tables=tables, devices=devices, choices=choices, topology=self.problem.topology,
            reference_ms=max(self.bound_ms, float(self.steps.least(self.steps.cost_ms).max()), TINY),
        )  # fmt: skip
        enough_ms = self.bound_ms / (1.0 - 0.9 * GAP)
        return program.solve(start, gap=gap, nodes=nodes, deadline=self.deadline, enough_ms=enough_ms)

    def proven_plan(self) -> ProvenPlan:
        """Return the plan that the search ends with; raises TimeoutError where there is none."""
        if self.best is None:
            raise TimeoutError("the search found no plan within its budget, nor that there is none; raise plan_s")
        frugal = Assignment(device=self.best.device, choice=lowered(self.steps, self.best.choice))
        rows = topped_up(self.steps, self.problem, frugal)
        if not self._uvm_holds(self.best.device, rows):
            rows = topped_up(self.steps, self.problem, self.best)
        best = Assignment(device=self.best.device, choice=reached(self.steps, rows))
        slowest = float(best.times_ms(self.steps, self.world).max())
        return ProvenPlan(
            best=best, rows=rows, slowest_ms=slowest, bound_ms=self.bound_ms, status=self._status(slowest)
        )

    def _uvm_holds(self, device: Ints, rows: Ints) -> bool:
        problem = self.problem
        sizes = [problem.weight_bytes(t) // t.rows * (t.rows - hot) for t, hot in zip(problem.tables, rows.tolist())]
        needed = sums_of(np.array(sizes, dtype=np.int64), device, self.world)
        return bool((needed <= problem.topology.uvm_bytes).all())

    def _status(self, slowest_ms: float) -> str:
        if slowest_ms * (1.0 - GAP) <= self.bound_ms:
            return f"optimal within {100.0 * GAP:g} %"
        if self.failed:
            return "solver failed"
        return "time limit" if self.late else "search limit"


def _groups(times_ms: Floats) -> list[Ints]:
    """Return groups of the slowest device with the fastest, the next fastest ...; then groups with two of them."""
    order = np.argsort(times_ms, kind="stable")
    others = order[:-1].tolist()
    groups = [rest for size in (1, 2) for rest in itertools.islice(itertools.combinations(others, size), PARTNERS)]
    return [np.sort(np.array([order[-1], *rest])) for rest in groups]
