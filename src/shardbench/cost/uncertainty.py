"""Draws the constants and the form of predictions within what is known of them, to say how sure the cost model is.

Every constant is drawn log-normally, by the factor that its machine file states as its error, and
independently of the others. These draws depend on the constant's name alone: draw i errs alike in
all trials and on all machines, whose files mostly share the sources of their constants, so that
two times are compared draw by draw. The form of the kernels and of the exchanges errs by KERNEL_FORM
and EXCHANGE_FORM, anew for every plan: no published kernel or exchange tells how alike two plans err,
so they are taken not to.

A machine file with a ``Trust`` says how far whole steps, and the ratios of two plans, are off where they were held out.
There the form of the step is drawn by that: a factor that all plans of the machine share, and one of each plan.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations
from statistics import NormalDist

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.base.errors import BadInput
from shardbench.base.statistics import decimals, deviation_interval, t_quantile
from shardbench.cost.costmodel import StepTime
from shardbench.cost.phases import StepPhase
from shardbench.model.machine import Machine, Trust
from shardbench.model.machine_file import scaled, uncertain

DRAWS = 200
"""A probability near 95 per cent is known to about 1.5 per cent."""
KERNEL_FORM, EXCHANGE_FORM = 1.08, 1.11
"""Error factors of the form: what the best constants leave of published points' errors (published/held_out.py)."""
_FORM = {
    StepPhase.INPUT: ("exchanges", EXCHANGE_FORM),
    StepPhase.LOOKUP: ("lookup", KERNEL_FORM),
    StepPhase.OUTPUT: ("exchanges", EXCHANGE_FORM),
    StepPhase.OUTPUT_BACKWARD: ("exchanges", EXCHANGE_FORM),
    StepPhase.LOOKUP_BACKWARD: ("lookup_backward", KERNEL_FORM),
    StepPhase.ALL_REDUCE: ("all_reduce", EXCHANGE_FORM),
}
"""The form that each phase shares with others, and its error: an all-to-all errs alike in whichever phase it is."""
_SHARED = "form of the step of all plans"
_UPPER = 0.975
"""Share of draws below the upper end of a 95 % band."""
MOST = 1e6
"""The largest error factor that a machine file may state."""
SURE = 0.95
"""Probability from which on one plan is said to be faster than another."""


@lru_cache(maxsize=1024)
def deviations(name: str, n: int = DRAWS) -> Floats:
    """Return n standard normal numbers of a constant or form: the middles of n equal ranges, shuffled by its name."""
    quantiles = [NormalDist().inv_cdf((i + 0.5) / n) for i in range(n)]
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return np.random.default_rng(seed).permutation(np.array(quantiles))


def drawn_machines(machine: Machine, n: int = DRAWS, of: str = "") -> tuple[Machine, ...]:
    """Return the machine under ``n`` draws of its constants, others than those that have another name ``of`` theirs.

    Raises BadInput where it does not state their errors.
    """
    names = uncertain(machine)
    missing = sorted(set(names) - machine.errors.keys())
    if missing:
        raise BadInput(f"machine {machine.name} does not say how well '{missing[0]}' is known: state its error")
    factors = {name: machine.errors[name] ** deviations(of + name, n) for name in names}
    return tuple(scaled(machine, {name: float(drawn[i]) for name, drawn in factors.items()}) for i in range(n))


def form_of(times: Sequence[StepTime]) -> str:
    """Return the name of a plan's draws of the form, made from its predicted times, so that equal plans err alike."""
    text = ",".join(f"{ms:.9g}" for time in times for ms in (*time.phases_ms.values(), *time.embedding_ms.tolist()))
    return hashlib.sha256(text.encode()).hexdigest()


def with_form(time: StepTime, draw: int, of: str, n: int = DRAWS) -> StepTime:
    """Return the time under the form of kernels and exchanges that is draw ``draw`` of ``n`` of plan ``of``."""
    form = {
        phase: error ** float(deviations(f"form of {name} in {of}", n)[draw]) for phase, (name, error) in _FORM.items()
    }
    return replace(
        time,
        forward_ms=time.forward_ms * form[StepPhase.LOOKUP],
        backward_ms=time.backward_ms * form[StepPhase.LOOKUP_BACKWARD],
        phases_ms={phase: ms * form.get(phase, 1.0) for phase, ms in time.phases_ms.items()},
    )


def judged_steps(step_ms: float, drawn_ms: Sequence[float], trust: Trust, of: str) -> tuple[float, ...]:
    """Return the drawn steps of plan ``of`` spread as far as held-out steps and pairs of plans are off.

    ``drawn_ms`` are the steps under draws of the constants and, where ``trust`` has no pairs, of the parts' form. With
    pairs, each plan errs by a factor of its own for which two plans' ratio is off by ``pair_error``. A factor that all
    plans share fills up to ``step_error``. Draws that spread further are not narrowed, as held-out steps need not have
    used every constant that a plan uses. Few held-out steps say little of their own error: the spread of n of them is
    widened as Student's t is for n degrees of freedom.
    """
    n = len(drawn_ms)
    logs = np.log(np.array(drawn_ms) / step_ms)
    few = t_quantile(_UPPER, trust.plans) / NormalDist().inv_cdf(_UPPER)
    own = few * math.log(trust.pair_error or 1.0) / math.sqrt(2.0)
    rest = (few * math.log(trust.step_error)) ** 2 - own**2 - float(np.mean(logs**2))
    shared = math.sqrt(max(0.0, rest))
    factors = np.exp(shared * deviations(_SHARED, n) + own * deviations(f"form of the step in {of}", n))
    return tuple((np.array(drawn_ms) * factors).tolist())


def p_larger(times: Sequence[Sequence[float]], reference: Sequence[Sequence[float]]) -> float:
    """Return the share of draws in which a time is the larger one; equal ones count half.

    Both are given as trials (seeds) of draws, and every pair of trials counts. Raises BadInput
    where two have not the same number of draws.
    """
    drawn = _alike([*times, *reference])
    above, below = drawn[: len(times), None, :], drawn[None, len(times) :, :]
    return float(np.mean((above > below) + 0.5 * (above == below)))


def sure(p: float) -> bool:
    """Return True where a probability that one time is the larger one leaves the order known, either way."""
    return max(p, 1.0 - p) >= SURE


def band(times: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Return the 2.5th and 97.5th percentile of the draws of all trials (seeds) together.

    Raises BadInput where two have not the same number of draws.
    """
    low, high = np.percentile(_alike(times), (2.5, 97.5))
    return float(low), float(high)


def _alike(times: Sequence[Sequence[float]]) -> Floats:
    """Return the draws of trials as float64 [trials, draws], which compare one by one."""
    counts = sorted({len(drawn) for drawn in times})
    if len(counts) != 1 or counts[0] == 0:
        raise BadInput(
            f"records have {' and '.join(map(str, counts)) or 'no'} draws of a time, which compare one by one: "
            "make the records again that have another number than the others"
        )
    return np.array(times, dtype=np.float64)


@dataclass(frozen=True, kw_only=True)
class HeldOutStep:
    """A step that was predicted and measured, of a plan to which no constant was fitted."""

    tables: str
    """The tables, batch and ranks of the plan: two plans with the same word can take each other's place."""
    predicted_ms: float
    measured_ms: float

    @property
    def error_log(self) -> float:
        """Return log(predicted / measured)."""
        return math.log(self.predicted_ms / self.measured_ms)


@dataclass(frozen=True, kw_only=True)
class PairError:
    """How far the ratios of two plans' times on the same tables are off what is predicted, as factors."""

    factor: float
    """The factor whose logarithm is the root mean square of log(predicted ratio / measured ratio)."""
    low: float
    """Lower end of its 95 % interval."""
    high: float
    sources: int
    plans: int

    @property
    def text(self) -> str:
        """Say it in per cent, to as many digits as its interval allows."""
        return off_text(self.factor, self.low, self.high)


def off_text(factor: float, low: float, high: float) -> str:
    """Say in per cent how far a factor is from 1, with its interval, to as many digits as that allows."""
    ends = [100.0 * (one - 1.0) for one in (factor, low, high)]
    places = decimals(*ends[1:]) if high > low else 1
    off, least, most = (f"{round(one, places):.{max(places, 0)}f}" for one in ends)
    return f"{off} % ({least} to {most})"


def pair_error(sources: Mapping[str, Sequence[Sequence[float]]]) -> PairError | None:
    """Return how far ratios of two plans are off; None where no two plans are of the same tables.

    Of each source there are sets of log(predicted / measured), one a plan of the same tables: a set says of its plans
    how far each is off their mean, and a pair is off twice that in its square. Sources weigh alike, as plans of one err
    alike. The interval is of chi square. Its degrees of freedom are those that the scatter of the sources leaves
    (Satterthwaite 1946), or, of a single source, those of its sets.
    """
    kept = {name: [np.asarray(one) for one in sets if len(one) > 1] for name, sets in sources.items()}
    kept = {name: sets for name, sets in kept.items() if sets}
    if not kept:
        return None
    freedoms = [sum(len(one) - 1 for one in sets) for sets in kept.values()]
    squares = [sum(float(((one - one.mean()) ** 2).sum()) for one in sets) for sets in kept.values()]
    variances = np.array(squares) / np.array(freedoms)
    variance, freedom = float(variances.mean()), float(sum(freedoms))
    if len(variances) > 1 and variances.std() > 0.0:
        freedom = min(freedom, 2.0 * variance**2 / (float(variances.var(ddof=1)) / len(variances)))
    spread, (low, high) = math.sqrt(2.0 * variance), deviation_interval(freedom)
    factor, least, most = (math.exp(min(spread * share, math.log(MOST))) for share in (1.0, low, high))
    plans = sum(len(one) for sets in kept.values() for one in sets)
    return PairError(factor=factor, low=least, high=most, sources=len(kept), plans=plans)


def trust(steps: Sequence[HeldOutStep], least_log: float, source: str) -> Trust:
    """Return how far these steps are from what is predicted of them, the biases that they share included.

    Two measured steps of the same tables are ordered where the logarithms of their times differ by more than
    ``least_log``, the noise; steps predicted as equal are in no right order. Raises BadInput without a step.
    """
    if not steps:
        raise BadInput("no held-out step says how far to trust the machine file: measure plans to hold out")
    pairs = [(a, b) for a, b in combinations(steps, 2) if a.tables == b.tables]
    apart = [(a, b) for a, b in pairs if abs(math.log(a.measured_ms / b.measured_ms)) > least_log]
    right = sum((a.predicted_ms - b.predicted_ms) * (a.measured_ms - b.measured_ms) > 0.0 for a, b in apart)
    of_tables: dict[str, list[float]] = {}
    for step in steps:
        of_tables.setdefault(step.tables, []).append(step.error_log)
    off = pair_error({source: list(of_tables.values())})
    stated = Trust(step_error=_factor([step.error_log for step in steps]), plans=len(steps), source=source)
    if off is None:
        return stated
    return replace(with_pairs(stated, off), pairs=len(apart), pairs_right=right)


def with_pairs(trust: Trust, off: PairError) -> Trust:
    """Return what a machine file states, with the error of pairs to two digits behind the point."""
    return replace(trust, pair_error=round(off.factor, 2), pair_low=round(off.low, 2), pair_high=round(off.high, 2))


def _factor(logs: Sequence[float]) -> float:
    """Return the root mean square of logarithms as a factor, to three digits behind the point."""
    return round(math.exp(math.sqrt(math.fsum(log * log for log in logs) / len(logs))), 3)
