"""Write `results/tables/gpu/`: what runs of the programme measured on a card, beside what was predicted for it.

`python tools/gpu_box/tables.py` in the repository's root (`nox -s tables -- gpu`) reads every folder of `results/gpu/`,
each of which is the output of one run, named by card and date. A rehearsal on CPUs is none and is refused.
"""

import json
import math
import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from shardbench.base.errors import BadInput
from shardbench.base.generated import csv_text, write_files

RUNS, TABLES = Path("gpu"), Path("tables") / "gpu"
"""Where runs lie, and where the tables go, below the results."""
NAMES = ("kernels", "tiers", "fae", "slide", "host", "dedup")
FIRST = ("run", "backend", "part")
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
    for path in sorted(run.glob("numbers-*.jsonl"), key=lambda path: int(path.stem.rpartition("-")[2])):
        for line in path.read_text().splitlines():
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
    read = [(run.name, *rows_of(run)) for run in runs]
    rows = [row for _, of_run, _ in read for row in of_run]
    texts = {}
    for name in NAMES:
        own = [row for row in rows if row["table"] == name]
        if not own:
            continue
        keys = dict.fromkeys(key for row in own for key in row)
        columns = (*FIRST, *(key for key in keys if key not in (*FIRST, *LAST, "table")), *LAST)
        texts[results / TABLES / f"{name}.csv"] = csv_text(
            columns, ([_cell(row.get(c)) for c in columns] for row in own)
        )
    summaries = [
        _summary(run, [row for row in of_run if row["table"] == name], skipped)
        for run, of_run, skipped in read
        for name in NAMES
    ]
    texts[results / TABLES / "summary.csv"] = csv_text(SUMMARY, filter(None, summaries))
    return texts


def _summary(run: str, rows: Iterable[Row], skipped: dict[str, int]) -> list[object] | None:
    """Return a line of the summary: the rows of a table, and how far measured times are from what was predicted."""
    rows = list(rows)
    if not rows:
        return None
    ratios = [
        row["measured_over_predicted"] for row in rows if row.get("measured_over_predicted") and row["unit"] == "ms"
    ]
    logs = [math.log(ratio) for ratio in ratios]
    told: list[object] = [None, None, None]
    if logs:
        off = statistics.median(map(abs, logs))
        close = sum(abs(log) <= math.log(CLOSE) for log in logs) / len(logs)
        told = [_cell(math.exp(statistics.median(logs))), _cell(100.0 * math.expm1(off)), _cell(100.0 * close)]
    parts = {row["part"] for row in rows}
    return [
        run, rows[0]["backend"], rows[0]["table"], len(rows), len(logs), *told,
        sum(skipped.get(part, 0) for part in parts),
    ]  # fmt: skip


def _cell(value: object) -> object:
    return float(f"{value:.5g}") if isinstance(value, float) else value


if __name__ == "__main__":
    for table in write_files(tables(Path("results"))):
        print(f"wrote {table}")
