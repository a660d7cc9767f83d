"""A small workload that everyone can draw, and what a plan comes to on draws of it that nobody knew."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from shardbench.conformance.problems import ROOMY, Case, round_machine
from shardbench.model.plan import DenseHome, Plan
from shardbench.model.problem import Problem
from shardbench.model.strategy import Move
from shardbench.model.table import DenseShape, Table
from shardbench.trials.simulate import simulate
from shardbench.workloads.drawn import DrawnWorkload
from shardbench.workloads.materialise import DrawnBatches, materialise
from shardbench.workloads.trace import Bags, Split

SPLITS = 5
"""Number of other draws that a plan is judged on."""
MARGIN = 0.95
"""Share of the shortest step on other lookups, below which chance does not make a step on the known ones."""
_LOOKUPS = 4
_IN_HBM = 0.3


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
