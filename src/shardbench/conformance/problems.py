"""The small problems that every strategy must cope with.

One is of a workload that everyone can draw, whose plans are judged on draws of it that nobody knew.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from shardbench.model.machine import Constants, Machine, Topology
from shardbench.model.plan import DenseHome, Plan
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.strategy import Move
from shardbench.model.table import DenseShape, Optimizer, Table
from shardbench.trials.simulate import simulate
from shardbench.workloads.drawn import DrawnWorkload
from shardbench.workloads.materialise import DrawnBatches, materialise
from shardbench.workloads.trace import Bags, Split

SAMPLES = 512
ROOMY = 1 << 30
SPLITS = 5
"""Number of other draws that a plan is judged on."""
MARGIN = 0.95
"""Share of the shortest step on other lookups, below which chance does not make a step on the known ones."""
_LOOKUPS = 4
_IN_HBM = 0.3
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


class PublicDraws(DrawnWorkload):
    """Tables of one power law, every sample with the same number of lookups."""

    name = "public-draws"
    tables = tuple(Table(name=f"t{i}", rows=8_000, dim=128) for i in range(4))
    dense = DenseShape()
    batch_size = 512
    test_batches = 1
    seed = 2024
    profile_samples = 8 * batch_size

    def __init__(self) -> None:
        """Take everything from the class: nobody configures it."""

    def _draw(self, split: Split, batch: int, table: int) -> Bags:
        shares = self._generator(split, batch, table).random(self.batch_size * _LOOKUPS)
        rows = self.tables[table].rows
        # The inverse of a power law's distribution function, exponent 0.8.
        values = np.minimum(rows * shares**5.0, rows - 1).astype(np.int64)
        return Bags(values=values, offsets=_LOOKUPS * np.arange(self.batch_size + 1))

    def recipe(self) -> object:
        """Return the seed: all else is in this module."""
        return {"seed": self.seed}


@lru_cache(maxsize=2)
def drawn_case(moves: frozenset[Move]) -> Case:
    """Return the workload's problem on a machine with HBM for some of the rows, where the moves reach other memory."""
    workload, beyond = PublicDraws(), frozenset({Move.UVM, Move.HOST})
    all_bytes = sum(table.rows * table.dim * 4 for table in workload.tables)
    hbm = int(_IN_HBM * all_bytes / 2) if moves & beyond else ROOMY
    machine = round_machine(2, hbm=hbm)
    problem = Problem.of(workload.name, workload.tables, workload.profiles, machine, batch_size=workload.batch_size)
    return Case(problem=problem, needs=beyond if hbm < ROOMY else frozenset())


def write_known(folder: Path) -> None:
    """Write the lookups that everyone can draw as trials keep theirs."""
    materialise(PublicDraws(), folder, [0])


def known_and_held_out_ms(plan: Plan, problem: Problem) -> tuple[float, tuple[float, ...]]:
    """Return a plan's mean step on the lookups that everyone can draw, and on each of some that are drawn now."""
    known = DrawnBatches(PublicDraws())
    fresh = [others for _ in range(SPLITS) if (others := known.held_out()) is not None]
    # The machine states no rate of its hosts, and the dense model asks for no lookups: on the devices for all.
    plan = replace(plan, dense=DenseHome.DEVICES)
    known_ms, *held_out_ms = (simulate(plan, problem, each, PublicDraws.dense, 1).step_ms for each in (known, *fresh))
    return known_ms, tuple(held_out_ms)


def too_good(known_ms: float, held_out_ms: Sequence[float]) -> str:
    """Say what is suspicious of a mean step on known test lookups beside held-out ones, or give an empty string."""
    if known_ms >= MARGIN * min(held_out_ms):
        return ""
    return (
        f"{known_ms:.4g} ms a step on the test lookups that its author could draw, at least {min(held_out_ms):.4g} ms "
        f"on {len(held_out_ms)} other draws of them: it was made for those"
    )
