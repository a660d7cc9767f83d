"""The three tables, from records only: throughput, balance, traffic.

One row per (workload, machine, backend, batch size, precision, optimiser, strategy), over its
``n`` trials (seeds and repeats) of ``iterations`` in all. A measured step is the geometric mean
over trials of their three fastest iterations, a simulated one the median over iterations; other
numbers are medians over trials. A
row whose trials did not all end ``ok`` shows the worst outcome, its cause, how many were ok, and
no number. Times in ms, bytes per iteration summed over ranks.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd

from shardbench.base.errors import BadInput
from shardbench.cost.collectives import EXCHANGES, CollectiveName
from shardbench.cost.phases import StepPhase
from shardbench.cost.uncertainty import band
from shardbench.model.strategy import Move
from shardbench.records.record import Planned, Record, TrafficTotals
from shardbench.records.trial import TRAINING, Backend
from shardbench.report.groups import Group, groups
from shardbench.report.rows import Row, slowest_embedding_ms
from shardbench.report.standing import RANKS, groups_text, over_pct

HEAD = ("workload", "machine", "backend", "strategy", "outcome", "n", "iterations")
TAIL = ("batch_size", *TRAINING, "role", "trials_ok", "trials", "cause")
"""Last columns of every table."""

_THROUGHPUT = (
    "samples_per_s", "step_ms", "step_ms_p95", "plan_s", "fit_s", "step_ms_low", "step_ms_high", "compared_by",
    "vs_best_pct", "noise_pct", "width_pct", "noise_freedom", "same_as_best", "places", "pairs", "pairs_beyond_noise",
    "p_slower_than_best",
)  # fmt: skip
_JUDGED = ("predicted_step_ms", "torchrec_estimate_ms", *RANKS)
_BOUNDS = ("step_bound_ms", "over_step_bound_pct", "own_step_bound_ms", "over_own_bound_pct", "bound_cause")
_BALANCE = (
    "emb_ms_min", "emb_ms_mean", "emb_ms_max", "emb_ms_std", "max_over_mean", "bound_ms", "over_bound_pct",
    "whole_table_bound_ms", "over_whole_table_bound_pct", "best_found_ms", "over_best_found_pct",
    "predicted_emb_ms_max", "emb_cpu_ms_min", "emb_cpu_ms_mean", "emb_cpu_ms_max", "emb_cpu_ms_std",
    "cpu_max_over_mean", "bound_fixed_pct", "emb_ms_max_low", "emb_ms_max_high", "p_slower_than_best_found",
)  # fmt: skip
_TRAFFIC = (
    "hbm_bytes", "uvm_bytes", "host_bytes", "a2a_intra_bytes", "a2a_inter_bytes", "allreduce_bytes",
    "off_hbm_lookups_pct", "tiers", "sharding_groups", "host_vectors_bytes", "copied_to_device_bytes",
    "copied_to_host_bytes",
)  # fmt: skip
_COUNTED = (
    "hbm_bytes", "uvm_bytes", "host_bytes", "host_vectors_bytes", "copied_to_device_bytes", "copied_to_host_bytes",
)  # fmt: skip
REDUCTIONS = tuple(name for name in CollectiveName if name not in EXCHANGES)
_MEMORY = ("hbm_memory_bytes_max", "uvm_memory_bytes_max", "peak_bytes_max", "distinct_rows_max")

Cell = str | int | float | bool | None
Cells = dict[str, Cell]


def tables(records: Iterable[Record]) -> dict[str, pd.DataFrame]:
    """Return all three by name, in the order they are printed."""
    all_records = list(records)
    return {name: build(all_records) for name, build in _BUILDERS.items()}


def throughput(records: Iterable[Record]) -> pd.DataFrame:
    """Step time and throughput; the page "How to read the tables" says what the columns are.

    Differences, places and intervals of measured rows are by the noise of their group, and empty where no plan was
    repeated; where ranks shared cores nothing is compared. Those of simulated rows are by the draws of all trials
    together, and empty for records without draws; simulated times are the same only where they are equal.
    ``bound_cause`` says why there is no bound of the step.
    """
    grouped = groups(records)
    phase_columns = [f"{name}_ms" for name in phases_of(_records(grouped))]
    columns = (*HEAD, *_THROUGHPUT, TAIL[0], *phase_columns, *_BOUNDS, *_JUDGED, *TAIL[1:])
    return _frame(grouped, columns, _throughput_cells)


def balance(records: Iterable[Record]) -> pd.DataFrame:
    """Embedding time (forward and backward kernels) over ranks: the model's or wall time, and in CPU time (``cpu``).

    Bounds are proven under the cost model and for tables on devices, so they are empty for measured rows and
    where a plan uses hosts or a batch schedule. ``best_found_ms``, empty for measured rows, is the smallest time of any
    plan that any strategy of the group found, so that no row is below it. ``emb_ms_std`` divides by the number of
    ranks.
    """
    return _frame(groups(records), (*HEAD, *_BALANCE, *TAIL), _balance_cells)


def traffic(records: Iterable[Record]) -> pd.DataFrame:
    """Bytes per iteration by tier and collective, memory of the fullest rank, off-HBM lookups.

    ``peak_bytes_max`` is what the fullest device is predicted to hold in a step, all included; empty where none is.
    """
    grouped = groups(records)
    names = collectives_of(_records(grouped))
    unknown = [name for name in names if name not in list(CollectiveName)]
    if unknown:
        raise BadInput(f"records name the collective '{unknown[0]}', which is in no sum of the traffic table")
    return _frame(grouped, (*HEAD, *_TRAFFIC, *(f"{name}_bytes" for name in names), *_MEMORY, *TAIL), _traffic_cells)


def _throughput_cells(group: Group, row: Row) -> Cells:
    standing = group.standings[row.strategy]
    cells: Cells = {
        "samples_per_s": group.condition.batch_size / (standing.step_ms / 1e3) if standing.step_ms else None,
        "step_ms": standing.step_ms,
        "step_ms_p95": float(np.percentile(row.step_ms, 95.0)),
        "plan_s": standing.plan_s,
        "fit_s": standing.fit_s,
        "step_ms_low": standing.low_ms,
        "step_ms_high": standing.high_ms,
        "vs_best_pct": standing.vs_best_pct,
        "same_as_best": standing.same,
        "p_slower_than_best": standing.p_slower,
    }
    cells["torchrec_estimate_ms"] = standing.torchrec_ms
    cells |= dict(zip(RANKS, group.judge_places[row.strategy] or ()))
    if group.condition.backend is Backend.MEASURED:
        cells |= {"predicted_step_ms": standing.model_ms, **_measured_cells(group, row)}
    cells |= _bound_cells(row)
    for name in phases_of(row.records):
        cells[f"{name}_ms"] = row.typical(phase_ms(name))
    return cells


def _measured_cells(group: Group, row: Row) -> Cells:
    beyond = group.pairs_beyond_noise
    return {
        "compared_by": group.compared_by.value,
        "noise_pct": group.noise_pct,
        "width_pct": group.width_pct,
        "noise_freedom": None if group.noise is None else group.noise.freedom,
        "places": group.places(row),
        "pairs": len(group.pairs),
        "pairs_beyond_noise": None if beyond is None else len(beyond),
    }


def _bound_cells(row: Row) -> Cells:
    def over(name: str) -> Callable[[Record], float | None]:
        return lambda record: over_pct(record.mean_step_ms, getattr(record, name))

    cause = next((cause for record in row.records if (cause := _no_step_bound(record))), None)
    if cause is not None:
        return {"bound_cause": cause}
    return {
        "step_bound_ms": row.typical(lambda record: record.step_bound_ms),
        "over_step_bound_pct": row.typical(over("step_bound_ms")),
        "own_step_bound_ms": row.typical(lambda record: record.own_step_bound_ms),
        "over_own_bound_pct": row.typical(over("own_step_bound_ms")),
    }


def _no_step_bound(record: Record) -> str | None:
    """Why nothing is proven about the trial's step."""
    if record.spec.backend is not Backend.SIMULATED:
        return "measured"
    if not record.bounded:
        moves = record.planned.moves if record.planned is not None else ()
        causes = {Move.CACHE: "a cache in HBM", Move.LOCAL_STEPS: "copies that are averaged every few steps"}
        return next((cause for move, cause in causes.items() if move in moves), "hosts or a batch schedule")
    return "recorded before steps had a bound" if record.step_bound_ms is None else None


def _balance_cells(group: Group, row: Row) -> Cells:
    slowest = row.typical(slowest_embedding_ms)
    simulated = group.condition.backend is Backend.SIMULATED
    bound = row.typical(lambda record: record.bound_ms if record.bounded else None)
    whole_table_bound = row.typical(lambda record: record.whole_table_bound_ms if record.bounded else None)
    best_found = slowest_embedding_ms(group.best_found) if group.best_found else None
    low, high = band(row.embedding_draws) if simulated and row.embedding_draws else (None, None)
    return {
        **{f"emb_ms_{name}": row.typical(_of_wall(number)) for name, number in _OVER_RANKS.items()},
        "max_over_mean": row.typical(_of_wall(_max_over_mean)),
        "bound_ms": bound,
        "over_bound_pct": over_pct(slowest, bound),
        "whole_table_bound_ms": whole_table_bound,
        "over_whole_table_bound_pct": over_pct(slowest, whole_table_bound),
        "best_found_ms": best_found,
        "over_best_found_pct": over_pct(slowest, best_found),
        "predicted_emb_ms_max": None if simulated else row.typical(_predicted_slowest),
        **{f"emb_cpu_ms_{name}": row.typical(_of_cpu(number)) for name, number in _OVER_RANKS.items()},
        "cpu_max_over_mean": row.typical(_of_cpu(_max_over_mean)),
        "bound_fixed_pct": row.typical(_bound_fixed_pct),
        "emb_ms_max_low": low,
        "emb_ms_max_high": high,
        "p_slower_than_best_found": group.p_slower_than_best_found(row) if row.ok else None,
    }


def _traffic_cells(group: Group, row: Row) -> Cells:
    cells: Cells = {
        **{name: row.typical(of_traffic(attrgetter(name))) for name in _COUNTED},
        "a2a_intra_bytes": row.typical(link_bytes(EXCHANGES, 0)),
        "a2a_inter_bytes": row.typical(link_bytes(EXCHANGES, 1)),
        "allreduce_bytes": row.typical(link_bytes(REDUCTIONS, 0, 1)),
        "off_hbm_lookups_pct": row.typical(
            of_traffic(lambda totals: 100.0 * totals.off_hbm_lookups / totals.lookups if totals.lookups else None)
        ),
        "tiers": row.worst.tiers.value if row.worst.tiers else None,
        "sharding_groups": _groups_text(row.worst.planned),
        "hbm_memory_bytes_max": row.typical(_of_planned(lambda planned: max(planned.hbm_memory_bytes, default=0))),
        "uvm_memory_bytes_max": row.typical(_of_planned(lambda planned: max(planned.uvm_memory_bytes, default=0))),
        "peak_bytes_max": row.typical(lambda record: record.peak_bytes),
        "distinct_rows_max": row.typical(of_traffic(lambda totals: max(totals.distinct_rows, default=0.0))),
    }
    for name in collectives_of(row.records):
        cells[f"{name}_bytes"] = row.typical(collective_bytes(name))
    return cells


def _groups_text(planned: Planned | None) -> str | None:
    """Return a plan's sharding groups in words; None where it states none, and they are its nodes."""
    groups = planned.groups if planned is not None else None
    return groups_text(groups) if groups is not None else None


_BUILDERS: Mapping[str, Callable[[Iterable[Record]], pd.DataFrame]] = {
    "throughput": throughput, "balance": balance, "traffic": traffic,
}  # fmt: skip
TABLES = tuple(_BUILDERS)


def _frame(grouped: list[Group], columns: tuple[str, ...], cells: Callable[[Group, Row], Cells]) -> pd.DataFrame:
    rows = []
    for group in grouped:
        for row in group.rows:
            row_cells: Cells = {**_identity(group, row), **(cells(group, row) if row.ok else {})}
            rows.append([row_cells.get(column) for column in columns])
    frame = pd.DataFrame(rows, columns=list(columns), dtype=object)
    return frame.astype({column: _KINDS.get(column, "float64") for column in columns})


def _identity(group: Group, row: Row) -> Cells:
    condition = group.condition
    return {
        **condition._asdict(),
        "backend": condition.backend.value,
        "strategy": row.strategy,
        "outcome": row.worst.outcome.value,
        "n": len(row.records) if row.ok else 0,
        "iterations": len(row.step_ms),
        **{name: getattr(condition, name).value for name in TRAINING},
        "role": row.worst.role.value,
        "trials_ok": row.trials_ok,
        "trials": len(row.records),
        "cause": row.cause,
    }


_KINDS = {
    **dict.fromkeys((
        "workload", "machine", "backend", "strategy", "outcome", "role", "cause", "tiers", "sharding_groups", *TRAINING,
        "compared_by", "places", "bound_cause",
    ), "object"),
    **dict.fromkeys(("n", "iterations", "batch_size", "trials_ok", "trials"), "int64"),
    **dict.fromkeys(("noise_freedom", "pairs", "pairs_beyond_noise", *RANKS), "Int64"),
    "same_as_best": "boolean",
}  # fmt: skip
"""Kinds of the columns that are not ``float64``."""


def _records(grouped: list[Group]) -> Iterator[Record]:
    return (record for group in grouped for row in group.rows if row.ok for record in row.records)


def phases_of(records: Iterable[Record]) -> list[str]:
    """Phases that the records time, in the order they run; unknown ones last."""
    return _ordered((name for record in records if record.timing for name in record.timing.phases_ms), list(StepPhase))


def collectives_of(records: Iterable[Record]) -> list[str]:
    """Collectives that the records count, exchanges before reductions."""
    names = (name for record in records if record.traffic for name in record.traffic.collectives)
    return _ordered(names, list(CollectiveName))


def _ordered(names: Iterable[str], order: Sequence[str]) -> list[str]:
    place = {name: number for number, name in enumerate(order)}
    return sorted(set(names), key=lambda name: (place.get(name, len(order)), name))


def _of_wall(number: Callable[[tuple[float, ...]], float | None]) -> Callable[[Record], float | None]:
    return lambda record: number(record.timing.embedding_ms) if record.timing and record.timing.embedding_ms else None


def _of_cpu(number: Callable[[tuple[float, ...]], float | None]) -> Callable[[Record], float | None]:
    return lambda record: number(times) if record.timing and (times := record.timing.embedding_cpu_ms) else None


def of_traffic(number: Callable[[TrafficTotals], float | None]) -> Callable[[Record], float | None]:
    """Read a number of the traffic off a record."""
    return lambda record: number(record.traffic) if record.traffic else None


def _of_planned(number: Callable[[Planned], float | None]) -> Callable[[Record], float | None]:
    return lambda record: number(record.planned) if record.planned else None


def phase_ms(name: str) -> Callable[[Record], float | None]:
    """Reads the phase's milliseconds off a record."""
    return lambda record: record.timing.phases_ms.get(name) if record.timing else None


def collective_bytes(name: str) -> Callable[[Record], float | None]:
    """Reads the bytes that all ranks send by the collective off a record."""
    return of_traffic(lambda totals: sum(totals.collectives[name]) if name in totals.collectives else None)


def _bound_fixed_pct(record: Record) -> float | None:
    if not record.bounded or record.bound_fixed_ms is None or not record.bound_ms:
        return None
    return 100.0 * record.bound_fixed_ms / record.bound_ms


_OVER_RANKS: Mapping[str, Callable[[tuple[float, ...]], Any]] = {
    "min": min, "mean": np.mean, "max": max, "std": np.std,
}  # fmt: skip


def _predicted_slowest(record: Record) -> float | None:
    return max(record.predicted.embedding_ms, default=None) if record.predicted else None


def _max_over_mean(times: tuple[float, ...]) -> float | None:
    mean = float(np.mean(times))
    return max(times) / mean if mean > 0 else None


def link_bytes(names: tuple[str, ...], *links: int) -> Callable[[Record], float | None]:
    """Read the bytes that all ranks send by these collectives over these links off a record."""
    return of_traffic(
        lambda totals: sum(totals.collectives.get(name, (0.0, 0.0))[link] for link in links for name in names)
    )
