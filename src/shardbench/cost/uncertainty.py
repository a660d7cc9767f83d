"""How sure the cost model is: machines whose constants are drawn within what is known of each.

Every constant is drawn log-normally, by the factor that its machine file states as its error, and
independently of the others. The draws depend on the constant's name alone: draw i errs alike in
all trials and on all machines, whose files mostly share the sources of their constants, so that
two times are compared draw by draw. What the *form* of the model misses is not in the draws.
"""

import hashlib
from functools import cache
from statistics import NormalDist

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.base.errors import BadInput
from shardbench.model.machine import Machine, scaled, uncertain

DRAWS = 200
"""A probability near 95 per cent is known to about 1.5 per cent."""


@cache
def deviations(name: str, n: int = DRAWS) -> Floats:
    """Standard normal numbers of a constant, [n]: the middles of n equally likely ranges, shuffled by its name."""
    quantiles = [NormalDist().inv_cdf((i + 0.5) / n) for i in range(n)]
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return np.random.default_rng(seed).permutation(np.array(quantiles))


def drawn_machines(machine: Machine, n: int = DRAWS) -> tuple[Machine, ...]:
    """The machine under ``n`` draws of its constants; raises BadInput where it does not state their errors."""
    names = uncertain(machine)
    missing = sorted(set(names) - machine.errors.keys())
    if missing:
        raise BadInput(f"machine {machine.name} does not say how well '{missing[0]}' is known: state its error")
    factors = {name: machine.errors[name] ** deviations(name, n) for name in names}
    return tuple(scaled(machine, {name: float(drawn[i]) for name, drawn in factors.items()}) for i in range(n))
