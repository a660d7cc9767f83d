"""A planner that takes the place of TorchRec's EmbeddingShardingPlanner, with any strategy behind it."""

from collections.abc import Mapping
from copy import copy
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torchrec.distributed.planner.planners import EmbeddingPlannerBase
from torchrec.distributed.planner.types import ParameterConstraints, PlannerError, StorageReservation
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.sharding_plan import get_module_to_default_sharders
from torchrec.distributed.types import ModuleSharder, ShardingPlan

from shardbench.base.errors import BadInput, Unsupported
from shardbench.cost.bounds.step import DEVICE_MOVES
from shardbench.engine.described import UVM_DIVISOR
from shardbench.engine.formats import DATA_TYPES, exchange_of
from shardbench.model.constraints import Constraints, allowed
from shardbench.model.discovery import get_strategy
from shardbench.model.machine import Machine, Topology
from shardbench.model.machine_file import load_machine
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Budget, Move, Strategy
from shardbench.model.table import DenseShape, Optimizer, Pooling, Precision, Table
from shardbench.records.trial import Failure
from shardbench.runs.best_plan import default_strategies
from shardbench.runs.constrained import evaluate_under
from shardbench.runs.evaluate import Answer
from shardbench.runs.simulate import CountedQuestion, Simulation
from shardbench.torchrec.exported import export
from shardbench.torchrec.profile_batches import ProfileBatches, even_profile
from shardbench.torchrec.sharding import SEQUENCE_TYPES, Collection, collections, configs_of, sharding_plan

DEFAULT_MACHINE = "a100-40gb-2x8"
"""Machine whose constants count where neither the caller nor TorchRec's Topology states them."""
NATIVE_TYPES = ("table_wise", "column_wise", "row_wise", "table_row_wise", "data_parallel")
"""Sharding types that need no remap of ids; grid_shard needs widths that few tables have."""
NATIVE_MOVES = frozenset({Move.TABLE, Move.COLUMNS, Move.REPLICATE})
Sharders: TypeAlias = list[ModuleSharder[torch.nn.Module]]
_PASSED_ON = ("cache_params", "enforce_hbm", "stochastic_rounding", "bounds_check_mode", "output_dtype")
_REFUSED = ("device_group", "key_value_params", "batch_sizes")


class ShardBenchPlanner(EmbeddingPlannerBase):  # type: ignore[misc]
    """Plans by a strategy of ShardBench, with the interface of TorchRec's planner.

    ``topology``, ``batch_size`` (a rank's), ``storage_reservation`` and ``constraints`` as TorchRec's
    planner has them; ``strategy`` names one that is installed (where left out, those with all device
    moves), and what of its plan TorchRec could not hold without a remap of ids is placed anew.
    ``profiles`` say by table how often rows are
    looked up: without them every row of a table is as likely as any, by its pooling factors.
    ``machine`` gives constants of the cost model: a machine, or a name or path of one. Without it
    TorchRec's Topology gives bandwidths, and DEFAULT_MACHINE the rest.

    ``plan`` raises TorchRec's PlannerError where there is no plan; ``answer`` then says what the last plan
    comes to.
    """

    def __init__(
        self,
        topology: TorchRecTopology | None = None,
        batch_size: int | None = None,
        storage_reservation: StorageReservation | None = None,
        constraints: dict[str, ParameterConstraints] | None = None,
        *,
        strategy: str | None = None,
        profiles: Mapping[str, AccessProfile] | None = None,
        machine: Machine | str | None = None,
        plan_s: float = 10.0,
        optimizer: Optimizer | None = None,
        debug: bool = False,
    ) -> None:
        super().__init__(
            topology=topology,
            batch_size=batch_size,
            storage_reservation=storage_reservation,
            stats=[],
            constraints=constraints,
            debug=debug,
        )
        general = [found for found in default_strategies() if found.moves >= DEVICE_MOVES]
        self.strategies = [get_strategy(strategy)] if strategy else general
        self.profiles = dict(profiles or {})
        self.machine = load_machine(machine) if isinstance(machine, str) else machine
        self.plan_s, self.optimizer = plan_s, optimizer
        self.answer: Answer[Simulation] | None = None

    def plan(self, module: torch.nn.Module, sharders: Sharders | None = None) -> ShardingPlan:
        """Plan the sharding of all collections of ``module`` that a sharder is given for."""
        given = list(sharders) if sharders is not None else list(get_module_to_default_sharders().values())
        reserved = self._storage_reservation.reserve(
            topology=self._topology,
            batch_size=self._batch_size,
            module=module,
            sharders=given,
            constraints=self._constraints,
        )
        found = _Tables(module, given, self._constraints or {}, self._topology)
        if not found.tables:
            return ShardingPlan({})
        problem = self._problem(found, reserved)
        limits = Constraints(sharding_types=found.types, device_hbm_bytes=_capacities(reserved))
        self.answer = self._best(limits, problem)
        try:
            exported = export(self.answer.plan, devices_per_node=problem.topology.devices_per_node, in_blocks=True)
        except Unsupported as error:
            raise PlannerError(str(error)) from error
        made = sharding_plan(exported, module, self._topology.compute_device)
        self._keep_kernels(made)
        return made

    def _problem(self, found: "_Tables", reserved: TorchRecTopology) -> Problem:
        machine = _machine(self.machine, reserved, min(_capacities(reserved)))
        profiles = []
        for table in found.tables:
            profile = self.profiles.get(table.name)
            if profile is not None and profile.rows != table.rows:
                raise PlannerError(f"profile of {table.name} has {profile.rows} rows, the table has {table.rows}")
            profiles.append(profile or even_profile(table.rows, found.pooling[table.name]))
        return Problem.of(
            "torchrec",
            found.tables,
            tuple(profiles),
            machine,
            batch_size=self._batch_size * machine.topology.world_size,
            precision=found.precision,
            optimizer=self.optimizer or found.optimizer,
            exchange=found.exchange,
        )

    def _best(self, limits: Constraints, problem: Problem) -> Answer[Simulation]:
        """Return the answer of the shortest step, among plans with native moves alone and mended free plans."""
        question = CountedQuestion(problem, ProfileBatches(problem), DenseShape())
        budget = Budget(plan_s=self.plan_s, fit_s=max(self.plan_s, 1.0))
        causes: list[str] = []
        best: Answer[Simulation] | None = None
        for strategy in (version for one in self.strategies for version in _versions(one, problem)):
            answer = evaluate_under(limits, question, strategy, budget, 0, slack=3.0)
            if isinstance(answer, Failure):
                causes.append(answer.cause)
            elif best is None or answer.judged.step_ms < best.judged.step_ms:
                best = answer
        if best is None:
            names = ", ".join(strategy.name for strategy in self.strategies)
            raise PlannerError(f"{names}: {'; then '.join(dict.fromkeys(causes))}")
        return best

    def _keep_kernels(self, made: ShardingPlan) -> None:
        """Pass on what constraints say of a table's kernels; raises PlannerError for a kernel they do not allow."""
        for module_plan in made.plan.values():
            for name, sharding in module_plan.items():
                constraint = (self._constraints or {}).get(name)
                if constraint is None:
                    continue
                kernels = constraint.compute_kernels
                if kernels and sharding.compute_kernel not in kernels:
                    raise PlannerError(f"table '{name}' would need {sharding.compute_kernel}, allowed: {kernels}")
                least, shards = constraint.min_partition, getattr(sharding.sharding_spec, "shards", [])
                if least is not None and len(shards) > 1 and min(shard.shard_sizes[1] for shard in shards) < least:
                    raise PlannerError(f"table '{name}' would be in shards of fewer than {least} columns")
                for field in _PASSED_ON:
                    if getattr(constraint, field) is not None:
                        setattr(sharding, field, getattr(constraint, field))


def _versions(strategy: Strategy, problem: Problem) -> list[Strategy]:
    """Return the strategy, and before it, where it has moves that need a remap, itself without them."""
    host = {Move.UVM} if problem.topology.uvm_bytes else set()
    if strategy.moves <= NATIVE_MOVES | host:
        return [strategy]
    narrow = copy(strategy)
    narrow.moves = strategy.moves & NATIVE_MOVES
    return [narrow, strategy] if Move.TABLE in narrow.moves else [strategy]


def _capacities(topology: TorchRecTopology) -> tuple[int, ...]:
    """Return the bytes for tables of each device: its memory, or on CPUs the ranks' share of the host's."""
    hbm = topology.compute_device != "cpu"
    left = tuple(int(d.storage.hbm if hbm else d.storage.ddr) for d in topology.devices)
    if min(left) <= 0:
        raise PlannerError(f"device {left.index(min(left))} has no memory left for tables after the reservation")
    return left


def _machine(given: Machine | None, topology: TorchRecTopology, hbm_bytes: int) -> Machine:
    world, local = topology.world_size, topology.local_world_size
    if world % local:
        raise PlannerError(f"{world} ranks are not on whole nodes of {local}")
    uvm = 0 if topology.compute_device == "cpu" else min(int(d.storage.ddr) for d in topology.devices)
    shape = Topology(nodes=world // local, devices_per_node=local, hbm_bytes=hbm_bytes, uvm_bytes=uvm, host_bytes=0)
    if given is not None:
        return replace(given, topology=shape)
    base = load_machine(DEFAULT_MACHINE)
    constants = replace(
        base.constants,
        hbm_bytes_per_s=1e3 * topology.hbm_mem_bw,
        host_bytes_per_s=1e3 * topology.ddr_mem_bw,
        uvm_bytes_per_s=1e3 * topology.hbm_to_ddr_mem_bw / UVM_DIVISOR,
        intra_bytes_per_s=1e3 * topology.intra_host_bw,
        inter_bytes_per_s=1e3 * topology.inter_host_bw,
    )
    return replace(base, name="torchrec", topology=shape, constants=constants, errors={})


class _Tables:
    """What a model's collections hold, as far as a sharder is given for them."""

    def __init__(
        self,
        module: torch.nn.Module,
        sharders: Sharders,
        constraints: Mapping[str, ParameterConstraints],
        topology: TorchRecTopology,
    ) -> None:
        by_kind = {sharder.module_type: sharder for sharder in sharders}
        self.types: dict[str, tuple[str, ...]] = {}
        self.pooling: dict[str, float] = {}
        tables: list[Table] = []
        formats = set()
        optimizers: set[Optimizer] = set()
        exchanges: set[Precision] = set()
        for path, collection in collections(module):
            if type(collection) not in by_kind:
                raise PlannerError(f"no sharder is given for {path or 'the module'}, a {type(collection).__name__}")
            sharder = by_kind[type(collection)]
            for config in configs_of(collection):
                if config.name in self.pooling:
                    raise PlannerError(f"two collections have a table '{config.name}': rename one")
                constraint = constraints.get(config.name, ParameterConstraints())
                tables.append(_table(config, collection))
                formats.add(config.data_type)
                self.pooling[config.name] = _pooling(constraint, len(config.feature_names), config.name)
                self.types[config.name] = _types(config, collection, sharder, constraint, topology)
            exchanges.add(_exchange(sharder))
            optimizers |= {_optimizer(sharder, parameter) for parameter in collection.parameters()}
        self.tables = tuple(tables)
        known = {data_type: precision for precision, data_type in DATA_TYPES.items()}
        if not formats <= set(known):
            raise PlannerError("a table's numbers are neither fp32, fp16 nor bf16: give tables of one of these")
        # Where tables differ the wider format, so that memory suffices for all.
        self.precision = max((known[kind] for kind in formats), key=lambda kind: kind.bytes, default=Precision.FP32)
        if len(exchanges) > 1:
            raise PlannerError(
                f"the sharders exchange vectors as {' and '.join(sorted(exchanges))}: give them one format"
            )
        self.exchange = exchanges.pop() if exchanges else Precision.FP32
        # The one that keeps most, so that memory suffices for all.
        self.optimizer = max(optimizers, key=lambda kind: kind.state_bytes(4), default=Optimizer.SGD)


def _table(config: Any, collection: Collection) -> Table:
    if config.embedding_dim % 4:
        raise PlannerError(f"table '{config.name}' is {config.embedding_dim} wide; kernels read four numbers at a time")
    return Table(
        name=config.name,
        rows=config.num_embeddings,
        dim=config.embedding_dim,
        pooling=Pooling.SUM if hasattr(collection, "embedding_bag_configs") else Pooling.NONE,
        features=len(config.feature_names),
    )


def _pooling(constraint: ParameterConstraints, features: int, name: str) -> float:
    """Return the lookups of a sample in all of the table's features."""
    refused = [field for field in _REFUSED if getattr(constraint, field) is not None]
    if refused or constraint.use_virtual_table:
        raise PlannerError(f"table '{name}': constraint {(refused or ['use_virtual_table'])[0]} cannot be kept")
    each = constraint.pooling_factors
    times = constraint.num_poolings or [1.0] * len(each)
    total: float = sum(factor * n for factor, n in zip(each, times, strict=True))
    return total * features if len(each) == 1 else total


def _types(
    config: Any,
    collection: Collection,
    sharder: ModuleSharder[torch.nn.Module],
    constraint: ParameterConstraints,
    topology: TorchRecTopology,
) -> tuple[str, ...]:
    world, local, rows = topology.world_size, topology.local_world_size, config.num_embeddings
    offered = set(sharder.sharding_types(topology.compute_device)) & set(NATIVE_TYPES)
    if not hasattr(collection, "embedding_bag_configs"):
        offered &= set(SEQUENCE_TYPES)
    # Blocks that leave a rank empty crash it.
    for kind, ways in (("row_wise", world), ("table_row_wise", local)):
        if (ways - 1) * -(-rows // ways) >= rows:
            offered.discard(kind)
    if constraint.sharding_types:
        offered &= set(allowed(tuple(constraint.sharding_types)))
    least = constraint.min_partition
    if least is not None and config.embedding_dim < 2 * least:
        offered.discard("column_wise")
    if not offered:
        raise PlannerError(f"table '{config.name}': no sharding type is left of {constraint.sharding_types}")
    return tuple(sorted(offered))


def _exchange(sharder: ModuleSharder[torch.nn.Module]) -> Precision:
    """Return the format in which the sharder's modules exchange vectors."""
    try:
        return exchange_of(sharder.qcomm_codecs_registry)
    except BadInput as error:
        raise PlannerError(str(error)) from error


def _optimizer(sharder: ModuleSharder[torch.nn.Module], parameter: torch.nn.Parameter) -> Optimizer:
    """Name the optimiser of the backward pass, or the sharder's fused one; adam stands for any that is not known."""
    classes = getattr(parameter, "_optimizer_classes", None)
    if classes:
        name = classes[0].__name__
    else:
        stated = (getattr(sharder, "fused_params", None) or {}).get("optimizer")
        name = "SGD" if stated is None else str(getattr(stated, "value", stated))
    known = {
        "SGD": Optimizer.SGD,
        "sgd": Optimizer.SGD,
        "exact_sgd": Optimizer.SGD,
        "RowWiseAdagrad": Optimizer.ROWWISE_ADAGRAD,
        "exact_row_wise_adagrad": Optimizer.ROWWISE_ADAGRAD,
    }
    return known.get(name, Optimizer.ADAM)
