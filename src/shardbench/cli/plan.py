"""The command ``plan``: the fastest plan for the user's tables on the user's machine, on one screen."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardbench.base.atomic import write_atomically
from shardbench.base.closest import unknown
from shardbench.base.errors import BadInput
from shardbench.base.reading import toml_file
from shardbench.cli import options as shared
from shardbench.cli.names import completing, machines, say_left_out, suites, workloads
from shardbench.model.table import Optimizer, Precision, StepSchedule
from shardbench.records.trial import TRAINING, unusual

if TYPE_CHECKING:
    from shardbench.model.constraints import Constraints
    from shardbench.runs.best_plan import Best, PlanSearch
    from shardbench.workloads.workload import Workload

GIB = 2.0**30
COLUMNS = 79
"""One column less than a terminal of 80 has, so that it breaks no line."""


def plan_command(
    tables: Annotated[
        str,
        typer.Argument(
            help="A list of tables (.toml, .csv, .parquet), a folder that shardbench profile wrote, "
            "or a suite (name or .toml).",
            autocompletion=completing(suites),
        ),
    ],
    machine: Annotated[
        str,
        typer.Argument(help="Name of a machine, or path of a .toml file.", autocompletion=completing(machines)),
    ],
    *,
    workload: Annotated[
        str | None,
        typer.Option("--workload", help="Which of the suite's workloads.", autocompletion=completing(workloads)),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", min=1, help="Samples of a step on all devices; the list's own if left out."),
    ] = None,
    strategy: shared.StrategiesOption = None,
    budget: Annotated[
        float, typer.Option("--budget", min=0.01, help="Seconds that all strategies together may plan.")
    ] = 30.0,
    constraints: Annotated[
        Path | None,
        typer.Option("--constraints", help="A .toml file that says what the plan must keep."),
    ] = None,
    precision: shared.PrecisionOption = Precision.FP32,
    optimizer: shared.OptimizerOption = Optimizer.SGD,
    exchange: shared.ExchangeOption = Precision.FP32,
    schedule: shared.ScheduleOption = StepSchedule.SEQUENTIAL,
    seed: shared.SeedOption = 0,
    out: Annotated[Path | None, typer.Option("--out", help="Write the plan here, for shardbench export.")] = None,
    data: shared.DataOption = shared.DEFAULT_DATA,
    as_json: shared.JsonOption = False,
) -> int:
    """Find the fastest plan for your tables on your machine.

    It asks several strategies and says whose plan is best, how fast it is predicted to be, how sure that is, and how
    far it is from the proven bound. Exits with 1 where no strategy has a plan.
    """
    from shardbench.model.discovery import get_strategy  # noqa: PLC0415
    from shardbench.model.machine_file import load_machine  # noqa: PLC0415
    from shardbench.runs.best_plan import best_plan, default_strategies  # noqa: PLC0415

    # What is quick to refuse comes before what may take a while to build.
    on = load_machine(machine)
    asked = [get_strategy(name) for name in strategy] if strategy else default_strategies()
    if not strategy:
        say_left_out()
    kept = read_constraints(constraints) if constraints is not None else None
    found = best_plan(
        _workload(tables, workload, batch_size, data),
        on,
        asked,
        constraints=kept,
        budget_s=budget,
        seed=seed,
        precision=precision,
        optimizer=optimizer,
        exchange=exchange,
        schedule=schedule,
    )
    if found.best is not None and out is not None:
        write_atomically(out, found.best.plan.to_json() + "\n")
    shared.tell(_data(found, out), lines(found, kept, budget, out), as_json=as_json)
    return shared.EXIT_OK if found.best is not None else shared.EXIT_FAILED


def read_constraints(path: Path) -> "Constraints":
    """Read what a plan must keep; raises BadInput that names the wrong field."""
    from shardbench.base.serialise import from_data  # noqa: PLC0415
    from shardbench.model.constraints import Constraints  # noqa: PLC0415

    return from_data(Constraints, toml_file(path), f"constraints {path}")


def _workload(tables: str, name: str | None, batch_size: int | None, data: Path) -> "Workload":
    from shardbench.workloads.kinds import workload_config  # noqa: PLC0415

    configs = _configs(tables)
    names = [str(config.get("name")) for config in configs]
    if name is None and len(configs) > 1:
        raise BadInput(f"{tables} has {len(configs)} workloads: say which by --workload: {', '.join(names)}")
    if name is not None and name not in names:
        raise BadInput(unknown(f"workload of {tables}", name, names))
    chosen = configs[names.index(name)] if name is not None else configs[0]
    size = {"batch_size": batch_size} if batch_size is not None else {}
    return workload_config({**chosen, **size}, tables).build(data)


def _configs(tables: str) -> list[dict[str, Any]]:
    """Read the workloads as they are written; a list of tables is one workload, and so is a folder of profiled logs."""
    path = Path(tables)
    described = {"dataset": "described", "name": path.stem}
    if path.suffix in (".csv", ".parquet"):
        return [{**described, "table_list": str(path.resolve())}]
    if path.is_dir():
        return [{"dataset": "access_log", "name": path.name, "prepared": str(path.resolve()), "test_batches": 1}]
    if path.suffix == ".toml":
        read = toml_file(path)
        if "workloads" in read:
            return list(read["workloads"])
        if "tables" not in read:
            raise BadInput(f"{path} has neither [[workloads]] nor [[tables]]")
        return [{**described, **read}]

    from shardbench.runs.suite import read_suite  # noqa: PLC0415

    return list(read_suite(tables).workloads)


def lines(found: "PlanSearch", kept: "Constraints | None", budget_s: float, out: Path | None) -> list[str]:
    """Give the answer in lines of at most 80 columns."""
    problem = found.problem
    size = sum(problem.weight_bytes(table) for table in problem.tables) / GIB
    head = f"{problem.name}: {len(problem.tables)} tables, {size:.3g} GiB, batch {problem.batch_size}"
    said = [head, f"on {problem.machine.name}: {problem.world_size} devices (predicted, not measured)"]
    said += [*unusual(problem.exchange, problem.schedule), ""]
    if found.best is not None:
        said += [*_best_lines(found.best, problem.batch_size, kept), ""]
    else:
        said += ["no strategy has a plan:", ""]
    said.append(f"asked, {sum(one.plan_s for one in found.tried):.1f} s of {budget_s:g} s:")
    width = max(len(one.strategy) for one in found.tried)
    for one in found.tried:
        step = f"{one.step_ms:9.4g} ms {one.plan_s:7.2f} s" if one.step_ms is not None else f"   {one.cause}"
        tie = "  ~ not told apart from the best" if one.ties else ""
        said.append(f"  {one.strategy.ljust(width)} {step}{tie}")
    topology = problem.topology
    per_node = f" --devices-per-node {topology.devices_per_node}" if topology.nodes > 1 else ""
    if out is not None and found.best is not None:
        said += ["", f"plan: {out} (shardbench export {out}{per_node})"]
    elif found.best is not None:
        said += ["", "keep the plan with --out PLAN.json, for your trainer:"]
        said.append(f"  shardbench export PLAN.json{per_node}")
    if problem.exchange is not Precision.FP32:
        registry = f'shardbench.torchrec.codecs_registry("{problem.exchange.value}")'
        said += [
            f"vectors are sent as {problem.exchange.value}: give your sharders qcomm_codecs_registry =",
            f"  {registry}",
        ]
    return said


def _best_lines(best: "Best", batch_size: int, kept: "Constraints | None") -> list[str]:
    sure = (
        f"{best.band_ms[0]:.4g} to {best.band_ms[1]:.4g} ms by what is known of the machine (95 %)"
        if best.band_ms is not None
        else "the machine does not say how well its constants are known"
    )
    used, room = best.hbm_used_bytes, best.hbm_room_bytes
    fullest = min(range(len(room)), key=lambda rank: room[rank] - used[rank])
    left = (room[fullest] - used[fullest]) / GIB
    said = [
        f"best: {best.strategy}, {best.step_ms:.4g} ms a step, {1e3 * batch_size / best.step_ms:,.0f} samples/s",
        f"  {sure}",
        _bound_line(best, kept),
        f"  least room: device {fullest}, {left:.3g} of {room[fullest] / GIB:.3g} GiB are left",
        "  tables: " + ", ".join(f"{number} {kind}" for kind, number in best.sharding_types.items()),
        "  phases: " + ", ".join(f"{name} {ms:.3g}" for name, ms in best.phases_ms.items() if ms >= 5e-4) + " ms",
    ]
    if best.placed_anew:
        said.append(f"  {best.placed_anew} tables were placed anew to keep the constraints")
    return [part for line in said for part in textwrap.wrap(line, COLUMNS, subsequent_indent="    ")]


def _bound_line(best: "Best", kept: "Constraints | None") -> str:
    if best.bound_ms is None:
        return "  no bound is proven for plans with hosts, batch schedules or caches"
    memory = ", of plans that fit the smallest device" if kept is not None and kept.device_hbm_bytes else ""
    return f"  {best.over_bound_pct:.3g} % over the proven bound of {best.bound_ms:.4g} ms (any device moves{memory})"


def _data(found: "PlanSearch", out: Path | None) -> dict[str, Any]:
    from shardbench.base.serialise import to_data  # noqa: PLC0415

    best = found.best
    return {
        "workload": found.problem.name,
        "machine": found.problem.machine.name,
        "batch_size": found.problem.batch_size,
        "backend": "simulated",
        **{name: getattr(found.problem, name).value for name in TRAINING},
        "best": None if best is None else to_data(best),
        "tried": [to_data(one) for one in found.tried],
        "took_s": found.took_s,
        "file": str(out) if out is not None and best is not None else None,
    }
