"""How sure the order of two plans is: the error of their ratios, from pairs of plans alone, with its interval.

``python tools/pair_error.py`` rewrites results/tables/published/pair_error.csv: published whole steps, what plans took
on lent cards (results/gpu), kernels of one table set in unlike memories, and plans on CPU ranks (the suite `measured`).
``tools/gpu_machines.py`` writes what plans on GPUs say into the machine files.
"""

import math
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from gpu_box.tables import RUNS, rows_of

from shardbench.base.atomic import write_atomically
from shardbench.base.generated import csv_text
from shardbench.cost.phases import KERNELS
from shardbench.cost.published.agreement import Pair, pairs
from shardbench.cost.uncertainty import PairError, pair_error
from shardbench.records.store import trial_store
from shardbench.report.groups import groups
from shardbench.report.rows import predicted_step_ms

RESULTS = Path("results")
TABLE = RESULTS / "tables" / "published" / "pair_error.csv"
COLUMNS = ("of", "backend", "source", "plans", "sources", "off")
GPUS, KERNELS_OF, RANKS = "plans on GPUs", "kernels by memory", "plans on CPU ranks"
EVERY = "all, sources alike"
FEW = 4
"""Plans from which on a source alone says between what its error lies."""
CARDS = {"slide": "placements on lent cards", "tiers": "plans over memories on lent cards"}
_STEPS = ("step_", "pairs_")
"""Beginnings of the families of published whole steps; all others are of kernels."""

Sets = dict[str, list[list[float]]]
"""Sets of log(predicted / measured), one number a plan of the same tables, by source."""


def published_sets() -> tuple[Sets, Sets]:
    """Return the sets of published whole steps and of published kernels."""
    steps: Sets = {}
    kernels: Sets = {}
    by_tables: dict[tuple[str, str], list[Pair]] = {}
    for pair in pairs():
        by_tables.setdefault((pair.family, pair.what), []).append(pair)
    for (family, _), own in by_tables.items():
        # All pairs of a set have its first plan, whose own error all others are told against.
        first = own[0].first
        errors = [0.0, *(-math.log(p.predicted_ratio / p.published_ratio) for p in own if p.first == first)]
        (steps if family.startswith(_STEPS) else kernels).setdefault(family, []).append(errors)
    return steps, kernels


def card_sets(results: Path) -> Sets:
    """Return the sets of lent cards: a placement's slowest device, and the kernels of a plan over memories.

    Whole steps there are bound by the host, whose time no plan changes.
    """
    times: dict[tuple[str, ...], dict[str, list[tuple[float, float]]]] = {}
    for run in sorted(folder for folder in (results / RUNS).glob("*") if folder.is_dir()):
        key: tuple[str, ...]
        for row in rows_of(run)[0]:
            if not row.get("measured") or not row["predicted"]:
                continue
            if row["table"] == "slide" and row["of"] == "placement" and row["phase"] == "slowest device":
                key, plan = ("slide", run.name, row["row"], str(row["task"])), row["strategy"]
            elif row["table"] == "tiers" and row["phase"] in KERNELS:
                key, plan = ("tiers", run.name, row["workload"], str(row["batch"])), row["plan"]
            else:
                continue
            times.setdefault(key, {}).setdefault(plan, []).append((row["predicted"], row["measured"]))
    sets: Sets = {}
    for key, plans in times.items():
        sums = [[sum(column) for column in zip(*both)] for both in plans.values()]
        sets.setdefault(CARDS[key[0]], []).append([math.log(predicted / measured) for predicted, measured in sums])
    return sets


def rank_sets(results: Path) -> Sets:
    """Return the sets of plans on CPU ranks, each group of the suite `measured` a source; a plan counts once."""
    sets: Sets = {}
    for group in groups(trial_store(results, "measured").read()):
        if not group.compared:
            continue
        plans: dict[str, list[float]] = {}
        for row in group.ok_rows:
            predicted_ms, first = row.typical(predicted_step_ms), row.records[0].planned
            if predicted_ms is not None and first is not None:
                error = math.log(predicted_ms / group.estimate(row).value)
                plans.setdefault(first.plan_hash, []).append(error)
        sets[f"{group.condition.title} on {group.condition.machine}"] = [[sum(e) / len(e) for e in plans.values()]]
    return sets


@cache
def gpu_pair_error() -> PairError:
    """Return how far ratios of two plans on GPUs are off: published whole steps, and lent cards."""
    off = pair_error(published_sets()[0] | card_sets(RESULTS))
    if off is None:
        raise AssertionError("there are pairs of published plans")
    return off


def table() -> str:
    """Return the table as CSV: every source, and all of each kind."""
    steps, kernels = published_sets()
    lines = [
        *_lines(GPUS, "published", steps, CARDS.values(), card_sets(RESULTS)),
        *_lines(KERNELS_OF, "published", kernels),
        *_lines(RANKS, "measured", rank_sets(RESULTS)),
    ]
    return csv_text(COLUMNS, lines)


def _lines(
    of: str, backend: str, sets: Sets, measured: Iterable[str] = (), more: Mapping[str, list[list[float]]] | None = None
) -> list[tuple[object, ...]]:
    every = sets | dict(more or {})
    by_source = {EVERY: pair_error(every), **{name: pair_error({name: own}) for name, own in every.items()}}
    kinds = " and ".join(dict.fromkeys([backend, *("measured" for _ in measured)]))
    lines: list[tuple[object, ...]] = []
    for source, off in by_source.items():
        if off is not None:
            own = kinds if source == EVERY else "measured" if source in set(measured) else backend
            known = source == EVERY or off.plans >= FEW
            lines.append((of, own, source, off.plans, off.sources, off.text if known else ""))
    return lines


def main() -> None:
    """Run the command line, from the repository's root."""
    write_atomically(TABLE, table())
    print(f"ratios of two plans on GPUs: {gpu_pair_error().text} off, of {gpu_pair_error().sources} sources")


if __name__ == "__main__":
    main()
