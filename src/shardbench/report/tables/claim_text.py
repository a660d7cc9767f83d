"""Rows of the ledger in words, for documents and terminals."""

from collections.abc import Mapping
from typing import Any

from shardbench.report.tables.text import significant, unknown

VERDICTS = ("reproduced", "consistent", "partly", "inconclusive", "not reproduced", "not testable here", "not run")
"""The ledger's verdicts, in the order of their columns."""
NOT_STATED = "not stated"


def claim_text(row: Mapping[str, Any]) -> str:
    """Return a statement, both answers, the numbers behind them and the evidence; numbers not sourced are left out."""
    statement = str(row["statement"]).rstrip(".")
    if row["direction"] == row["magnitude"] == "not testable here":
        return f"`{row['claim']}`: **not testable here**: {statement}. {row['conditions']}"
    answers = [f"direction {row['direction']}"] if row["direction"] != NOT_STATED else []
    answers += [f"magnitude {row['magnitude']}"] if row["magnitude"] != NOT_STATED else []
    words = [f"**{', '.join(answers)}**", statement]
    if row["relation"] in ("direction", "not worse"):
        words.append("the paper gives no number")
    elif not unknown(row["paper_value"]):
        words.append(f"paper {row['relation']} {_number(row['paper_value'])} {row['unit']}")
    else:
        words.append("no number of the paper was seen")
    words.append(_ours(row))
    if not unknown(row["region_share"]):
        words.append(f"holds in {100 * row['region_share']:.0f} % of the region")
    if not unknown(row["strength"]) and row["strength"]:
        words.append(str(row["strength"]))
    head, *rest = words
    return f"`{row['claim']}`: {head}: {'; '.join(rest)}."


def ledger_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the cells of a line: claim, both answers, the paper's number, ours, share of the region."""
    paper = f"{row['relation']} {_number(row['paper_value'])} {row['unit']}" if not unknown(row["paper_value"]) else "-"
    region = f"{100 * row['region_share']:.0f} %" if not unknown(row["region_share"]) else "-"
    ours = "-"
    if row["n"]:
        # A line of a document has 120 columns.
        ours = _ours({**row, "n_unit": row["n_unit"].partition(" (")[0].removesuffix(" of features")})
        ours = ours.removeprefix("ours ").replace("n = ", "")
    return (row["claim"], row["direction"], row["magnitude"], paper, ours, region)


def claim_row(row: Mapping[str, Any]) -> dict[str, str]:
    """Return a row of the page's table by its headings."""
    _, direction, magnitude, paper, ours, region = ledger_cells(row)
    return {
        "paper": row["paper"],
        "claim": row["claim"],
        "statement": row["statement"],
        "direction": direction,
        "magnitude": magnitude,
        "the paper says": paper,
        "ours": ours,
        "region": region,
        "evidence": str(row["strength"]) if not unknown(row["strength"]) else "",
        "conditions": row["conditions"],
        "defined in": row["defined_in"],
        "judged in": row["judged_in"],
    }


def _ours(row: Mapping[str, Any]) -> str:
    if not row["n"]:
        return "no number of ours"
    spread = f"{significant(row['low'])} to {significant(row['high'])}, " if not unknown(row["low"]) else ""
    return f"ours {significant(row['ours'])} {row['unit']} ({spread}n = {row['n']:.0f} {row['n_unit']})"


def _number(value: float) -> str:
    """Return a number with at most three digits where it is small, without zeros that the paper did not write."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
