"""The numbers behind EMBark's claims, out of its study's table."""

from collections.abc import Mapping, Sequence

import pandas as pd

from shardbench.studies.claim import Evidence

from .studies import FLAT, MODELS, OURS, ratios


def observations(evidence: Evidence) -> Mapping[str, Sequence[float]]:
    """Return one ratio a draw for each claim, over the draw's models."""
    rows = evidence.tables.get("models")
    if rows is None:
        return {}
    over = ratios(rows)
    ours = over[OURS].unstack("model")
    return {
        "throughput-stand-in": _numbers(ours, ours.mean(axis=1)),
        "throughput-stand-in-flat": _numbers(ours, over[FLAT].unstack("model").mean(axis=1)),
    }


def _numbers(by_model: pd.DataFrame, numbers: "pd.Series[float]") -> list[float]:
    """Return the numbers of the draws that all models have; none where a model is missing."""
    if set(by_model.columns) != set(MODELS):
        return []
    return [float(number) for number in numbers[by_model.notna().all(axis=1)]]
