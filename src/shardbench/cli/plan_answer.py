"""What ``plan`` answers, in lines and as data: of one machine on one screen, of several a table with a line each."""

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardbench.advice.asking import YOURS, Attempt
from shardbench.advice.best_plan import Best, PlanSearch, Yours
from shardbench.advice.machines import OnMachine
from shardbench.base.memory import gib
from shardbench.base.serialise import to_data
from shardbench.cli.options import line_width, wrapped
from shardbench.model.constraints import Constraints
from shardbench.model.problem import Problem
from shardbench.model.table import Precision
from shardbench.records.trial import TRAINING, Outcome, unusual

SHORT_S = 2.0
"""Seconds of a search that says no more of them."""
HEADS = ("machine", "devices", "fits", "ms", "bound by", "spare GiB", "samples/s", "a device", "plan")
TEXTS = {"machine", "fits", "bound by", "plan"}
FITS = {True: "yes", False: "no", None: "tables"}


def lines(search: PlanSearch, limits: Constraints, budget_s: float, out: Path | None) -> list[str]:
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
        answer += [*wrapped("stopped before the time was up: this is the best so far"), ""]
    if search.hurried:
        answer += [*wrapped(search.hurried), ""]
    answer.append(f"asked for {search.asked_s:.1f} s, with {budget_s:g} s to plan:")
    width = max(len(attempt.strategy) for attempt in search.tried)
    answer += [part for attempt in search.tried for part in _row(attempt, width)]
    if search.took_s > SHORT_S:
        parts = ", ".join(f"{name} {seconds:.1f}" for name, seconds in search.phases_s.items())
        answer += ["", *wrapped(f"all took {search.took_s:.1f} s: {parts}")]
    if search.best is None or any(attempt.cause.startswith(Outcome.INFEASIBLE.value) for attempt in search.tried):
        answer += ["", *wrapped(search.memory)]
    topology = problem.topology
    per_node = f" --devices-per-node {topology.devices_per_node}" if topology.nodes > 1 else ""
    if out is not None and search.best is not None:
        answer += ["", f"plan: {out} (shardbench export {out}{per_node})"]
    elif search.best is not None:
        answer += ["", "keep the plan with --out PLAN.json, for your trainer:"]
        answer.append(f"  shardbench export PLAN.json{per_node}")
    return answer + _sharder_lines(problem)


def _sharder_lines(problem: Problem) -> list[str]:
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
        needs += wrapped(f"ids of {distinct} are made distinct: give your trainer")
        needs.append("  EmbeddingCollectionSharder(use_index_dedup=True)")
    return needs


def _best_lines(best: Best, problem: Problem, limits: Constraints) -> list[str]:
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
    return [part for line in sentences for part in wrapped(line)]


def _peak_lines(best: Best) -> list[str]:
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


def _binding_line(best: Best) -> str:
    if best.bound_by != "host":
        return f"  most of the step: {best.bound_by}"
    return (
        f"  bound by the host, which takes about {best.host_ms:.2g} ms to start an eager step: faster kernels or "
        "exchanges will not help; CUDA graphs, or fewer collectives, will"
    )


def _row(attempt: Attempt, width: int) -> list[str]:
    """Give what asking a strategy came to, in lines; what went wrong may take two."""
    name = f"  {attempt.strategy.ljust(width)} "
    if attempt.step_ms is None:
        columns = max(line_width(), 2 * len(name))
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


def _bound_line(best: Best, limits: Constraints) -> str:
    if best.bound_ms is None:
        return f"  {best.unbounded}"
    memory = ", of plans that fit the smallest device" if limits.device_hbm_bytes else ""
    over = f"  {best.over_bound_pct:.3g} % over the proven bound of {best.bound_ms:.4g} ms (any device moves{memory})"
    return f"{over}; {best.over_profile_bound_pct:.3g} % under the profile that plans are made by"


def yours_line(yours: Yours, best: Best | None) -> str:
    """Say how the user's plan and the best one compare, in one line."""
    if best is None or yours.less_pct is None:
        return f"yours: {yours.step_ms:.4g} ms a step"
    from shardbench.report.tables.text import significant  # noqa: PLC0415 - brings pandas, which few answers need

    direction = "less" if yours.less_pct >= 0.0 else "more"
    trust = {True: "sure", False: "not told apart", None: "the machine states no errors"}[yours.sure]
    size = f"{significant(abs(yours.less_pct), digits=2)} % {direction}"
    return f"yours: {yours.step_ms:.4g} ms, best {best.step_ms:.4g} ms ({size}; {trust})"


def search_data(search: PlanSearch, out: Path | None) -> dict[str, Any]:
    """Give the answer for one machine as data."""
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


def machine_data(one: OnMachine) -> dict[str, Any]:
    """Give a machine's line as data; ``fits`` is null where the memory of a step is not known, but tables fit."""
    topology, rate = one.machine.topology, one.samples_per_s
    return {
        "nodes": topology.nodes,
        "devices": topology.world_size,
        "fits": one.fits,
        "good": one.good,
        "spare_bytes": one.spare_bytes,
        "samples_per_s": rate,
        "samples_per_s_per_device": None if rate is None else rate / topology.world_size,
        "cause": one.cause,
        "sizes": [{"devices": devices, "step_ms": step_ms} for devices, step_ms in one.steps_ms.items()],
    }


def machine_lines(answers: Sequence[OnMachine]) -> list[str]:
    """Give the table: a line a machine, and under it what stands in no column."""
    from shardbench.report.tables.layout import lay_out  # noqa: PLC0415
    from shardbench.report.tables.text import Columns  # noqa: PLC0415

    first = next(one.search.problem for one in answers if one.search is not None)
    rows, notes = list[tuple[str, ...]](), list[str]()
    for one in answers:
        name, best, data = one.machine.name, one.best, machine_data(one)
        head = name, str(data["devices"]), FITS[one.fits] if one.search is not None else "-"
        if best is None:
            rows.append((*head, *("-" for _ in HEADS[len(head) :])))
            notes.append(f"{name}: {one.cause}")
        else:
            rates = (f"{data['samples_per_s']:,.0f}", f"{data['samples_per_s_per_device']:,.0f}")
            numbers = f"{best.step_ms:.4g}", best.bound_by, gib(data["spare_bytes"])
            rows.append((*head, *numbers, *rates, best.strategy))
        if one.steps_ms:
            tried = ", ".join(
                f"{devices} {'no plan' if step_ms is None else f'{step_ms:.4g} ms'}"
                for devices, step_ms in one.steps_ms.items()
            )
            over = "" if one.good else f"no size is within {one.most_ms:g} ms; "
            notes.append(f"{name}: {over}devices tried: {tried}")
    if any(one.search is not None and one.search.interrupted for one in answers):
        notes.append("stopped before the time was up: this is the best so far")
    numeric = tuple(head not in TEXTS for head in HEADS)
    table = lay_out(Columns(headers=HEADS, rows=tuple(rows), numeric=numeric), line_width())
    size = gib(sum(first.weight_bytes(table) for table in first.tables))
    return [
        f"{first.name}: {len(first.tables)} tables, {size} GiB, batch {first.batch_size} (predicted, not measured)",
        "",
        *table.heads,
        *table.rows,
        *([""] if notes else []),
        *(part for note in notes for part in wrapped(note)),
    ]
