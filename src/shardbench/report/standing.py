"""How a strategy stands on a problem: one typed row, which a group of records makes or a table states.

A problem is a workload on a machine by one backend. Tables, answers, pages and papers are views of such rows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from shardbench.cost.uncertainty import SURE
from shardbench.model.plan import ShardingGroups
from shardbench.model.strategy import Role
from shardbench.records.trial import Backend, Outcome

PROBLEM = ("workload", "machine", "backend")
"""Columns that name a problem."""
COLUMNS = (
    *PROBLEM, "strategy", "role", "budget", "outcome", "step_ms", "step_ms_low", "step_ms_high", "over_best_pct", "tie",
    "plan_s", "fit_s",
)  # fmt: skip
"""A study's table with all of these states standings; other columns may be beside them."""
RANKS = ("model_rank", "torchrec_rank")
"""Columns of a row's place by either judge, among the rows that both rate."""
TIGHT_FROM = 0.7
"""Share of all HBM that tables take, from which memory is tight."""
AS_RUN = "as run"
"""The budget's name where there is only one."""
SAME = 1e-6
"""Relative difference up to which two numbers are one: a processor of another kind rounds otherwise."""

_NAMED = 3
"""A sentence names so many strategies that share a place at most."""
Cells = Mapping[str, Any]
_Key = TypeVar("_Key")


class TieMark(StrEnum):
    """What is known of the difference to the best, as tables print it."""

    BEST = "best"
    SAME = "="
    """Measured: the difference is below the noise floor. Simulated: there is none."""
    OPEN = "~"
    """The model's own error leaves open which is faster."""
    UNKNOWN = "?"
    """It is not known whether there is a difference: nothing was repeated, or the records have no draws."""
    APART = ""
    """The strategy is slower (a reference may be faster) beyond the noise or the model's error."""


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a strategy with one budget ended on a problem, and how its step compares with the best."""

    workload: str
    machine: str
    backend: str
    strategy: str
    role: str
    budget: str = AS_RUN
    outcome: str
    cause: str = ""
    step_ms: float | None = None
    low_ms: float | None = None
    """Lower end of the step's 95 % interval (measured) or band (simulated); None where it is not known."""
    high_ms: float | None = None
    over_best_pct: float | None = None
    """Distance to the shortest step of the problem, whatever the role of the strategy that has it."""
    vs_best_pct: float | None = None
    """Distance to the best competitor; negative where a reference is ahead. A study's table does not state it."""
    same: bool | None = None
    """Whether the step is the best competitor's, within the noise where measured; None where that is unknown."""
    p_slower: float | None = None
    """Share of draws in which the step is longer than the best competitor's; None of the best, and without draws."""
    mark: TieMark | None = None
    """A strategy that failed has none, nor has any where no competitor ended well."""
    model_ms: float | None = None
    """The step by the cost model: where simulated ``step_ms``, where measured what it predicted."""
    torchrec_ms: float | None = None
    """The step by TorchRec's own estimator; None of a plan that TorchRec cannot express."""
    plan_s: float | None = None
    fit_s: float | None = None
    devices: float | None = None
    batch_size: float | None = None
    bound_ms: float | None = None
    over_bound_pct: float | None = None
    family: str = ""
    """Problems of a family are alike, and families weigh alike; empty where there are none."""
    memory: str = ""
    """Whether all HBM is ample, tight or short for the tables; empty where it is not stated."""
    p_near: float | None = None
    """Share of the draws of the model in which the step is within 5 % of the best; None without draws."""
    bound_by: str = ""
    """What takes most of the step; empty where it is not stated."""
    record: str = ""
    """Key of the record behind the row, the first of several; empty where it is not known."""

    @property
    def problem(self) -> tuple[str, str, str]:
        """Workload, machine and backend."""
        return self.workload, self.machine, self.backend

    @property
    def name(self) -> str:
        """The strategy, with its budget where there are several."""
        return self.strategy if self.budget == AS_RUN else f"{self.strategy} ({self.budget})"

    @property
    def ok(self) -> bool:
        """True where the strategy ended well and there is a best step to hold its step against."""
        return self.outcome == Outcome.OK and self.over_best_pct is not None

    @property
    def competes(self) -> bool:
        """True where the strategy may be the best."""
        return self.role == Role.COMPETITOR


UNSHARDED = "the unsharded model"
"""What plans train, unless their strategy says otherwise."""


def display_name(strategy: str, role: str) -> str:
    """Return a strategy's name as tables and charts show it: what is no competitor's is said to be none."""
    words = {str(Role.SEARCH): " (reference)", str(Role.OTHER_MODEL): " (trains another model)"}
    return strategy + words.get(role, "")


def groups_text(groups: ShardingGroups) -> str:
    """Say how large a plan's sharding groups are, how they lie, and how often their copies are averaged."""
    layout = "interleaved" if groups.interleaved else "contiguous"
    every = f"every {groups.sync_every} steps" if groups.sync_every > 1 else "every step"
    return f"{groups.size} rank{'s' * (groups.size > 1)} each, {layout}; copies are averaged {every}"


def trained_model(strategy: str, role: str) -> str:
    """Say which model a strategy's plans train."""
    return f"another model: {strategy}" if role == Role.OTHER_MODEL else UNSHARDED


def trains_text(model: str) -> str:
    """Say in a title which model is trained; empty of the unsharded one, which most plans train."""
    return "" if model == UNSHARDED else f", trains {model}"


def is_measured(backend: str) -> bool:
    """Return True for the backend whose steps are timed."""
    return backend == Backend.MEASURED.value


def mark(
    vs_best_pct: float | None, same: bool | None, p_slower: float | None, *, role: str, backend: str
) -> TieMark | None:
    """Return what is known of a difference to the best competitor; None where there is no difference."""
    if vs_best_pct is None:
        return None
    if same is None:
        return TieMark.UNKNOWN
    if vs_best_pct == 0 and role == Role.COMPETITOR:
        return TieMark.BEST
    if same:
        return TieMark.SAME
    return certainty(vs_best_pct, p_slower) if backend == Backend.SIMULATED else TieMark.APART


def certainty(difference: float, p_slower: float | None) -> TieMark:
    """Return how sure the sign of a simulated difference is, given the share of draws that are slower."""
    if p_slower is None:
        return TieMark.UNKNOWN
    return TieMark.APART if share_of_sign(difference, p_slower) >= SURE else TieMark.OPEN


def share_of_sign(difference: float, p_slower: float) -> float:
    """Return the share of draws that have the difference's sign."""
    return p_slower if difference > 0 else 1.0 - p_slower


def same(a: Sequence[float], b: Sequence[float]) -> bool:
    """Return whether there are as many numbers in both, each the same as the other's within ``SAME``."""
    return len(a) == len(b) and bool(np.allclose(a, b, rtol=SAME, atol=0.0, equal_nan=True))


def over_pct(value: float | None, reference: float | None) -> float | None:
    """Return by how many per cent a value is over a reference; None where one is not known, or the reference is 0."""
    return 100.0 * (value / reference - 1.0) if value is not None and reference else None


def standings_by(key: Callable[[Standing], _Key], standings: Iterable[Standing]) -> dict[_Key, list[Standing]]:
    """Return the standings of each key, keys in the order in which they first come."""
    by_key: dict[_Key, list[Standing]] = {}
    for one in standings:
        by_key.setdefault(key(one), []).append(one)
    return by_key


def by_problem(standings: Iterable[Standing]) -> dict[tuple[str, str, str], list[Standing]]:
    """Return the standings of each problem, problems in the order in which they first come."""
    return standings_by(lambda one: one.problem, standings)


def ranks_by_judge(steps: Sequence[tuple[float | None, float | None]]) -> list[tuple[int, int] | None]:
    """Return the places of rows, given the step of each by either judge: 1 is the shortest, equal steps share theirs.

    Places are among the rows that both judges rate; the others have None.
    """
    both = [(a, b) for a, b in steps if a is not None and b is not None]

    def place(judge: int, ms: float) -> int:
        return 1 + sum(pair[judge] < ms * (1.0 - SAME) for pair in both)

    return [None if a is None or b is None else (place(0, a), place(1, b)) for a, b in steps]


def disagreement(standings: Iterable[Standing]) -> str:
    """Say in a sentence which competitors either judge has first; empty where they have one in common.

    It is empty too where nothing is rated, or compared at all.
    """
    competing = [one for one in standings if one.competes and one.mark is not None]
    ranks = ranks_by_judge([(one.model_ms, one.torchrec_ms) for one in competing])
    rated = [(one.name, places) for one, places in zip(competing, ranks, strict=True) if places is not None]
    firsts = [sorted(name for name, places in rated if places[judge] == 1) for judge in (0, 1)]
    if set(firsts[0]) & set(firsts[1]) or not rated:
        return ""
    model, torchrec = (", ".join(names[:_NAMED]) + (" and more" * (len(names) > _NAMED)) for names in firsts)
    return (
        f"the judges disagree about the best: of the {len(rated)} plans that both rate, the cost model has {model} "
        f"first, TorchRec's own estimator {torchrec}"
    )


def throughput_standing(row: Cells) -> Standing:
    """Return the standing that a row of a table of throughput states; ``over_best_pct`` is not in it."""
    vs_best_pct, p_slower = number(row, "vs_best_pct"), number(row, "p_slower_than_best")
    same = None if pd.isna(row["same_as_best"]) else bool(row["same_as_best"])
    return _standing(
        row,
        step_ms=number(row, "step_ms"),
        vs_best_pct=vs_best_pct,
        same=same,
        p_slower=p_slower,
        mark=mark(vs_best_pct, same, p_slower, role=row["role"], backend=row["backend"]),
    )


def states_standings(table: pd.DataFrame) -> bool:
    """Return True where a study's table has all columns that standings need."""
    return set(COLUMNS) <= set(table.columns)


def table_standings(table: pd.DataFrame) -> list[Standing]:
    """Return the standings that a study's table states, in its order; ties are with the best row of any role."""
    standings = []
    for row in table.to_dict("records"):
        over_best_pct, tie = number(row, "over_best_pct"), text(row, "tie")
        tie_mark = None if over_best_pct is None else TieMark.BEST if over_best_pct == 0 and not tie else TieMark(tie)
        standings.append(_standing(row, step_ms=number(row, "step_ms"), mark=tie_mark, budget=text(row, "budget")))
    return standings


def _standing(row: Mapping[Any, Any], **fields: Any) -> Standing:
    """Return what a row states in columns that all tables of standings have, with what else is known."""
    numbers = (
        "over_best_pct", "plan_s", "fit_s", "devices", "batch_size", "bound_ms", "over_bound_pct",
    )  # fmt: skip
    cells: Cells = {
        **{name: text(row, name) for name in (*PROBLEM, "strategy", "role", "outcome", "cause", "bound_by")},
        **{name: number(row, name) for name in numbers},
    }
    fields["model_ms"] = number(row, "predicted_step_ms") if is_measured(cells["backend"]) else fields["step_ms"]
    fields["torchrec_ms"] = number(row, "torchrec_estimate_ms")
    fields["p_near"], fields["family"] = number(row, "p_within_1.05"), text(row, "family")
    fields["memory"] = memory_of(number(row, "fills"))
    return Standing(**cells, low_ms=number(row, "step_ms_low"), high_ms=number(row, "step_ms_high"), **fields)


def memory_of(hbm_share: float | None) -> str:
    """Say how much HBM there is for tables that take so large a share of it; empty where that is not known."""
    if hbm_share is None:
        return ""
    return "short" if hbm_share > 1.0 else "tight" if hbm_share > TIGHT_FROM else "ample"


def number(row: Cells, key: str) -> float | None:
    """Return a cell's number; None where it is empty or there is no such column."""
    value = row.get(key)
    return None if value is None or pd.isna(value) else float(value)


def text(row: Cells, key: str) -> str:
    """Return a cell's text; empty where the cell is, or where there is no such column."""
    value = row.get(key)
    return "" if value is None or pd.isna(value) else str(value)
