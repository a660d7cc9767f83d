"""The command ``drift``: how much slower a plan is on newer lookups, and when a new one pays."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shardbench.base.atomic import write_atomically
from shardbench.base.errors import BadInput
from shardbench.base.memory import gib
from shardbench.base.serialise import to_data
from shardbench.cli import options as shared
from shardbench.cli.names import machines, say_left_out
from shardbench.cli.plan import read_constraints
from shardbench.model.plan import Plan
from shardbench.model.table import MAX_BATCH, Optimizer, Precision, StepSchedule
from shardbench.records.trial import TRAINING, unusual

if TYPE_CHECKING:
    from shardbench.advice.drift import Change, PlanDrift
    from shardbench.datasets.access_log import AccessLog


def drift_command(
    plan: Annotated[Path, typer.Argument(help="The plan that is in use, as shardbench plan --out wrote it.")],
    newer: Annotated[Path, typer.Argument(help="Folder of the newer log, which shardbench profile wrote.")],
    *,
    profile: Annotated[
        Path, typer.Option("--profile", help="Folder of the older log, on whose profile the plan was made.")
    ],
    machine: Annotated[
        str,
        typer.Option("--machine", help="Name of a machine, or path of a .toml file.", autocompletion=machines),
    ],
    batch_size: Annotated[
        int, typer.Option("--batch-size", min=1, max=MAX_BATCH, help="Samples of a step on all devices.")
    ] = 4096,
    strategy: shared.StrategiesOption = None,
    budget_s: shared.BudgetOption = 30.0,
    constraints: shared.ConstraintsOption = None,
    seed: shared.SeedOption = 0,
    precision: shared.PrecisionOption = Precision.FP32,
    optimizer: shared.OptimizerOption = Optimizer.SGD,
    exchange: shared.ExchangeOption = Precision.FP32,
    schedule: shared.ScheduleOption = StepSchedule.SEQUENTIAL,
    out: Annotated[Path | None, typer.Option("--out", help="Write the new plan here, for shardbench export.")] = None,
    as_json: shared.JsonOption = False,
) -> int:
    """Say what a plan has lost on newer lookups, and when a new one pays.

    It judges the plan on both logs, plans anew on the newer one, and counts the bytes that would move. Exits with 1
    where no strategy has a plan.
    """
    from shardbench.advice.best_plan import default_strategies  # noqa: PLC0415
    from shardbench.advice.drift import judge_drift  # noqa: PLC0415
    from shardbench.model.machine_file import load_machine  # noqa: PLC0415
    from shardbench.trials.discovery import get_strategy  # noqa: PLC0415

    # What is quick to refuse comes before what may take a while to build.
    old_plan, on = Plan.from_json(plan.read_bytes(), f"plan {plan}"), load_machine(machine)
    if old_plan.world_size != on.topology.world_size:
        raise BadInput(f"plan {plan} is for {old_plan.world_size} devices, {on.name} has {on.topology.world_size}")
    strategies = [get_strategy(name) for name in strategy or ()] or default_strategies()
    if not strategy:
        say_left_out()
    limits = read_constraints(constraints)
    _check_alike(profile, newer)
    answer = judge_drift(
        old_plan, _log(profile, batch_size), _log(newer, batch_size), on, strategies, constraints=limits,
        budget_s=budget_s, seed=seed, precision=precision, optimizer=optimizer, exchange=exchange, schedule=schedule,
    )  # fmt: skip
    if answer.change is not None and out is not None:
        write_atomically(out, answer.change.best.plan.to_json() + "\n")
    shared.tell(_data(answer, out), _lines(answer, plan, profile, newer, out), as_json=as_json)
    return shared.EXIT_OK if answer.change is not None else shared.EXIT_FAILED


def _check_alike(older: Path, newer: Path) -> None:
    """Raise BadInput where two logs have other tables, or may number a table's rows otherwise."""
    from shardbench.datasets.access_log import read_note  # noqa: PLC0415

    old_note, new_note = read_note(older), read_note(newer)
    for folder, note in ((older, old_note), (newer, new_note)):
        if note.mode == "vocabulary":
            raise BadInput(
                f"{folder} numbers its rows by its own vocabulary, so that rows of two logs cannot be told to be the "
                "same: profile both with --mode hash or --mode ids"
            )
    names = [[table.name for table in note.tables] for note in (old_note, new_note)]
    if names[0] != names[1]:
        raise BadInput(f"{newer} is of other tables ({', '.join(names[1])}) than {older} ({', '.join(names[0])})")
    for table, same in zip(old_note.tables, new_note.tables):
        for field in ("rows", "dim", "pooled", "features"):
            old_value, new_value = getattr(table, field), getattr(same, field)
            if old_value != new_value:
                raise BadInput(
                    f"table {table.name} has {field} {old_value} in {older} and {new_value} in {newer}: "
                    f"profile the newer log with --tables {older}"
                )
    for field in ("mode", "seed", "missing"):
        old_value, new_value = getattr(old_note, field), getattr(new_note, field)
        if old_value != new_value:
            raise BadInput(
                f"{older} was profiled with {field} {old_value}, {newer} with {new_value}: values are other rows"
            )


def _log(folder: Path, batch_size: int) -> "AccessLog":
    from shardbench.datasets.access_log import AccessLog, AccessLogConfig  # noqa: PLC0415

    config = AccessLogConfig(
        name=folder.resolve().name, prepared=str(folder.resolve()), batch_size=batch_size, test_batches=1
    )
    built = config.build(Path())
    if not isinstance(built, AccessLog):
        raise BadInput(f"{folder} has counts but no samples, on which plans are judged: profile the log itself")
    return built


def _lines(answer: "PlanDrift", plan: Path, older: Path, newer: Path, out: Path | None) -> list[str]:
    """Give the answer in lines as wide as the terminal."""
    problem = answer.problem
    lines = [
        f"{plan}, {len(problem.tables)} tables, batch {problem.batch_size}",
        f"on {problem.machine.name}: {problem.world_size} devices (predicted, not measured)",
        *unusual(problem.exchange, problem.schedule),
        "",
        f"{_loss(answer)}; {_verdict(answer.change)}",
        "",
        f"  {answer.made_for_ms:.4g} ms a step on {older}, {answer.now_ms:.4g} ms on {newer}",
        *_peak_lines(answer),
        *(_change_lines(answer.change) if answer.change is not None else []),
    ]
    if out is not None and answer.change is not None:
        lines += ["", f"new plan: {out}"]
    return [part for line in lines for part in shared.wrapped(line)]


def _peak_lines(answer: "PlanDrift") -> list[str]:
    before, now = answer.made_for_peak, answer.now_peak
    if before is None or now is None:
        return []
    fault = "; IT DOES NOT FIT ANY MORE" if now.fits is False else ""
    return [f"  peak of a step without the dense model: {gib(before.bytes)} GiB then; now {now.words}{fault}"]


def _loss(answer: "PlanDrift") -> str:
    pct = answer.lost_pct
    if abs(pct) < 0.05:
        return "this plan has lost nothing"
    size = f"{abs(pct):.0f} %" if abs(pct) >= 10 else f"{abs(pct):.2g} %"
    return f"this plan has lost {size}" if pct > 0 else f"this plan takes {size} less time than it did"


def _verdict(change: "Change | None") -> str:
    if change is None:
        return "no strategy has a new one"
    if change.pays_after_steps is None:
        return "a new one never pays"
    after = f"after {change.pays_after_steps:,} steps"
    if change.is_sure is False:
        return f"whether a new one pays is not sure: {after}, if what it saves is more than the model's error"
    return f"a new one pays {after}"


def _change_lines(change: "Change") -> list[str]:
    transfer, best = change.resharding, change.best
    trust = (
        "the machine does not say how well its constants are known"
        if change.p_saves is None
        else f"the old plan is slower in {100 * change.p_saves:.0f} % of draws of what is known of the machine"
    )
    links = (
        ("inside nodes", transfer.intra_bytes), ("between nodes", transfer.inter_bytes),
        ("to or from host memory", transfer.host_bytes),
    )  # fmt: skip
    parts = ", ".join(f"{gib(size)} GiB {way}" for way, size in links if size)
    return [
        f"  new plan: {best.strategy}, {best.step_ms:.4g} ms a step, {change.saved_ms:.3g} ms less; {trust}",
        f"  to move: {gib(transfer.moved_bytes)} GiB{f' ({parts})' if parts else ''}, {change.reshard_s:.3g} s",
    ]


def _data(answer: "PlanDrift", out: Path | None) -> dict[str, Any]:
    change = answer.change
    return {
        "machine": answer.problem.machine.name,
        "batch_size": answer.problem.batch_size,
        "backend": "simulated",
        **{name: getattr(answer.problem, name).value for name in TRAINING},
        "made_for_ms": answer.made_for_ms,
        "now_ms": answer.now_ms,
        "lost_pct": answer.lost_pct,
        "made_for_peak": answer.made_for_peak and to_data(answer.made_for_peak),
        "now_peak": answer.now_peak and to_data(answer.now_peak),
        "new": None
        if change is None
        else {
            "best": to_data(change.best),
            "saved_ms": change.saved_ms,
            "p_saves": change.p_saves,
            "sure": change.is_sure,
            "moved_bytes": change.resharding.moved_bytes,
            "intra_bytes": change.resharding.intra_bytes,
            "inter_bytes": change.resharding.inter_bytes,
            "host_bytes": change.resharding.host_bytes,
            "reshard_s": change.reshard_s,
            "pays_after_steps": change.pays_after_steps,
        },
        "file": str(out) if out is not None and change is not None else None,
    }
