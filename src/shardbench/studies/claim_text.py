"""Rows of the ledger in words, for documents and terminals."""

from collections.abc import Mapping, Sequence
from typing import Any

from shardbench.report.tables.text import significant, unknown
from shardbench.studies.claim import Kind
from shardbench.studies.verdict import Finding

VERDICTS = tuple(finding for finding in Finding if finding is not Finding.NOT_STATED)
"""The ledger's verdicts, in the order of their columns."""
_KINDS = {
    Kind.READING: ("other reading of a statement", "other readings of a statement"),
    Kind.STAND_IN: ("row of what stand-ins show", "rows of what stand-ins show"),
    Kind.SECOND_HAND: ("second-hand statement", "second-hand statements"),
    Kind.CONTROL: ("control of our own", "controls of our own"),
}


def below_statements(rows: Sequence[Mapping[str, Any]]) -> list[tuple[Mapping[str, Any], bool]]:
    """Put every reading and stand-in below its statement; tells of each row whether it stands below one."""

    def under(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        return [each for each in rows if (each["paper"], _of(each)) == (row["paper"], row["claim"])]

    return [pair for row in rows if not _of(row) for pair in [(row, False), *((each, True) for each in under(row))]]


def _of(row: Mapping[str, Any]) -> str:
    return "" if unknown(row.get("of")) else str(row["of"])


def summary(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say in sentences how many statements there are, what came of them, and when they were defined."""
    statements = [row for row in rows if row["kind"] == Kind.STATEMENT]
    testable = [row for row in statements if row["direction"] != Finding.NOT_TESTABLE]
    words = [
        f"The ledger has {len(statements)} statements of papers. {len(statements) - len(testable)} are not testable "
        "here: they are about data, models or hardware that we do not have."
    ]
    held = sum(row["magnitude"] == Finding.REPRODUCED for row in testable) or "none"
    abouts = {"direction": "state a direction", "magnitude": f"state a number, of which {held} is reproduced"}
    for answer, about in abouts.items():
        with_answer = [row for row in testable if row[answer] != Finding.NOT_STATED]
        counts = {verdict: sum(row[answer] == verdict for row in with_answer) for verdict in VERDICTS}
        tally = ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)
        words.append(f"Of the other {len(testable)}, {len(with_answer)} {about}: {tally}.")
    apart = {kind: [row for row in rows if row["kind"] == kind] for kind in _KINDS}
    kind_counts = [f"{len(of)} {_KINDS[kind][len(of) != 1]}" for kind, of in apart.items() if of]
    if kind_counts:
        words.append(f"Counted apart are {' and '.join(filter(None, (', '.join(kind_counts[:-1]), kind_counts[-1])))}.")
    judged = [row for row in rows if not unknown(row["defined_first"])]
    first = sum(str(row["defined_first"]).lower() == "true" for row in judged)
    words.append(f"In {first} of {len(judged)} judged rows the definition was committed before the run that is shown.")
    days = sorted(str(row["first_judged"]) for row in judged if not unknown(row["first_judged"]))
    changes = [int(row["redefined"]) for row in judged if not unknown(row["redefined"]) and row["redefined"]]
    if days and kind_counts:
        when = f"on {days[0]}" if days[0] == days[-1] else f"between {days[0]} and {days[-1]}"
        words.append(
            f"All were first judged {when}; {len(changes)} were judged again by another "
            f"definition, at most {max(changes, default=0)} times."
        )
    return " ".join(words)


def claim_text(row: Mapping[str, Any]) -> str:
    """Return a statement, both answers, the numbers behind them and the evidence; numbers not sourced are left out."""
    statement = str(row["statement"]).rstrip(".")
    if row["direction"] == row["magnitude"] == Finding.NOT_TESTABLE:
        reason = str(row["conditions"]).rstrip(".")
        return f"`{row['claim']}`: **not testable here**: {statement}; {reason[:1].lower()}{reason[1:]}."
    answers = [f"direction {row['direction']}"] if row["direction"] != Finding.NOT_STATED else []
    answers += [f"magnitude {row['magnitude']}"] if row["magnitude"] != Finding.NOT_STATED else []
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
    unit = row["unit"].partition(" the ")[0]
    paper = f"{row['relation']} {_number(row['paper_value'])} {unit}" if not unknown(row["paper_value"]) else "-"
    region = f"{100 * row['region_share']:.0f} %" if not unknown(row["region_share"]) else "-"
    ours = "-"
    if row["n"]:
        # A line of a document has 120 columns.
        n_unit = row["n_unit"].partition(" (")[0].removeprefix("number of ").partition(" of ")[0]
        ours = _ours({**row, "n_unit": n_unit, "unit": unit})
        ours = ours.removeprefix("ours ").replace("n = ", "")
    # What stands below a statement needs not repeat its name.
    claim = str(row["claim"]).removeprefix(f"{_of(row)}-") if _of(row) else row["claim"]
    return (claim, row["direction"], row["magnitude"], paper, ours, region)


def _ours(row: Mapping[str, Any]) -> str:
    if not row["n"]:
        return "no number of ours"
    spread = f"{significant(row['low'])} to {significant(row['high'])}, " if not unknown(row["low"]) else ""
    return f"ours {significant(row['ours'])} {row['unit']} ({spread}n = {row['n']:.0f} {row['n_unit']})"


def _number(value: float) -> str:
    """Return a number with at most three digits where it is small, without zeros that the paper did not write."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
