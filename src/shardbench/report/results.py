"""Reads a results folder as data frames, for notebooks and scripts of papers."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from io import BytesIO
from pathlib import Path

import numpy as np
import pandas as pd

from shardbench.base.errors import BadInput
from shardbench.cost.uncertainty import band
from shardbench.records.base_record import BaseRecord
from shardbench.records.cell import CellRecord
from shardbench.records.record import Planned, Record, Timing, TrafficTotals, fast_ms
from shardbench.records.store import cell_store, trial_store
from shardbench.records.trial import TRAINING, Backend, Outcome
from shardbench.report.rows import current

PARTS = ("records", "studies", "tables")
"""A results folder has at least one of these folders."""
CLAIMS, READINGS = "claims", "readings"
OF = "of"
"""The column of a reading that names its statement."""
NOT_STATED = "not stated"
_BOTH = "predicted and measured"
_BACKENDS = {
    "claims_rules": "simulated",
    "dlrm_v4/statistics": "simulated",
    "faults/fuzz": "measured",
    "faults/impostors": "measured",
    "faults/summary": "measured",
    "field/cases": "measured",
    "making": "measured",
    "memory/errors": _BOTH,
    "memory/peaks": _BOTH,
    "planner/measured": "measured",
    "planner/plans": "simulated",
    "planner/told": "simulated",
    "prediction/judges": _BOTH,
    "prediction/points": _BOTH,
    "prediction/summary": _BOTH,
    "published/pairs": _BOTH,
    "published/points": _BOTH,
    "published/steps": _BOTH,
    "scale/prepare": "measured",
    "scale/profile": "measured",
    "torchrec/support": "measured",
}
"""The backend of all rows of a table that has neither such a column nor a study."""

_TRIAL = ("key", "suite", "workload", "machine", "backend", "strategy", "seed", "repeat")
COLUMNS: Mapping[str, tuple[str, ...]] = {
    "records": (
        "kind", "owner", "about", "key", "backend", "current", "outcome", "cause", "environment", "commit", "dirty",
        "judge_version", "made_by", "started", "load_at_start", "load_at_end",
    ),
    "trials": (
        *_TRIAL, "role", "batch_size", "precision", "optimizer", "exchange", "schedule", "plan_limit_s",
        "fit_limit_s", "current", "outcome", "cause", "plan_hash", "plan_s", "fit_s", "segments", "moves",
        "iterations", "step_ms_p50", "step_ms_p95", "step_ms_low", "step_ms_high", "step_ms_fast",
        "control_ms_fast", "predicted_step_ms", "torchrec_estimate_ms", "mean_step_ms", "step_bound_ms",
        "own_step_bound_ms", "emb_ms_mean", "emb_ms_max", "emb_cpu_ms_max", "predicted_emb_ms_max", "bound_ms",
        "lookups", "off_hbm_lookups", "hbm_bytes", "uvm_bytes", "host_bytes", "sent_intra_bytes",
        "sent_inter_bytes", "hbm_memory_bytes_max", "uvm_memory_bytes_max", "workload_fingerprint", "machine_hash",
    ),
    "steps": (*_TRIAL, "iteration", "step_ms", "control_ms"),
    "ranks": (
        *_TRIAL, "rank", "embedding_ms", "embedding_cpu_ms", "predicted_embedding_ms", "hbm_memory_bytes",
        "distinct_rows",
    ),
    "claims": (
        "paper", "claim", "kind", "backend", "statement", "paper_value", "ours", "low", "high", "unit", "direction",
        "magnitude", "region_share", "strength", "n", "n_unit", "conditions", "defined_in", "judged_in",
        "defined_first", "first_judged", "redefined", "relation", "sourced", "definition_of", "definition", "source",
    ),
}  # fmt: skip
"""The columns of the frames, which the page "Papers and notebooks" explains; those of studies are their own."""

Row = dict[str, object]


@dataclass(frozen=True, kw_only=True)
class Results:
    """All that a results folder holds; every frame has a column ``backend``, and no row mixes two.

    The page "Papers and notebooks" says what each column holds, with its unit. A number that is not known is NaN.
    """

    folder: Path
    records: pd.DataFrame
    """A row a line of record files, of trials and of cells: how it ended, and which code made it, when."""
    trials: pd.DataFrame
    """A row a trial (the last line of it), failures included."""
    steps: pd.DataFrame
    """A row a timed iteration of a trial."""
    ranks: pd.DataFrame
    """A row a rank of a trial."""
    studies: Mapping[str, pd.DataFrame]
    """The rows that the cells of ``<baseline>/<study>`` gave, behind the cells' parameters and ``key``."""
    claims: pd.DataFrame
    """A row a statement of a paper: the ledger, as last written."""
    tables: Mapping[str, pd.DataFrame]
    """Every table as last written, by its path under ``tables/`` without ending, such as ``quick/throughput``."""


def load_results(folder: Path | str) -> Results:
    """Load everything in a results folder (``runs/`` of your own, ``results/`` of a checkout).

    Raises BadInput, one line, where it is missing, is none, or a file in it is damaged.
    """
    place = results_folder(folder)
    suites, cells = trial_records(place), cell_records(place)
    last = [record for records in suites.values() for record in _last(records)]
    current_ids = {id(record) for records in suites.values() for record in current(records)}
    tables = _tables(place, cells)
    return Results(
        folder=place,
        records=_records(suites, cells, current_ids),
        trials=_frame("trials", (_trial(record, current=id(record) in current_ids) for record in last)),
        steps=_frame("steps", (row for record in last for row in _steps(record))),
        ranks=_frame("ranks", (row for record in last for row in _ranks(record))),
        studies={f"{owner}/{study}": _cells(records) for (owner, study), records in cells.items()},
        claims=tables[CLAIMS] if CLAIMS in tables else _frame(CLAIMS, ()),
        tables=tables,
    )


def results_folder(folder: Path | str) -> Path:
    """Return the folder, if it is one of results; raises BadInput where not."""
    place = Path(folder)
    if not place.is_dir():
        raise BadInput(f"{place}: no such folder; name one of results, such as runs or results")
    if not any((place / part).is_dir() for part in PARTS):
        raise BadInput(f"{place} is no folder of results: it has none of {', '.join(PARTS)}")
    return place


def trial_records(folder: Path) -> dict[str, list[Record]]:
    """Read all lines of all suites' records, by suite; raises BadInput for a damaged line."""
    names = sorted(path.stem for path in (folder / "records").glob("*.jsonl"))
    return {name: trial_store(folder, name).read() for name in names}


def cell_records(folder: Path) -> dict[tuple[str, str], list[CellRecord]]:
    """Read all lines of all studies' records, by baseline and study; raises BadInput for a damaged line."""
    paths = sorted((folder / "studies").glob("*/*.jsonl"))
    return {(path.parent.name, path.stem): cell_store(folder, path.parent.name, path.stem).read() for path in paths}


def load_claims(folder: Path) -> pd.DataFrame:
    """Read the ledger as last written, without rows where there is none; raises BadInput where it is damaged."""
    path = folder / "tables" / f"{CLAIMS}.csv"
    return _claims(read_table(path), path) if path.is_file() else _frame(CLAIMS, ())


def _last(records: Iterable[Record]) -> Iterable[Record]:
    return {record.key: record for record in records}.values()


def _frame(name: str, rows: Iterable[Row]) -> pd.DataFrame:
    return pd.DataFrame(list(rows), columns=list(COLUMNS[name]))


def _records(
    suites: Mapping[str, list[Record]], cells: Mapping[tuple[str, str], list[CellRecord]], current_ids: set[int]
) -> pd.DataFrame:
    rows: list[Row] = []
    for suite, trials in suites.items():
        for trial in trials:
            own = {"kind": "trial", "owner": suite, "backend": trial.spec.backend.value, "outcome": trial.outcome.value}
            rows.append({**_line(trial), **own, "current": id(trial) in current_ids})
    for (owner, _), lines in cells.items():
        last = {line.key: line for line in lines}
        for cell in lines:
            outcome = Outcome.OK.value if cell.failure is None else "failed"
            own = {"kind": "cell", "owner": owner, "backend": backends([cell]), "outcome": outcome}
            rows.append({**_line(cell), **own, "current": last[cell.key] is cell})
    return _frame("records", rows)


def _line(record: BaseRecord) -> Row:
    code = record.provenance
    fields = ("commit", "dirty", "judge_version", "made_by", "started", "load_at_start", "load_at_end")
    return {
        "about": record.about,
        "key": record.key,
        "cause": record.cause,
        "environment": record.environment,
        **(_of(code, *fields) if code is not None else dict.fromkeys(fields)),
    }


def backends(cells: Iterable[CellRecord]) -> str:
    """Name the backends of the rows of cells, such as ``measured and simulated``."""
    return " and ".join(sorted({str(row["backend"]) for cell in cells for row in cell.rows}))


def _of(source: object, *names: str) -> Row:
    """Take attributes by name; a member of an enumeration is its value."""
    attributes = {name: getattr(source, name) for name in names}
    return {name: value.value if isinstance(value, Enum) else value for name, value in attributes.items()}


def _name(record: Record) -> Row:
    names = ("suite", "workload", "machine", "backend", "strategy", "seed", "repeat")
    return {"key": record.key, **_of(record.spec, *names)}


def _trial(record: Record, *, current: bool) -> Row:
    spec = record.spec
    row: Row = {
        **_name(record),
        **_of(spec, "batch_size", *TRAINING, "workload_fingerprint", "machine_hash"),
        "plan_limit_s": spec.plan_s,
        "fit_limit_s": spec.fit_s,
        "current": current,
        **_of(record, "role", "outcome", "cause"),
    }
    if record.planned is not None:
        row |= _plan_columns(record.planned)
    if record.timing is not None:
        row |= _timing_columns(record, record.timing)
    if record.traffic is not None:
        row |= _traffic_columns(record.traffic)
    if record.bounded:
        row |= _of(record, "bound_ms", "step_bound_ms", "own_step_bound_ms")
    return row


def _plan_columns(planned: Planned) -> Row:
    return {
        **_of(planned, "plan_hash", "plan_s", "fit_s", "segments"),
        "moves": " ".join(sorted(move.value for move in planned.moves)),
        "hbm_memory_bytes_max": max(planned.hbm_memory_bytes, default=0),
        "uvm_memory_bytes_max": max(planned.uvm_memory_bytes, default=0),
    }


def _timing_columns(record: Record, timing: Timing) -> Row:
    measured = record.spec.backend is Backend.MEASURED
    draws = None if measured else record.draws
    low, high = band([draws.step_ms]) if draws is not None else (None, None)
    control, predicted = record.control, record.predicted
    return {
        "iterations": len(timing.step_ms),
        "step_ms_p50": float(np.median(timing.step_ms)),
        "step_ms_p95": float(np.percentile(timing.step_ms, 95.0)),
        "step_ms_low": low,
        "step_ms_high": high,
        "step_ms_fast": fast_ms(timing.step_ms) if measured else None,
        "control_ms_fast": fast_ms(control.step_ms) if control is not None else None,
        "predicted_step_ms": float(np.median(predicted.step_ms)) if predicted is not None else None,
        "torchrec_estimate_ms": record.torchrec_estimate_ms,
        "mean_step_ms": record.mean_step_ms,
        "emb_ms_mean": float(np.mean(timing.embedding_ms)) if timing.embedding_ms else None,
        "emb_ms_max": max(timing.embedding_ms, default=None),
        "emb_cpu_ms_max": max(timing.embedding_cpu_ms or (), default=None),
        "predicted_emb_ms_max": max(predicted.embedding_ms, default=None) if predicted is not None else None,
    }


def _traffic_columns(traffic: TrafficTotals) -> Row:
    link_bytes = np.array(list(traffic.collectives.values()), dtype=np.float64).reshape(-1, 2).sum(axis=0)
    return {
        **_of(traffic, "lookups", "off_hbm_lookups", "hbm_bytes", "uvm_bytes", "host_bytes"),
        "sent_intra_bytes": float(link_bytes[0]),
        "sent_inter_bytes": float(link_bytes[1]),
    }


def _steps(record: Record) -> Iterator[Row]:
    if record.timing is None:
        return
    name, steps = _name(record), record.timing.step_ms
    control = record.control.step_ms if record.control is not None else (None,) * len(steps)
    for iteration, (step_ms, control_ms) in enumerate(zip(steps, control, strict=True)):
        yield {**name, "iteration": iteration, "step_ms": step_ms, "control_ms": control_ms}


def _ranks(record: Record) -> Iterator[Row]:
    if record.timing is None or record.planned is None or record.traffic is None:
        return
    name, predicted = _name(record), record.predicted
    columns = {
        "embedding_ms": record.timing.embedding_ms,
        "embedding_cpu_ms": record.timing.embedding_cpu_ms,
        "predicted_embedding_ms": predicted.embedding_ms if predicted is not None else None,
        "hbm_memory_bytes": record.planned.hbm_memory_bytes,
        "distinct_rows": record.traffic.distinct_rows,
    }
    for rank in range(len(record.timing.embedding_ms)):
        yield {**name, "rank": rank, **{column: values[rank] for column, values in columns.items() if values}}


def _cells(records: Iterable[CellRecord]) -> pd.DataFrame:
    """Return the rows of the last record of every cell; ``key`` names the cell."""
    last = {record.key: record for record in records}
    rows = [{"key": key, **record.cell, **row} for key, record in last.items() for row in record.rows]
    frame = pd.DataFrame(rows)
    return frame if len(frame) else pd.DataFrame(columns=["key", "backend"])


def _tables(folder: Path, cells: Mapping[tuple[str, str], list[CellRecord]]) -> dict[str, pd.DataFrame]:
    root = folder / "tables"
    paths = sorted(root.rglob("*.csv"))
    tables = {path.relative_to(root).with_suffix("").as_posix(): read_table(path) for path in paths}
    for name in set(tables) & {CLAIMS, READINGS}:
        tables[name] = _claims(tables[name], root / f"{name}.csv", name)
    if "regions" in tables and CLAIMS in tables:
        both = [tables[name] for name in (CLAIMS, READINGS) if name in tables]
        backends = pd.concat(both)[["paper", "claim", "backend"]]
        tables["regions"] = tables["regions"].merge(backends, on=["paper", "claim"], how="left", validate="one_to_one")
    for name, frame in list(tables.items()):
        if "backend" not in frame.columns:
            backend = pd.Series(_backend_of(name, tables, cells), index=frame.index, name="backend")
            # Not inserted in place: pandas warns of what frames of thousands of columns become by that.
            tables[name] = pd.concat([frame.iloc[:, :2], backend, frame.iloc[:, 2:]], axis=1)
    return tables


def read_table(path: Path) -> pd.DataFrame:
    """Return the table of a CSV file. Raises BadInput where it is cut off, or no table."""
    data = path.read_bytes()
    if not data.endswith(b"\n"):
        raise BadInput(f"{path}: its last line is cut off; make the tables again: shardbench report")
    try:
        head = pd.read_csv(BytesIO(data), header=None, nrows=1, dtype="str").iloc[0]
        if head.duplicated().any():
            raise BadInput(f"{path}: two columns are called '{head[head.duplicated()].iloc[0]}'; make the tables again")
        # A hash may look like a number, and a cause may be the word NA.
        words = dict.fromkeys(("defined_in", "judged_in", "cause"), "str")
        return pd.read_csv(BytesIO(data), dtype=words, na_values=[""], keep_default_na=False)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeDecodeError) as error:
        text = " ".join(str(error).split())
        raise BadInput(f"{path}: no table: {text}; make the tables again: shardbench report") from error


def _claims(frame: pd.DataFrame, path: Path, name: str = CLAIMS) -> pd.DataFrame:
    """Add to the ledger the backend of each statement's evidence, the first word of its strength."""
    columns = [*COLUMNS[CLAIMS], *([OF] if name == READINGS else [])]
    missing = [column for column in columns if column not in {*frame.columns, "backend"}]
    if missing:
        raise BadInput(f"{path} has no column '{missing[0]}'; make it again: shardbench report NAME")
    backend = frame["strength"].fillna("").astype(str).str.extract(r"^(\w*)", expand=False)
    return frame.assign(backend=backend)[columns]


def _backend_of(
    name: str, tables: Mapping[str, pd.DataFrame], cells: Mapping[tuple[str, str], list[CellRecord]]
) -> str:
    """Return the backend of the study whose name the table's begins with, or else the one it is known to have."""
    owner, _, table = name.partition("/")
    studies = [study for of, study in cells if of == owner and f"{table}_".startswith(f"{study}_")]
    if studies:
        return backends(cells[owner, max(studies, key=len)])
    return _BACKENDS.get(name, "measured" if table == "agreement" else NOT_STATED)
