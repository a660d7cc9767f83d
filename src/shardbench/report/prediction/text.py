"""Shows the prediction as a table of aligned text, and says in words what limits it."""

from collections.abc import Sequence

from shardbench.report.prediction.against_measured import EMBEDDING, EXCHANGE, STEP
from shardbench.report.prediction.summary import EVERYTHING, QUANTITIES, Summary

AIM_MAPE_PCT = {STEP.quantity: 15.0, EMBEDDING: 15.0, EXCHANGE.quantity: 30.0}
AIM_TAU = 0.9
"""The errors (MAPE) and the order (Kendall's tau) that the cost model aims at."""

TITLE = "Predicted against measured"
NOTE = (
    "Embedding and dense time of a rank are CPU time where ranks have one; exchanges are those of the rank that waited "
    "least. A plan that several strategies reach counts once; n counts plans, times ranks where the quantity is a "
    "rank's. Tau is Kendall's, over the pairs of a group that lie beyond the noise of their repeats."
)
HEADERS = (
    "quantity", "workload", "n", "MAPE", "bias", "repeats differ by", "tau", "pairs beyond noise", "constants of",
)  # fmt: skip
NUMERIC = (False, False, True, True, True, True, True, True, False)


def text_lines(found: Sequence[Summary]) -> list[str]:
    """Give an aligned line a summary, and then say what limits each quantity that has an aim."""
    rows = [HEADERS, *(cells(summary) for summary in found)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEADERS))]
    lines = [f"{TITLE}. {NOTE}"]
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows]
    last = {summary.quantity: summary for summary in found}
    # The line over all workloads comes last of its quantity.
    return [*lines, *(limit(last[quantity]) for quantity in AIM_MAPE_PCT if quantity in last)]


def limit(summary: Summary) -> str:
    """Say in one sentence whether the aim is met and what is in the way; the quantity must have an aim."""
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
    if summary.pairs_beyond_noise is not None and summary.pairs_beyond_noise < summary.pairs:
        close = summary.pairs - summary.pairs_beyond_noise
        said.append(f"{close} of {summary.pairs} pairs are not known to differ by more than the noise: no order")
    return "; ".join(said)


def _aim(summary: Summary) -> str:
    aim = AIM_MAPE_PCT[summary.quantity]
    error = "meets" if summary.mape_pct <= aim else "misses"
    text = f"MAPE {summary.mape_pct:.1f} % {error} the aim of {aim:g} %"
    if summary.kendall_tau is None:
        return f"{text}, no pair is beyond the noise"
    order = "meets" if summary.kendall_tau >= AIM_TAU else "misses"
    return f"{text}, tau {summary.kendall_tau:.2f} {order} that of {AIM_TAU:g}"


def cells(summary: Summary) -> tuple[str, ...]:
    """Write the cells of a line of the table."""
    beyond = summary.pairs_beyond_noise
    return (
        QUANTITIES[summary.quantity],
        summary.workload,
        str(summary.n),
        f"{summary.mape_pct:.1f} %",
        f"{summary.bias_pct:+.1f} %",
        _optional(summary.repeat_mape_pct, "{:.1f} %"),
        _optional(summary.kendall_tau, "{:.2f}"),
        f"{'unknown' if beyond is None else beyond} of {summary.pairs}",
        summary.calibrated_on or "not stated",
    )


def _optional(value: float | None, shape: str) -> str:
    return "" if value is None else shape.format(value)
