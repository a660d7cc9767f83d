"""Statistics of drawn listeners beside those that are published of the benchmark DLRMv4.

``python tools/dlrm_v4.py CSV`` draws four batches of 8,192 samples, which takes a minute.
"""

import csv
import io
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.base.atomic import write_atomically
from shardbench.datasets.yambda_like import CONFIG, HISTORIES, POOLS, YambdaLike, kind_shares, user_events
from shardbench.workloads.trace import Split

RANK_SAMPLES = 1024
OWNERS = 32
USERS = 1 << 20
PUBLISHED = {
    "events of a user, median": 2695.0, "events of a user, mean": 4763.0, "events of a user, most": 27_738.0,
    "share of events: listened to": 0.613, "share of events: skipped": 0.359, "share of events: liked": 0.019,
    "share of events: other": 0.01, "events of a history": 2663.0, "likes of a history": 105.0,
    "ids of a history feature, a rank and step": 2_690_000.0, "distinct share in a rank's batch: item_id": 0.024,
    "distinct share in a rank's batch: album_id": 0.015, "distinct share in a rank's batch: artist_id": 0.006,
    "most loaded of 32 owners over the mean: album_id": 2.8,
    "most loaded of 32 owners over the mean: artist_id": 1.3,
}  # fmt: skip
"""What mlcommons/training, pull request 889, and arXiv 2505.22238 state."""


def statistics(workload: YambdaLike, batches: int) -> dict[str, float]:
    """Return the statistics of ``batches`` train batches, named as in PUBLISHED."""
    generator = np.random.default_rng(0)
    users = user_events(generator.random(USERS))
    shares = np.average(kind_shares(users), weights=users, axis=0)
    drawn = [workload.events(Split.TRAIN, number) for number in range(batches)]
    lengths = np.concatenate([each.lengths.reshape(-1, POOLS) for each in drawn])
    names = ("listened to", "skipped", "liked", "other")
    made = {
        "events of a user, median": float(np.median(users)),
        "events of a user, mean": float(users.mean()),
        "events of a user, most": float(users.max()),
        **{f"share of events: {name}": float(share) for name, share in zip(names, shares, strict=True)},
        "events of a history": float(lengths.sum(axis=1).mean()),
        "likes of a history": float(lengths[:, 2].mean()),
        "ids of a history feature, a rank and step": RANK_SAMPLES * (1.0 + float(lengths.sum(axis=1).mean())),
    }
    for name in HISTORIES:
        ids = [each.bags(name).feature(0) for each in drawn]
        distinct = [
            len(np.unique(rank.values)) / len(rank.values)
            for bags in ids
            for rank in (bags.samples(at, at + RANK_SAMPLES) for at in range(0, bags.batch_size, RANK_SAMPLES))
        ]
        made[f"distinct share in a rank's batch: {name}"] = float(np.mean(distinct))
        skew = [_most_loaded(bags.values) for bags in ids]
        made[f"most loaded of {OWNERS} owners over the mean: {name}"] = float(np.mean(skew))
    return {name: made[name] for name in PUBLISHED}


def _most_loaded(rows: Ints) -> float:
    """Return the lookups of the most loaded owner over the mean, where rows are dealt from the hottest on."""
    counts = np.sort(np.unique(rows, return_counts=True)[1])[::-1]
    loads: Floats = np.bincount(np.arange(len(counts)) % OWNERS, weights=counts, minlength=OWNERS)
    return float(loads.max() / loads.mean())


def rows(made: dict[str, float]) -> Iterator[tuple[str, ...]]:
    """Yield the table's lines: each statistic as published and as drawn, and how far off it is."""
    yield "statistic", "published", "drawn", "error_pct"
    for name, value in PUBLISHED.items():
        yield name, f"{value:g}", f"{made[name]:.4g}", f"{100.0 * (made[name] / value - 1.0):.1f}"


def main() -> None:
    """Write the table."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows(statistics(CONFIG().build(Path()), 4)))
    write_atomically(Path(sys.argv[1]), out.getvalue())


if __name__ == "__main__":
    main()
