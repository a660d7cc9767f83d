"""The command ``explain``: why one record is faster than another."""

from typing import Annotated

import typer

from shardbench.base.errors import BadInput
from shardbench.cli.compare import others_folder
from shardbench.cli.options import DEFAULT_RESULTS, JsonOption, ResultsOption, tell
from shardbench.records.trial import Backend

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
    """Say which of two records is faster, and why.

    What is not in the results is looked for among the simulated trials that are committed in the clone.
    """
    from shardbench.report.compare.explain import explain, find, lines, read_all  # noqa: PLC0415

    records = read_all(results)
    try:
        pair = find(a, records), find(b, records)
    except BadInput:
        committed = others_folder(results)
        if committed is None:
            raise
        own = {record.key for record in records}
        # Steps that were measured elsewhere are compared with none of here.
        simulated = (each for each in read_all(committed) if each.spec.backend is Backend.SIMULATED)
        records += [each for each in simulated if each.key not in own]
        pair = find(a, records), find(b, records)
    explanation = explain(*pair, records)
    tell(explanation.data(), lines(explanation), as_json=as_json)
