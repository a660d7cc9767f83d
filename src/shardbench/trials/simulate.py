"""The simulated backend: exact counts of test batches, turned into time by the cost model."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.base.errors import Unsupported
from shardbench.cost.bounds.demand import count_demand, expected_demand
from shardbench.cost.bounds.step import DEVICE_MOVES, StepBounds, in_order, step_bound
from shardbench.cost.caching import CacheWork, counted_caches
from shardbench.cost.collectives import waits_s
from shardbench.cost.costmodel import StepTime, bound_by, step_time
from shardbench.cost.dense import DenseWork
from shardbench.cost.lookups import CountedLookups
from shardbench.cost.phases import WAITS, StepPhase
from shardbench.cost.traffic import Traffic, count, counted_lookups, expect, mean
from shardbench.cost.uncertainty import DRAWS, drawn_machines, form_of, judged_steps, with_form
from shardbench.model.caching import is_cached
from shardbench.model.expected import as_expected
from shardbench.model.machine import Machine
from shardbench.model.plan import DenseHome, Host, PhaseKind, Plan
from shardbench.model.problem import Problem
from shardbench.model.table import DenseShape, StepSchedule
from shardbench.records.record import Draws, RankTiming, Timing, TrafficTotals
from shardbench.trials.evaluate import Answer, Bounds, Question
from shardbench.workloads.hotness import hot_under, pack, take
from shardbench.workloads.materialise import Batches, BatchSource, DrawnBatches
from shardbench.workloads.trace import Bags
from shardbench.workloads.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Simulation:
    """Traffic and predicted times of some batches: test batches, or the pure mini-batches of a schedule.

    ``kinds`` are empty without a schedule; ``weights`` float64 [batches] are each mini-batch's share
    of all samples and add up to 1, and None where batches count alike.
    """

    traffics: tuple[Traffic, ...]
    times: tuple[StepTime, ...]
    machine: Machine
    kinds: tuple[PhaseKind, ...] = ()
    weights: Floats | None = None

    def share(self, kind: PhaseKind) -> float:
        """Return the share of the samples that are in mini-batches of this kind."""
        return float(sum(w for w, k in zip(self._shares, self.kinds) if k is kind))

    @property
    def _shares(self) -> Floats:
        return self.weights if self.weights is not None else np.full(len(self.times), 1.0 / len(self.times))

    @property
    def step_ms(self) -> float:
        """Mean step over samples, synchronisation included."""
        return float(self._shares @ [t.step_ms for t in self.times])

    @property
    def host_ms(self) -> float:
        """Mean time of the host that starts a step; ``StepTime.host_ms``."""
        return float(self._shares @ [t.host_ms for t in self.times])

    @property
    def bound_by(self) -> str:
        """The part that takes most of the step: host, kernels, exchange or dense."""
        return bound_by({name: self._phase_ms(name) for name in self.times[0].phases_ms}, self.host_ms)

    @cached_property
    def traffic(self) -> Traffic:
        """Return the mean traffic over samples."""
        return mean(self.traffics, self.weights)

    @property
    def embedding_ms(self) -> Floats:
        """Mean embedding time, forward and backward, by rank, float64 [world]."""
        times = np.array([t.embedding_ms for t in self.times])
        return np.asarray(times.mean(axis=0) if self.weights is None else self.weights @ times)

    @property
    def totals(self) -> TrafficTotals:
        """Return what a record keeps of the traffic."""
        return totals(self.traffic)

    @property
    def off_hbm_share(self) -> float:
        """Share of the lookups that leave HBM."""
        return self.totals.off_hbm_lookups / self.totals.lookups

    def timing(self, iterations: int, *, by_rank: bool = False) -> Timing:
        """Return what a record keeps of the times, for iterations that go through the batches in turn.

        ``by_rank`` adds every rank's phases, to be held against measured ones.
        Under a schedule every iteration is the mean step: a median over mini-batches would show one
        kind alone.
        """
        if self.weights is not None:
            steps = (self.step_ms,) * iterations
        else:
            steps = tuple(self.times[i % len(self.times)].step_ms for i in range(iterations))
        return Timing(
            step_ms=steps,
            phases_ms={name: self._phase_ms(name) for name in self.times[0].phases_ms},
            embedding_ms=tuple(self.embedding_ms.tolist()),
            ranks=self._ranks() if by_rank else None,
        )

    def _ranks(self) -> tuple[RankTiming, ...]:
        """Mean over samples; what is not told apart by rank is the same on all."""
        by_batch = [rank_phases_ms(traffic, time, self.machine) for traffic, time in zip(self.traffics, self.times)]
        mean_ms = {name: self._shares @ [phases[name] for phases in by_batch] for name in by_batch[0]}
        return tuple(
            RankTiming(phases_ms={name: float(ms[rank]) for name, ms in mean_ms.items()})
            for rank in range(self.machine.topology.world_size)
        )

    def draws(self, problem: Problem, dense: DenseShape, n: int = DRAWS) -> Draws | None:
        """Predict the same traffic under ``n`` draws of constants and form; None where the machine states no errors."""
        if not problem.machine.errors:
            return None
        form, trust = form_of(self.times), problem.machine.trust
        work = DenseWork.of(dense, problem.tables)
        simulations = [
            replace(self, times=_times(self.traffics, problem, dense, machine, work))
            for machine in drawn_machines(problem.machine, n)
        ]
        with_forms = [
            replace(one, times=tuple(with_form(t, i, form, n) for t in one.times)) for i, one in enumerate(simulations)
        ]
        steps = tuple(one.step_ms for one in with_forms)
        if trust is not None:
            # Pairs of plans judge the form of whole steps, which then takes the place of its parts' form.
            plain = steps if trust.pair_error is None else tuple(one.step_ms for one in simulations)
            steps = judged_steps(self.step_ms, plain, trust, form)
        return Draws(
            step_ms=tuple(map(_six_digits, steps)),
            embedding_ms=tuple(_six_digits(float(one.embedding_ms.max())) for one in with_forms),
        )

    def _phase_ms(self, name: StepPhase) -> float:
        phase = [t.phases_ms[name] for t in self.times]
        return float(np.median(phase) if self.weights is None else self.weights @ phase)


def rank_phases_ms(traffic: Traffic, time: StepTime, machine: Machine) -> dict[StepPhase, Floats]:
    """Milliseconds of each phase on each rank, float64 [world]: an exchange as if no rank waited for another."""
    own = {
        phase: 1e3 * np.sum([waits_s(name, traffic.collectives[name], machine) for name in names], axis=0)
        for phase, names in WAITS.items()
    }
    own[StepPhase.INPUT] += time.sources_ms + time.arrived_ms
    own[StepPhase.OUTPUT] += time.placing_ms
    own[StepPhase.OUTPUT_BACKWARD] += time.placing_backward_ms
    own |= {StepPhase.LOOKUP: time.forward_ms, StepPhase.LOOKUP_BACKWARD: time.backward_ms}
    for phase, ms in time.hidden_ms.items():
        own[phase] = np.maximum(own[phase] - ms, 0.0)
    return {name: own.get(name, np.full(machine.topology.world_size, ms)) for name, ms in time.phases_ms.items()}


class CountedQuestion(Question[Simulation]):
    """A problem, judged on the lookups of ``iterations`` test batches by exact counting and the cost model."""

    def __init__(self, problem: Problem, batches: BatchSource, dense: DenseShape, iterations: int = 1) -> None:
        super().__init__(problem)
        self.batches = batches
        self.dense = dense
        self.iterations = iterations
        self._lookup_cache: dict[tuple[int, int], CountedLookups] = {}

    @classmethod
    def of_batches(cls, workload: Workload, machine: Machine, batches: DrawnBatches) -> "CountedQuestion":
        """Return the question of a workload on a machine, judged on all of these batches of it."""
        return cls(workload.problem(machine), batches, workload.dense, len(batches.numbers))

    def judge(self, plan: Plan) -> Simulation:
        """Count a plan and predict its times; raises Unsupported for one that the counter cannot count."""
        return simulate(plan, self.problem, self.batches, self.dense, self.iterations, lookups=self._lookups)

    def _lookups(self, batch: int, table: int) -> Bags | CountedLookups:
        """Return a table's lookups; those of batches in memory are kept with what several plans ask of them."""
        if not isinstance(self.batches, DrawnBatches):
            return self.batches.bags(batch, table)
        if (batch, table) not in self._lookup_cache:
            self._lookup_cache[batch, table] = counted_lookups(self.batches.bags(batch, table), self.problem, table)
        return self._lookup_cache[batch, table]

    def untouched(self) -> bool:
        """Tell whether batches on disk are what was written."""
        return not isinstance(self.batches, Batches) or self.batches.intact()

    def held_out(self) -> "CountedQuestion | None":
        """Return the question on batches drawn now; None for batches on disk, and where the lookups are on record."""
        batches = self.batches.held_out() if isinstance(self.batches, DrawnBatches) else None
        return None if batches is None else CountedQuestion(self.problem, batches, self.dense, self.iterations)

    def prove_bounds(self) -> Bounds:
        """Count what bounds on the slowest rank's mean embedding time and on the mean step are proven from."""
        demand = count_demand(self.problem, self._lookups, len(self.batches.numbers))
        return Bounds(steps=StepBounds(demand=demand, problem=self.problem, dense=self.dense))

    def over_profile_bound_pct(self, plan: Plan) -> float | None:
        """Return percent by which a plan's step is over its bound, both as expected under the training profiles.

        A plan is made by these, so that this is the room that a strategy has; a test batch with an unusually long bag
        leaves none, however far its step is over the bound. The bound is at the prices of that on test batches. None
        where nothing is proven.
        """
        test_bound = self.bounds().of_step(plan) if plan.schedule is None else None
        if test_bound is None:
            return None
        problem = self.problem
        bound = step_bound(
            expected_demand(problem), problem, self.dense, DEVICE_MOVES,
            ordered=in_order(plan), groups=plan.groups, prices=test_bound.prices,
        )  # fmt: skip
        (time,) = _times([expect(plan, problem, self.dense)], problem, self.dense, problem.machine)
        return 100.0 * (time.step_ms / bound.ms - 1.0)


class ExpectedQuestion(CountedQuestion):
    """The same problem, judged and bounded by what the training profiles let expect of a batch: none is counted.

    Rows that the sample never saw are expected to get their share of the lookups: else a plan that leaves them to slow
    memory would look as if they were never asked for.
    """

    @cached_property
    def _expected(self) -> Problem:
        return as_expected(self.problem)

    def judge(self, plan: Plan) -> Simulation:
        """Expect a plan's traffic and predict its times; raises Unsupported for a batch schedule."""
        if plan.schedule is not None:
            raise Unsupported("no batch is counted for want of time, so that none can be scheduled")
        if self.problem.schedule is StepSchedule.PIPELINED:
            _check_pipelined(plan, self.problem)
        traffic = expect(plan, self._expected, self.dense)
        times = _times([traffic], self._expected, self.dense, self.problem.machine)
        return Simulation(traffics=(traffic,), times=times, machine=self.problem.machine)

    def prove_bounds(self) -> Bounds:
        """Prove bounds from the demand that the profiles let expect."""
        problem = self._expected
        return Bounds(steps=StepBounds(demand=expected_demand(problem), problem=problem, dense=self.dense))


def step_cells(answer: Answer[Simulation]) -> dict[str, float | None]:
    """Return columns of an answer's mean step and its distances to the proven bounds; None where nothing is proven.

    ``over_step_bound_pct`` is the distance to that of any device moves, ``over_own_bound_pct`` to that of the moves
    that the strategy declares.
    """
    step_ms = answer.judged.step_ms
    any_moves, own = answer.bounds.of_step(answer.plan), answer.bounds.of_step(answer.plan, answer.moves)
    return {
        "step_ms": step_ms,
        "step_bound_ms": any_moves.ms if any_moves is not None else None,
        "over_step_bound_pct": 100.0 * (step_ms / any_moves.ms - 1.0) if any_moves is not None else None,
        "over_own_bound_pct": 100.0 * (step_ms / own.ms - 1.0) if own is not None else None,
    }


def simulate(
    plan: Plan,
    problem: Problem,
    batches: BatchSource,
    dense: DenseShape,
    iterations: int,
    *,
    lookups: Callable[[int, int], Bags | CountedLookups] | None = None,
) -> Simulation:
    """Count ``iterations`` test batches (each distinct one once) and predict their steps.

    Under a batch schedule the samples of these batches are packed into pure mini-batches. Caches meet the batches in
    their order, once, after a long run of the training distribution.
    ``lookups(n, i)`` are batch n's of table i, for whoever has counted them already.
    Raises Unsupported for a plan that cannot be counted.
    """
    distinct = min(iterations, len(batches.numbers))
    has_caches = any(map(is_cached, plan.segments))
    if problem.schedule is StepSchedule.PIPELINED:
        _check_pipelined(plan, problem)
    caches = counted_caches(plan, problem, batches.bags, distinct) if has_caches else []
    if plan.schedule is not None:
        return simulate_schedule(plan, problem, lambda i: batches.joined(distinct, i), dense)
    traffics = [
        count(plan, problem, partial(lookups or batches.bags, n), dense, caches=caches[n] if caches else None)
        for n in range(distinct)
    ]
    times = _times(traffics, problem, dense, problem.machine)
    return Simulation(traffics=tuple(traffics), times=times, machine=problem.machine)


def _check_pipelined(plan: Plan, problem: Problem) -> None:
    """Raise Unsupported for a plan whose step is none of TorchRec's pipeline; ranks are not asked to run it either."""
    on_hosts = problem.machine.device != "cpu" and any(isinstance(segment.placement, Host) for segment in plan.segments)
    if on_hosts or plan.schedule is not None or plan.dense is DenseHome.HOSTS:
        raise Unsupported(
            "TorchRec's pipeline runs neither batch schedules nor dense models on hosts, nor tables that hosts look up "
            'beside GPUs: train them with schedule = "sequential"'
        )


def simulate_schedule(plan: Plan, problem: Problem, bags: Callable[[int], Bags], dense: DenseShape) -> Simulation:
    """Pack samples into pure mini-batches and count each; ``bags(i)`` are table i's bags of all samples.

    Measured trials pack alike (``shardbench.engine.inputs``).
    """
    samples = bags(0).batch_size
    packed = pack(hot_under(plan, problem.tables, bags, samples), problem.batch_size)
    traffics = [
        count(plan, problem, lambda i, b=batch: take(bags(i), b.samples), dense, batch.kind)  # type: ignore[misc]
        for batch in packed
    ]
    return Simulation(
        traffics=tuple(traffics),
        times=_times(traffics, problem, dense, problem.machine),
        machine=problem.machine,
        kinds=tuple(batch.kind for batch in packed),
        weights=np.array([batch.fresh for batch in packed]) / samples,
    )


def _times(
    traffics: Iterable[Traffic], problem: Problem, dense: DenseShape, machine: Machine, work: DenseWork | None = None
) -> tuple[StepTime, ...]:
    work = work or DenseWork.of(dense, problem.tables)
    tables, batch_size, schedule = problem.tables, problem.batch_size, problem.schedule
    return tuple(step_time(t, machine, dense, tables, batch_size, schedule=schedule, work=work) for t in traffics)


def _six_digits(value: float) -> float:
    return float(f"{value:.6g}")


def totals(traffic: Traffic) -> TrafficTotals:
    """Sum a traffic up as a record keeps it."""
    load = traffic.load
    # A row that enters a cache is read from host memory once.
    caching = traffic.caching or CacheWork.zeros(1)
    return TrafficTotals(
        lookups=float(load.all_lookups.sum() + traffic.host.lookups.sum()),
        off_hbm_lookups=float(load.uvm.lookups.sum() + caching.filled.sum() + traffic.host.lookups.sum()),
        distinct_rows=tuple((load.distinct + load.uvm.distinct).tolist()),
        hbm_bytes=float(load.lookup_bytes.sum()),
        uvm_bytes=float(load.uvm.lookup_bytes.sum() + caching.filled_bytes.sum()),
        host_bytes=float(traffic.host.lookup_bytes.sum()),
        collectives={
            name: (float(c.sent_intra.sum()), float(c.sent_inter.sum())) for name, c in traffic.collectives.items()
        },
        host_vectors_bytes=float(traffic.host_to_device_bytes.sum()),
        copied_to_device_bytes=traffic.synchronisation.to_device_bytes,
        copied_to_host_bytes=traffic.synchronisation.to_host_bytes,
    )
