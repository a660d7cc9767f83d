"""The command ``profile``: makes of the user's own access logs a data set that suites and plans can use."""

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardbench.base.atomic import write_atomically
from shardbench.base.errors import BadInput
from shardbench.base.serialise import from_data, to_data
from shardbench.cli.options import JsonOption, tell
from shardbench.cli.prepare import rows_line

if TYPE_CHECKING:
    from shardbench.datasets.preparation.log_reader import LogFiles
    from shardbench.workloads.table_list import ListedTable


class CellMode(StrEnum):
    """The ways in which values of a log become rows."""

    HASH = "hash"
    VOCABULARY = "vocabulary"
    IDS = "ids"


class MissingMode(StrEnum):
    """The ways in which a missing value counts."""

    EMPTY = "empty"
    ROW = "row"


def profile_command(
    logs: Annotated[
        list[Path] | None, typer.Argument(help="Logs in the order of time: .parquet, .csv or .tsv, plain, .gz or .zst.")
    ] = None,
    *,
    out: Annotated[Path, typer.Option("--out", help="Folder to write, such as data/mine; it must not exist.")],
    tables: Annotated[
        Path | None,
        typer.Option("--tables", help="List of tables, .csv or .parquet: name, rows, dim, pooled, features (a|b)."),
    ] = None,
    columns: Annotated[
        str | None, typer.Option("--columns", help="Columns to make tables of, such as user,item; all where left out.")
    ] = None,
    header: Annotated[
        str | None, typer.Option("--header", help="Names of the columns of a text whose first line has none.")
    ] = None,
    mode: Annotated[CellMode, typer.Option(help="How values become rows.")] = CellMode.HASH,
    rows: Annotated[int, typer.Option(min=1, help="Rows of hashed tables that no list states.")] = 1_000_000,
    dim: Annotated[int, typer.Option(min=4, help="Width of tables that no list states.")] = 64,
    delimiter: Annotated[
        str | None, typer.Option("--delimiter", help="What stands between the values of one text cell, such as ';'.")
    ] = None,
    null: Annotated[
        list[str] | None,
        typer.Option("--null", help="A text for a missing value, like the empty one; repeatable."),
    ] = None,
    missing: Annotated[
        MissingMode, typer.Option(help="Whether a missing value is no lookup (empty), or one of a row of its own.")
    ] = MissingMode.EMPTY,
    time: Annotated[
        str | None, typer.Option("--time", help="Column of times; where left out, rows come in the order of time.")
    ] = None,
    train_share: Annotated[
        float, typer.Option(help="Share of rows, earliest first, that trains; the rest tests.")
    ] = 0.8,
    rate: Annotated[float, typer.Option(help="Share of the rows to keep.")] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the hash, and of the choice of rows to keep.")] = 0,
    torchrec: Annotated[
        Path | None, typer.Option("--torchrec", help="Also write ParameterConstraints of TorchRec as JSON here.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Turn your access logs into a data set.

    It has tables, profiles, row orders and batches, for shardbench plan and for suites. With --torchrec and no logs
    the command reads a folder that was profiled before.
    """
    from shardbench.datasets.access_log import constraints, read_note  # noqa: PLC0415
    from shardbench.datasets.preparation.log_encode import Cells  # noqa: PLC0415
    from shardbench.datasets.preparation.log_profile import SampleSplit, profile_log  # noqa: PLC0415
    from shardbench.datasets.preparation.log_reader import LogFiles  # noqa: PLC0415

    if not logs and torchrec is None:
        raise BadInput("give logs to profile, or --torchrec FILE to write of a folder that was profiled")
    if logs:
        log = LogFiles(files=tuple(logs), header=_names(header))
        cells = Cells(
            mode=mode.value, missing=missing.value, delimiter=delimiter, null=tuple(null or ()), seed=seed
        )  # fmt: skip
        cut = SampleSplit(time=time, train_share=train_share, rate=rate, seed=seed)
        one = {"rows": rows if mode is CellMode.HASH else None, "dim": dim}
        listed = _tables(log, tables, _names(columns), time, one)
        profile_log(log, out, listed, cells=cells, cut=cut, progress=rows_line(as_json))
    done = read_note(out)
    if torchrec is not None:
        write_atomically(torchrec, json.dumps(constraints(out), indent=2, sort_keys=True) + "\n")
    data = {"target": str(out), "profiled": to_data(done), "torchrec": str(torchrec) if torchrec else None}
    lines = [
        f"{out}: {done.samples} of {done.read_rows} rows, {done.train_samples} train; {len(done.tables)} tables",
        *([f"constraints of TorchRec: {torchrec}"] if torchrec is not None else []),
        f"in a suite (with --data {out.parent}):",
        "  [[workloads]]",
        f'  name = "{out.name}"',
        '  dataset = "access_log"',
        f'  prepared = "{out.name}"',
    ]
    tell(data, lines, as_json=as_json)


def _tables(
    log: "LogFiles", path: Path | None, columns: tuple[str, ...] | None, time: str | None, one: dict[str, int | None]
) -> "tuple[ListedTable, ...]":
    """Return the tables to fill: those of the list, or one a column with the rows and width of ``one``."""
    from shardbench.workloads.table_list import ListedTable, checked, read_table_list  # noqa: PLC0415

    if path is not None:
        if columns is not None:
            raise BadInput("the list of tables states their columns: leave --columns or --tables out")
        return read_table_list(path)
    chosen = columns if columns is not None else tuple(name for name in log.columns() if name != time)
    made = (from_data(ListedTable, {"name": name, **one}, f"column '{name}' as a table") for name in chosen)
    return checked(made, "--columns" if columns is not None else "the log")


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise BadInput(f"'{text}' has an empty name")
    return names
