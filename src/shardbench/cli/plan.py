"""The command ``plan``: the fastest plan for the user's tables on the user's machine, on one screen."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from shardbench.base.atomic import write_atomically
from shardbench.base.closest import unknown
from shardbench.base.errors import BadInput
from shardbench.base.reading import toml_file
from shardbench.base.serialise import from_data
from shardbench.cli import options as shared
from shardbench.cli.names import machines, say_left_out, suites, workloads
from shardbench.cli.progress import BestSoFar
from shardbench.model.constraints import ANY_PLAN, Constraints
from shardbench.model.machine import Machine
from shardbench.model.table import MAX_BATCH, Optimizer, Precision, StepSchedule


def plan_command(
    tables: Annotated[
        str,
        typer.Argument(
            help="A list of tables (.toml, .csv, .tsv, .parquet), a folder that shardbench profile wrote, "
            "or a suite (name or .toml).",
            autocompletion=suites,
        ),
    ],
    machine: Annotated[
        str,
        typer.Argument(
            help="Name of a machine, or path of a .toml file; several with commas between them: a line each.",
            autocompletion=machines,
        ),
    ],
    *,
    workload: Annotated[
        str | None,
        typer.Option("--workload", help="Which of the suite's workloads.", autocompletion=workloads),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            "--batch-size", min=1, max=MAX_BATCH, help="Samples of a step on all devices; the list's own if left out."
        ),
    ] = None,
    strategy: shared.StrategiesOption = None,
    budget_s: shared.BudgetOption = 30.0,
    constraints: shared.ConstraintsOption = None,
    seed: shared.SeedOption = 0,
    against: Annotated[
        Path | None,
        typer.Option(
            "--against",
            help="Compare with your plan: a plan's JSON, an exported one, or TorchRec's (sharding_plan_json).",
        ),
    ] = None,
    fewest: Annotated[
        float | None,
        typer.Option(
            "--fewest",
            help="Take the fewest devices of each machine with a plan that fits and a step of at most so many ms; "
            "inf: any step.",
        ),
    ] = None,
    precision: shared.PrecisionOption = Precision.FP32,
    optimizer: shared.OptimizerOption = Optimizer.SGD,
    exchange: shared.ExchangeOption = Precision.FP32,
    schedule: shared.ScheduleOption = StepSchedule.SEQUENTIAL,
    out: Annotated[Path | None, typer.Option("--out", help="Write the plan here, for shardbench export.")] = None,
    race: Annotated[
        Path | None,
        typer.Option("--race", help="Write the plans of all strategies here, and a suite that runs them on ranks."),
    ] = None,
    data: shared.DataOption = shared.DEFAULT_DATA,
    as_json: shared.JsonOption = False,
) -> int:
    """Find the fastest plan for your tables on your machine.

    It asks several strategies and says whose plan is best, how fast it is predicted to be, how sure that is, and how
    far it is from the proven bound. Ctrl-C answers with the best plan so far. Exits with 1 where no strategy has a
    plan. Of several machines, which share the time, and with --fewest it has a line each.
    """
    from shardbench.advice.best_plan import PlanSearch, best_plan, default_strategies  # noqa: PLC0415
    from shardbench.advice.machines import on_machines  # noqa: PLC0415
    from shardbench.advice.race_entry import entrants, gather_candidates  # noqa: PLC0415
    from shardbench.cli.plan_answer import lines, machine_data, machine_lines, search_data  # noqa: PLC0415
    from shardbench.cli.plan_files import read_plan, write_race  # noqa: PLC0415
    from shardbench.model.machine_file import load_machine  # noqa: PLC0415
    from shardbench.trials.discovery import get_strategy  # noqa: PLC0415
    from shardbench.workloads.kinds import workload_config  # noqa: PLC0415

    # What is quick to refuse comes before what may take a while to build.
    every_machine = [load_machine(name) for name in machine.split(",")]
    on, has_lines = every_machine[0], len(every_machine) > 1 or fewest is not None
    if has_lines:
        _refuse_for_lines({"--against": against, "--out": out, "--race": race}, fewest)
    named = [get_strategy(name) for name in strategy or ()]
    strategies = named or (entrants() if race else default_strategies())
    if not named:
        say_left_out()
    limits = read_constraints(constraints)
    plan_for = read_plan(against) if against is not None else None
    config = _workload(tables, workload, batch_size)
    built_workload = workload_config(config, tables).build(data)
    yours = plan_for(built_workload.tables, on.topology.world_size) if plan_for is not None else None
    with BestSoFar(budget_s) as on_step:

        def ask(on: Machine, share_s: float) -> PlanSearch:
            return best_plan(
                built_workload, on, strategies, constraints=limits, budget_s=share_s, seed=seed,
                on_step=lambda name, step_ms: on_step(f"{name} on {on.name}" if has_lines else name, step_ms),
                against=yours, precision=precision, optimizer=optimizer, exchange=exchange, schedule=schedule,
            )  # fmt: skip

        if has_lines:
            batch_size = built_workload.batch_size
            answers = on_machines(every_machine, ask, budget_s, batch_size=batch_size, most_ms=fewest)
        else:
            search = ask(on, budget_s)
    if has_lines:
        rows = list[dict[str, Any]]()
        for one in answers:
            cells: dict[str, Any] = {"best": None} if one.search is None else search_data(one.search, None)
            rows.append({**cells, "machine": one.machine.name, **machine_data(one)})
        shared.tell({"machines": rows}, machine_lines(answers), as_json=as_json)
        return shared.EXIT_OK if any(one.good for one in answers) else shared.EXIT_FAILED
    if search.best is not None and out is not None:
        write_atomically(out, search.best.plan.to_json() + "\n")
    answer, suite = lines(search, limits, budget_s, out), None
    if race is not None and search.candidates and not search.interrupted:
        candidates = gather_candidates(
            search, built_workload, strategies, constraints=limits, budget_s=budget_s, seed=seed
        )  # fmt: skip
        suite = str(write_race(race, search.problem, candidates, config, machine))
        answer += ["", f"race of {len(candidates)} plans: shardbench run {suite}"]
    shared.tell({**search_data(search, out), "race": suite}, answer, as_json=as_json)
    return shared.EXIT_OK if search.best is not None else shared.EXIT_FAILED


def read_constraints(path: Path | None) -> Constraints:
    """Read what a plan must keep, nothing without a file; raises BadInput that names the wrong field."""
    if path is None:
        return ANY_PLAN
    return from_data(Constraints, toml_file(path), f"constraints {path}")


def _workload(tables: str, name: str | None, batch_size: int | None) -> dict[str, Any]:
    """Return the workload as it is written, with the size of its batches."""
    configs = _configs(tables)
    names = [str(config.get("name")) for config in configs]
    if name is None and len(configs) > 1:
        raise BadInput(f"{tables} has {len(configs)} workloads: say which by --workload: {', '.join(names)}")
    if name is not None and name not in names:
        raise BadInput(unknown(f"workload of {tables}", name, names))
    config = configs[names.index(name)] if name is not None else configs[0]
    size = {"batch_size": batch_size} if batch_size is not None else {}
    return {**config, **size}


def _configs(tables: str) -> list[dict[str, Any]]:
    """Read the workloads as they are written; a list of tables is one workload, and so is a folder of profiled logs."""
    from pydantic import Field  # noqa: PLC0415

    from shardbench.workloads.table_list import KINDS  # noqa: PLC0415

    path = Path(tables)
    config = {"dataset": "described", "name": path.stem}
    if path.suffix in KINDS:
        return [{**config, "table_list": str(path.resolve())}]
    if path.is_dir():
        return [{"dataset": "access_log", "name": path.name, "prepared": str(path.resolve()), "test_batches": 1}]
    if path.suffix == ".toml":
        document = toml_file(path)
        if "workloads" in document:
            list_type = dict[str, Annotated[list[dict[str, Any]], Field(min_length=1)]]
            return from_data(list_type, {"workloads": document["workloads"]}, str(path))["workloads"]
        if "tables" not in document:
            raise BadInput(f"{path} has neither [[workloads]] nor [[tables]]")
        return [{**config, **document}]

    from shardbench.trials.suite import read_suite  # noqa: PLC0415

    return list(read_suite(tables).workloads)


def _refuse_for_lines(options: Mapping[str, object], most_ms: float | None) -> None:
    """Raise BadInput for options that are of one plan, and for a longest step that is no time."""
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise BadInput(f"{given[0]} is for one plan: name one machine, without --fewest")
    if most_ms is not None and not most_ms > 0.0:
        raise BadInput(f"--fewest {most_ms:g} is no longest step: give milliseconds, or inf for any step")
