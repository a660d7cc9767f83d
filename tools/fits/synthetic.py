"""Fits the synthetic tables to Meta's published reuse histogram and writes their parameters.

    PYTHONPATH=tools python -m fits.synthetic

Twelve hyper-parameters say how 856 tables are drawn; they are fitted by Nelder-Mead on the
analytic expectation of the histogram (no lookup is sampled), then the 856 tables are written
out, so that the workload depends neither on the optimiser nor on numpy's random streams.
"""

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from fits.reuse import Reuse, expected
from scipy.optimize import minimize
from scipy.special import ndtr, ndtri

from shardbench.base.arrays import Floats
from shardbench.base.atomic import write_atomically
from shardbench.datasets.laws.power_law import head_share

HERE = Path(__file__).parents[2] / "datasets" / "data"
SEED = 2021
POOLING_TOP = 200.0
ROWS_LOW, ROWS_TOP = 100.0, 4e7
WANTED_MEAN_ROWS = 3e6
"""100 tables of dim 16 in fp16 then take about 10 GB, half of four 5 GB devices (a choice)."""
ONE_HOT_DECADES = 1.5
"""One-hot features (a country, a device) have this many decades fewer active rows (a choice)."""

HYPER = {
    "pooling_log_mean": (2.92, -1.0, 4.0),
    "pooling_log_std": (1.5, 1.2, 3.0),
    "one_hot_share": (0.31, 0.2, 0.4),
    "knee_log10_mean": (4.87, 3.5, 7.0),
    "knee_log10_std": (0.85, 0.85, 1.2),
    "knee_pooling_correlation": (0.37, 0.0, 0.7),
    "exponent_mean": (0.69, 0.4, 1.5),
    "exponent_std": (0.6, 0.1, 0.6),
    "shift_power_low": (0.27, -0.2, 0.5),
    "shift_power_high": (0.34, 0.2, 0.9),
    "growth_log10_top": (1.53, 0.5, 3.0),
    "tail_exponent": (4.48, 1.5, 6.0),
}
"""Where each hyper-parameter starts, and the least and the most that it may be."""
COLUMNS = ("rows", "knee", "exponent", "tail_exponent", "shift", "pooling", "coverage")

Tables = dict[str, Floats]


def published() -> dict[str, Any]:
    """Return the published statistics (data/dlrm_datasets_2021_reuse.json)."""
    data: dict[str, Any] = json.loads((HERE / "dlrm_datasets_2021_reuse.json").read_text())
    return data


def draw_tables(hyper: Mapping[str, float], count: int, single: Mapping[str, Any]) -> Tables:
    """Return the columns float64 [count] of the tables drawn from ``hyper``; one table is the published one."""
    generator = np.random.default_rng(SEED)
    z_pooling, z_knee, z_exponent = generator.standard_normal((3, count))
    u_shift, u_one_hot, u_always, u_coverage, u_growth = generator.random((5, count))
    mean, std = hyper["pooling_log_mean"], hyper["pooling_log_std"]
    low, high = ndtr(-mean / std), ndtr((np.log(POOLING_TOP) - mean) / std)
    pooling = np.exp(mean + std * ndtri(low + (high - low) * ndtr(z_pooling)))
    one_hot = u_one_hot < hyper["one_hot_share"]
    pooling = np.where(one_hot, 1.0, pooling)
    coverage = np.where(u_always < 0.4, 1.0, 0.1 + 0.9 * u_coverage)
    tied = hyper["knee_pooling_correlation"]
    z_knee = tied * z_pooling + np.sqrt(1 - tied**2) * z_knee
    knee_log10 = hyper["knee_log10_mean"] + hyper["knee_log10_std"] * z_knee - ONE_HOT_DECADES * one_hot
    knee = np.clip(np.round(10**knee_log10), 80, ROWS_TOP / 2)
    rows = np.clip(np.round(knee * 10 ** (hyper["growth_log10_top"] * u_growth)), ROWS_LOW, ROWS_TOP)
    at = int(single["table"])
    rows[at], pooling[at], coverage[at] = single["rows"], single["bag_size"], 1.0
    knee = np.minimum(knee, rows - 1)
    exponent = np.clip(hyper["exponent_mean"] + hyper["exponent_std"] * z_exponent, 0.2, 3.0)
    power = hyper["shift_power_low"] + (hyper["shift_power_high"] - hyper["shift_power_low"]) * u_shift
    shift = np.clip(knee**power, 0.5, knee / 2)
    tail_exponent = np.maximum(exponent, hyper["tail_exponent"])
    columns = (rows, knee, *(np.round(c, 5) for c in (exponent, tail_exponent, shift, pooling, coverage)))
    return dict(zip(COLUMNS, columns))


def expected_reuse(tables: Tables, batch_size: int) -> Reuse:
    """Return the expected reuse of one batch of all ``tables``."""
    rows, knee, exponent, tail_exponent, shift = (tables[name] for name in COLUMNS[:5])
    lookups = batch_size * tables["pooling"] * tables["coverage"]
    share = head_share(rows, knee, exponent, tail_exponent, shift)
    head = expected(lookups * share, knee, exponent, shift)
    return head + expected(lookups * (1 - share), rows - knee, tail_exponent, knee + shift)


def summary(tables: Tables, facts: Mapping[str, Any]) -> dict[str, float]:
    """Return what the fit is judged on: Kolmogorov distances and means, expected for one published-size batch."""
    reuse = expected_reuse(tables, facts["batch_size"])
    rows, lookups = reuse.distances(np.array(facts["row_shares"]), np.array(facts["lookup_shares"]))
    return {
        "row_distance": rows,
        "lookup_distance": lookups,
        "mean_reuse": reuse.mean,
        "mean_pooling": float((tables["pooling"] * tables["coverage"]).mean()),
        "mean_rows": float(tables["rows"].mean()),
    }


def loss(values: Floats, facts: Mapping[str, Any]) -> float:
    """Return the squared differences of both cumulative histograms and of the log means."""
    hyper = dict(zip(HYPER, values.tolist()))
    outside = sum(max(low - hyper[k], hyper[k] - high, 0.0) for k, (_, low, high) in HYPER.items())
    if outside > 0:
        return float(10.0 + outside)
    tables = draw_tables(hyper, facts["tables"], facts["single_published_table"])
    reuse = expected_reuse(tables, facts["batch_size"])
    rows, lookups = (np.array(facts[name]) for name in ("row_shares", "lookup_shares"))
    row_gaps = np.cumsum(reuse.rows / reuse.rows.sum() - rows / rows.sum())
    lookup_gaps = np.cumsum(reuse.lookups / reuse.lookups.sum() - lookups / lookups.sum())
    pooling = facts["lookups"] / facts["tables"] / facts["batch_size"]
    pooling_gap = math.log((tables["pooling"] * tables["coverage"]).mean() / pooling)
    reuse_gap = math.log(reuse.mean * facts["distinct_rows"] / facts["lookups"])
    rows_gap = math.log(tables["rows"].mean() / WANTED_MEAN_ROWS)
    histogram = (
        3 * float(row_gaps @ row_gaps) + float(lookup_gaps @ lookup_gaps) + 5 * float(np.abs(row_gaps).max()) ** 2
    )
    return float(histogram + pooling_gap**2 + reuse_gap**2 + 0.1 * rows_gap**2)


def fit(facts: Mapping[str, Any], restarts: int = 4) -> dict[str, float]:
    """Find the hyper-parameters of least loss by Nelder-Mead, restarted where it stopped."""
    values = np.array([start for start, _, _ in HYPER.values()])
    options = {"maxfev": 800, "adaptive": True, "xatol": 1e-5, "fatol": 1e-8}
    for _ in range(restarts):
        values = minimize(loss, values, args=(facts,), method="Nelder-Mead", options=options).x
    return dict(zip(HYPER, np.round(values, 6).tolist()))


def write(hyper: Mapping[str, float], facts: Mapping[str, Any], target: Path) -> dict[str, float]:
    """Write the parameter file whole and return the fit's summary."""
    tables = draw_tables(hyper, facts["tables"], facts["single_published_table"])
    reached = {name: round(value, 5) for name, value in summary(tables, facts).items()}
    lines = [json.dumps([int(v) if v == int(v) else v for v in row]) for row in np.transpose(list(tables.values()))]
    head = {
        "source": "PYTHONPATH=tools python -m fits.synthetic, fitted to data/dlrm_datasets_2021_reuse.json",
        "note": "drawn, not Meta's tables: only their joint reuse and table 44's rows and bag size are published",
        "hyper": dict(hyper),
        "expected": reached,
        "columns": list(COLUMNS),
    }
    text = json.dumps(head, indent=1)[:-2] + ',\n "tables": [\n  ' + ",\n  ".join(lines) + "\n ]\n}\n"
    write_atomically(target, text)
    return reached


def main() -> None:
    """Fit, write data/synthetic_parameters.json, print what was reached."""
    facts = published()
    reached = write(fit(facts), facts, HERE / "synthetic_parameters.json")
    sys.stdout.write(json.dumps(reached, indent=1) + "\n")


if __name__ == "__main__":
    main()
