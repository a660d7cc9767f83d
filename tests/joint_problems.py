"""Random problems for the joint planner, with its menu, planner and relaxation."""

from dataclasses import replace

import numpy as np
from problems import RandomWorkload, machine

from shardbench.baselines.joint.limits import Space
from shardbench.baselines.joint.menu import Menu
from shardbench.baselines.joint.planner import Planner, WorkLeft
from shardbench.baselines.joint.relaxation import OptionRelaxation
from shardbench.baselines.joint.robust import SeenPlan
from shardbench.model.machine import NcclConstants
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.model.table import Precision, StepSchedule
from shardbench.trials.discovery import get_strategy

MOVES = get_strategy("joint").moves
SHAPES = ((1, 4), (2, 2), (3, 4), (1, 1), (4, 1))


def random_problem(rng: np.random.Generator, nodes: int, devices: int) -> Problem:
    shapes = [(int(rng.integers(40, 5000)), int(rng.choice([8, 16, 32]))) for _ in range(int(rng.integers(1, 7)))]
    unpooled = frozenset(int(i) for i in np.flatnonzero(rng.random(len(shapes)) < 0.4))
    problem = RandomWorkload(shapes, 240, unpooled=unpooled, seed=int(rng.integers(99))).problem(
        machine(nodes, devices)
    )
    return replace(problem, exchange=Precision.FP32 if rng.random() < 0.5 else Precision.FP16)


def scheduled(problem: Problem, device: str, schedule: StepSchedule) -> Problem:
    """The problem under a schedule, on a machine of such devices."""
    nccl = NcclConstants(call_s=0.0, switch_ratio=1.0) if device == "cuda" else None
    return replace(problem, machine=replace(problem.machine, device=device, nccl=nccl), schedule=schedule)


def some_menu(problem: Problem, rng: np.random.Generator) -> Menu:
    """All options, some tables with only a part of their rows in HBM."""
    hot = [None if rng.random() < 0.6 else int(rng.integers(table.rows)) for table in problem.tables]
    return Menu(Space(problem, MOVES), hot)


def planner_of(seed: int, shape: tuple[int, int] = (2, 2)) -> tuple[Problem, Menu, Planner]:
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, *shape)
    menu = Menu(Space(problem, MOVES), [None] * len(problem.tables))
    return problem, menu, Planner(problem, menu, WorkLeft(nominal_s=3.0, deadline=float("inf")))


def relaxation_of(problem: Problem, menu: Menu) -> OptionRelaxation:
    return OptionRelaxation(menu, float(problem.world_size * problem.topology.hbm_bytes))


def plan_of(seen: SeenPlan) -> Plan:
    return Plan(world_size=seen.state.world, segments=seen.segments)
