"""Who stands where on every problem of a suite: one table, from which the page's answer is made.

A problem is a workload on a machine by one backend. A row is a strategy with one budget on it; ``over_best_pct`` is its
distance to the shortest step of the problem, ``tie`` what is known of that difference: ``=``, ``~``, ``?`` or nothing.
"""

import numpy as np
import pandas as pd

from shardbench.records.trial import Backend, Outcome
from shardbench.report.standing import Standing, standing
from shardbench.report.tables.text import GROUP

PROBLEM = ("workload", "machine", "backend")
COLUMNS = (
    *PROBLEM, "strategy", "role", "budget", "outcome", "step_ms", "step_ms_low", "step_ms_high", "over_best_pct", "tie",
    "plan_s", "fit_s",
)  # fmt: skip
"""What a table must have to be shown; others are left alone."""
AT = "at"
"""Id of the section of the page that is about the problem."""
RECORD = "record"
"""Key of the record that a row is of, where a table has that column; empty where it is not known."""
TO_ANY = "to_any"
"""Whether ties are with the best row of any role, not with the best competitor."""
AS_RUN = "as run"
"""The budget where there is but one."""
_TIES = (Standing.SAME, Standing.OPEN, Standing.UNKNOWN)


def standings(throughput: pd.DataFrame) -> pd.DataFrame:
    """Of a throughput table, its groups numbered in ``AT`` as ``group-0``, ``group-1`` ...

    Groups of one workload and machine are told apart by what else differs.
    """
    parts = []
    for number, (_, part) in enumerate(throughput.groupby(list(GROUP), sort=False)):
        rows = [{str(name): value for name, value in row.items()} for row in part.to_dict("records")]
        ratios = 1.0 + pd.to_numeric(part["vs_best_pct"], errors="coerce").to_numpy(dtype=np.float64) / 100.0
        known = ratios[np.isfinite(ratios)]
        found = part.assign(
            budget=AS_RUN,
            step_ms=part["step_ms_p50"],
            over_best_pct=100.0 * (ratios / known.min() - 1.0) if len(known) else np.nan,
            tie=[place.value if (place := standing(row)) in _TIES else "" for row in rows],
            **{AT: f"group-{number}", TO_ANY: False},
        )
        parts.append(found)
    if not parts:
        return pd.DataFrame(columns=[*COLUMNS, AT, TO_ANY])
    table = pd.concat(parts, ignore_index=True)
    table["workload"] = _told_apart(table)
    return table[[*COLUMNS, AT, TO_ANY]]


def _told_apart(table: pd.DataFrame) -> "pd.Series[str]":
    """Workloads' names, with what differs between groups of one workload on one machine."""
    rest = [name for name in GROUP if name not in PROBLEM]
    grouped = table.groupby(list(PROBLEM), sort=False)
    names = table["workload"].astype(str)
    for name in rest:
        several = grouped[name].transform("nunique") > 1
        words = table[name].astype(str) if name != "batch_size" else "batch " + table[name].astype(str)
        names = names.where(~several, names + ", " + words)
    return names


def is_standings(table: pd.DataFrame) -> bool:
    """Whether a table has all that the answer needs."""
    return set(COLUMNS) <= set(table.columns)


def numbered(table: pd.DataFrame) -> pd.DataFrame:
    """A table of another origin with its problems numbered in ``AT`` as ``problem-0``, ``problem-1`` ..."""
    numbers = table.groupby(list(PROBLEM), sort=False).ngroup()
    return table.assign(**{AT: "problem-" + numbers.astype(str), TO_ANY: True})


def ok_rows(table: pd.DataFrame) -> pd.DataFrame:
    """Rows that have a step, and a best one to hold it against."""
    return table[(table["outcome"] == Outcome.OK.value) & table["over_best_pct"].notna()]


def is_measured(backend: str) -> bool:
    """Whether rows of it were timed."""
    return backend == Backend.MEASURED.value
