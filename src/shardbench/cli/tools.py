"""Commands about records and machines that run no suite: explain, archive, doctor, two kinds of report."""

from pathlib import Path
from typing import Annotated

import typer

from shardbench.base.closest import meant
from shardbench.base.errors import BadInput
from shardbench.base.generated import ascii_text
from shardbench.cli.names import completing, say_left_out, suites_and_papers
from shardbench.cli.options import (
    DEFAULT_DATA,
    DEFAULT_RESULTS,
    EXIT_FAILED,
    EXIT_OK,
    DataOption,
    JsonOption,
    ResultsOption,
    StrategiesOption,
    print_json,
)

PREDICTION = "prediction"
"""What ``shardbench report`` takes for a suite's name to compare predictions with measurements."""

_SELECTOR = "A record's key (or its beginning), or suite/workload/machine/backend/strategy[/seed[/repeat]]."

RecordArgument = Annotated[str, typer.Argument(help=_SELECTOR)]


def explain_command(
    a: RecordArgument,
    b: RecordArgument,
    *,
    results: ResultsOption = DEFAULT_RESULTS,
    as_json: JsonOption = False,
) -> None:
    """Say in words and numbers whether one record is faster than another, and why."""
    from shardbench.base.serialise import to_data  # noqa: PLC0415
    from shardbench.report.compare.explain import explain, find, read_all  # noqa: PLC0415
    from shardbench.report.compare.explain_text import sentences  # noqa: PLC0415

    records = read_all(results)
    explanation = explain(find(a, records), find(b, records), records)
    if as_json:
        print_json({**to_data(explanation), "sentences": sentences(explanation)})
        return
    for sentence in sentences(explanation):
        print(ascii_text(sentence))


def archive_command(
    name: Annotated[
        str,
        typer.Argument(help="A suite, or a baseline with studies.", autocompletion=completing(suites_and_papers)),
    ],
    *,
    strategy: StrategiesOption = None,
    results: ResultsOption = DEFAULT_RESULTS,
    as_json: JsonOption = False,
) -> None:
    """Move records that are to be made again to <results>/archive/, line by line as they are."""
    from shardbench.records.store import cell_store, trial_store  # noqa: PLC0415

    chosen = set(strategy or ())
    _refuse_unknown(name, chosen, results)
    folder = results / "archive"
    moved = [
        trial_store(results, name).archive(
            folder / "records", lambda record: not chosen or record.spec.strategy in chosen
        )
    ]
    if not chosen:
        moved += [
            cell_store(results, name, path.stem).archive(folder / "studies" / name, lambda record: True)
            for path in sorted((results / "studies" / name).glob("*.jsonl"))
        ]
    paths = [str(path) for path in moved if path is not None]
    tables = str(results / "tables" / name)
    if as_json:
        print_json({"name": name, "archived": paths, "stale": [tables] if paths else []})
        return
    print("\n".join(f"archived: {path}" for path in paths) or f"{name}: no record to archive")
    if paths:
        print(
            f"{tables} is stale now; make it of the records left (shardbench report {name} --results {results}), "
            f"or make all records again first (nox -s publish -- {name})"
        )


def _refuse_unknown(name: str, chosen: set[str], results: Path) -> None:
    """Raises BadInput for a name or strategy that is neither on record nor known: it was mistyped."""
    from shardbench.model.discovery import strategies  # noqa: PLC0415
    from shardbench.records.store import trial_store  # noqa: PLC0415

    store, studies = trial_store(results, name), results / "studies" / name
    known = suites_and_papers()
    if name not in known and not store.path.exists() and not studies.exists():
        near = meant(name, known)
        raise BadInput(
            f"nothing of '{name}': neither {store.path} nor {studies} exists, and no suite or paper is so named"
            + (f"; did you mean '{near}'?" if near else "")
        )
    missing = sorted(chosen - {record.spec.strategy for record in store.read()} - strategies().keys())
    if missing:
        raise BadInput(f"{store.path} has no record of '{missing[0]}', and no strategy is so named")


def doctor_command(
    *,
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Measure this machine and write a machine file.")] = (
        False
    ),
    ranks: Annotated[int, typer.Option("--ranks", min=2, help="Local ranks (GPUs) to measure with.")] = 2,
    out: Annotated[
        Path | None, typer.Option("--out", help="Machine file to write; <device>-1x<ranks>.toml where left out.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer points: rougher, about 20 s.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a machine file that exists.")] = False,
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> int:
    """Say what this machine is and which trials fit it; with --calibrate, measure it."""
    if calibrate:
        return _calibrate(ranks, out, quick=quick, force=force, as_json=as_json)
    if out is not None or quick or force:
        raise BadInput("--out, --quick and --force belong to --calibrate")

    from shardbench.base.serialise import to_data  # noqa: PLC0415
    from shardbench.cli.doctor import diagnose, lines  # noqa: PLC0415

    diagnosis = diagnose(data)
    say_left_out()
    if as_json:
        print_json({**to_data(diagnosis), "ok": diagnosis.ok})
    else:
        for line in lines(diagnosis):
            print(ascii_text(line))
    return EXIT_OK if diagnosis.ok else EXIT_FAILED


def _calibrate(ranks: int, out: Path | None, *, quick: bool, force: bool, as_json: bool) -> int:
    from shardbench.cli.doctor import device_here  # noqa: PLC0415

    device = device_here(ranks)
    path = out if out is not None else Path(f"{device}-1x{ranks}.toml")

    from shardbench.calibrate.calibration import calibrate  # noqa: PLC0415
    from shardbench.calibrate.summary import data, lines  # noqa: PLC0415

    done = calibrate(device, ranks, path, quick=quick, force=force)
    if as_json:
        print_json(data(done))
    else:
        for line in lines(done):
            print(ascii_text(line))
    return EXIT_OK


def report_agreement(suite: str, results: Path, against: Path, *, check: bool, as_json: bool) -> int:
    """The suite's measured records against those of a second run: writes the table, prints it in words."""
    from shardbench.base.generated import check_files, write_files  # noqa: PLC0415
    from shardbench.base.serialise import to_data  # noqa: PLC0415
    from shardbench.report.compare.second_run import expected_file, read_agreement, text_line  # noqa: PLC0415

    found = read_agreement(results, against, suite)
    files = expected_file(results, suite, found)
    if check:
        differences = check_files(files, f"shardbench report {suite} --against {against}")
        if as_json:
            print_json({"suite": suite, "differences": differences})
        else:
            print("\n".join(differences) or f"{suite}: table and records of both runs agree")
        return EXIT_FAILED if differences else EXIT_OK
    (path,) = write_files(files)
    if as_json:
        print_json({"suite": suite, "file": str(path), "agreement": [to_data(one) for one in found]})
        return EXIT_OK
    for one in found:
        print(ascii_text(text_line(one)))
    print(f"table: {path}")
    return EXIT_OK


def report_prediction(results: Path, *, check: bool, as_json: bool) -> int:
    """Predicted against measured over all records of ``results``: writes both tables, prints how well they agree."""
    from shardbench.base.generated import check_files, write_files  # noqa: PLC0415
    from shardbench.base.serialise import to_data  # noqa: PLC0415
    from shardbench.report.prediction.against_measured import read_measured  # noqa: PLC0415
    from shardbench.report.prediction.summary import expected_files, summaries  # noqa: PLC0415
    from shardbench.report.prediction.text import text_lines  # noqa: PLC0415

    rows = read_measured(results)
    if check:
        differences = check_files(expected_files(results, rows), "shardbench report prediction")
        if as_json:
            print_json({"differences": differences})
        else:
            print("\n".join(differences) or "prediction: tables and records agree")
        return EXIT_FAILED if differences else EXIT_OK
    paths = [str(path) for path in write_files(expected_files(results, rows))]
    found = summaries(rows)
    if as_json:
        print_json({"files": paths, "summaries": [to_data(summary) for summary in found]})
        return EXIT_OK
    for line in text_lines(found):
        print(ascii_text(line))
    print(f"tables: {', '.join(paths)}")
    return EXIT_OK
