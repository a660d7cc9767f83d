"""The leaderboard: every strategy on every problem in one table, and scores that a reader can recompute from it.

A problem is a workload on a machine by one backend; a strategy may stand in it with several budgets. Scores count
problems and take geometric means of ratios: milliseconds of unlike problems are never added.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from shardbench.cost.uncertainty import band, p_larger, sure
from shardbench.model.strategy import Role
from shardbench.records.record import Record
from shardbench.records.trial import Outcome
from shardbench.report.compare.same_numbers import SAME
from shardbench.report.groups import Group, Row, groups
from shardbench.report.page.profiles import geometric_mean
from shardbench.report.standing import RANKS, UNSHARDED, over_pct, ranks_by_judge, table_standings

STEPS = (
    "version", "workload", "machine", "devices", "backend", "strategy", "budget", "outcome", "step_ms",
    "over_bound_pct", "over_best_pct", "tie", "plan_s", "fit_s", "effort_cpu_s", "headroom_pct", "step_ms_low",
    "step_ms_high", "bound_ms", "bounded_by", "predicted_step_ms", "torchrec_estimate_ms", *RANKS, "n", "role", "sees",
    "moves", "batch_size", "plan_hash", "cause",
)  # fmt: skip
BOUND, ANY_PLAN, ORDERED = "bound", "any plan", "plans in order"
FACTORS = (1.0, 1.01, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 5.0)
"""Profiles are tabulated at these factors: the share of problems whose step is within the factor of the best."""
SCORES = (
    "version", "backend", "budget", "strategy", "role", "problems", "ok", "best", "bounded", "over_bound_geomean",
    "over_best_geomean", *(f"within_{factor:g}" for factor in FACTORS),
)  # fmt: skip


def steps(rows: pd.DataFrame, version: int) -> pd.DataFrame:
    """Return simulated rows by problem, the best first, and what failed last.

    ``rows`` have a row ``bound`` a problem beside the strategies' own, whose ``draws_ms`` are their steps under draws
    of the model's constants. ``over_best_pct`` is the distance to the shortest step of any row of the problem, whatever
    its budget and role; ``over_bound_pct`` that to the proven bound on plans like this one (``bounded_by``). ``tie``
    is ``=`` where a step is the best's to the last digit, ``~`` where the cost model is not sure of the sign, ``?``
    where its error is unknown. ``headroom_pct`` is the free share of HBM of the fullest device.
    ``torchrec_estimate_ms`` is the step by TorchRec's own estimator, empty of plans that TorchRec cannot express;
    ``model_rank`` and ``torchrec_rank`` are a row's places by either judge, among the problem's rows that both rate.
    """
    found = [_problem(part) for _, part in rows.groupby(["workload", "machine"], sort=False)]
    table = pd.concat(found, ignore_index=True).assign(version=version)
    return _ranked(table.reindex(columns=list(STEPS)))


def _ranked(table: pd.DataFrame) -> pd.DataFrame:
    """Fill in the places of rows by either judge, problem by problem."""
    found: dict[Any, tuple[int, int] | None] = {}
    for _, part in table.groupby(["workload", "machine"], sort=False):
        rated = [(one.model_ms, one.torchrec_ms) for one in table_standings(part)]
        found |= dict(zip(part.index, ranks_by_judge(rated), strict=True))
    places = [found[row] or (None, None) for row in table.index]
    return table.assign(**{name: [pair[judge] for pair in places] for judge, name in enumerate(RANKS)})


def _problem(part: pd.DataFrame) -> pd.DataFrame:
    proven = part[part["budget"] == BOUND]
    bounds = {ANY_PLAN: proven["step_ms"].iloc[0], ORDERED: proven["ordered_ms"].iloc[0]} if len(proven) else {}
    # What trains another model is in no ranking.
    asked = part[(part["budget"] != BOUND) & (part["role"] != Role.OTHER_MODEL.value)].sort_values(
        ["step_ms", "strategy"], na_position="last", kind="stable"
    )
    ok = asked[asked["outcome"] == Outcome.OK.value]
    best = ok.iloc[0] if len(ok) else None
    return pd.DataFrame([{**row, **_cells(row, best, bounds)} for row in asked.to_dict("records")])


def _cells(row: Mapping[Any, Any], best: "pd.Series[Any] | None", bounds: Mapping[str, float]) -> dict[str, Any]:
    if best is None or row["outcome"] != Outcome.OK.value:
        return {"n": 0}
    bound = bounds.get(row["bounded_by"])
    low, high = band([row["draws_ms"]]) if _drawn(row) else (None, None)
    return {
        "n": 1,
        "over_best_pct": over_pct(row["step_ms"], best["step_ms"]),
        "bound_ms": bound,
        "over_bound_pct": over_pct(row["step_ms"], bound),
        "tie": _tie(row, best),
        "step_ms_low": low,
        "step_ms_high": high,
    }


def _drawn(row: "Mapping[Any, Any] | pd.Series[Any]") -> bool:
    return isinstance(row["draws_ms"], list | tuple) and len(row["draws_ms"]) > 0


def _tie(row: Mapping[Any, Any], best: "pd.Series[Any]") -> str:
    if (row["strategy"], row["budget"]) == (best["strategy"], best["budget"]):
        return ""
    if row["step_ms"] <= best["step_ms"] * (1.0 + SAME):
        return "="
    if not (_drawn(row) and _drawn(best)):
        return "?"
    return "" if sure(p_larger([row["draws_ms"]], [best["draws_ms"]])) else "~"


def measured_steps(
    records: Iterable[Record], version: int, devices: Mapping[str, int], sees: Mapping[str, str]
) -> pd.DataFrame:
    """Return rows of measured trials, as ``steps`` has them, with one budget.

    ``devices`` are by machine, what strategies declare to see by their name. ``over_best_pct`` compares what trials
    are compared by (their ratio to the control plan of the same ranks), ``tie`` is ``=`` where that is below the noise
    of so many trials and ``?`` where the noise is unknown. Nothing is proven about measured steps.
    """
    ranked = (group for group in groups(records) if group.condition.trains == UNSHARDED)
    rows = [row for group in ranked for row in _measured(group, devices, sees)]
    return _ranked(pd.DataFrame(rows).assign(version=version).reindex(columns=list(STEPS)))


def _measured(group: Group, devices: Mapping[str, int], sees: Mapping[str, str]) -> list[dict[str, Any]]:
    best = min(group.ok_rows, key=lambda row: group.estimate(row).value, default=None)
    ordered = sorted(group.rows, key=lambda row: (not row.ok, group.estimate(row).value if row.ok else 0.0))
    stated = (
        "workload", "machine", "backend", "strategy", "budget", "outcome", "role", "batch_size", "cause", "step_ms",
        "plan_s", "fit_s",
    )  # fmt: skip
    return [
        {
            **{name: getattr(one, name) for name in stated},
            "step_ms_low": one.low_ms,
            "step_ms_high": one.high_ms,
            "predicted_step_ms": one.model_ms,
            "torchrec_estimate_ms": one.torchrec_ms,
            "devices": devices[one.machine],
            "sees": sees.get(one.strategy, ""),
            "n": row.trials_ok,
            **(_over_best(group, row, best) if row.ok and best is not None else {}),
        }
        for row, one in ((row, group.standings[row.strategy]) for row in ordered)
    ]


def _over_best(group: Group, row: Row, best: Row) -> dict[str, Any]:
    """Return the distance to the best row of any role, and whether it is more than the noise."""
    apart = group.apart(row, best)
    return {
        "over_best_pct": over_pct(group.estimate(row).value, group.estimate(best).value),
        "tie": "" if row is best else "?" if apart is None else "" if apart else "=",
    }


def scores(steps_table: pd.DataFrame) -> pd.DataFrame:
    """Return one row a backend, budget and strategy, from the table of ``steps`` alone.

    Strategies that are within 5 % of the best most often come first.

    A problem that a strategy did not end well is outside every factor of the best; it has no ratio, so that geometric
    means are of the ``ok`` problems (over the bound: of the ``bounded`` ones).
    """
    rows = []
    keys = ["backend", "budget", "strategy", "role"]
    for (backend, budget, strategy, role), part in steps_table.groupby(keys, sort=True):
        ok = part[part["outcome"] == Outcome.OK.value]
        over_best = 1.0 + ok["over_best_pct"].to_numpy(dtype=np.float64) / 100.0
        over_bound = 1.0 + ok["over_bound_pct"].dropna().to_numpy(dtype=np.float64) / 100.0
        within = [float((over_best <= factor * (1.0 + SAME)).sum()) / len(part) for factor in FACTORS]
        rows.append([
            part["version"].iloc[0], backend, budget, strategy, role, len(part), len(ok),
            int((over_best <= 1.0 + SAME).sum()), len(over_bound),
            *(geometric_mean(ratios) if len(ratios) else None for ratios in (over_bound, over_best)), *within,
        ])  # fmt: skip
    table = pd.DataFrame(rows, columns=list(SCORES))
    order = ["backend", "budget", "within_1.05", "over_best_geomean", "strategy"]
    return table.sort_values(order, ascending=[True, True, False, True, True], ignore_index=True)
