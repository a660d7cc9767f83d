"""Tables for people: one section a group, rounded, sorted, units in the headers.

The same sections become Markdown, a table on the terminal and HTML.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pandas as pd

from shardbench.model.strategy import Role
from shardbench.records.trial import Backend

Cells = dict[str, Any]

GROUP = ("workload", "machine", "backend", "batch_size", "precision", "optimizer")

TITLES = {
    "throughput": "Throughput",
    "balance": "Balance of embedding time over ranks",
    "traffic": "Traffic and memory",
}

NOTES = {
    "throughput": (
        "Step = slowest rank of an iteration; p50 and p95 over the n iterations of all seeds and repeats, with the "
        "95 % bootstrap interval of the median. 'vs best' is the difference of p50 to the best competitor; '=' "
        "marks a difference that is no larger than the noise floor (A/A repeats) or whose interval of the ratio "
        "holds 1. Plan and fit seconds are what the strategy spent. Phases are medians of the slowest rank."
    ),
    "balance": (
        "Forward and backward embedding kernels per rank; min, mean, max and std are over ranks, the median over "
        "seeds and repeats. 'over bound' is the distance of max to a lower bound that is proven under the cost model "
        "(any device move; whole tables only), so measured rows have none. 'over best found' is the distance to the "
        "best plan that any strategy of the group found."
    ),
    "traffic": (
        "Bytes per iteration, counted from the test batches, all ranks together. HBM, UVM and host: weight bytes "
        "looked up, by tier; where tiers are 'counted only' (ranks on a CPU) all are the same memory, and they have no "
        "physical meaning for what was measured. All-to-all: every collective that moves lookups or vectors, inside "
        "nodes and across; all-reduce: replicated rows and the dense part. Memory and distinct rows: the fullest rank."
    ),
}

_BACKENDS = {
    Backend.SIMULATED.value: "SIMULATED by the cost model, not a measurement",
    Backend.MEASURED.value: "measured on real ranks",
}


@dataclass(frozen=True, kw_only=True)
class Section:
    """One group of one table, as text."""

    workload: str
    machine: str
    backend: str
    heading: str
    note: str
    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]
    """Per column: aligned to the right."""
    causes: tuple[str, ...]
    """Why the rows that are not ok are not, one line each."""


@dataclass(frozen=True, kw_only=True)
class _Column:
    header: str
    text: Callable[[Cells], str]
    compact: bool = True
    """Whether the column is shown where room is short."""
    numeric: bool = True


def sections(name: str, frame: pd.DataFrame, *, compact: bool = False, causes: bool = True) -> list[Section]:
    """Sections of the table ``name``; ``compact`` leaves out what does not fit a terminal, no
    ``causes`` the column of causes (``Section.causes`` has them either way).

    Columns that are empty for a whole group are left out.
    """
    made = []
    for _, part in frame.groupby(list(GROUP), sort=False):
        cells = sorted(part.to_dict("records"), key=lambda row: _order(name, row))
        columns = [c for c in _columns(name, frame, causes=causes) if c.compact or not compact]
        shown = [column for column in columns if any(column.text(row) for row in cells)]
        first = cells[0]
        made.append(
            Section(
                workload=first["workload"],
                machine=first["machine"],
                backend=first["backend"],
                heading=f"{first['workload']} on {first['machine']}: {_BACKENDS[first['backend']]}",
                note=_note(name, cells),
                headers=tuple(column.header for column in shown),
                rows=tuple(tuple(column.text(row) for column in shown) for row in cells),
                numeric=tuple(column.numeric for column in shown),
                causes=tuple(f"{row['strategy']}: {row['outcome']}: {row['cause']}" for row in cells if row["cause"]),
            )
        )
    return made


def significant(value: float, digits: int = 3) -> str:
    """At least ``digits`` significant digits, never an exponent."""
    if value == 0:
        return "0"
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def readable_bytes(value: float) -> str:
    """Bytes with a decimal unit, three digits."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= size:
            return f"{significant(value / size)} {unit}"
    return f"{value:.0f} B"


def _number(row: Cells, key: str) -> float | None:
    value = row.get(key)
    return None if value is None or pd.isna(value) else float(value)


def _shown(key: str, write: Callable[[float], str] = significant) -> Callable[[Cells], str]:
    def text(row: Cells) -> str:
        value = _number(row, key)
        return "" if value is None else write(value)

    return text


def _percent(value: float) -> str:
    return f"{round(value, 1) + 0.0:+.1f} %"


def _share(value: float) -> str:
    return f"{significant(value)} %"


def _seconds(value: float) -> str:
    return "< 0.001" if 0 < value < 0.001 else significant(value)


def _thousands(value: float) -> str:
    return f"{value:,.0f}"


def _order(name: str, row: Cells) -> tuple[bool, float, str]:
    key = {"throughput": "step_ms_p50", "balance": "emb_ms_max"}.get(name)
    value = _number(row, key) if key else 0.0
    return row["outcome"] != "ok", value if value is not None else 0.0, row["strategy"]


def _note(name: str, rows: list[Cells]) -> str:
    first = rows[0]
    parts = [f"batch {first['batch_size']}, {first['precision']}, {first['optimizer']}"]
    if name == "throughput":
        noise = next((noise for row in rows if (noise := _number(row, "noise_pct")) is not None), None)
        known = first["backend"] == Backend.MEASURED.value
        if noise is not None:
            parts.append(f"noise floor {noise:.1f} %")
        elif known:
            parts.append("noise floor unknown (nothing was repeated)")
    if name == "balance":
        for key, what in (
            ("bound_ms", "lower bound, any device move"),
            ("whole_table_bound_ms", "lower bound, whole tables"),
            ("best_found_ms", "best found"),
        ):
            values = [value for row in rows if (value := _number(row, key)) is not None]
            if values:
                parts.append(f"{what} {significant(min(values))} ms")
    return "; ".join(parts)


def _strategy(row: Cells) -> str:
    return f"{row['strategy']} (reference)" if row["role"] == Role.SEARCH else str(row["strategy"])


def _outcome(row: Cells) -> str:
    if row["outcome"] != "ok" and row["trials_ok"]:
        return f"{row['outcome']} ({row['trials_ok']}/{row['trials']} ok)"
    return str(row["outcome"])


def _count(row: Cells) -> str:
    return str(row["n"]) if row["n"] else ""


def _vs_best(row: Cells) -> str:
    value = _number(row, "vs_best_pct")
    if value is None:
        return ""
    if value == 0 and row["role"] == "competitor":
        return "best"
    return "=" if row["same_as_best"] else _percent(value)


def _interval(row: Cells) -> str:
    low, high = _number(row, "step_ms_low"), _number(row, "step_ms_high")
    return "" if low is None or high is None else f"{significant(low)} to {significant(high)}"


_FIRST = (
    _Column(header="strategy", text=_strategy, numeric=False),
    _Column(header="outcome", text=_outcome, numeric=False),
    _Column(header="n", text=_count),
)
_LAST = (_Column(header="cause", text=lambda row: str(row["cause"]), compact=False, numeric=False),)


def _throughput(frame: pd.DataFrame) -> tuple[_Column, ...]:
    names = list(frame.columns)
    phases = names[names.index("batch_size") + 1 : names.index("precision")]
    return (
        _Column(header="samples/s", text=_shown("samples_per_s", _thousands)),
        _Column(header="step p50 (ms)", text=_shown("step_ms_p50")),
        _Column(header="95 % interval (ms)", text=_interval, compact=False),
        _Column(header="p95 (ms)", text=_shown("step_ms_p95")),
        _Column(header="vs best", text=_vs_best),
        _Column(header="plan (s)", text=_shown("plan_s", _seconds)),
        _Column(header="fit (s)", text=_shown("fit_s", _seconds)),
        *(_Column(header=_phase(name), text=_shown(name), compact=False) for name in phases),
    )


def _phase(column: str) -> str:
    return f"{column.removesuffix('_ms').replace('_', ' ')} (ms)"


def _balance(frame: pd.DataFrame) -> tuple[_Column, ...]:
    return (
        _Column(header="min (ms)", text=_shown("emb_ms_min")),
        _Column(header="mean (ms)", text=_shown("emb_ms_mean")),
        _Column(header="max (ms)", text=_shown("emb_ms_max")),
        _Column(header="std (ms)", text=_shown("emb_ms_std"), compact=False),
        _Column(header="max/mean", text=_shown("max_over_mean")),
        _Column(header="over bound", text=_shown("over_bound_pct", _percent)),
        _Column(header="over whole-table bound", text=_shown("over_whole_table_bound_pct", _percent), compact=False),
        _Column(header="over best found", text=_shown("over_best_found_pct", _percent)),
        _Column(header="predicted max (ms)", text=_shown("predicted_emb_ms_max")),
    )


def _traffic(frame: pd.DataFrame) -> tuple[_Column, ...]:
    return (
        _Column(header="HBM", text=_shown("hbm_bytes", readable_bytes)),
        _Column(header="UVM", text=_shown("uvm_bytes", readable_bytes)),
        _Column(header="host", text=_shown("host_bytes", readable_bytes), compact=False),
        _Column(header="all-to-all intra", text=_shown("a2a_intra_bytes", readable_bytes)),
        _Column(header="all-to-all inter", text=_shown("a2a_inter_bytes", readable_bytes)),
        _Column(header="all-reduce", text=_shown("allreduce_bytes", readable_bytes)),
        _Column(header="lookups off HBM", text=_shown("off_hbm_lookups_pct", _share)),
        _Column(header="tiers", text=lambda row: str(row["tiers"] or ""), compact=False, numeric=False),
        _Column(header="HBM memory max", text=_shown("hbm_memory_bytes_max", readable_bytes)),
        _Column(header="UVM memory max", text=_shown("uvm_memory_bytes_max", readable_bytes), compact=False),
        _Column(header="distinct rows max", text=_shown("distinct_rows_max", _thousands), compact=False),
    )


def _columns(name: str, frame: pd.DataFrame, *, causes: bool) -> tuple[_Column, ...]:
    middle = {"throughput": _throughput, "balance": _balance, "traffic": _traffic}[name](frame)
    return (*_FIRST, *middle, *(_LAST if causes else ()))
