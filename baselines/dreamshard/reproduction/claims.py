"""The numbers behind DreamShard's claims, out of its studies' tables."""

from collections.abc import Mapping, Sequence

import pandas as pd

from shardbench.studies.claim import Evidence
from shardbench.studies.contests.contest_tasks import best_of, over_rows, ratios

from .beside_paper import spearman
from .names import BASELINES, COST_GREEDY, OURS, RANDOM, RNN, UNTRAINED

LARGEST = "Mixed-80 (8)"
"""Stands beside the row of the paper's largest margin."""


def observations(evidence: Evidence) -> Mapping[str, Sequence[float]]:
    """Give ratios theirs / ours, one for the i-th task of all rows; or what claims say of a row or a policy."""
    tables = evidence.tables
    equal, mixed = tables.get("table_tasks"), tables.get("mixed_tasks")
    claims: dict[str, Sequence[float]] = {}
    if equal is not None:
        test = _split(equal, "test")
        claims["unseen-tables"] = _held_up(test, _split(equal, "train"))
        claims["learning-helps"] = over_rows(test, _all(test, UNTRAINED), OURS)
        claims["beats-greedy-cost"] = over_rows(test, _all(test, COST_GREEDY), OURS)
        if {RNN, RANDOM} <= set(test):
            over_random = test.groupby("task", sort=False)[[RANDOM, RNN]].mean().dropna()
            ratios_of_rows = over_random[RANDOM] / over_random[RNN]
            on_4 = ratios_of_rows.index.str.endswith("(4)")
            claims["rnn-ahead-on-4-devices"] = ratios_of_rows[on_4].tolist()
            claims["rnn-behind-on-8-devices"] = ratios_of_rows[~on_4].tolist()
    if mixed is not None:
        test = _split(mixed, "test")
        strongest = _strongest(test)
        claims["margin-production-stand-in"] = over_rows(test, strongest, OURS)
        if LARGEST in strongest:
            claims["largest-margin-stand-in"] = ratios(test[test["task"] == LARGEST], strongest[LARGEST], OURS).tolist()
    if (rows := tables.get("table_rows")) is not None and len(rows):
        for claim, over in (("margin-open-tables", "strongest"), ("over-random", RANDOM), ("over-rnn", RNN)):
            claims[claim] = (rows[f"gain_{over}_pct"] / rows[f"gain_{over}_paper_pct"]).astype(float).dropna().tolist()
        ours, paper = (rows[f"gain_strongest_{ending}"].tolist() for ending in ("pct", "paper_pct"))
        claims["margin-open-tables-region"] = [1.0 + pct / 100.0 for pct in ours]
        correlation = spearman(ours, paper) if len(rows) > 1 else None
        claims["margin-open-tables-order"] = [] if correlation is None else [correlation]
    if (policies := tables.get("transfer_policies")) is not None:
        claims["other-sizes"] = policies["trained_there_over_ours"].tolist()
    return {name: numbers for name, numbers in claims.items() if len(numbers)}


def _split(tasks: pd.DataFrame, split: str) -> pd.DataFrame:
    """Select the tasks of a split on rows where DreamShard is."""
    part = tasks[tasks["split"] == split]
    return part[part["task"].isin(part.dropna(subset=[OURS])["task"])] if OURS in part else part.iloc[:0]


def _strongest(tasks: pd.DataFrame) -> dict[str, str]:
    """Name the paper's baseline with the smallest mean on each row."""
    names = {str(row): best_of(part, BASELINES) for row, part in tasks.groupby("task", sort=False)}
    return {row: name for row, name in names.items() if name is not None}


def _all(tasks: pd.DataFrame, name: str) -> dict[str, str]:
    """Name one strategy for each row that has it."""
    rows = tasks.dropna(subset=[name]) if name in tasks else tasks.iloc[:0]
    return {str(row): name for row in rows["task"].unique()}


def _held_up(test: pd.DataFrame, train: pd.DataFrame) -> list[float]:
    """Divide the gain over random on the i-th test task by that on the i-th training task, both means over rows."""
    both = [over_rows(part, _all(part, RANDOM), OURS) for part in (test, train)]
    return [on_test / on_train for on_test, on_train in zip(*both)]
