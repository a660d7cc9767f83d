"""The command ``doctor``: what this machine is and which trials fit it, and how fast it is where it is measured."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from shardbench.base.errors import BadInput
from shardbench.base.generated import say
from shardbench.base.serialise import to_data
from shardbench.cli.names import say_left_out
from shardbench.cli.options import DEFAULT_DATA, EXIT_FAILED, EXIT_OK, DataOption, JsonOption, tell


def doctor_command(
    *,
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Measure this machine and write a machine file.")] = (
        False
    ),
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks", min=1, help="Measure with this many local ranks; all GPUs, or 2 of a CPU, if left out."
        ),
    ] = None,
    nodes: Annotated[
        int,
        typer.Option(
            "--nodes", min=1, help="Write of this many computers like this one; the links between are guesses."
        ),
    ] = 1,
    out: Annotated[
        Path | None, typer.Option("--out", help="Machine file to write, or its folder; <device>-<nodes>x<ranks>.toml.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure fewer points: rougher, in less than a minute.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a machine file that exists.")] = False,
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> int:
    """Say what this machine is and what runs on it. With --calibrate it measures the machine instead."""
    if calibrate:
        _calibrate(ranks, nodes, out, quick=quick, force=force, as_json=as_json)
        return EXIT_OK
    if ranks is not None or nodes > 1 or out is not None or quick or force:
        belong = "--ranks, --nodes, --out, --quick and --force"
        raise BadInput(f"{belong} belong to --calibrate: add it, or leave them out")

    from shardbench.cli.diagnosis import diagnose, lines  # noqa: PLC0415

    diagnosis = diagnose(data)
    say_left_out()
    verdicts = {"engine_was_tried": diagnosis.engine_was_tried, "ok": diagnosis.ok}
    tell({**to_data(diagnosis), **verdicts}, lines(diagnosis), as_json=as_json)
    return EXIT_OK if diagnosis.ok else EXIT_FAILED


def _calibrate(ranks: int | None, nodes: int, out: Path | None, *, quick: bool, force: bool, as_json: bool) -> None:
    from shardbench.cli.diagnosis import ranks_here  # noqa: PLC0415

    device, ranks = ranks_here(ranks)
    path = out if out is not None else Path()
    if path.is_dir():
        path /= f"{device}-{nodes}x{ranks}.toml"

    from shardbench.calibrate.calibration import as_data, as_lines, calibrate  # noqa: PLC0415

    # Not among the results, which may go to a file or be JSON.
    aside = partial(say, file=sys.stderr)
    calibration = calibrate(device, ranks, path, quick=quick, force=force, nodes=nodes, noted=aside)
    tell(as_data(calibration), as_lines(calibration), as_json=as_json)
