"""The command ``explain``: why one record is faster than another."""

from typing import Annotated

import typer

from shardbench.base.serialise import to_data
from shardbench.cli.options import DEFAULT_RESULTS, JsonOption, ResultsOption, tell

RecordArgument = Annotated[
    str,
    typer.Argument(
        help="The key of a record (or its beginning), or suite/workload/machine/backend/strategy[/seed[/repeat]]."
    ),
]


def explain_command(
    a: RecordArgument,
    b: RecordArgument,
    *,
    results: ResultsOption = DEFAULT_RESULTS,
    as_json: JsonOption = False,
) -> None:
    """Say which of two records is faster, and why."""
    from shardbench.report.compare.explain import explain, find, read_all  # noqa: PLC0415
    from shardbench.report.compare.explain_text import sentences  # noqa: PLC0415

    records = read_all(results)
    explanation = explain(find(a, records), find(b, records), records)
    lines = sentences(explanation)
    tell({**to_data(explanation), "sentences": lines}, lines, as_json=as_json)
