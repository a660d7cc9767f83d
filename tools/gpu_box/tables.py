"""Write `results/tables/gpu/`: what runs of the programme measured on a card, beside what was predicted for it.

`python tools/gpu_box/tables.py` in the repository's root (`nox -s tables -- gpu`) reads every folder of `results/gpu/`,
each of which is the output of one run, named by card and date, its numbers packed with gzip. A rehearsal on CPUs is
none and is refused. Of kernels and of the slide's devices a row is of all cases alike; the runs have them one by one.
"""

import gzip
import json
import math
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from shardbench.base.errors import BadInput
from shardbench.base.generated import csv_text, write_files

RUNS, TABLES = Path("gpu"), Path("tables") / "gpu"
"""Where runs lie, and where the tables go, below the results."""
NAMES = ("kernels", "tiers", "fae", "slide", "host", "dedup")
FIRST = ("run", "backend", "part")
ALIKE = {
    "kernels": ("how", "of", "phase", "tier", "pooled", "optimizer"),
    "slide": ("of", "phase", "row", "strategy", "devices"),
}
"""Tables with thousands of numbers, whose rows are those of several cases, and what these have in common."""
SPREAD = (
    "unit",
    "cases",
    "measured_mean",
    "predicted_mean",
    "median_ratio",
    "ratio_low",
    "ratio_high",
    "within_1_6_pct",
)
"""Columns of such rows: means over the cases, and median and quartiles of measured over predicted."""
LAST = ("unit", "n", "measured", "measured_low", "measured_high", "predicted", "measured_over_predicted")
SUMMARY = ("run", "backend", "table", "rows", "compared", "median_ratio", "median_off_pct", "within_1_6_pct", "skipped")
CLOSE = 1.6
"""The factor within which predictions are counted, as those of published steps are."""

Row = dict[str, Any]


def rows_of(run: Path) -> tuple[list[Row], dict[str, int]]:
    """Return the numbers of a run as rows of the tables, and how much each part skipped; raises BadInput."""
    about = json.loads((run / "about.json").read_text())
    if about["cpu"]:
        raise BadInput(f"{run} is a rehearsal on CPUs: results/gpu holds runs on a card alone")
    rows: list[Row] = []
    skipped: dict[str, int] = {}
    for path in run.glob("numbers*.jsonl*"):
        data = path.read_bytes()
        for line in (gzip.decompress(data) if path.suffix == ".gz" else data).decode().splitlines():
            entry = json.loads(line)
            if "skipped" in entry:
                skipped[entry["part"]] = skipped.get(entry["part"], 0) + 1
            if "table" in entry:
                rows.append(_row(run.name, about["backend"], entry))
    return rows, skipped


def _row(run: str, backend: str, entry: Row) -> Row:
    repeats, predicted = entry["measured"], entry["predicted"]
    row = {"run": run, "backend": backend, "part": entry["part"], "table": entry["table"], **entry["what"]}
    row |= {"unit": entry["unit"], "n": len(repeats), "predicted": predicted}
    if repeats:
        low, middle, high = statistics.quantiles(repeats, n=4) if len(repeats) > 1 else repeats * 3
        row |= {"measured": middle, "measured_low": low, "measured_high": high}
        if predicted:
            row["measured_over_predicted"] = middle / predicted
    return row


def tables(results: Path) -> dict[Path, str]:
    """Return the text of every table by its path; raises BadInput for a folder that is no run on a card."""
    runs = sorted(folder for folder in (results / RUNS).glob("*") if folder.is_dir())
    contents = [(run.name, *rows_of(run)) for run in runs]
    rows = [row for _, run_rows, _ in contents for row in run_rows]
    texts = {}
    for name in NAMES:
        own = [row for row in rows if row["table"] == name]
        if not own:
            continue
        if name in ALIKE:
            columns = (*FIRST, *ALIKE[name], *SPREAD)
            texts[results / TABLES / f"{name}.csv"] = csv_text(columns, _alike(own, ALIKE[name]))
            continue
        keys = dict.fromkeys(key for row in own for key in row)
        columns = (*FIRST, *(key for key in keys if key not in (*FIRST, *LAST, "table")), *LAST)
        texts[results / TABLES / f"{name}.csv"] = csv_text(
            columns, ([_cell(row.get(c)) for c in columns] for row in own)
        )
    summaries = [
        _summary(run, [row for row in run_rows if row["table"] == name], skipped)
        for run, run_rows, skipped in contents
        for name in NAMES
    ]
    texts[results / TABLES / "summary.csv"] = csv_text(SUMMARY, filter(None, summaries))
    return texts


def _alike(rows: Iterable[Row], keys: tuple[str, ...]) -> list[list[object]]:
    """Return a line for all measured cases that have the same values of ``keys``."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        if "measured" in row:
            groups.setdefault(tuple(row.get(key) for key in (*FIRST, *keys, "unit")), []).append(row)
    lines = []
    for group, own in groups.items():
        mean_measured = statistics.fmean(row["measured"] for row in own)
        predicted = [row["predicted"] for row in own if row["predicted"] is not None]
        mean_predicted = statistics.fmean(predicted) if len(predicted) == len(own) else None
        ratios = [row["measured_over_predicted"] for row in own if "measured_over_predicted" in row]
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else (ratios or [None]) * 3
        cells = [_cell(value) for value in (mean_measured, mean_predicted, middle, low, high)]
        lines.append([*group, len(own), *cells, _close_pct(ratios)])
    return lines


def _close_pct(ratios: Sequence[float]) -> object:
    """Return the share [%] of ratios of measured to predicted that are within CLOSE, None of no ratios."""
    close = sum(abs(math.log(ratio)) <= math.log(CLOSE) for ratio in ratios)
    return _cell(100.0 * close / len(ratios)) if ratios else None


def _summary(run: str, rows: Iterable[Row], skipped: dict[str, int]) -> list[object] | None:
    """Return a line of the summary: the rows of a table, and how far measured times are from what was predicted."""
    rows = list(rows)
    if not rows:
        return None
    ratios = [
        row["measured_over_predicted"] for row in rows if row.get("measured_over_predicted") and row["unit"] == "ms"
    ]
    logs = [math.log(ratio) for ratio in ratios]
    cells: list[object] = [None, None, None]
    if logs:
        off = statistics.median(map(abs, logs))
        cells = [_cell(math.exp(statistics.median(logs))), _cell(100.0 * math.expm1(off)), _close_pct(ratios)]
    parts = {row["part"] for row in rows}
    return [
        run, rows[0]["backend"], rows[0]["table"], len(rows), len(logs), *cells,
        sum(skipped.get(part, 0) for part in parts),
    ]  # fmt: skip


def _cell(value: object) -> object:
    return float(f"{value:.5g}") if isinstance(value, float) else value


if __name__ == "__main__":
    for table in write_files(tables(Path("results"))):
        print(f"wrote {table}")
