"""Restate some kernels of the runs in `results/gpu/` as points that the cost model is fitted to and judged by.

`python tools/gpu_box/points.py` in the repository's root writes the data file beside the published ones. Kernels are
those that ran behind other work, without the host's time; of all cases in the runs' order every EVERY-th is taken,
forward and backward together. A case of a family is a group: half of them are fitted, as of every family.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

from tables import rows_of

from shardbench.base.atomic import write_atomically

RUNS = {"h100-2026-11-27": "h100-1x8", "h200-2026-11-27": "h200-1x8"}
"""The machine file of each run's card."""
FILE = Path("src/shardbench/cost/published/lent.json")
EVERY = 8
CASE = ("tables", "rows", "dim", "batch", "pooling", "skew", "tier", "pooled", "optimizer")
ASSUMED = (
    "milliseconds are medians of 6 repeats behind other work, so that the host's time is not in them",
    "the longest list of a sample of unpooled tables was not counted: its mean and 2.5 times the root of that",
)


def family(run: str, machine: str) -> dict[str, Any]:
    """Return the family of one run's kernels; raises BadInput for a run that is no card's."""
    rows = [
        row
        for row in rows_of(Path("results/gpu") / run)[0]
        if row["table"] == "kernels" and row["unit"] == "ms" and row.get("how") == "behind other work"
        and row.get("tier") in ("hbm", "uvm") and not row.get("overtaken") and "measured" in row
    ]  # fmt: skip
    cases = list(dict.fromkeys(tuple(row[key] for key in CASE) for row in rows))
    taken = set(cases[::EVERY])
    return {
        "title": f"FBGEMM's kernels on a lent card, measured by this project's programme ({run})",
        "source": f"results/gpu/{run}, every {EVERY}th case",
        "device": f"one NVIDIA {run.partition('-')[0].upper()}",
        "machine": machine,
        "assumptions": ASSUMED,
        "constants": {"dispatch_s": {"value": 0.0, "source": "kernels ran behind other work"}},
        "points": [point(row) for row in rows if tuple(row[key] for key in CASE) in taken],
    }


def point(row: dict[str, Any]) -> dict[str, Any]:
    """Return a kernel as a point; its lookups, distinct rows and bags are a table's."""
    tables, unpooled, pooling = row["tables"], row["pooled"] == "none", float(row["pooling"])
    longest = row["longest_bag"] if not unpooled else pooling + 2.5 * math.sqrt(pooling) if pooling > 1.0 else 1.0
    case = "/".join(f"{key} {row[key]}" for key in CASE)
    return {
        "kind": "kernel", "point": f"{case}/{row['phase']}", "group": case, "published_ms": row["measured"],
        "phase": row["phase"], "tier": row["tier"], "optimizer": row["optimizer"], "tables": tables,
        "rows": row["rows"], "dim": row["dim"], "lookups": row["lookups"] / tables,
        "distinct": row["distinct"] / tables, "bags": row["bags"] / tables, "longest_bag": round(longest, 3),
        "unpooled": unpooled,
    }  # fmt: skip


def main() -> None:
    """Write the data file of the runs' points."""
    families = {f"lent_{run.split('-')[0]}": family(run, machine) for run, machine in RUNS.items()}
    # A line a point, as in the published files.
    text = json.dumps({"families": families}, indent=1)
    write_atomically(FILE, re.sub(r"\n {5,}|\n {4}(?=\})", " ", text) + "\n")


if __name__ == "__main__":
    main()
