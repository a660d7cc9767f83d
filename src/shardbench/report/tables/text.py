"""Tables for people: one section a group, rounded, sorted, units in the headers.

The same sections become a table on the terminal, LaTeX and HTML.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from shardbench.cost.uncertainty import SURE
from shardbench.model.table import StepSchedule
from shardbench.records.trial import TRAINING, Backend
from shardbench.report.groups import ComparedBy
from shardbench.report.standing import (
    RANKS,
    Cells,
    TieMark,
    certainty,
    disagreement,
    display_name,
    number,
    share_of_sign,
    throughput_standing,
    trained_model,
    trains_text,
)

GROUP = ("workload", "machine", "backend", "batch_size", *TRAINING)

TITLES = {
    "throughput": "Throughput",
    "balance": "Balance of embedding time over ranks",
    "traffic": "Traffic and memory",
}

NOTES = {
    "throughput": (
        "Step = slowest rank of an iteration; n counts trials (seeds and repeats). Measured: it is the geometric mean "
        "over trials of their three fastest iterations, where ranks stepped a control plan in turn at one speed of the "
        "machine by that. The noise is that of repeats of one plan (A/A), pooled over strategies; the 95 % interval "
        "is by it, and the noise floor is the least significant difference (95 %) of two rows. 'vs best' is the "
        "difference to the best competitor; '=' marks one that the noise leaves open while all are compared at once "
        "(Dunnett), 'rank' has the places that it leaves open, and '?' says that nothing was repeated: noise and order "
        "are unknown. Simulated: the step is the median over iterations, and the interval is the 95 % band under draws "
        "of the model's constants and form within their held-out errors; '~' marks a difference whose sign fewer than "
        "95 % of the draws have, both plans under the same draw, and '?' one of records without draws. Plans share the "
        "draws of constants, each has its own of the form (docs/costmodel_evidence.md, section 7). p95 is over all "
        "iterations. Plan and fit seconds are what the strategy spent. TorchRec's estimate is what its own planner "
        "would rate the plan by, embeddings and their exchanges without the dense model; '-' marks a plan that "
        "TorchRec cannot express. Ranks are by the cost model's step and by that estimate, among the rows that have "
        "both. Phases are medians of the slowest rank, waits included, so they need not add up to the step."
    ),
    "balance": (
        "Forward and backward embedding kernels per rank; min, mean, max and std are over ranks, the median over "
        "seeds and repeats. Simulated times are the model's; measured ones are CPU time where the header says so: "
        "other work on the machine lengthens it less than wall time. 'over bound' is the distance of max to a lower "
        "bound that is proven under the cost model, for plans that split and copy tables over devices as they like but "
        "keep each table's hotter rows (by the train split) in HBM; a plan that does not has a lower bound of its own. "
        "'over whole-table bound' is the distance to that of plans that split nothing; a plan that does may beat it. "
        "Measured rows, and plans with host lookups or a batch schedule, have none. 'over best found' is the distance "
        "to the best plan that any trial of the group found; '~' and '?' as in throughput."
    ),
    "traffic": (
        "Bytes per iteration, counted from the test batches, all ranks together. HBM, UVM and host: weight bytes "
        "looked up, by tier; where tiers are 'counted only' (ranks on a CPU) all are the same memory, and they have no "
        "physical meaning for what was measured. All-to-all: every collective that moves lookups or vectors, inside "
        "nodes and across; all-reduce: replicated rows and the dense part. Vectors from hosts: those that CPUs looked "
        "up, copied to a device (gradients return alike); copied: hot rows where a batch schedule changes phase. "
        "Memory and distinct rows: the fullest rank."
    ),
}

NOT_COMPARED = "times are not compared: more ranks than cores ran; what ranks send is checked all the same"

_BACKENDS = {
    Backend.SIMULATED.value: "SIMULATED by the cost model, not a measurement",
    Backend.MEASURED.value: "measured on real ranks",
}


ALWAYS = 9
"""A row says nothing without a column that is kept always."""
_UNITS = {
    "_pct": "%", "_cpu_ms": "CPU ms", "_ms": "ms", "_cpu_s": "CPU s", "_s": "s", "_bytes": "bytes", "_x": "x",
}  # fmt: skip
_DIGITS = range(3, 7)
"""Digits with which two numbers are tried to be told apart in print."""
_MOSTLY_PCT = 50.0
"""A bound of which constants are this share or more says little about work."""


@dataclass(frozen=True, kw_only=True)
class Columns:
    """A table as text."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]
    """True of each column that is aligned to the right."""
    keep: tuple[int, ...] = ()
    """How much each column matters: where room is short the least go first, and those of ALWAYS never; empty where all
    columns stay."""


@dataclass(frozen=True, kw_only=True)
class Section(Columns):
    """One group of one table, as text."""

    backend: str
    heading: str
    note: str
    causes: tuple[str, ...]
    """Why the rows that are not ok are not, one line each."""


@dataclass(frozen=True, kw_only=True)
class _Column:
    header: str
    text: Callable[[Cells], str]
    numeric: bool = True
    keep: int = 0
    """How much the column matters, as in Columns; compact tables lack those of 0."""


def sections(name: str, frame: pd.DataFrame, *, compact: bool = False) -> list[Section]:
    """Return the sections of the table ``name``.

    ``compact`` leaves out what does not fit a terminal. Columns that are empty for a whole group are left out.
    """
    all_sections = []
    for key, part in split_by_group(frame):
        cells = sorted(part.to_dict("records"), key=lambda row: _order(name, row))
        columns = [c for c in _columns(name, frame) if c.keep or not compact]
        shown_columns = [column for column in columns if any(column.text(row) for row in cells)]
        first = cells[0]
        problem = f"{first['workload']} on {first['machine']}"
        all_sections.append(
            Section(
                backend=first["backend"],
                heading=f"{problem}: {_BACKENDS[first['backend']]}{trains_text(key[-1])}",
                note=_note(name, cells),
                headers=tuple(column.header for column in shown_columns),
                rows=tuple(tuple(column.text(row) for column in shown_columns) for row in cells),
                numeric=tuple(column.numeric for column in shown_columns),
                keep=tuple(column.keep for column in shown_columns),
                causes=tuple(f"{row['strategy']}: {row['outcome']}: {row['cause']}" for row in cells if row["cause"]),
            )
        )
    return all_sections


def split_by_group(frame: pd.DataFrame) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """Yield the rows of each group, with the values of its condition; those that train another model are apart."""
    models = [trained_model(strategy, role) for strategy, role in zip(frame["strategy"], frame["role"])]
    model = pd.Series(models, index=frame.index, dtype=object)
    for key, part in frame.groupby([*(frame[name] for name in GROUP), model], sort=False):
        yield tuple(key), part


def significant(value: float, digits: int = 3) -> str:
    """Return a number with at least ``digits`` significant digits and never an exponent."""
    if value == 0:
        return "0"
    if not math.isfinite(value):  # the sum or the inverse of numbers that a file may state
        return str(value)
    return f"{value:.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}"


def interval(low: float | None, high: float | None) -> str:
    """Return the ends of an interval in words; empty where they are not known."""
    return "" if low is None or high is None else f"{significant(low)} to {significant(high)}"


def readable_bytes(value: float) -> str:
    """Return bytes with a decimal unit and three digits."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(value) >= size:
            return f"{significant(value / size)} {unit}"
    return f"{value:.0f} B"


def readable_count(value: float) -> str:
    """Return a count with three digits, in millions and billions where there are as many."""
    for unit, size in (("billion", 1e9), ("million", 1e6)):
        if value >= size:
            return f"{significant(value / size)} {unit}"
    return f"{float(f'{value:.3g}') if value >= 1000 else value:,.0f}"


def distinct(a: float, b: float) -> tuple[str, str]:
    """Write both numbers with as few digits, three at least, as show that they differ."""
    texts = [(significant(a, digits), significant(b, digits)) for digits in _DIGITS]
    return next((two for two in texts if two[0] != two[1]), texts[0])


def column_words(column: str) -> str:
    """Write a column's name for readers: units apart, words for underscores."""
    for end, unit in _UNITS.items():
        if column.endswith(end) and "_per_" not in column:
            return f"{column.removesuffix(end).replace('_', ' ')} ({unit})"
    return column.replace("_", " ")


def unknown(value: object) -> bool:
    """Return True for a cell of any table that says nothing."""
    return value is None or value is pd.NA or (isinstance(value, float | np.floating) and math.isnan(value))


def readable_cell(column: str, value: object) -> str:
    """Return a cell of any table for people: three digits, thousands apart, bytes with a unit; empty where unknown."""
    if unknown(value):
        return ""
    if isinstance(value, bool | np.bool_):
        return "yes" if value else "no"
    if not isinstance(value, int | float | np.integer | np.floating):
        return str(value)
    number = float(value)
    if column.endswith("_bytes"):
        return readable_bytes(number)
    if number.is_integer() or abs(number) >= 1000:
        return f"{number:,.0f}"
    return significant(number)


def _number_text(key: str, write: Callable[[float], str] = significant) -> Callable[[Cells], str]:
    return lambda row: "" if (value := number(row, key)) is None else write(value)


def _not_zero(key: str, write: Callable[[float], str]) -> Callable[[Cells], str]:
    """Return texts that are empty where a number is zero, so that a group without any has no such column."""
    text_of = _number_text(key, write)
    return lambda row: text_of(row) if number(row, key) else ""


def percent(value: float) -> str:
    """Return per cents with their sign and one decimal."""
    return f"{round(value, 1) + 0.0:+.1f} %"


def _share(value: float) -> str:
    return f"{significant(value)} %"


def seconds(value: float) -> str:
    """Return seconds with three digits; below a millisecond only that they are."""
    return "< 0.001" if 0 < value < 0.001 else significant(value)


_thousands = "{:,.0f}".format
_ORDERED_BY = {"throughput": ("vs_best_pct", "step_ms"), "balance": ("emb_cpu_ms_max", "emb_ms_max")}
"""The first of these that a row has decides its place."""


def _order(name: str, row: Cells) -> tuple[bool, float, str]:
    values = (number(row, key) for key in _ORDERED_BY.get(name, ()))
    return row["outcome"] != "ok", next((v for v in values if v is not None), 0.0), row["strategy"]


def _note(name: str, rows: list[Cells]) -> str:
    first = rows[0]
    weights = first["precision"] + (f" (exchanged as {first['exchange']})" if first["exchange"] != "fp32" else "")
    parts = [f"batch {first['batch_size']}, {weights}, {first['optimizer']}"]
    if first["schedule"] != StepSchedule.SEQUENTIAL:
        parts.append(first["schedule"])
    if name == "throughput":
        ok = next((row for row in rows if row["outcome"] == "ok"), None)
        if ok is not None:
            parts += _comparison_notes(ok) if first["backend"] == Backend.MEASURED.value else _model_notes(rows)
            parts += filter(None, [disagreement(map(throughput_standing, rows))])
    if name == "balance":
        for key, label in (
            ("bound_ms", "lower bound, any device move"),
            ("whole_table_bound_ms", "lower bound, whole tables"),
            ("best_found_ms", "best found"),
        ):
            values = [(value, row) for row in rows if (value := number(row, key)) is not None]
            if values:
                least, row = min(values, key=lambda pair: pair[0])
                parts.append(f"{label} {significant(least)} ms{_mostly_fixed(row) if key == 'bound_ms' else ''}")
    return "; ".join(parts)


def _comparison_notes(row: Cells) -> list[str]:
    """Return what the measured rows of a group are compared by, and how many pairs that tells apart."""
    if row["compared_by"] == ComparedBy.NOTHING:
        return [NOT_COMPARED]
    by_control = row["compared_by"] == ComparedBy.CONTROL
    by = f"steps are compared {'at one speed of the control plan' if by_control else 'as they are'}"
    noise, width, beyond = (number(row, name) for name in ("noise_pct", "width_pct", "pairs_beyond_noise"))
    if noise is None or beyond is None:
        return [by, "noise floor unknown (nothing was repeated): no order is claimed"]
    freedom = f"noise floor {noise:.1f} % ({freedom_text(row['noise_freedom'])})"
    to_best = [] if width is None else [f"{width:.1f} % to the best of all at once"]
    return [by, freedom, *to_best, f"{beyond:.0f} of {row['pairs']} pairs differ by more than the floor"]


def freedom_text(freedom: float) -> str:
    """Say how many degrees of freedom there are."""
    return f"{freedom:.0f} degree{'s' * (freedom != 1)} of freedom"


def _model_notes(rows: list[Cells]) -> list[str]:
    """Return for how many simulated rows the model's error leaves open whether they are slower than the best."""
    others = [row for row in rows if number(row, "vs_best_pct") and not row["same_as_best"]]
    shares = [share for row in others if (share := number(row, "p_slower_than_best")) is not None]
    if len(shares) < len(others):
        return ["error of the model unknown (records without draws)"]
    unsure = sum(share_of_sign(row["vs_best_pct"], share) < SURE for row, share in zip(others, shares))
    return [f"the model's own error leaves the order to the best open for {unsure} of {len(others)} rows (~)"]


def _mostly_fixed(row: Cells) -> str:
    fixed = number(row, "bound_fixed_pct")
    return f" ({fixed:.0f} % of it launches and dispatch)" if fixed is not None and fixed > _MOSTLY_PCT else ""


def _outcome(row: Cells) -> str:
    if row["outcome"] != "ok" and row["trials_ok"]:
        return f"{row['outcome']} ({row['trials_ok']}/{row['trials']} ok)"
    return str(row["outcome"])


def _vs_best(row: Cells) -> str:
    standing = throughput_standing(row)
    if standing.mark is None or standing.vs_best_pct is None:
        return ""
    if standing.mark in (TieMark.BEST, TieMark.SAME) or standing.same is None:
        return standing.mark.value
    return f"{percent(standing.vs_best_pct)} {standing.mark}".rstrip()


def _estimate(frame: pd.DataFrame) -> Callable[[Cells], str]:
    """Return texts with a dash where TorchRec cannot express a plan; without any estimate there is no such column."""
    none = "-" if frame["torchrec_estimate_ms"].notna().any() else ""
    text_of = _number_text("torchrec_estimate_ms")
    return lambda row: text_of(row) or (none if row["outcome"] == "ok" else "")


def _ranks(row: Cells) -> str:
    places = [number(row, name) for name in RANKS]
    return ", ".join(f"{place:.0f}" for place in places if place is not None)


def _over_best_found(row: Cells) -> str:
    value = number(row, "over_best_found_pct")
    if value is None:
        return ""
    mark = certainty(value, number(row, "p_slower_than_best_found")) if value > 0 else ""
    return f"{percent(value)} {mark}".rstrip()


def _interval(of: str, value: str) -> Callable[[Cells], str]:
    def text(row: Cells) -> str:
        not_known = "" if number(row, value) is None else "unknown"
        return interval(number(row, f"{of}_low"), number(row, f"{of}_high")) or not_known

    return text


def _band_of_max(row: Cells) -> str:
    return _interval("emb_ms_max", "emb_ms_max")(row) if row["backend"] == Backend.SIMULATED.value else ""


def _whole(key: str) -> Callable[[Cells], str]:
    return lambda row: str(row[key]) if row[key] else ""


_FIRST = (
    _Column(header="strategy", text=lambda row: display_name(row["strategy"], row["role"]), numeric=False, keep=ALWAYS),
    _Column(header="outcome", text=_outcome, numeric=False, keep=ALWAYS),
    _Column(header="n", text=_whole("n"), keep=ALWAYS),
    _Column(header="iterations", text=_whole("iterations")),
)


def _throughput(frame: pd.DataFrame) -> tuple[_Column, ...]:
    names = list(frame.columns)
    phases = [
        _Column(header=f"{name.removesuffix('_ms').replace('_', ' ')} (ms)", text=_number_text(name))
        for name in names[names.index("batch_size") + 1 : names.index("step_bound_ms")]
    ]
    return (
        _Column(header="samples/s", text=_number_text("samples_per_s", _thousands), keep=4),
        _Column(header="step (ms)", text=_number_text("step_ms"), keep=ALWAYS),
        _Column(header="95 % interval (ms)", text=_interval("step_ms", "step_ms")),
        _Column(header="p95 (ms)", text=_number_text("step_ms_p95"), keep=3),
        _Column(header="vs best", text=_vs_best, keep=8),
        _Column(header="rank", text=_whole("places"), keep=6),
        _Column(header="predicted (ms)", text=_number_text("predicted_step_ms")),
        _Column(header="TorchRec's estimate (ms)", text=_estimate(frame)),
        _Column(header="rank by model, TorchRec", text=_ranks),
        _Column(header="plan (s)", text=_number_text("plan_s", seconds), keep=2),
        _Column(header="fit (s)", text=_number_text("fit_s", seconds), keep=1),
        *phases,
        _Column(header="step bound (ms)", text=_number_text("step_bound_ms")),
        _Column(header="mean step over it", text=_number_text("over_step_bound_pct", percent)),
        _Column(header="over its own moves'", text=_number_text("over_own_bound_pct", percent)),
    )


def _without_cpu(key: str) -> Callable[[Cells], str]:
    """Return wall times only where there is no CPU time: two clocks side by side would be read as one."""
    text_of = _number_text(key)
    return lambda row: text_of(row) if number(row, "emb_cpu_ms_max") is None else ""


_BALANCE = (
    _Column(header="CPU min (ms)", text=_number_text("emb_cpu_ms_min"), keep=2),
    _Column(header="CPU mean (ms)", text=_number_text("emb_cpu_ms_mean"), keep=4),
    _Column(header="CPU max (ms)", text=_number_text("emb_cpu_ms_max"), keep=ALWAYS),
    _Column(header="CPU std (ms)", text=_number_text("emb_cpu_ms_std")),
    _Column(header="CPU max/mean", text=_number_text("cpu_max_over_mean"), keep=6),
    _Column(header="min (ms)", text=_without_cpu("emb_ms_min"), keep=2),
    _Column(header="mean (ms)", text=_without_cpu("emb_ms_mean"), keep=4),
    _Column(header="max (ms)", text=_without_cpu("emb_ms_max"), keep=ALWAYS),
    _Column(header="95 % interval of max (ms)", text=_band_of_max),
    _Column(header="std (ms)", text=_without_cpu("emb_ms_std")),
    _Column(header="max/mean", text=_without_cpu("max_over_mean"), keep=6),
    _Column(header="over bound", text=_number_text("over_bound_pct", percent), keep=8),
    _Column(header="over whole-table bound", text=_number_text("over_whole_table_bound_pct", percent)),
    _Column(header="over best found", text=_over_best_found, keep=5),
    _Column(header="predicted max (ms)", text=_number_text("predicted_emb_ms_max"), keep=3),
)
_TRAFFIC = (
    _Column(header="HBM", text=_number_text("hbm_bytes", readable_bytes), keep=7),
    _Column(header="UVM", text=_number_text("uvm_bytes", readable_bytes), keep=6),
    _Column(header="host", text=_number_text("host_bytes", readable_bytes)),
    _Column(header="all-to-all intra", text=_number_text("a2a_intra_bytes", readable_bytes), keep=4),
    _Column(header="all-to-all inter", text=_number_text("a2a_inter_bytes", readable_bytes), keep=8),
    _Column(header="all-reduce", text=_number_text("allreduce_bytes", readable_bytes), keep=5),
    _Column(header="vectors from hosts", text=_not_zero("host_vectors_bytes", readable_bytes)),
    _Column(header="copied to devices", text=_not_zero("copied_to_device_bytes", readable_bytes)),
    _Column(header="copied to host", text=_not_zero("copied_to_host_bytes", readable_bytes)),
    _Column(header="lookups off HBM", text=_number_text("off_hbm_lookups_pct", _share), keep=3),
    _Column(header="tiers", text=lambda row: str(row["tiers"] or ""), numeric=False),
    _Column(header="groups", text=lambda row: str(row["sharding_groups"] or ""), numeric=False),
    _Column(header="HBM memory max", text=_number_text("hbm_memory_bytes_max", readable_bytes), keep=2),
    _Column(header="UVM memory max", text=_number_text("uvm_memory_bytes_max", readable_bytes)),
    _Column(header="peak max", text=_number_text("peak_bytes_max", readable_bytes)),
    _Column(header="distinct rows max", text=_number_text("distinct_rows_max", _thousands)),
)


def _columns(name: str, frame: pd.DataFrame) -> tuple[_Column, ...]:
    middle = _throughput(frame) if name == "throughput" else {"balance": _BALANCE, "traffic": _TRAFFIC}[name]
    return (*_FIRST, *middle)
