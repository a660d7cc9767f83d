"""A planner that takes the place of TorchRec's EmbeddingShardingPlanner, with any strategy and TorchRec's behind it."""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import replace
from itertools import product
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
import torch.distributed as dist
from torchrec.distributed.collective_utils import invoke_on_rank_and_broadcast_result
from torchrec.distributed.planner import EmbeddingShardingPlanner
from torchrec.distributed.planner.planners import EmbeddingPlannerBase
from torchrec.distributed.planner.types import (
    Enumerator,
    ParameterConstraints,
    Partitioner,
    PerfModel,
    PlanLoader,
    PlannerError,
    Proposer,
    ShardingOption,
    Stats,
    StorageReservation,
)
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.sharding_plan import get_module_to_default_sharders
from torchrec.distributed.types import ParameterSharding, ShardingPlan

from shardbench.advice.best_plan import default_strategies
from shardbench.advice.constrained import evaluate_under
from shardbench.advice.peak import DeviceMemory
from shardbench.advice.torchrec.devices import capacities, machine_of
from shardbench.advice.torchrec.groups import TYPES, TYPES_NOT_COPIED, group_topology, in_all_groups, within_groups
from shardbench.advice.torchrec.profile_batches import ProfileBatches, even_profile
from shardbench.advice.torchrec.statistics import statistics
from shardbench.base.arrays import Floats
from shardbench.base.errors import BadInput, Unsupported
from shardbench.cost.bounds.step import DEVICE_MOVES
from shardbench.cost.memory.fullest import Peak
from shardbench.engine.torchrec.exported import DENSE, export
from shardbench.engine.torchrec.sharding import TIERS, Unsharded, plan_of, translate
from shardbench.engine.torchrec.tables import PlannedTables, Sharders, names_without_tables, with_safe_types
from shardbench.model.constraints import ANY_PLAN, Constraints
from shardbench.model.machine import Machine
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import Plan, ShardingGroups, Tier
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Budget, Move, Strategy
from shardbench.model.table import DenseShape, Optimizer
from shardbench.model.validate import memory_text
from shardbench.records.trial import Failure
from shardbench.trials.discovery import HandedPlan, get_strategy
from shardbench.trials.evaluate import Answer, evaluate
from shardbench.trials.simulate import CountedQuestion, Simulation

NATIVE_MOVES = frozenset({Move.TABLE, Move.COLUMNS, Move.REPLICATE})
TORCHREC = "torchrec"
"""The name of TorchRec's planner as the one whose plan is taken."""
ALONE_S, BESIDE_S = 10.0, 0.4
"""Seconds in which strategies plan where the user states none: without TorchRec's planner, and beside it."""
LIMIT_S = 1.0
"""Seconds beside TorchRec's planner after which no further version of a strategy is asked, judging included."""
TIE = 1e-9
"""Share of a step that TorchRec's plan may be longer and still be taken."""
_ANY_BYTES = 1 << 50
_DENSE_COPIES = 2.0
"""The dense model's weights, and DDP's bucket of their gradients."""
Limits: TypeAlias = Mapping[str, ParameterConstraints]
_PASSED_ON = ("cache_params", "enforce_hbm", "stochastic_rounding", "bounds_check_mode", "output_dtype")
_LOG = logging.getLogger(__name__)


class _Candidate(NamedTuple):
    """A plan as TorchRec takes it, and what it comes to."""

    name: str
    plan: ShardingPlan
    answer: Answer[Simulation]
    sharding_group_size: int | None = None


class _Candidates(NamedTuple):
    """Plans of the same tables, and what judges them."""

    plans: list[_Candidate]
    memory: DeviceMemory
    model: PlannedTables
    question: CountedQuestion


class ShardBenchPlanner(EmbeddingPlannerBase):  # type: ignore[misc]
    """Plans by a strategy of ShardBench, with the interface of TorchRec's planner.

    Arguments up to ``plan_loader`` and ``heuristical_storage_reservation_percentage`` are those of TorchRec's
    planner, in its order. ``topology``, ``batch_size`` (a rank's), ``storage_reservation`` and ``constraints`` count
    for all plans, the others for TorchRec's planner, to which they are passed on (``timeout_seconds`` also for the
    strategies, where it is not asked). ``strategy`` names one that is installed (where left out, those with all device
    moves), and what of its plan TorchRec could not hold without a remap of ids is placed anew.
    ``profiles`` say by table how often rows are
    looked up: without them every row of a table is as likely as any, by its pooling factors.
    ``machine`` gives constants of the cost model: a machine, or a name or path of one. Without it
    TorchRec's Topology gives bandwidths, and DEFAULT_MACHINE the rest.

    TorchRec's own planner is asked with the same arguments and its plan is one of the candidates, unless
    ``ask_torchrec`` is False: the plan of the shortest predicted step is returned, and where nothing else has a plan,
    or its plan cannot be compared, TorchRec's as it is. A plan that the ``plan_loader`` has is returned whatever the
    others come to, as TorchRec's planner does, and its PlannerError for one of other inputs is raised. A plan by which
    a device is predicted to run out of memory is returned only where all do so, and the log says so.
    ``storage_reservation``, where it is given, bounds the tables beside that. Where it is not, what a step holds is
    counted in place of a percentage, but for activations of the dense model: these are ``activation_bytes`` at most, or
    the heuristical percentage where nobody states them.
    ``plan_s`` are the seconds in which the strategies plan. Where
    it is left out they take, with judging, about a second beside TorchRec's planner, and ALONE_S seconds without it.

    ``sharding_group_sizes`` are for TorchRec's 2D parallelism: plans are for one sharding group of one of these sizes,
    in the layout that DMPCollection's ``use_inter_host_allreduce`` says, and judged with the averaging of weights after
    every step. ``topology`` is of all ranks. Where their number is among the sizes, a plan without copies competes.
    ``sharding_group_size`` is then, on every rank, the size for DMPCollection. Groups are planned for collections in
    HBM, by whole tables, columns, rows over all ranks of the group, and copies on all ranks.

    ``plan`` raises TorchRec's PlannerError where there is no plan, or where a module is given no sharder whose
    collection cannot be sharded alone (managed collisions), and BadInput for a profile of another table. Constraints
    and profiles of tables that there are not are said in the log. Where several modules have a table of one name, a
    constraint of that name is for all of them, and so is a profile, unless it is named by path and table.
    ``answer`` then says what the last plan comes to (None for one that cannot be judged), ``peak`` what its fullest
    device holds beside the dense model, ``taken`` whose it is (a strategy's name or "torchrec"), and ``statistics()``
    all in text, which ``debug`` also logs.
    """

    def __init__(  # noqa: PLR0917 - TorchRec's own order
        self,
        topology: TorchRecTopology | None = None,
        batch_size: int | None = None,
        enumerator: Enumerator | None = None,
        storage_reservation: StorageReservation | None = None,
        proposer: Proposer | list[Proposer] | None = None,
        partitioner: Partitioner | None = None,
        performance_model: PerfModel | None = None,
        stats: Stats | list[Stats] | None = None,
        constraints: dict[str, ParameterConstraints] | None = None,
        debug: bool = False,
        callbacks: list[Callable[[list[ShardingOption]], list[ShardingOption]]] | None = None,
        timeout_seconds: int | None = None,
        plan_loader: PlanLoader | None = None,
        *,
        heuristical_storage_reservation_percentage: float = 0.15,
        strategy: str | None = None,
        profiles: Mapping[str, AccessProfile] | None = None,
        machine: Machine | str | None = None,
        plan_s: float | None = None,
        optimizer: Optimizer | None = None,
        ask_torchrec: bool = True,
        activation_bytes: float | None = None,
        sharding_group_sizes: Sequence[int] = (),
        use_inter_host_allreduce: bool = False,
    ) -> None:
        super().__init__(
            topology=topology,
            batch_size=batch_size,
            enumerator=enumerator,
            storage_reservation=storage_reservation,
            stats=stats if stats is not None else [],
            constraints=constraints,
            debug=debug,
            callbacks=callbacks,
            timeout_seconds=timeout_seconds,
            heuristical_storage_reservation_percentage=heuristical_storage_reservation_percentage,
        )
        given = {
            "enumerator": enumerator, "proposer": proposer, "partitioner": partitioner,
            "performance_model": performance_model, "stats": stats, "callbacks": callbacks,
            "timeout_seconds": timeout_seconds, "plan_loader": plan_loader,
        }  # fmt: skip
        self._passed_on = {name: value for name, value in given.items() if value is not None}
        unheard = self._passed_on.keys() - {"timeout_seconds"}
        if unheard and not ask_torchrec:
            _LOG.warning("%s: for TorchRec's planner alone, which is not asked", ", ".join(sorted(unheard)))
        general = [each for each in default_strategies() if each.moves >= DEVICE_MOVES and not each.requires]
        self.strategies = [get_strategy(strategy)] if strategy else general
        self.profiles = dict(profiles or {})
        self.machine = load_machine(machine) if isinstance(machine, str) else machine
        self.plan_s, self.optimizer, self.ask_torchrec = plan_s, optimizer, ask_torchrec
        self._loader = plan_loader
        self.answer: Answer[Simulation] | None = None
        self.peak: Peak | None = None
        self.taken = ""
        self._reserves, self._activation_bytes = storage_reservation is not None, activation_bytes
        self._percentage = heuristical_storage_reservation_percentage
        self._sharding: dict[str, ParameterSharding] = {}
        self.sharding_group_size: int | None = None
        for name in ("plan_loader", "enumerator"):
            if sharding_group_sizes and name in self._passed_on:
                raise BadInput(
                    f"{name} is for all ranks, sharding_group_sizes are for groups: leave one of the two out"
                )
        self._groups = [
            ShardingGroups(size=size, interleaved=not use_inter_host_allreduce) for size in sharding_group_sizes
        ]
        for groups in self._groups:
            group_topology(self._topology, groups)  # refuses groups that cannot be

    def plan(self, module: torch.nn.Module, sharders: Sharders | None = None) -> ShardingPlan:
        """Plan the sharding of all collections of ``module`` that a sharder is given for."""
        sharder_list = list(sharders) if sharders is not None else list(get_module_to_default_sharders().values())
        self.answer, self.peak, self.taken, self.sharding_group_size = None, None, "", None
        if self._groups:
            return self._grouped(module, sharder_list)
        safe = self._safe_limits(module, sharder_list)
        loads = self.ask_torchrec and self._loader is not None and bool(self._loader.load())
        theirs = self._theirs(module, sharder_list, safe, loads) if self.ask_torchrec else None
        try:
            return self._take(self._candidates(module, sharder_list, theirs, safe, loads))
        except PlannerError as error:
            if theirs is None:
                raise
            self.taken = TORCHREC
            _LOG.warning("TorchRec's plan is taken, unjudged: %s", error)
            return theirs

    def collective_plan(
        self,
        module: torch.nn.Module,
        sharders: Sharders | None = None,
        pg: dist.ProcessGroup | None = None,
    ) -> ShardingPlan:
        """Plan on rank 0 for all ranks of the group; where it has no plan, all of them raise PlannerError."""

        def plan_or_error() -> object:
            try:
                return self.plan(module, sharders), self.sharding_group_size
            except Exception as error:
                failed.append(error)
                return PlannerError(f"rank 0: {error}")

        failed: list[Exception] = []
        group = pg if pg is not None else dist.group.WORLD
        if group is None:
            raise PlannerError("there is no process group: call init_process_group first, or plan() for one process")
        answer = invoke_on_rank_and_broadcast_result(group, 0, plan_or_error)
        if failed:
            raise failed[0]
        if isinstance(answer, Exception):
            raise answer
        plan, self.sharding_group_size = answer
        return plan

    def _grouped(self, module: torch.nn.Module, sharders: Sharders) -> ShardingPlan:
        """Return the best plan for one sharding group; raises PlannerError where no size has a plan.

        A strategy that plans for one group knows neither of its copies' averaging nor that gradients of what is on all
        ranks leave the group. So it plans also without tables on all ranks, and what is shortest over all ranks counts.
        """
        causes: list[str] = []
        found: list[_Candidate] = []
        among: _Candidates | None = None
        for groups, types in product(self._groups, (TYPES, TYPES_NOT_COPIED)):
            # With all types first, so that TorchRec's planner is asked once a size.
            asks = self.ask_torchrec and types is TYPES
            if types is not TYPES and groups.size == self._topology.world_size:
                continue
            try:
                one = self._of_group(module, sharders, groups, types)
                safe = one._safe_limits(module, sharders)
                theirs = one._theirs(module, sharders, safe, loads=False) if asks else None
                several = one._candidates(module, sharders, theirs, safe, loads=False)
            except PlannerError as error:
                causes.append(f"sharding groups of {groups.size}: {error}")
                continue
            if several is None:
                return ShardingPlan({})
            among = among or self._of_all_ranks(module, several.model)
            for each in several.plans:
                try:
                    found.append(_copied(each, groups, among.question))
                except (PlannerError, Unsupported) as error:
                    causes.append(f"sharding groups of {groups.size}, {each.name}: {error}")
        if among is None or not found:
            raise PlannerError("; ".join(causes))
        return self._take(among._replace(plans=found))

    def _of_group(
        self, module: torch.nn.Module, sharders: Sharders, groups: ShardingGroups, types: Sequence[str]
    ) -> "ShardBenchPlanner":
        """Return a planner of one sharding group, or of all ranks where they are one; raises PlannerError."""
        one = copy(self)
        one._groups = []
        alone_s = ALONE_S if self._timeout_seconds is None else self._timeout_seconds
        seconds = self.plan_s or (None if self.ask_torchrec else alone_s)
        one.plan_s = seconds and seconds / (2 * len(self._groups))
        if groups.size < self._topology.world_size:
            one._topology = group_topology(self._topology, groups)
            one._constraints = within_groups(module, sharders, self._constraints or {}, types)
        return one

    def _of_all_ranks(self, module: torch.nn.Module, model: PlannedTables) -> _Candidates:
        """Return what judges plans of all ranks, and no plan yet; what a step may take was kept within groups."""
        problem, there_bytes = self._problem(model, self._topology), self._beside_dense(module, model)
        memory = DeviceMemory(problem=problem, dense=None, there_bytes=there_bytes, limits=ANY_PLAN)
        return _Candidates([], memory, model, CountedQuestion(problem, ProfileBatches(problem), DenseShape()))

    def _safe_limits(self, module: torch.nn.Module, sharders: Sharders) -> Limits:
        """Return constraints by which no plan is wrong in TorchRec; raises PlannerError where there are none."""
        for what, names in (("constraints", self._constraints or {}), ("profiles", self.profiles)):
            strange = names_without_tables(names, module, sharders)
            if strange:
                _LOG.warning("%s name tables that the module does not have: %s", what, ", ".join(strange))
        for name, one in (self._constraints or {}).items():
            for what, numbers in (("num_poolings", one.num_poolings), ("batch_sizes", one.batch_sizes)):
                if numbers is not None and len(numbers) != len(one.pooling_factors):
                    raise PlannerError(
                        f"table '{name}': constraint {what} has {len(numbers)} numbers and pooling_factors has "
                        f"{len(one.pooling_factors)}: state as many, one a feature"
                    )
        try:
            return with_safe_types(module, sharders, self._constraints or {}, self._topology)
        except Unsharded as error:
            raise PlannerError(str(error)) from error
        except Unsupported:
            return self._constraints or {}  # TorchRec plans what ShardBench does not

    def _theirs(
        self, module: torch.nn.Module, sharders: Sharders, constraints: Limits, loads: bool
    ) -> ShardingPlan | None:
        """Return the plan of TorchRec's planner; None where it has none.

        One that it ``loads`` is for the user's own constraints, and what it fails at then is raised.
        """
        planner = EmbeddingShardingPlanner(
            topology=self._topology,
            batch_size=self._batch_size,
            storage_reservation=deepcopy(self._storage_reservation),  # it keeps what it reserved last
            constraints=self._constraints if loads else constraints,
            debug=self._debug,
            **{"stats": [], **self._passed_on},
        )
        try:
            plan: ShardingPlan = planner.plan(module, sharders)
        except (PlannerError, RuntimeError) as error:  # the latter where constraints leave a table no option
            if loads:
                raise
            _LOG.info("TorchRec's planner has no plan: %s", error)
            return None
        except Exception as error:
            _LOG.warning("TorchRec's planner failed (%s: %s): strategies plan without it", type(error).__name__, error)
            return None
        return plan

    def _candidates(
        self,
        module: torch.nn.Module,
        sharders: Sharders,
        theirs: ShardingPlan | None,
        constraints: Limits,
        loads: bool,
    ) -> _Candidates | None:
        """Return the plans to choose from, None without a table; raises PlannerError where none can be judged."""
        reserved = self._topology
        if self._reserves:
            reserved = self._storage_reservation.reserve(
                topology=self._topology,
                batch_size=self._batch_size,
                module=module,
                sharders=sharders,
                constraints=constraints,
            )
        model = PlannedTables(module, sharders, constraints, self._topology)
        if theirs is not None and {path: set(plan) for path, plan in theirs.plan.items()} != model.paths:
            raise PlannerError("it shards modules that are no plain collections")
        if not model.tables:
            return None
        problem, there_bytes = self._problem(model, reserved), self._beside_dense(module, model)
        room = np.minimum(capacities(reserved), there_bytes)
        if room.min() < 1.0:
            raise PlannerError(f"device {room.argmin()} has no memory left for tables beside the dense model")
        limits = replace(model.own_constraints, device_hbm_bytes=tuple(map(int, room)))
        memory = DeviceMemory(problem=problem, dense=None, there_bytes=there_bytes, limits=limits)
        limits = memory.room(strategy.moves for strategy in self.strategies)
        question = CountedQuestion(limits.applied(problem), ProfileBatches(problem), DenseShape())
        start = time.perf_counter()
        candidates: list[_Candidate] = []
        if theirs is not None:
            try:
                candidates.append(_Candidate(TORCHREC, theirs, _judge(theirs, question, model)))
            except Unsupported as error:
                if loads:
                    raise PlannerError(str(error)) from error
                _LOG.warning("TorchRec's plan cannot be compared: %s", error)
        if not loads:
            try:
                name, ours = self._ours(limits, question, start, memory, has_plan=theirs is not None)
                candidates.append(_Candidate(name, self._as_torchrec(ours, model), ours))
            except PlannerError:
                if not candidates:
                    raise
        return _Candidates(candidates, memory, model, question)

    def _take(self, among: _Candidates | None) -> ShardingPlan:
        """Return the plan of the shortest step among those that fit, and keep what it comes to."""
        if among is None:
            return ShardingPlan({})
        memory = among.memory

        def rating(one: _Candidate) -> tuple[bool, float]:
            return memory.fails(one.answer), one.answer.judged.step_ms * (1.0 - TIE * (one.name == TORCHREC))

        best = min(among.plans, key=rating)
        self.answer, self.peak, self.taken = best.answer, memory.peak(best.answer), best.name
        self.sharding_group_size = best.sharding_group_size
        if self.peak is not None and memory.fails(best.answer):
            _LOG.warning("no plan is predicted to fit; of the one that is taken %s", self.peak.words)
        # DMPCollection changes the ranks of the plan that it is given.
        self._sharding = _by_own_names(deepcopy(best.plan), among.model)
        if self._debug:
            _LOG.info("%s", self.statistics())
        return best.plan

    def statistics(self) -> str:
        """Say what the last plan comes to: its step, what binds it, and a line a table, the dearest first."""
        if self.answer is not None:
            return statistics(self._sharding, self.answer, self.peak, self.taken)
        return "the plan of TorchRec's planner, which could not be judged" if self.taken else "nothing was planned yet"

    def _beside_dense(self, module: torch.nn.Module, model: PlannedTables) -> Floats:
        """Return what each device has beside the dense model's weights and activations, [world]."""
        sharded = {id(parameter) for one in model.parts for parameter in one.module.parameters()}
        own = [parameter for parameter in module.parameters() if id(parameter) not in sharded]
        weight_bytes = sum(parameter.numel() * parameter.element_size() for parameter in own)
        memory = np.array(capacities(self._topology), dtype=np.float64)
        unstated = 0.0 * memory if self._reserves else self._percentage * memory
        activations = unstated if self._activation_bytes is None else self._activation_bytes
        return np.asarray(memory - _DENSE_COPIES * weight_bytes - activations)

    def _problem(self, model: PlannedTables, reserved: TorchRecTopology) -> Problem:
        machine = machine_of(self.machine, reserved, min(capacities(reserved)))
        profiles = []
        for table in model.tables:
            profile = self.profiles.get(table.name) or self.profiles.get(model.own_names[table.name])
            if profile is not None and profile.rows != table.rows:
                raise BadInput(f"profile of {table.name} has {profile.rows} rows, the table has {table.rows}")
            profiles.append(profile or even_profile(table.rows, model.pooling[table.name]))
        return Problem.of(
            "torchrec",
            model.tables,
            tuple(profiles),
            machine,
            batch_size=self._batch_size * machine.topology.world_size,
            precision=model.precision,
            optimizer=self.optimizer or model.optimizer,
            exchange=model.exchange,
        )

    def _ours(
        self, limits: Constraints, question: CountedQuestion, start: float, memory: DeviceMemory, *, has_plan: bool
    ) -> tuple[str, Answer[Simulation]]:
        """Return the answer of the shortest step, among plans with native moves alone and mended free plans.

        Plans that fit by their peaks come before those that do not.
        """
        versions = [version for one in self.strategies for version in _versions(one, question.problem)]
        alone_s = ALONE_S if self._timeout_seconds is None else self._timeout_seconds
        plan_s = (self.plan_s or (BESIDE_S if self.ask_torchrec else alone_s)) / len(versions)
        budget = Budget(plan_s=plan_s, fit_s=max(plan_s, 1.0))
        causes: list[str] = []
        answers: list[tuple[str, Answer[Simulation]]] = []
        longest = 0.0
        for strategy in versions:
            version_start = time.perf_counter()
            hurried = self.plan_s is None and self.ask_torchrec and (has_plan or bool(answers))
            # With other moves a strategy finds no more room, and is long in finding out.
            full = any(one.plan.notes.get("placed_anew") == len(question.problem.tables) for _, one in answers)
            if hurried and longest and (full or version_start + longest > start + LIMIT_S):
                break
            # A plan that came late is better than none.
            answer = evaluate_under(limits, question, strategy, budget, 0, slack=math.inf)
            longest = max(longest, time.perf_counter() - version_start)
            if isinstance(answer, Failure):
                causes.append(answer.cause)
            else:
                answers.append((strategy.name, answer))
        if not answers:
            names = ", ".join(strategy.name for strategy in self.strategies)
            why = "; then ".join(dict.fromkeys(causes))
            raise PlannerError(f"{names}: {why}; {memory_text(question.problem)}")
        return min(answers, key=lambda one: (memory.fails(one[1]), one[1].judged.step_ms))

    def _as_torchrec(self, answer: Answer[Simulation], model: PlannedTables) -> ShardingPlan:
        """Return a plan of ours as TorchRec's; raises PlannerError for one that TorchRec or a constraint refuses."""
        local = answer.question.problem.topology.devices_per_node
        try:
            exported = export(answer.plan, devices_per_node=local, in_blocks=True)
            device, local_size = self._topology.compute_device, self._topology.local_world_size
            plan = plan_of(exported, model.parts, model.names, device, local_size)
        except Unsupported as error:
            raise PlannerError(str(error)) from error
        for module_plan in plan.plan.values():
            for name, sharding in module_plan.items():
                constraint = (self._constraints or {}).get(name)
                if constraint is not None:
                    _keep(constraint, name, sharding, local)
        return plan


def _keep(constraint: ParameterConstraints, name: str, sharding: ParameterSharding, local: int) -> None:
    """Pass on what a constraint says of a table's kernels; raises PlannerError for what it does not allow."""
    types = constraint.sharding_types or [sharding.sharding_type]
    in_node = f"table_{sharding.sharding_type}"
    if (
        sharding.sharding_type not in types
        and in_node in types
        and len({rank // local for rank in sharding.ranks}) == 1
    ):
        sharding.sharding_type = in_node
    by_columns = [kind for kind in ("column_wise", "table_column_wise") if kind in types]
    if sharding.sharding_type == "table_wise" and "table_wise" not in types and by_columns:
        sharding.sharding_type = by_columns[0]  # in one piece, as TorchRec calls it
    kernels = constraint.compute_kernels or [sharding.compute_kernel]
    if sharding.compute_kernel not in kernels and TIERS[sharding.compute_kernel] is Tier.HBM:
        # A sharder of the user's own may have the dense kernel for tables on one device.
        sharding.compute_kernel = DENSE
    for quality, kind, options in (
        ("sharding type", sharding.sharding_type, types),
        ("kernel", sharding.compute_kernel, kernels),
    ):
        if kind not in options:
            raise PlannerError(f"table '{name}' would need {quality} {kind}, allowed: {options}")
    least_columns, shards = constraint.min_partition, getattr(sharding.sharding_spec, "shards", [])
    if least_columns is not None and len(shards) > 1 and min(shard.shard_sizes[1] for shard in shards) < least_columns:
        raise PlannerError(f"table '{name}' would be in shards of fewer than {least_columns} columns")
    for field in _PASSED_ON:
        if getattr(constraint, field) is not None:
            setattr(sharding, field, getattr(constraint, field))


def _by_own_names(plan: ShardingPlan, model: PlannedTables) -> dict[str, ParameterSharding]:
    """Return how each table is sharded, by its name in the problem."""
    return {model.names[path, name]: shard for path, module in plan.plan.items() for name, shard in module.items()}


def _judge(plan: ShardingPlan, question: CountedQuestion, model: PlannedTables) -> Answer[Simulation]:
    """Judge TorchRec's plan, in the memory that TorchRec counts; raises Unsupported for one that cannot be judged."""
    ratios = model.own_constraints.cache_ratios
    # Whether it fits is TorchRec's to say: it counts other things than weights and state.
    return _evaluated(TORCHREC, translate(_by_own_names(plan, model), question.problem, ratios), question)


def _evaluated(name: str, plan: Plan, question: CountedQuestion) -> Answer[Simulation]:
    """Judge a plan whatever memory it takes; raises Unsupported for one that cannot be judged."""
    problem = question.problem
    topology = replace(problem.topology, hbm_bytes=_ANY_BYTES, uvm_bytes=_ANY_BYTES)
    roomy = replace(problem, topology=topology, machine=replace(problem.machine, topology=topology))
    answer = evaluate(
        CountedQuestion(roomy, question.batches, question.dense), HandedPlan(name, plan), Budget(), 0, sealed=False
    )
    if isinstance(answer, Failure):
        raise Unsupported(answer.cause)
    return replace(answer, question=question)


def _copied(one: _Candidate, groups: ShardingGroups, question: CountedQuestion) -> _Candidate:
    """Judge a group's plan as all groups', copies averaged; raises PlannerError or Unsupported where it cannot be."""
    world, answer = question.problem.world_size, one.answer
    if groups.size < world:
        answer = _evaluated(one.name, in_all_groups(one.plan, answer.plan, world, groups), question)
    return _Candidate(one.name, one.plan, answer, groups.size)


def _versions(strategy: Strategy, problem: Problem) -> list[Strategy]:
    """Return the strategy, and before it, where it has moves that need a remap, itself without them."""
    native = NATIVE_MOVES | ({Move.UVM} if problem.topology.uvm_bytes else set())
    if strategy.moves <= native:
        return [strategy]
    narrow = copy(strategy)
    narrow.moves = strategy.moves & native
    return [narrow, strategy] if Move.TABLE in narrow.moves else [strategy]
