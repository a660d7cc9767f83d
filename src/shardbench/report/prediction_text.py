"""The prediction as a table of aligned text, and in words what limits it."""

from collections.abc import Sequence

from shardbench.report.prediction import EVERYTHING, QUANTITIES, Summary

GOAL_MAPE_PCT, GOAL_TAU = 15.0, 0.9
"""What the cost model aims at."""

_HEADERS = (
    "quantity", "workload", "machine", "n", "MAPE", "bias", "repeats differ by", "tau", "tau of repeats",
    "tau of pairs beyond noise", "pairs beyond noise",
)  # fmt: skip


def text_lines(found: Sequence[Summary]) -> list[str]:
    """One aligned line a summary, then what limits each quantity."""
    rows = [_HEADERS, *(_cells(summary) for summary in found)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(_HEADERS))]
    lines = ["Predicted against measured; a plan that several strategies reach counts once."]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    last = {summary.quantity: summary for summary in found}
    # The line over all workloads comes last of its quantity.
    return [*lines, *(limit(last[quantity]) for quantity in QUANTITIES if quantity in last)]


def limit(summary: Summary) -> str:
    """One sentence: is the aim met, and what is in the way."""
    what = QUANTITIES[summary.quantity]
    where = "all workloads" if summary.workload == EVERYTHING else summary.workload
    said = [f"{what}, {where}: {_aim(summary)}"]
    noise = summary.repeat_mape_pct
    if noise is None:
        said.append("nothing was repeated, so the noise is unknown")
    elif summary.mape_pct <= noise:
        said.append("the error is within the noise of the measurement, which limits it: more repeats would tell more")
    elif summary.mape_pct <= 2.0 * noise:
        said.append(f"noise of {noise:.1f} % is a good part of the error")
    elif abs(summary.bias_pct) > summary.mape_pct / 2.0:
        way = "too long" if summary.bias_pct > 0 else "too short"
        said.append(f"the model limits it: it predicts {abs(summary.bias_pct):.1f} % {way} on average")
    else:
        said.append("the model limits it, with errors of both signs")
    if summary.worst_part is not None and summary.worst_part_ms is not None:
        said.append(f"the part furthest off is the {summary.worst_part} ({summary.worst_part_ms:+.2f} ms)")
    if summary.tau is not None and summary.tau < GOAL_TAU and summary.resolved_pairs < summary.pairs:
        close = summary.pairs - summary.resolved_pairs
        said.append(f"{close} of {summary.pairs} pairs differ by less than the noise floor and cannot be ranked")
    return "; ".join(said)


def _aim(summary: Summary) -> str:
    error = "meets" if summary.mape_pct <= GOAL_MAPE_PCT else "misses"
    text = f"MAPE {summary.mape_pct:.1f} % {error} the aim of {GOAL_MAPE_PCT:g} %"
    if summary.tau is None:
        return text
    order = "meets" if summary.tau >= GOAL_TAU else "misses"
    return f"{text}, tau {summary.tau:.2f} {order} that of {GOAL_TAU:g}"


def _cells(summary: Summary) -> tuple[str, ...]:
    return (
        QUANTITIES[summary.quantity],
        summary.workload,
        summary.machine,
        str(summary.n),
        f"{summary.mape_pct:.1f} %",
        f"{summary.bias_pct:+.1f} %",
        _optional(summary.repeat_mape_pct, "{:.1f} %"),
        _optional(summary.tau, "{:.2f}"),
        _optional(summary.repeat_tau, "{:.2f}"),
        _optional(summary.resolved_tau, "{:.2f}"),
        f"{summary.resolved_pairs} of {summary.pairs}",
    )


def _optional(value: float | None, shape: str) -> str:
    return "" if value is None else shape.format(value)
