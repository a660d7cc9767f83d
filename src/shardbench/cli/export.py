"""The command ``export``: a plan leaves for TorchRec."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from shardbench.base.atomic import write_atomically
from shardbench.base.errors import BadInput
from shardbench.base.generated import say
from shardbench.cli.options import EXIT_FAILED, EXIT_OK, JsonOption, print_json, tell
from shardbench.model.plan import Plan


def export_command(
    plan: Annotated[
        Path, typer.Argument(help="A plan as JSON: of shardbench plan --out, or <results>/plans/<hash>.json of a run.")
    ],
    *,
    devices_per_node: Annotated[
        int | None,
        typer.Option("--devices-per-node", min=1, help="Devices of a node; all where left out."),
    ] = None,
    in_blocks: Annotated[
        bool,
        typer.Option("--in-blocks", help="Deal whole tables by row in TorchRec's blocks of ids, which need no remap."),
    ] = False,
    mlperf: Annotated[
        bool,
        typer.Option("--mlperf", help="Write EMB_SHARDING_OVERRIDES of MLPerf's DLRMv4: a sharding type a table."),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="File to write; PLAN's name with .torchrec.json or .mlperf.env where left out."),
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Write a plan for TorchRec. Your trainer reads it with shardbench.torchrec.

    Exits with 1, and says in a line a segment or table why, where TorchRec or the overrides cannot express the plan.
    """
    from shardbench.engine.torchrec.exported import beyond_overrides, mlperf_overrides  # noqa: PLC0415
    from shardbench.torchrec import export, inexpressible  # noqa: PLC0415

    text = plan.read_bytes() if plan.is_file() else b""
    if not text.lstrip().startswith(b"{"):
        fault = f"{plan} is no plan" if plan.exists() else f"no file {plan}"
        raise BadInput(f"{fault}: make one with: shardbench plan TABLES MACHINE --out plan.json")
    source_plan = Plan.from_json(text, f"plan {plan}")
    cannot = inexpressible(source_plan, devices_per_node=devices_per_node or source_plan.world_size)
    exported = None
    if not cannot:
        exported = export(source_plan, devices_per_node=devices_per_node, in_blocks=in_blocks or mlperf)
        cannot = beyond_overrides(exported) if mlperf else []
    if exported is None or cannot:
        if as_json:
            print_json({"plan": str(plan), "file": None, "cannot": cannot})
        else:
            for line in cannot:
                say(f"cannot: {line}", sys.stderr)
        return EXIT_FAILED
    written, suffix = (mlperf_overrides(exported), "mlperf.env") if mlperf else (exported.to_json(), "torchrec.json")
    path = out if out is not None else plan.with_name(f"{plan.name.removesuffix('.json')}.{suffix}")
    write_atomically(path, written + "\n")
    tables, ranks = len(exported.tables), exported.world_size
    reader = "the environment of MLPerf's DLRMv4" if mlperf else "shardbench.torchrec.Exported.from_json"
    lines = [f"{path}: {tables} tables on {ranks} ranks, for {reader}"]
    if exported.remapped:
        lines.append(f"{len(exported.remapped)} of {tables} tables need the id remap: shardbench.torchrec.split")
    if mlperf and any(piece.sharding_type == "row_wise" for piece in exported.pieces.values()):
        lines.append("row-wise tables are dealt there in blocks of ids: hot ids that lie together have one owner")
    data = {"plan": str(plan), "file": str(path), "cannot": [], "remapped": list(exported.remapped)}
    tell(data, lines, as_json=as_json)
    return EXIT_OK
