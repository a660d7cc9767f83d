"""Says in lines what a comparison of two results folders found."""

from collections.abc import Callable, Iterable

import pandas as pd

from shardbench.report.compare.comparison import BOTH, COMMITTED_ONLY, ONLY, STEP, Comparison
from shardbench.report.compare.order import text_line
from shardbench.report.tables.text import percent, significant

LISTED = 20
"""The number of rows of a kind that are named one by one; --json has all."""


def text_lines(comparison: Comparison) -> list[str]:
    """Say how many are equal and how many are not, then which, the farthest off first."""
    lines = [f"{comparison.folder} against {comparison.committed}"]
    claims = _alike("claims", "with the same answers", comparison.claims, _claim)
    for part in (_simulated(comparison), _measured(comparison), _studies(comparison), claims):
        lines += part
    return lines if len(lines) > 1 else [*lines, "nothing in either to compare"]


def _alike(kind: str, alike: str, frame: pd.DataFrame, line: Callable[["pd.Series[object]"], str]) -> list[str]:
    """Say how many rows of both are alike, and which are not, a line each; nothing where there are no rows."""
    if not len(frame):
        return []
    both = frame[frame["where"] == BOTH]
    differing = both[~both["equal"].astype(bool)]
    equal = f"{len(both) - len(differing)} of {len(both)} {alike}" if len(both) else "none in both"
    return [f"{kind}: {equal}; {_only(frame)}", *_first_lines(line(row) for _, row in differing.iterrows())]


def _only(frame: pd.DataFrame) -> str:
    counts = frame["where"].value_counts()
    return f"{counts.get(ONLY, 0)} {ONLY}, {counts.get(COMMITTED_ONLY, 0)} {COMMITTED_ONLY}"


def _first_lines(lines: Iterable[str]) -> list[str]:
    """Indent the first of the lines, and say how many more there are."""
    lines = list(lines)
    more = [f"  and {len(lines) - LISTED} more (--json has all)"] if len(lines) > LISTED else []
    return [f"  {line}" for line in lines[:LISTED]] + more


def _name(row: "pd.Series[object]") -> str:
    return f"{row['workload']} on {row['machine']}, {row['strategy']}"


def _simulated(comparison: Comparison) -> list[str]:
    farthest_first = comparison.simulated.sort_values(
        "difference_pct", key=lambda column: -column.astype(float).abs(), kind="stable"
    )
    return _alike("simulated", "rows equal", farthest_first, _difference)


def _difference(row: "pd.Series[object]") -> str:
    if row["outcome"] != row["committed_outcome"]:
        return f"{_name(row)}: {row['outcome']}, committed {row['committed_outcome']}"
    if pd.isna(row["difference_pct"]):
        return f"{_name(row)}: {row['reason']}"
    times = f"{significant(float(row['step_ms']))} ms, committed {significant(float(row['committed_step_ms']))}"
    return f"{_name(row)}: {percent(float(row['difference_pct']))} ({times}; n = {row['n']}; {row['reason']})"


def _measured(comparison: Comparison) -> list[str]:
    frame = comparison.measured
    if not len(frame):
        return []
    first = frame[frame["quantity"] == STEP]
    both = first[first["where"] == BOTH]
    lines = [f"measured: {f'{len(both)} rows' if len(both) else 'none'} in both; {_only(first)}"]
    for quantity, rows in frame[frame["ratio"].notna()].groupby("quantity", sort=False):
        with_noise = rows[rows["beyond_noise"].notna()]
        beyond = with_noise[with_noise["beyond_noise"].astype(bool)].sort_values("ratio")
        unknown = f", of {len(rows) - len(with_noise)} the noise is unknown" if len(with_noise) < len(rows) else ""
        ends = f"{significant(rows['ratio'].min())} to {significant(rows['ratio'].max())}"
        lines.append(f"  {quantity}: {ends} times the committed; beyond the noise in {len(beyond)} rows{unknown}")
        lines += [f"  {line}" for line in _first_lines(_ratio(row) for _, row in beyond.iterrows())]
    outcomes = both[both["outcome"] != both["committed_outcome"]]
    lines += _first_lines(_difference(row) for _, row in outcomes.iterrows())
    return lines + [f"  {text_line(one)}" for agreements in comparison.order.values() for one in agreements]


def _ratio(row: "pd.Series[object]") -> str:
    ends = f"{significant(float(row['ratio_low']))} to {significant(float(row['ratio_high']))}"
    other = f"; {row['reason']}" if row["reason"] else ""
    return f"{_name(row)}: {significant(float(row['ratio']))} ({ends}; n = {row['n']} and {row['committed_n']}{other})"


def _studies(comparison: Comparison) -> list[str]:
    frame = comparison.cells[comparison.cells["cells_in_both"] > 0]
    if not len(frame):
        return []
    total, equal = frame["cells_in_both"].sum(), frame["equal"].sum()
    differing = frame[frame["equal"] < frame["cells_in_both"]]
    head = f"studies: {equal} of {total} cells equal, but for seconds that the process took"
    return [head, *_first_lines(_study(row) for _, row in differing.iterrows())]


def _study(row: "pd.Series[object]") -> str:
    difference_pct = row["difference_pct"]
    far = "not in numbers" if pd.isna(difference_pct) else f"{float(difference_pct):.1f} %"
    other = row["cells_in_both"] - row["equal"]
    where = f"the farthest {far} in {row['column']} of {row['key']}"
    return f"{row['baseline']}/{row['study']} ({row['backend']}): {other} of {row['cells_in_both']} differ, {where}"


def _claim(row: "pd.Series[object]") -> str:
    mine, theirs = (
        f"direction {row[f'{prefix}direction']}, magnitude {row[f'{prefix}magnitude']}" for prefix in ("", "committed_")
    )
    return f"{row['paper']} {row['claim']}: {mine}; committed: {theirs}"
