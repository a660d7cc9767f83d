"""The leaderboard: every strategy on every problem in one table, and scores that a reader can recompute from it.

A problem is a workload on a machine by one backend; a strategy may stand in it with several budgets. Scores count
problems and take geometric means of ratios: milliseconds of unlike problems are never added.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from statistics import geometric_mean
from typing import Any

import numpy as np
import pandas as pd

from shardbench.base.arrays import Bools, Floats
from shardbench.base.errors import BadInput
from shardbench.cost.costmodel import HOST
from shardbench.cost.uncertainty import band, p_larger, sure
from shardbench.model.machine_file import load_machine
from shardbench.model.strategy import Role
from shardbench.records.record import Record
from shardbench.records.trial import Outcome
from shardbench.report.groups import Group, groups
from shardbench.report.rows import Row
from shardbench.report.standing import RANKS, SAME, UNSHARDED, is_measured, over_pct, ranks_by_judge, table_standings

STEPS = (
    "version", "family", "workload", "machine", "devices", "fills", "schedule", "precision", "backend", "strategy",
    "budget", "outcome", "step_ms", "over_bound_pct", "over_best_pct", "tie", "p_best", "p_within_1.05",
    "p_near_least_error", "p_near_most_error", "expected_over_best_pct", "width_pct", "plan_s", "fit_s", "effort_cpu_s",
    "peak_gib", "step_ms_low", "step_ms_high", "bound_ms", "bounded_by", "host_ms", "bound_by",
    "predicted_step_ms", "torchrec_estimate_ms", *RANKS, "n", "role", "sees", "moves", "batch_size", "plan_hash",
    "cause",
)  # fmt: skip
BOUND, ANY_PLAN, ORDERED = "bound", "any plan", "plans in order"
FACTORS = (1.01, 1.05, 1.2, 2.0)
"""Scores have the share of problems whose step is within these factors of the best."""
NEAR = 1.05
"""Expectations are of being within this factor of the best."""
SURE_BEST = 0.95
"""Share of draws in which a plan has to be the best, alone or with its equals, to be called so."""
SCORES = (
    "version", "backend", "budget", "group", "rank", "places", "strategy", "role", "problems", "ok",
    "median_over_best_pct", "worst_over_best_pct", "best_or_tied", "surely_best", "expected_within_1.05",
    "expected_low", "expected_high", "torchrec_within_1.05", "bounded",
    "over_bound_geomean", "over_best_geomean", "plan_s",
    *(f"within_{factor:g}" for factor in FACTORS),
)  # fmt: skip
_EXPECTED = {
    "as stated": "p_within_1.05", "least": "p_near_least_error", "most": "p_near_most_error",
}  # fmt: skip
"""The error of two plans' ratios, and the column of expectations by it."""
PLANS_MATTER, BOUND_BY_HOST = "plans matter", "bound by the host"
RESAMPLES, SURE_OF_RESAMPLES = 2000, 0.95
"""Lists of problems that are drawn from the board's, and the share of them in which one must be ahead of another."""


def steps(rows: pd.DataFrame, version: int) -> pd.DataFrame:
    """Return simulated rows by problem, the best first, and what failed last.

    ``rows`` have a row ``bound`` a problem beside the strategies' own, whose ``draws_ms`` are their steps under draws
    of the model's constants. ``over_best_pct`` is the distance to the shortest step of any row of the problem, whatever
    its budget and role; ``over_bound_pct`` that to the proven bound on plans like this one (``bounded_by``). ``tie``
    is ``=`` where a step is the best's to the last digit, ``~`` where the cost model is not sure of the sign, ``?``
    where its error is unknown. ``peak_gib`` is what the fullest device is predicted to hold at most.
    ``host_ms`` is the time in which an eager step's host starts it, ``bound_by`` what takes most of the step.
    ``torchrec_estimate_ms`` is the step by TorchRec's own estimator, empty of plans that TorchRec cannot express;
    ``model_rank`` and ``torchrec_rank`` are a row's places by either judge, among the problem's rows that both rate.
    ``p_near_least_error`` and ``p_near_most_error`` are what ``p_within_1.05`` would be if ratios of two plans were off
    by the ends of the interval that the machine's file states of that error.
    """
    problems = [_problem(part) for _, part in rows.groupby(["workload", "machine"], sort=False)]
    table = pd.concat(problems, ignore_index=True).assign(version=version)
    return _ranked(table.reindex(columns=list(STEPS)))


def _ranked(table: pd.DataFrame) -> pd.DataFrame:
    """Fill in the places of rows by either judge, problem by problem."""
    by_row: dict[Any, tuple[int, int] | None] = {}
    for _, part in table.groupby(["workload", "machine"], sort=False):
        judge_steps = [(one.model_ms, one.torchrec_ms) for one in table_standings(part)]
        by_row |= dict(zip(part.index, ranks_by_judge(judge_steps), strict=True))
    places = [by_row[row] or (None, None) for row in table.index]
    return table.assign(**{name: [pair[judge] for pair in places] for judge, name in enumerate(RANKS)})


def _problem(part: pd.DataFrame) -> pd.DataFrame:
    bound = part[part["budget"] == BOUND]
    bounds = {ANY_PLAN: bound["step_ms"].iloc[0], ORDERED: bound["ordered_ms"].iloc[0]} if len(bound) else {}
    # What trains another model is in no ranking.
    strategy_rows = part[(part["budget"] != BOUND) & (part["role"] != Role.OTHER_MODEL.value)].sort_values(
        ["step_ms", "strategy"], na_position="last", kind="stable"
    )
    ok = strategy_rows[strategy_rows["outcome"] == Outcome.OK.value]
    best = ok.iloc[0] if len(ok) else None
    expectations = {at: each for _, of in ok.groupby("budget") for at, each in _expectations(of).items()}
    rows = zip(strategy_rows.index, strategy_rows.to_dict("records"), strict=True)
    return pd.DataFrame([{**row, **_cells(row, best, bounds), **expectations.get(at, {})} for at, row in rows])


def _expectations(ok: pd.DataFrame) -> dict[Any, dict[str, float]]:
    """Return what is expected of each of a budget's rows over the draws of the model; {} where a row has no draws.

    A draw of the constants is the same for all rows of a problem, so that each draw has a best, and equals share it.
    """
    if not len(ok) or not all(map(_has_draws, (row for _, row in ok.iterrows()))):
        return {}
    draws = np.array(ok["draws_ms"].tolist(), dtype=np.float64)
    ratios = draws / draws.min(axis=0)
    # Equal plans err alike: rounding alone may tell them apart.
    shares = [(ratios <= factor * (1.0 + SAME)).mean(axis=1) for factor in (1.0, NEAR)]
    over_best = 100.0 * (np.exp(np.log(ratios).mean(axis=1)) - 1.0)
    columns = {"p_best": shares[0], "p_within_1.05": shares[1], "expected_over_best_pct": over_best}
    steps_ms = ok["step_ms"].to_numpy(dtype=np.float64)
    for name, times in _other_errors(str(ok["machine"].iloc[0])).items():
        other = _with_error(draws, steps_ms, times)
        columns[name] = (other / other.min(axis=0) <= NEAR * (1.0 + SAME)).mean(axis=1)
    return {at: {name: float(column[i]) for name, column in columns.items()} for i, at in enumerate(ok.index)}


@cache
def _other_errors(machine: str) -> dict[str, float]:
    """Return how many times as far plans would err from each other at the ends of the interval of their pairs' error.

    Nothing is returned for a machine whose file does not state the interval, or that nobody ships.
    """
    try:
        trust = load_machine(machine).trust
    except BadInput:
        return {}
    if trust is None or trust.pair_low is None or trust.pair_high is None or not (trust.pair_error or 1.0) > 1.0:
        return {}
    logs = np.log([trust.pair_error or 1.0, trust.pair_low, trust.pair_high])
    return {"p_near_least_error": float(logs[1] / logs[0]), "p_near_most_error": float(logs[2] / logs[0])}


def _with_error(draws: Floats, steps_ms: Floats, times: float) -> Floats:
    """Return draws [plans, draws] in which each plan errs so many times as far from what all plans of a draw share."""
    logs = np.log(draws / steps_ms[:, None])
    shared = np.median(logs, axis=0, keepdims=True)
    return np.asarray(steps_ms[:, None] * np.exp(shared + times * (logs - shared)))


def _cells(row: Mapping[Any, Any], best: "pd.Series[Any] | None", bounds: Mapping[str, float]) -> dict[str, Any]:
    if best is None or row["outcome"] != Outcome.OK.value:
        return {"n": 0}
    bound = bounds.get(row["bounded_by"])
    low, high = band([row["draws_ms"]]) if _has_draws(row) else (None, None)
    return {
        "n": 1,
        "over_best_pct": over_pct(row["step_ms"], best["step_ms"]),
        "bound_ms": bound,
        "over_bound_pct": over_pct(row["step_ms"], bound),
        "tie": tie(row, best),
        "step_ms_low": low,
        "step_ms_high": high,
    }


def _has_draws(row: "Mapping[Any, Any] | pd.Series[Any]") -> bool:
    return isinstance(row["draws_ms"], list | tuple) and len(row["draws_ms"]) > 0


def tie(row: "Mapping[Any, Any] | pd.Series[Any]", best: "pd.Series[Any]") -> str:
    """Return the mark of a simulated row's tie with the best, as in ``steps``; nothing where it is surely behind."""
    if (row["strategy"], row["budget"]) == (best["strategy"], best["budget"]):
        return ""
    if row["step_ms"] <= best["step_ms"] * (1.0 + SAME):
        return "="
    if not (_has_draws(row) and _has_draws(best)):
        return "?"
    return "" if sure(p_larger([row["draws_ms"]], [best["draws_ms"]])) else "~"


def measured_steps(
    records: Iterable[Record], version: int, devices: Mapping[str, int], sees: Mapping[str, str]
) -> pd.DataFrame:
    """Return rows of measured trials, as ``steps`` has them, with one budget.

    ``devices`` are by machine, what strategies declare to see by their name. ``tie`` is ``=`` where a row is not told
    apart from the best, all compared at once, and ``?`` where the noise is unknown; ``width_pct`` is how far a row must
    be behind another for that. Nothing is proven about measured steps. Times of ranks that
    share a core are not compared, and are no rows.
    """
    ranked = (group for group in groups(records) if group.compared and group.condition.trains == UNSHARDED)
    rows = [row for group in ranked for row in _measured(group, devices, sees)]
    return _ranked(pd.DataFrame(rows).assign(version=version).reindex(columns=list(STEPS)))


def _measured(group: Group, devices: Mapping[str, int], sees: Mapping[str, str]) -> list[dict[str, Any]]:
    best = min(group.ok_rows, key=lambda row: group.estimate(row).value, default=None)
    rows = sorted(group.rows, key=lambda row: (not row.ok, group.estimate(row).value if row.ok else 0.0))
    fields = (
        "workload", "machine", "backend", "strategy", "budget", "outcome", "role", "batch_size", "cause", "step_ms",
        "plan_s", "fit_s",
    )  # fmt: skip
    return [
        {
            **{name: getattr(one, name) for name in fields},
            "step_ms_low": one.low_ms,
            "step_ms_high": one.high_ms,
            "predicted_step_ms": one.model_ms,
            "torchrec_estimate_ms": one.torchrec_ms,
            "devices": devices[one.machine],
            "sees": sees.get(one.strategy, ""),
            "n": row.trials_ok,
            **(_over_best(group, row, best) if row.ok and best is not None else {}),
        }
        for row, one in ((row, group.standings[row.strategy]) for row in rows)
    ]


def _over_best(group: Group, row: Row, best: Row) -> dict[str, Any]:
    """Return the distance to the best row of any role, and whether it is more than the noise."""
    behind = group.behind(row, best)
    return {
        "over_best_pct": over_pct(group.estimate(row).value, group.estimate(best).value),
        "tie": "" if row is best else "?" if behind is None else "" if behind else "=",
        "width_pct": group.width_pct,
    }


def scores(steps_table: pd.DataFrame) -> pd.DataFrame:
    """Return one row a backend, budget, group and strategy, from the table of ``steps`` alone; families weigh alike.

    Problems whose best plan is bound by the host are a ``group`` of their own: no plan matters there.
    ``median_over_best_pct`` and ``worst_over_best_pct`` are of all scored problems, and empty where that is one
    that a strategy did not end; ``best_or_tied`` counts those on which nothing is surely better.
    ``rank`` is the place among competitors by ``expected_within_1.05``, equal ones share theirs: the share of problems
    on which a strategy is expected, over the draws of the model, to be at most 5 % over the best; of older boards, by
    ``within_1.05``. A problem that a strategy did not end well is outside every factor. Measured strategies have no
    rank but ``places``, as ``_places`` says; those of simulated ones are what other lists of such problems leave open.
    ``expected_low`` and ``expected_high`` are the ends of that share where the error of two plans' ratios is as the
    machine files' intervals leave open. ``torchrec_within_1.05`` is the share of the problems that TorchRec's own
    estimator has it so near the best that it rates. ``over_bound_geomean`` and ``over_best_geomean`` are of the
    problems that the strategy solved; ``plan_s`` is the median of planning.
    """
    rows: list[dict[str, object]] = []
    keys = ["backend", "budget", "group"]
    for key, part in steps_table.assign(group=_group(steps_table)).groupby(keys, sort=True):
        known, backend = dict(zip(keys, key)), key[0]
        scored = [_score(own, part) | known for _, own in part.groupby(["strategy", "role"], sort=True)]
        rows += _with_places(scored, part) if is_measured(str(backend)) else _with_ranks(scored, part)
    return pd.DataFrame(rows, columns=list(SCORES))


def _group(table: pd.DataFrame) -> "pd.Series[str]":
    """Tell of each row whether the best plan of its problem is bound by the host, which a measured step never says."""
    best = table["over_best_pct"] == 0.0
    keys = ["backend", "workload", "machine"]
    is_bound = (best & (table["bound_by"] == HOST)).groupby([table[key] for key in keys]).transform("any")
    return is_bound.map({True: BOUND_BY_HOST, False: PLANS_MATTER})


def _score(own: pd.DataFrame, part: pd.DataFrame) -> dict[str, object]:
    ok = own[own["outcome"] == Outcome.OK.value]
    over_best = 1.0 + ok["over_best_pct"].astype(float) / 100.0
    over_bound = 1.0 + ok["over_bound_pct"].dropna().to_numpy(dtype=np.float64) / 100.0
    weights = _weights(own)
    within = {f"within_{factor:g}": over_best <= factor * (1.0 + SAME) for factor in FACTORS}
    far = own["over_best_pct"].astype(float).where(own["outcome"] == Outcome.OK.value, np.inf)
    distances = {"median_over_best_pct": float(far.median()), "worst_over_best_pct": float(far.max())}
    tied = ok["tie"].fillna("").isin(["=", "~"]) | (over_best <= 1.0 + SAME)
    has_draws = bool(part["p_best"].notna().any())
    expected = {
        name: float((weights * own[column].fillna(0.0)).sum())
        for name, column in _EXPECTED.items()
        if column in part and part[column].notna().any()
    }
    has_interval = len(expected) == len(_EXPECTED)
    return {
        "version": own["version"].iloc[0],
        "strategy": own["strategy"].iloc[0],
        "role": own["role"].iloc[0],
        "problems": len(own),
        "ok": len(ok),
        **{name: value if np.isfinite(value) else None for name, value in distances.items()},
        "best_or_tied": int(tied.sum()),
        "surely_best": int((own["p_best"] >= SURE_BEST).sum()) if has_draws else None,
        "expected_within_1.05": expected.get("as stated"),
        "expected_low": min(expected.values()) if has_interval else None,
        "expected_high": max(expected.values()) if has_interval else None,
        "torchrec_within_1.05": _torchrec_near(own, part, weights),
        "bounded": len(over_bound),
        "over_bound_geomean": geometric_mean(over_bound) if len(over_bound) else None,
        "over_best_geomean": geometric_mean(over_best.to_numpy()) if len(over_best) else None,
        "plan_s": float((ok["plan_s"].fillna(0.0) + ok["fit_s"].fillna(0.0)).median()) if len(ok) else None,
        **{name: float(weights[ok.index][inside].sum()) for name, inside in within.items()},
    }


def _with_ranks(rows: list[dict[str, object]], part: pd.DataFrame) -> list[dict[str, object]]:
    """Put rows in order, with the ranks of those that compete (equal shares have one) and the places left open."""

    def share(row: Mapping[str, Any]) -> float:
        expected_share = row["expected_within_1.05"]
        return -float(row["within_1.05"] if expected_share is None else expected_share)

    ordered = sorted(rows, key=lambda row: (share(row), row["over_best_geomean"] or np.inf, row["strategy"]))
    competing = [row for row in ordered if row["role"] == Role.COMPETITOR.value]
    ranks = {
        str(row["strategy"]): 1 + sum(share(other) < share(row) - SAME for other in competing) for row in competing
    }
    places = _resampled_places(part[part["role"] == Role.COMPETITOR.value])
    names = [str(row["strategy"]) for row in ordered]
    return [{**row, "rank": ranks.get(name), "places": places.get(name)} for name, row in zip(names, ordered)]


def _resampled_places(competing: pd.DataFrame) -> dict[str, str]:
    """Write the places that other problems like these may leave to strategies; {} where nothing is expected.

    Problems are drawn again with replacement, each family's from its own. One is ahead of another where its expected
    share is larger in SURE_OF_RESAMPLES of the lists.
    """
    if competing.empty or competing["p_within_1.05"].isna().all():
        return {}
    shares = competing.assign(near=competing["p_within_1.05"].fillna(0.0).astype(float)).pivot_table(
        "near", index=["workload", "machine"], columns="strategy", fill_value=0.0
    )
    families = competing.groupby(["workload", "machine"])["family"].first()[shares.index].map(_family)
    generator, near = np.random.default_rng(0), shares.to_numpy()
    means = [
        near[generator.choice(own, (RESAMPLES, len(own)))].mean(axis=1)
        for own in (np.flatnonzero(families == name) for name in families.unique())
    ]
    expected = np.mean(means, axis=0)
    ahead = np.array([(expected > expected[:, [i]] * (1.0 + SAME)).mean(axis=0) for i in range(len(shares.columns))])
    return _open_places(list(shares.columns), ahead >= SURE_OF_RESAMPLES)


def _open_places(names: Sequence[str], behind: Bools) -> dict[str, str]:
    """Write the places that are left open where ``behind`` [names, names] tells who is surely behind whom."""
    first, last = 1 + behind.sum(axis=1), len(names) - behind.sum(axis=0)
    return {name: f"{low} to {high}" for name, low, high in zip(names, first, last)}


def _with_places(rows: list[dict[str, Any]], part: pd.DataFrame) -> list[dict[str, object]]:
    places = _places(part)
    ordered = sorted(rows, key=lambda row: (-row["ok"], row["over_best_geomean"] or np.inf, row["strategy"]))
    return [{**row, "places": places.get(row["strategy"])} for row in ordered]


def _places(part: pd.DataFrame) -> dict[str, str]:
    """Write the places that measured strategies may have among the competitors, such as ``1 to 4``; {} where unknown.

    Two are told apart where their steps, as a geometric mean over the problems that both ended, differ by more than the
    noise of these problems leaves open (``width_pct``); who ended fewer problems stands behind.
    """
    ok = part[(part["outcome"] == Outcome.OK.value) & (part["role"] == Role.COMPETITOR.value)]
    if ok.empty or ok["width_pct"].isna().any():
        return {}
    keys = ["workload", "machine"]
    logs = np.log(ok.pivot_table("step_ms", index=keys, columns="strategy"))
    squares = np.log1p(ok.groupby(keys)["width_pct"].first() / 100.0) ** 2

    def behind(one: str, other: str) -> bool:
        if logs[one].count() != logs[other].count():
            return bool(logs[one].count() < logs[other].count())
        difference = (logs[one] - logs[other]).dropna()
        return bool(difference.sum() > np.sqrt(squares[difference.index].sum()))

    names = list(logs.columns)
    return _open_places(names, np.array([[behind(one, other) for other in names] for one in names]))


def _problems(rows: pd.DataFrame) -> list[tuple[str, str]]:
    return list(zip(rows["workload"], rows["machine"], strict=True))


def _family(name: object) -> str:
    return name if isinstance(name, str) else ""


def _weights(rows: pd.DataFrame) -> "pd.Series[float]":
    """Weigh problems so that families weigh alike, and all together 1; a row without a family is in one with such."""
    family = rows["family"].map(_family)
    sizes = family.map(family.value_counts())
    return 1.0 / (sizes * family.nunique()) if len(rows) else pd.Series(dtype=float)


def _torchrec_near(own: pd.DataFrame, part: pd.DataFrame, weights: "pd.Series[float]") -> float | None:
    """Return the share of problems on which TorchRec's estimator has the plan within NEAR of the best that it rates."""
    rated = part.dropna(subset=["torchrec_estimate_ms"])
    if not len(rated):
        return None
    least = rated.groupby(["workload", "machine"])["torchrec_estimate_ms"].min()
    best = np.array([least.get(key, np.nan) for key in _problems(own)])
    near = own["torchrec_estimate_ms"].to_numpy(dtype=np.float64) <= best * NEAR * (1.0 + SAME)
    return float(weights.to_numpy()[near].sum())
