"""Published measurements beside the model's predictions: the table of errors, and constants fitted on its fit half.

``python tools/published_agreement.py`` rewrites results/tables/published and the tables of docs/costmodel_evidence.md;
``--fit`` writes the fitted shares, of which ``tools/gpu_machines.py`` then makes the machine files.
"""

import argparse
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from statistics import median

import numpy as np
from scipy.optimize import least_squares
from table_files import rows_csv

from shardbench.base.atomic import write_atomically
from shardbench.base.generated import write_files
from shardbench.cost.published.agreement import Pair, Predicted, pairs, predict_all, predicted_ms
from shardbench.cost.published.gpus import committed, known_gpus, shared
from shardbench.cost.published.points import FIT, HELD_OUT, Family, Point, PublishedStep, published
from shardbench.cost.published.steps import step_parts

CSV = Path("results/tables/published/points.csv")
STEPS_CSV = Path("results/tables/published/steps.csv")
PAIRS_CSV = Path("results/tables/published/pairs.csv")
DOCUMENT = Path("docs/costmodel_evidence.md")
ERROR_SCALE = 0.1
"""A point counts as its log error over this: 10 % of error weighs as much as a constant one PRIOR_SCALE off."""
PRIOR_SCALE = np.log(2.0)
ROBUST = 0.3
"""Log error beyond which a residual counts less than its square."""
AT_MOST_ONE = ("gather", "nvlink", "pcie", "copy", "product_tensor")
"""Shares of what a data sheet says can be reached at most."""
SHARES = Path("src/shardbench/cost/published/gpus.json")


def point_row(point: Predicted) -> dict[str, str]:
    """Return a point's row of the table."""
    return {
        "point": point.point, "source": point.source, "published_ms": f"{point.published_ms:.5g}",
        "predicted_ms": f"{point.predicted_ms:.4g}", "error_pct": f"{point.error_pct:.1f}", "split": point.split,
        "family": point.family, "group": point.group, "device": point.device, "constants_of": point.constants_of,
    }  # fmt: skip


def fit() -> dict[str, float]:
    """Return the shared constants that meet the fit half of all families best in the log, drawn weakly to their prior.

    A family whose machine is no GPU's file takes no part. Residuals beyond ROBUST count ever less than their square, so
    that no single source decides.
    """
    gpus = known_gpus()
    points: list[tuple[Point, Family, float]] = []
    for family in published().families.values():
        split = family.split()
        groups = [p.group for p in family.points]
        # Repeats of one measurement weigh together as one.
        points += [(p, family, groups.count(p.group) ** -0.5) for p in family.points if split[p.point] == FIT]
    names = [name for name, share in gpus.shares.items() if share.fitted]
    prior = np.log([gpus.shares[name].prior for name in names])
    upper = np.array([0.0 if name in AT_MOST_ONE else np.inf for name in names])

    def residuals(
        logs: "np.ndarray[tuple[int], np.dtype[np.float64]]",
    ) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        shares = shared() | dict(zip(names, np.exp(logs).tolist()))
        errors = np.array([w * np.log(predicted_ms(p, f, shares) / p.published_ms) / ERROR_SCALE for p, f, w in points])
        scale = ROBUST / ERROR_SCALE
        soft = np.sign(errors) * scale * np.sqrt(2.0 * (np.sqrt(1.0 + (errors / scale) ** 2) - 1.0))
        return np.concatenate([soft, (logs - prior) / PRIOR_SCALE])

    start = np.minimum(np.log([gpus.shares[name].value for name in names]), upper - 1e-6)
    solution = least_squares(residuals, start, bounds=(-np.inf, upper), diff_step=1e-3, xtol=1e-4)
    return dict(zip(names, np.exp(solution.x).tolist()))


def with_values(text: str, values: dict[str, float]) -> str:
    """Return the text of the file of shares with new values, three digits each."""
    for name, value in values.items():
        text = re.sub(rf'("{name}": {{"value": )[^,]+', rf"\g<1>{float(f'{value:.3g}'):g}", text)
    return text


def step_rows(rows: Iterable[Predicted]) -> Iterator[dict[str, object]]:
    """Yield the rows of whole published steps, with the parts of each prediction."""
    points = {f"{name}/{point.point}": point for name, of in published().families.items() for point in of.points}
    for row in rows:
        step = points[row.point]
        if not isinstance(step, PublishedStep):
            continue
        own = point_row(row)
        parts = asdict(step_parts(step, committed(step.machine), shared()))
        yield {
            "step": row.point, "published_ms": own["published_ms"], "predicted_ms": own["predicted_ms"],
            "error_pct": own["error_pct"], "split": row.split, "gpu": step.machine, "gpus": step.gpus,
            "nodes": step.nodes, "batch_size": step.batch_size, "framework": step.executor, "plan": step.plan,
            "dense": step.dense, "group": step.group,
            **{f"{name}_ms": f"{1e3 * seconds:.4g}" for name, seconds in parts.items()},
            "source": row.source + (f"; {step.assumed}" if step.assumed else ""),
        }  # fmt: skip


def pair_row(pair: Pair) -> dict[str, str]:
    """Return the row of a pair of plans."""
    return {
        "family": pair.family, "same": pair.what, "first": pair.first, "second": pair.second,
        "published_ratio": f"{pair.published_ratio:.3f}", "predicted_ratio": f"{pair.predicted_ratio:.3f}",
        "sign_right": ("yes" if pair.sign_right else "no") if pair.differs else "=",
        "ratio_error_pct": f"{pair.error_pct:.1f}",
    }  # fmt: skip


def texts(rows: list[Predicted]) -> dict[Path, str]:
    """Return the tables of points, of whole steps and of pairs of plans as CSV, by their paths."""
    return {
        CSV: rows_csv(map(point_row, rows)),
        STEPS_CSV: rows_csv(step_rows(rows)),
        PAIRS_CSV: rows_csv(map(pair_row, pairs())),
    }


def whole_steps(rows: Iterable[Predicted]) -> list[Predicted]:
    """Return the rows of whole steps."""
    return [row for row in rows if row.family.startswith("step_")]


def group_errors(rows: Iterable[Predicted]) -> list[float]:
    """Return one factor of error a group, 1 or more: the median of its repeats."""
    groups: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        ratio = row.predicted_ms / row.published_ms
        groups.setdefault((row.family, row.group), []).append(max(ratio, 1.0 / ratio))
    return [median(repeats) for repeats in groups.values()]


def steps_markdown(rows: list[Predicted]) -> str:
    """Return how far held-out whole steps are off, all and by GPU, and how far pairs are."""
    lines = ["| whole steps | held out | median error | within 1.6 |", "|---|---|---|---|"]
    steps = [row for row in whole_steps(rows) if row.split == HELD_OUT]
    for machine in ("all", *sorted({row.constants_of for row in steps})):
        errors = group_errors(row for row in steps if machine in ("all", row.constants_of))
        near = sum(error <= 1.6 for error in errors)
        middle, share = 100 * (median(errors) - 1), 100 * near / len(errors)
        lines.append(f"| {machine} | {len(errors)} | {middle:.1f} % | {share:.0f} % |")
    lines += [
        "",
        "| pairs that differ by more than 5 % | pairs | in the right order | median error of the ratio |",
        "|---|---|---|---|",
    ]
    apart = [pair for pair in pairs() if pair.differs]
    off = median(pair.error_pct for pair in apart)
    lines.append(f"| all | {len(apart)} | {sum(pair.sign_right for pair in apart)} | {off:.1f} % |")
    return "\n".join(lines)


def markdown(rows: list[Predicted]) -> str:
    """Return held-out errors by family, of those that are not of whole steps."""
    lines = ["| family | held out | median error | worst |", "|---|---|---|---|"]
    for name in published().families:
        held_out = [row for row in rows if row.family == name and row.split == HELD_OUT]
        if held_out and not name.startswith(("step_", "pairs_")):
            lines.append(f"| {name} | {_statistics(held_out)} |")
    return "\n".join(lines)


def _statistics(rows: list[Predicted]) -> str:
    """Return groups, median and worst absolute error; of repeats of one measurement the worst counts, once."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        groups.setdefault(row.group, []).append(abs(float(point_row(row)["error_pct"])))
    errors = [max(repeats) for repeats in groups.values()]
    return f"{len(errors)} | {median(errors):.1f} % | {max(errors):.1f} %"


def embed(document: str, table: str, name: str = "agreement") -> str:
    """Return the document with what is between the two markers of that name replaced."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    head, rest = document.split(begin)
    return f"{head}{begin}\n{table}\n{end}{rest.split(end)[1]}"


def main() -> None:
    """Run the command line, from the repository's root."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fit", action="store_true", help="fit the shared constants and write them, no tables")
    if parser.parse_args().fit:
        write_atomically(SHARES, with_values(SHARES.read_text(), fit()))
        return
    rows = predict_all()
    write_files(texts(rows))
    text = embed(DOCUMENT.read_text(), markdown(rows))
    write_atomically(DOCUMENT, embed(text, steps_markdown(rows), "whole steps"))


if __name__ == "__main__":
    main()
