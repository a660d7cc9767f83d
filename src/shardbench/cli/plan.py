"""The command ``plan``: the fastest plan for the user's tables on the user's machine, on one screen."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardbench.base.atomic import write_atomically
from shardbench.base.closest import unknown
from shardbench.base.errors import BadInput
from shardbench.base.memory import gib
from shardbench.base.reading import toml_file
from shardbench.cli import options as shared
from shardbench.cli.against import read_plan, yours_line
from shardbench.cli.machines import machine_data, machine_lines, refuse_for_lines
from shardbench.cli.names import machines, say_left_out, suites, workloads
from shardbench.cli.race import write_race
from shardbench.model.table import MAX_BATCH, Optimizer, Precision, StepSchedule
from shardbench.records.trial import TRAINING, Outcome, unusual

if TYPE_CHECKING:
    from shardbench.advice.asking import Attempt
    from shardbench.advice.best_plan import Best, PlanSearch
    from shardbench.model.constraints import Constraints
    from shardbench.model.machine import Machine
    from shardbench.model.problem import Problem

SHORT_S = 2.0
"""Seconds of a search that says no more of them."""


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
    from shardbench.cli.progress import BestSoFar  # noqa: PLC0415
    from shardbench.model.machine_file import load_machine  # noqa: PLC0415
    from shardbench.trials.discovery import get_strategy  # noqa: PLC0415
    from shardbench.workloads.kinds import workload_config  # noqa: PLC0415

    # What is quick to refuse comes before what may take a while to build.
    every_machine = [load_machine(name) for name in machine.split(",")]
    on, has_lines = every_machine[0], len(every_machine) > 1 or fewest is not None
    if has_lines:
        refuse_for_lines({"--against": against, "--out": out, "--race": race}, fewest)
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

        def ask(on: "Machine", share_s: float) -> PlanSearch:
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
            cells: dict[str, Any] = {"best": None} if one.search is None else _data(one.search, None)
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
    shared.tell({**_data(search, out), "race": suite}, answer, as_json=as_json)
    return shared.EXIT_OK if search.best is not None else shared.EXIT_FAILED


def read_constraints(path: Path | None) -> "Constraints":
    """Read what a plan must keep, nothing without a file; raises BadInput that names the wrong field."""
    from shardbench.base.serialise import from_data  # noqa: PLC0415
    from shardbench.model.constraints import ANY_PLAN, Constraints  # noqa: PLC0415

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

    from shardbench.base.serialise import from_data  # noqa: PLC0415
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


def lines(search: "PlanSearch", limits: "Constraints", budget_s: float, out: Path | None) -> list[str]:
    """Give the answer in lines as wide as the terminal."""
    problem = search.problem
    size = sum(problem.weight_bytes(table) for table in problem.tables)
    head = f"{problem.name}: {len(problem.tables)} tables, {gib(size)} GiB, batch {problem.batch_size}"
    answer = [head, f"on {problem.machine.name}: {problem.world_size} devices (predicted, not measured)"]
    answer += [*unusual(problem.exchange, problem.schedule), ""]
    if search.yours is not None:
        answer.append(yours_line(search.yours, search.best))
    if search.best is not None:
        answer += [*_best_lines(search.best, problem, limits), ""]
    else:
        answer += ["no strategy has a plan", ""]
    if search.interrupted:
        answer += [*shared.wrapped("stopped before the time was up: this is the best so far"), ""]
    if search.hurried:
        answer += [*shared.wrapped(search.hurried), ""]
    answer.append(f"asked for {search.asked_s:.1f} s, with {budget_s:g} s to plan:")
    width = max(len(attempt.strategy) for attempt in search.tried)
    answer += [part for attempt in search.tried for part in _row(attempt, width)]
    if search.took_s > SHORT_S:
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in search.phases_s.items())
        answer += ["", *shared.wrapped(f"all took {search.took_s:.1f} s: {parts}")]
    if search.best is None or any(attempt.cause.startswith(Outcome.INFEASIBLE.value) for attempt in search.tried):
        answer += ["", *shared.wrapped(search.memory)]
    topology = problem.topology
    per_node = f" --devices-per-node {topology.devices_per_node}" if topology.nodes > 1 else ""
    if out is not None and search.best is not None:
        answer += ["", f"plan: {out} (shardbench export {out}{per_node})"]
    elif search.best is not None:
        answer += ["", "keep the plan with --out PLAN.json, for your trainer:"]
        answer.append(f"  shardbench export PLAN.json{per_node}")
    return answer + _sharder_lines(problem)


def _sharder_lines(problem: "Problem") -> list[str]:
    """Say what the trainer's sharders need, which no exported plan holds."""
    needs = []
    if problem.exchange is not Precision.FP32:
        registry = f'shardbench.torchrec.codecs_registry("{problem.exchange.value}")'
        needs += [
            f"vectors are sent as {problem.exchange.value}: give your sharders qcomm_codecs_registry =",
            f"  {registry}",
        ]
    distinct = ", ".join(table.name for table in problem.tables if table.distinct)
    if distinct:
        needs += shared.wrapped(f"ids of {distinct} are made distinct: give your trainer")
        needs.append("  EmbeddingCollectionSharder(use_index_dedup=True)")
    return needs


def _best_lines(best: "Best", problem: "Problem", limits: "Constraints") -> list[str]:
    if best.band_ms is not None:
        sure = f"{best.band_ms[0]:.4g} to {best.band_ms[1]:.4g} ms by what is known of the machine (95 %)"
    elif problem.machine.errors:
        sure = "how sure that is was not asked: there was no time left"
    else:
        sure = "the machine does not say how well its constants are known"
    rate = 1e3 * problem.batch_size / best.step_ms
    where = " on the devices" if best.bound_by == "host" else ""
    used_bytes, room_bytes = best.hbm_used_bytes, best.hbm_room_bytes
    fullest = min(range(len(room_bytes)), key=lambda rank: room_bytes[rank] - used_bytes[rank])
    left_bytes = room_bytes[fullest] - used_bytes[fullest]
    sentences = [
        f"best: {best.strategy}, {best.step_ms:.4g} ms a step, {rate:,.0f} samples/s{where}",
        f"  {sure}",
        _bound_line(best, limits),
        f"  least room: device {fullest}, {gib(left_bytes)} of {gib(room_bytes[fullest])} GiB are left",
        *_peak_lines(best),
        "  tables: " + ", ".join(f"{number} {kind}" for kind, number in best.sharding_types.items()),
        _binding_line(best),
        "  phases: " + ", ".join(f"{name} {ms:.3g}" for name, ms in best.phases_ms.items() if ms >= 5e-4) + " ms",
    ]
    if best.placed_anew:
        sentences.append(f"  {best.placed_anew} tables were placed anew to keep the constraints")
    if best.simpler_than:
        sentences.append(f"  taken as the simplest: {best.simpler_than}")
    return [part for line in sentences for part in shared.wrapped(line)]


def _peak_lines(best: "Best") -> list[str]:
    peak = best.peak
    if peak is None:
        return ["  peak of a step: not predicted of such plans"]
    without = "" if peak.has_dense else " without the dense model, which is not stated"
    lines = [f"  peak of a step{without}: {peak.words}"]
    if peak.fits is False:
        lines.append(
            f"  DOES NOT FIT: device {peak.device} is predicted to run out of memory, and no other plan fits; lower "
            f"batch_size, or leave less for tables by reserved_bytes in --constraints"
        )
    return lines if best.batch_left is None else [*lines, f"  batch: {best.batch_left.words}"]


def _binding_line(best: "Best") -> str:
    if best.bound_by != "host":
        return f"  most of the step: {best.bound_by}"
    return (
        f"  bound by the host, which takes about {best.host_ms:.2g} ms to start an eager step: faster kernels or "
        "exchanges will not help; CUDA graphs, or fewer collectives, will"
    )


def _row(attempt: "Attempt", width: int) -> list[str]:
    """Give what asking a strategy came to, in lines; what went wrong may take two."""
    from shardbench.advice.asking import YOURS  # noqa: PLC0415

    name = f"  {attempt.strategy.ljust(width)} "
    if attempt.step_ms is None:
        columns = max(shared.line_width(), 2 * len(name))
        room = textwrap.shorten(attempt.cause, 2 * (columns - len(name) - 2), placeholder=" ...")
        return textwrap.wrap(f"{name}  {room}", columns, subsequent_indent=" " * (len(name) + 2), drop_whitespace=True)
    words = [
        word
        for word, holds in (
            ("DOES NOT FIT", not attempt.fits), ("late", attempt.late),
            ("~ not told apart from the best", attempt.ties),
        )
        if holds
    ]  # fmt: skip
    time_text = " " * 9 if attempt.strategy == YOURS else f"{attempt.plan_s:7.2f} s"
    return [f"{name}{attempt.step_ms:9.4g} ms {time_text}  {', '.join(words)}".rstrip()]


def _bound_line(best: "Best", limits: "Constraints") -> str:
    if best.bound_ms is None:
        return f"  {best.unbounded}"
    memory = ", of plans that fit the smallest device" if limits.device_hbm_bytes else ""
    over = f"  {best.over_bound_pct:.3g} % over the proven bound of {best.bound_ms:.4g} ms (any device moves{memory})"
    return f"{over}; {best.over_profile_bound_pct:.3g} % under the profile that plans are made by"


def _data(search: "PlanSearch", out: Path | None) -> dict[str, Any]:
    from shardbench.base.serialise import to_data  # noqa: PLC0415

    best = search.best
    return {
        "workload": search.problem.name,
        "machine": search.problem.machine.name,
        "batch_size": search.problem.batch_size,
        "backend": "simulated",
        **{name: getattr(search.problem, name).value for name in TRAINING},
        "best": None if best is None else to_data(best),
        "yours": None if search.yours is None else to_data(search.yours),
        "tried": [to_data(attempt) for attempt in search.tried],
        "memory": search.memory,
        "asked_s": search.asked_s,
        "phases_s": search.phases_s,
        "hurried": search.hurried,
        "interrupted": search.interrupted,
        "took_s": search.took_s,
        "file": str(out) if out is not None and best is not None else None,
    }
