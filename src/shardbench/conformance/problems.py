"""The small problems that every strategy must cope with."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from shardbench.model.machine import Constants, Machine, Topology
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Move
from shardbench.model.table import Optimizer, Table

SAMPLES = 512
ROOMY = 1 << 30
_FREE = (
    "table_s", "bag_s", "page_s", "sequence_row_s", "sequence_half_rows", "dense_step_s", "dense_layer_s", "module_s",
    "lookup_copy_s", "length_copy_s", "bucketise_s", "step_floor_s",
)  # fmt: skip
_AT_ONCE = ("vector_copy_bytes_per_s", "activation_bytes_per_s", "reduce_bytes_per_s")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A problem, and what a strategy may need in order to plan it."""

    problem: Problem
    needs: frozenset[Move] = frozenset()
    """A strategy with none of these moves may decline; empty where everyone must plan."""
    anything_fits: bool = True
    asked_in_other_words: bool = False
    """Whether it is asked again under other names, in another order, with another seed, and in another process."""

    def fits_with(self, moves: frozenset[Move]) -> bool:
        """Tell whether a strategy with these moves must find a plan."""
        return self.anything_fits and (not self.needs or bool(self.needs & moves))


@lru_cache(maxsize=1)
def cases() -> tuple[Case, ...]:
    """Make all problems, seeded and always the same."""
    mixed = ((2000, 16), (300, 64), (5000, 32), (40, 16), (900, 64), (64, 32))
    many = tuple((50 + 97 * i % 3000, 16 * (1 + i % 4)) for i in range(23))
    crowded = tuple((1000, 32) for _ in range(12))
    need_bytes = 1000 * 32 * 4
    return (
        Case(problem=_problem("few-tables", mixed, round_machine(4)), asked_in_other_words=True),
        Case(problem=_problem("more-tables-than-devices", many, round_machine(8), optimizer=Optimizer.ROWWISE_ADAGRAD)),
        Case(problem=_problem("fewer-tables-than-devices", mixed[:3], round_machine(8))),
        Case(problem=_problem("one-device", mixed, round_machine(1))),
        Case(problem=_problem("two-nodes", mixed, round_machine(2, nodes=2))),
        Case(problem=_problem("shared-tables", mixed[:3], round_machine(2), features=3)),
        Case(
            problem=_problem("forces-host-memory", crowded, round_machine(2, hbm=4 * need_bytes)),
            needs=frozenset({Move.UVM, Move.HOST}),
        ),
        Case(
            problem=_problem("fits-nowhere", crowded, round_machine(2, hbm=512, uvm=512, host=512)),
            anything_fits=False,
        ),
        Case(problem=_problem("no-access-at-all", mixed, round_machine(4), accessed=False)),
        Case(problem=_problem("one-row-tables", ((1, 16), (1, 64), (1, 16), (700, 32)), round_machine(4))),
    )


def renamed(problem: Problem) -> tuple[Problem, dict[str, str]]:
    """Give the problem and its tables other names, which sort otherwise; return the old names by the new beside it."""
    names = [hashlib.sha256(table.name.encode()).hexdigest()[:8] for table in problem.tables]
    tables = tuple(replace(table, name=name) for table, name in zip(problem.tables, names))
    old = {name: table.name for table, name in zip(problem.tables, names)}
    return replace(problem, name="nameless", tables=tables), old


def reordered(problem: Problem) -> Problem:
    """Return the problem with its tables in another order; not for problems with inputs."""
    order = np.random.default_rng(1).permutation(len(problem.tables))
    return replace(
        problem,
        tables=tuple(problem.tables[i] for i in order),
        profiles=tuple(problem.profiles[i] for i in order),
    )


def _problem(
    name: str,
    shapes: Iterable[tuple[int, int]],
    machine: Machine,
    *,
    optimizer: Optimizer = Optimizer.SGD,
    accessed: bool = True,
    features: int = 1,
) -> Problem:
    rng = np.random.default_rng(len(name))
    tables = tuple(Table(name=f"t{i}", rows=rows, dim=dim, features=features) for i, (rows, dim) in enumerate(shapes))
    profiles = tuple(_profile(table, rng if accessed else None) for table in tables)
    return Problem.of(name, tables, profiles, machine, batch_size=64, optimizer=optimizer)


def _profile(table: Table, rng: np.random.Generator | None) -> AccessProfile:
    if rng is None:
        return AccessProfile(rows=table.rows, samples=SAMPLES, present=0, counts=(), row_counts=())
    # A power law over about half of the rows, with bags of 1 to 8 on average.
    ranks = np.arange(1, 1 + max(1, table.rows // 2))
    weights = ranks ** -float(rng.uniform(0.5, 1.3))
    lookups = SAMPLES * int(rng.integers(1, 9))
    counts = np.floor(lookups * weights / weights.sum()).astype(np.int64)
    return AccessProfile.from_counts(counts, rows=table.rows, samples=SAMPLES, present=SAMPLES)


def round_machine(per_node: int, *, nodes: int = 1, hbm: int = ROOMY, uvm: int = ROOMY, host: int = ROOMY) -> Machine:
    """Make up a machine of round-numbered devices; no case depends on its speed."""
    topology = Topology(nodes=nodes, devices_per_node=per_node, hbm_bytes=hbm, uvm_bytes=uvm, host_bytes=host)
    constants = Constants(
        **dict.fromkeys(_FREE, 0.0),
        **dict.fromkeys(_AT_ONCE, 1e18),
        hbm_bytes_per_s=1e12,
        cache_bytes_per_s=3e12,
        cache_bytes=32768.0,
        cache_reach_ratio=2.0,
        uvm_bytes_per_s=1e10,
        host_bytes_per_s=1e11,
        gather_efficiency_ratio=0.5,
        access_overhead_bytes=32.0,
        sort_bytes=128.0,
        launch_s=1e-5,
        dispatch_s=1e-4,
        bag_step_s=1e-7,
        host_launch_s=1e-4,
        host_table_s=1e-6,
        intra_bytes_per_s=2e11,
        inter_bytes_per_s=2e10,
        intra_latency_s=1e-5,
        inter_latency_s=3e-5,
        peer_latency_s=1e-6,
        dense_flop_per_s=1e13,
    )
    return Machine(
        name=f"conformance-{nodes}x{per_node}",
        description="made up for the conformance problems",
        device="cuda",
        topology=topology,
        constants=constants,
        sources={},
    )
