"""Finds the distance of the rule from the best, by every plan of small problems."""

from itertools import product

import numpy as np

from shardbench.base.errors import BadInput
from shardbench.model.problem import Problem
from shardbench.model.validate import memory_bytes

from ..rule import RowTiers
from ..search import communication_s
from ..shape import find_homes, make_plan, runnable
from ..units import has_warm_tier, is_split

MAX_PLANS = 50_000


def best_of_all(problem: Problem, limit_bytes: int, step: int) -> tuple[float, RowTiers]:
    """Return the least expected communication seconds of all plans that cut each table at multiples of ``step`` rows.

    Plans have a warm tier only where it is one of its own. Tables are sequences; raises BadInput for more than 50,000
    plans.
    """
    for table in problem.tables:
        if not is_split(table, problem.world_size):
            raise BadInput(f"table '{table.name}' is not split into tiers: leave it out of the problem")
    homes = find_homes(problem, over_all=False)
    cuts, with_warm = [], has_warm_tier(problem.topology)
    for table in problem.tables:
        ends = sorted({*range(0, table.rows, step), table.rows})
        cuts.append([(a, b - a) for a in ends for b in ends if b == a or (b > a and with_warm)])
    if np.prod([float(len(options)) for options in cuts]) > MAX_PLANS:
        raise BadInput(f"problem {problem.name} has more than {MAX_PLANS} plans: use fewer tables or a larger step")
    best: tuple[float, RowTiers] | None = None
    for chosen in product(*cuts):
        hot, warm = np.array(chosen, dtype=np.int64).T
        tiers = RowTiers(hot=hot, warm=warm)
        if runnable(tiers, problem) != tiers:
            continue
        if memory_bytes(make_plan(problem, homes, tiers), problem).hbm.max() > limit_bytes:
            continue
        seconds = communication_s(problem, homes, tiers)
        if best is None or seconds < best[0]:
            best = seconds, tiers
    if best is None:
        raise BadInput(f"no plan of problem {problem.name} fits {limit_bytes} bytes a device")
    return best
