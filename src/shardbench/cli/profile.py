"""The command ``profile``: makes of the user's own access logs a data set that suites and plans can use."""

import json
import textwrap
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from shardbench.base.atomic import write_atomically
from shardbench.base.errors import BadInput
from shardbench.base.serialise import from_data, to_data
from shardbench.cli.names import machines
from shardbench.cli.options import JsonOption, line_width, tell
from shardbench.cli.progress import console_of_stdout, reading
from shardbench.model.table import MAX_ROWS, MAX_SEED, MAX_WIDTH

if TYPE_CHECKING:
    from shardbench.datasets.preparation.log_profile import SeenTable
    from shardbench.datasets.preparation.log_reader import LogFiles
    from shardbench.workloads.table_list import ListedTable

WIDTH = 118
"""Columns of lines where stdout is no terminal."""
MEANINGS = (
    "pooling: lookups a sample; coverage: samples with a lookup; hot share: lookups of the hottest 1 % of rows; "
    "sharing: ids whose row is another id's too; new: further lookups of rows not seen yet"
)


def profile_command(
    logs: Annotated[
        list[str] | None,
        typer.Argument(
            help="Logs in the order of time: .parquet, .csv or .tsv, plain, .gz or .zst; files, folders, patterns such "
            "as log/day=*/*.parquet, on disk or at s3://, gs:// or hdfs://."
        ),
    ] = None,
    *,
    counts: Annotated[
        list[str] | None,
        typer.Option(
            "--counts", help="In place of logs, counts that others made: table, value (or row) and count; repeatable."
        ),
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder to write, such as data/mine; it must not exist.")],
    tables: Annotated[
        Path | None,
        typer.Option(
            "--tables",
            help="List of tables, .csv, .tsv, .parquet (name, rows, dim, pooled, features a|b), or a profiled folder.",
        ),
    ] = None,
    columns: Annotated[
        str | None, typer.Option("--columns", help="Columns to make tables of, such as user,item; all where left out.")
    ] = None,
    header: Annotated[
        str | None, typer.Option("--header", help="Names of the columns of a text whose first line has none.")
    ] = None,
    mode: Annotated[Literal["hash", "vocabulary", "ids"], typer.Option(help="How values become rows.")] = "hash",
    rows: Annotated[
        int | None,
        typer.Option(
            "--rows", min=1, max=MAX_ROWS, help="Rows of hashed tables that no list states; as suggested if left out."
        ),
    ] = None,
    dim: Annotated[int, typer.Option(min=4, max=MAX_WIDTH, help="Width of tables that no list states.")] = 64,
    delimiter: Annotated[
        str | None, typer.Option("--delimiter", help="What stands between the values of one text cell, such as ';'.")
    ] = None,
    weights: Annotated[
        str | None,
        typer.Option("--weights", help="What stands between an id and its weight, such as ':'; weights are left out."),
    ] = None,
    null: Annotated[
        list[str] | None,
        typer.Option("--null", help="A text for a missing value, like the empty one; repeatable."),
    ] = None,
    missing: Annotated[
        Literal["empty", "row"],
        typer.Option(help="Whether a missing value is no lookup (empty), or one of a row of its own."),
    ] = "empty",
    time: Annotated[
        str | None, typer.Option("--time", help="Column of times; where left out, rows come in the order of time.")
    ] = None,
    train_share: Annotated[
        float, typer.Option(help="Share of rows, earliest first, that trains; the rest tests.")
    ] = 0.8,
    rate: Annotated[float, typer.Option(help="Share of the rows to keep.")] = 1.0,
    seed: Annotated[
        int, typer.Option(min=0, max=MAX_SEED, help="Seed of the hash, and of the choice of rows to keep.")
    ] = 0,
    engine: Annotated[
        Literal["cores", "dask"],
        typer.Option(help="What reads and counts: the cores of this machine, or the workers of a Dask cluster."),
    ] = "cores",
    scheduler: Annotated[
        str | None,
        typer.Option(
            "--scheduler", help="Scheduler of --engine dask, tcp://HOST:8786; its workers must see the log and --out."
        ),
    ] = None,
    torchrec: Annotated[
        Path | None, typer.Option("--torchrec", help="Also write ParameterConstraints of TorchRec as JSON here.")
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            "--machine",
            help="With --torchrec: machine (name or .toml) to write arguments of TorchRec's Topology of, and "
            "coefficients of its estimator, beside it.",
            autocompletion=machines,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Turn your access logs into a data set.

    It has tables, profiles, row orders and batches, for shardbench plan and for suites. The command says what it saw
    of each table, and how many rows fit it. With --torchrec and no logs it reads a folder that was profiled before.
    With --counts it takes what a warehouse counted of a log; the lookups of batches are then drawn as often.
    """
    from shardbench.datasets.access_log import constraints, read_note, read_seen  # noqa: PLC0415
    from shardbench.datasets.preparation.log_counts import VALUE, profile_counts, tables_of  # noqa: PLC0415
    from shardbench.datasets.preparation.log_encode import Cells  # noqa: PLC0415
    from shardbench.datasets.preparation.log_profile import profile_log  # noqa: PLC0415
    from shardbench.datasets.preparation.log_reader import find_logs  # noqa: PLC0415
    from shardbench.datasets.preparation.log_words import SampleSplit  # noqa: PLC0415
    from shardbench.datasets.preparation.side_by_side import dask_workers  # noqa: PLC0415
    from shardbench.engine.described import coefficients, topology_fields  # noqa: PLC0415
    from shardbench.model.machine_file import load_machine  # noqa: PLC0415

    if machine is not None and torchrec is None:
        raise BadInput("--machine is for TorchRec's planner: give --torchrec FILE, too")
    if not logs and not counts and torchrec is None:
        raise BadInput("give logs to profile, or --torchrec FILE to write of a folder that was profiled")
    on = load_machine(machine) if machine is not None else None
    fields = {"topology": topology_fields(on), "hardware": coefficients(on)} if on is not None else {}
    if counts and (logs or time is not None or rate < 1):
        raise BadInput("counts are of a whole log: leave logs, --time and --rate out, or --counts")
    if (engine == "dask") != (scheduler is not None) or (scheduler is not None and not logs):
        raise BadInput("--engine dask and --scheduler go together, for logs: give both, or leave both out")
    if rows is not None and mode != "hash":
        raise BadInput(f"--rows is of --mode hash: --mode {mode} counts the rows, or a list of --tables states them")
    cells = Cells(
        mode=mode, missing=missing, delimiter=_unescaped(delimiter), weights=_unescaped(weights),
        null=tuple(null or ()), seed=seed,
    )  # fmt: skip
    sizes = {"rows": rows, "dim": dim}
    if counts:
        log = find_logs(counts, _names(header))
        if VALUE not in log.columns():
            cells = replace(cells, mode="ids")
        names = tables_of(log) if tables is None and columns is None else _names(columns)
        profile_counts(log, out, _tables(log, tables, names, time, sizes), cells=cells)
    if logs:
        if scheduler is not None:
            # Workers run in other folders.
            logs = [name if "://" in name else str(Path(name).absolute()) for name in logs]
        log = find_logs(logs, _names(header))
        split = SampleSplit(time=time, train_share=train_share, rate=rate, seed=seed)
        targets = _tables(log, tables, _names(columns), time, sizes)
        with (
            nullcontext() if scheduler is None else dask_workers(scheduler) as workers,
            reading(log.bytes, len(targets), None if as_json else console_of_stdout()) as show,
        ):
            profile_log(
                log, out if scheduler is None else out.absolute(), targets, cells=cells, cut=split,
                progress=show.read_more, counted=show.count_tables, workers=workers,
            )  # fmt: skip
    note = read_note(out)
    log_tables = read_seen(out)
    log_tables = {table.name: log_tables[table.name] for table in note.tables if table.name in log_tables}
    if torchrec is not None:
        write_atomically(torchrec, json.dumps(constraints(out), indent=2, sort_keys=True) + "\n")
    beside = {name: torchrec.with_suffix(f".{name}.json") for name in fields} if torchrec is not None else {}
    for name, file in beside.items():
        write_atomically(file, json.dumps(fields[name], indent=2, sort_keys=True) + "\n")
    data = {
        "target": str(out),
        "profiled": to_data(note),
        "seen": {name: to_data(table) for name, table in log_tables.items()},
        "torchrec": str(torchrec) if torchrec else None,
        **{name: str(beside[name]) if beside else None for name in ("topology", "hardware")},
    }
    kept = f"{note.samples} of {note.read_rows} rows, {note.train_samples} train"
    lines = [
        f"{out}: {kept if not note.counted else f'counts of {note.samples} samples'}; {len(note.tables)} tables",
        *(table_lines(log_tables) if log_tables else []),
        *([f"constraints of TorchRec: {torchrec}"] if torchrec is not None else []),
        *([f"arguments of its Topology: {beside['topology']}, coefficients: {beside['hardware']}"] if beside else []),
        f"in a suite (with --data {out.parent}):",
        "  [[workloads]]",
        f'  name = "{out.name}"',
        '  dataset = "access_log"',
        f'  prepared = "{out.name}"',
    ]
    tell(data, lines, as_json=as_json)


def _unescaped(text: str | None) -> str | None:
    r"""Return a separator that may be written as an escape, such as ``\t`` or ``\x1d``, as what it stands for."""
    if text is None or "\\" not in text or text == "\\":
        return text
    try:
        return text.encode("latin-1").decode("unicode_escape")
    except UnicodeError as error:
        raise BadInput(f"'{text}' is no separator: write it as it is, or as an escape such as \\t or \\x1d") from error


def _tables(
    log: "LogFiles", path: Path | None, columns: tuple[str, ...] | None, time: str | None, sizes: dict[str, int | None]
) -> "tuple[ListedTable, ...]":
    """Return the tables to fill: those of the list, or one a column, with the rows (and width) of ``sizes``."""
    from shardbench.workloads.table_list import ListedTable, checked, read_table_list  # noqa: PLC0415

    if path is not None:
        if columns is not None:
            raise BadInput("the list of tables states their columns: leave --columns or --tables out")
        listed = _tables_of_folder(path) if path.is_dir() else read_table_list(path)
        return tuple(table if table.rows else table.model_copy(update={"rows": sizes["rows"]}) for table in listed)
    names = columns if columns is not None else tuple(name for name in log.columns() if name != time)
    bad_name = next((name for name in names if not name.strip() or set(name) & set("\t,;|")), None)
    if bad_name is not None:
        raise BadInput(
            f"'{bad_name}' of {log.files[0].name} looks like no column's name: give --header where the first line "
            "names no columns, --delimiter, or --tables; cells of .csv end in commas, of .tsv and .txt in tabs"
        )
    column_tables = (from_data(ListedTable, {"name": name, **sizes}, f"column '{name}' as a table") for name in names)
    return checked(column_tables, "--columns" if columns is not None else "the log")


def _tables_of_folder(folder: Path) -> "tuple[ListedTable, ...]":
    """Return the tables of a folder that was profiled, so that the rows of another log are the same ones."""
    from shardbench.datasets.access_log import read_note  # noqa: PLC0415
    from shardbench.workloads.table_list import ListedTable  # noqa: PLC0415

    return tuple(
        ListedTable(name=table.name, rows=table.rows, dim=table.dim, pooled=table.pooled, features=table.features)
        for table in read_note(folder).tables
    )


def table_lines(log_tables: "dict[str, SeenTable]") -> list[str]:
    """Say what a log showed of its tables, in a table as wide as the terminal."""
    from shardbench.report.tables.layout import lay_out  # noqa: PLC0415
    from shardbench.report.tables.text import ALWAYS, Columns  # noqa: PLC0415

    columns: dict[str, tuple[int, Callable[[SeenTable], str]]] = {
        "distinct ids": (ALWAYS, lambda one: f"{one.values:,}"),
        "rows": (ALWAYS, lambda one: f"{one.rows:,}"),
        "suggested rows": (7, lambda one: f"{one.suggested_rows:,}"),
        "size": (6, lambda one: _size(4 * one.rows * one.dim)),
        "pooling": (5, lambda one: f"{one.pooling:.3g}"),
        "coverage": (4, lambda one: f"{100 * one.coverage:.1f} %"),
        "hot share": (3, lambda one: f"{100 * one.hot:.1f} %"),
        "sharing": (2, lambda one: f"{100 * one.sharing:.1f} %"),
        "new": (1, lambda one: f"{100 * one.new:.1f} %"),
    }
    width = line_width(WIDTH)
    table = lay_out(
        Columns(
            headers=("table", *columns),
            rows=tuple((name, *(text(one) for _, text in columns.values())) for name, one in log_tables.items()),
            numeric=(False, *(True for _ in columns)),
            keep=(ALWAYS, *(keep for keep, _ in columns.values())),
        ),
        width,
    )
    size = sum(4 * one.rows * one.dim for one in log_tables.values())
    fits = sum(4 * one.suggested_rows * one.dim for one in log_tables.values())
    notes = [f"size in fp32: {_size(size)}" + (f"; with the suggested rows {_size(fits)}" if fits != size else "")]
    notes.append(MEANINGS)
    if table.left_out:
        notes.append(f"no room for {', '.join(table.left_out)}: they are in --json")
    return [*table.heads, *table.rows, *(part for line in notes for part in textwrap.wrap(line, width))]


def _size(number: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if number < 1000:
            return f"{number:.3g} {unit}"
        number /= 1024
    return f"{number:.3g} GiB"


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise BadInput(f"'{text}' has an empty name")
    return names
