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
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write; PLAN's name with .torchrec.json where left out.")
    ] = None,
    as_json: JsonOption = False,
) -> int:
    """Write a plan for TorchRec. Your trainer reads it with shardbench.torchrec.

    Exits with 1, and says in a line a segment why, where TorchRec cannot express the plan.
    """
    from shardbench.torchrec import export, inexpressible  # noqa: PLC0415

    text = plan.read_bytes() if plan.is_file() else b""
    if not text.lstrip().startswith(b"{"):
        given = f"{plan} is no plan" if plan.exists() else f"no file {plan}"
        raise BadInput(f"{given}: make one with: shardbench plan TABLES MACHINE --out plan.json")
    read = Plan.from_json(text, f"plan {plan}")
    cannot = inexpressible(read, devices_per_node=devices_per_node or read.world_size)
    if cannot:
        if as_json:
            print_json({"plan": str(plan), "file": None, "cannot": cannot})
        else:
            for line in cannot:
                say(f"cannot: {line}", sys.stderr)
        return EXIT_FAILED
    made = export(read, devices_per_node=devices_per_node, in_blocks=in_blocks)
    path = out if out is not None else plan.with_name(f"{plan.name.removesuffix('.json')}.torchrec.json")
    write_atomically(path, made.to_json() + "\n")
    lines = [
        f"{path}: {len(made.tables)} tables on {made.world_size} ranks, for shardbench.torchrec.Exported.from_json"
    ]
    if made.remapped:
        lines.append(f"{len(made.remapped)} of {len(made.tables)} tables need the id remap: shardbench.torchrec.split")
    tell({"plan": str(plan), "file": str(path), "cannot": [], "remapped": list(made.remapped)}, lines, as_json=as_json)
    return EXIT_OK
