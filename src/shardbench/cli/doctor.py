"""The command ``doctor``: what this machine is and which trials fit it, and how fast it is where it is measured."""

from pathlib import Path
from typing import Annotated

import typer

from shardbench.base.errors import BadInput
from shardbench.base.serialise import to_data
from shardbench.cli.names import say_left_out
from shardbench.cli.options import DEFAULT_DATA, EXIT_FAILED, EXIT_OK, DataOption, JsonOption, tell


def doctor_command(
    *,
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Measure this machine and write a machine file.")] = (
        False
    ),
    ranks: Annotated[int, typer.Option("--ranks", min=2, help="Measure with this many local ranks (GPUs).")] = 2,
    out: Annotated[
        Path | None, typer.Option("--out", help="Machine file to write; <device>-1x<ranks>.toml where left out.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Measure fewer points: rougher, in about 20 s.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Write over a machine file that exists.")] = False,
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> int:
    """Say what this machine is and what runs on it. With --calibrate it measures the machine instead."""
    if calibrate:
        _calibrate(ranks, out, quick=quick, force=force, as_json=as_json)
        return EXIT_OK
    if out is not None or quick or force:
        raise BadInput("--out, --quick and --force belong to --calibrate: add it, or leave them out")

    from shardbench.cli.diagnosis import diagnose, lines  # noqa: PLC0415

    diagnosis = diagnose(data)
    say_left_out()
    tell({**to_data(diagnosis), "ok": diagnosis.ok}, lines(diagnosis), as_json=as_json)
    return EXIT_OK if diagnosis.ok else EXIT_FAILED


def _calibrate(ranks: int, out: Path | None, *, quick: bool, force: bool, as_json: bool) -> None:
    from shardbench.cli.diagnosis import device_here  # noqa: PLC0415

    device = device_here(ranks)
    path = out if out is not None else Path(f"{device}-1x{ranks}.toml")

    from shardbench.calibrate.calibration import calibrate  # noqa: PLC0415
    from shardbench.calibrate.summary import data, lines  # noqa: PLC0415

    done = calibrate(device, ranks, path, quick=quick, force=force)
    tell(data(done), lines(done), as_json=as_json)
