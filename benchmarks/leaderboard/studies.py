"""The leaderboard as a study: a cell a problem and strategy, and the two tables that its rows make."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path

import pandas as pd

from shardbench.base.errors import BadInput, Unsupported
from shardbench.base.memory import GIB
from shardbench.base.serialise import content_hash
from shardbench.base.wall import Kind
from shardbench.cost.bounds.embedding import NO_BOUND
from shardbench.cost.bounds.step import in_order
from shardbench.cost.memory.fullest import Peak, device_bytes, predicted_peak
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import Plan
from shardbench.model.problem import Sees
from shardbench.model.strategy import Budget, Move, Strategy
from shardbench.records.cell import Cell, CellRecord, Scalar, SeriesRow
from shardbench.records.store import trial_store
from shardbench.records.trial import Backend, Failure, Outcome, unusual
from shardbench.report.tables.leaderboard import ANY_PLAN, BOUND, ORDERED, measured_steps, scores, steps
from shardbench.studies.study import Study, Tables
from shardbench.trials.discovery import get_strategy, strategies
from shardbench.trials.evaluate import Answer, Planner, evaluate
from shardbench.trials.planning import learns, ours, wall_kind
from shardbench.trials.simulate import CountedQuestion, Simulation

from .places import board_places
from .problems import VERSION, Posed, load, question

MEASURED_SUITE = "measured"
"""Its records of ordinary training stand in the table as well, by a backend of their own."""
TIMED, PUBLISHED = "timed", "published"
LEARNING_SHARE = 5.0 / 6.0
"""A strategy that learns may learn for this share of an effort."""
DRAWN = 64
"""Draws of the model's constants that a row keeps."""
QUICK = (("terabyte-one-hot-tight", "a100-40gb-1x8"), ("meta-traces", "h100-1x8"))


def _cells(quick: bool) -> list[Cell]:
    """A problem's bound, then its strategies; those that learn also as they were published, on some problems."""
    return [
        {"version": VERSION, "workload": posed.name, "machine": machine, "strategy": name, "effort": effort}
        for posed, machine in load().problems()
        if not quick or (posed.name, machine) in QUICK
        for name, effort in _entries(posed, machine, quick)
    ]


def _judge(
    _: Path,
    version: int,
    workload: str,
    machine: str,
    strategy: str | None,
    effort: str,
    *,
    tell: Callable[[Answer[Simulation]], None] = lambda answer: None,
    planners: Callable[[str], Planner | None] = lambda budget: None,
) -> SeriesRow | Sequence[SeriesRow]:
    """The bound, or a row an effort: the plan made in a process of its own within it, and judged."""
    if strategy is None:
        return _bound(question(VERSION, workload, machine, inputs=False))
    entrant = get_strategy(strategy)
    if wall_kind(entrant) is Kind.UNCONFINED:
        raise Unsupported("the leaderboard takes no plans of unconfined processes: install bubblewrap")
    board_question = question(VERSION, workload, machine, inputs=Sees.INPUTS in entrant.sees)
    board = load()
    if effort == PUBLISHED:
        budgets = {PUBLISHED: Budget(fit_s=board.published_s)}
    else:
        budgets = {f"{effort_s:g} s": _budget(entrant, effort_s) for effort_s in board.efforts}
    rows: list[SeriesRow] = []
    for word, budget in budgets.items():
        answer = evaluate(board_question, entrant, budget, 0, planner=planners(word))
        if not isinstance(answer, Failure):
            tell(answer)
        rows.append({"budget": word, **_row(board_question, entrant, answer)})
    return rows


def _holds(record: CellRecord) -> bool:
    """Tell whether the record is of the machine that the cell names as it is here; the list says all else."""
    here = content_hash(load_machine(str(record.cell["machine"])))
    return all(row.get("machine_hash") == here for row in record.rows)


def _optional(cell: Cell) -> bool:
    """Strategies of other people's packages are listed where they are installed."""
    name = cell["strategy"]
    return name is not None and not ours(get_strategy(str(name)))


def _tables(rows: pd.DataFrame, results: Path) -> Tables:
    """Return both tables, with the measured rows of the suite that has them; none where there are bounds alone."""
    if "role" not in rows:  # no strategy has a row, as those of other packages have none without a wall
        return {}
    suite_records = trial_store(results, MEASURED_SUITE).read()
    records = [record for record in suite_records if not unusual(record.spec.exchange, record.spec.schedule)]
    step_table = _describe(steps(rows, VERSION))
    if records:
        devices = {name: load_machine(name).topology.world_size for name in {r.spec.machine for r in records}}
        step_table = pd.concat([step_table, measured_steps(records, VERSION, devices, _sees())], ignore_index=True)
    return {"steps": step_table, "scores": _mark(scores(step_table))}


def _entries(posed: Posed, machine: str, quick: bool) -> list[tuple[str | None, str]]:
    entries: list[tuple[str | None, str]] = [(None, BOUND)]
    for name, learner in _competitors().items():
        entries.append((name, TIMED))
        if learner and machine in posed.published and not quick:
            entries.append((name, PUBLISHED))
    return entries


@cache
def _competitors() -> dict[str, bool]:
    """All strategies but those that run only where named, and whether they learn."""
    return {name: learns(each) for name, each in strategies().items() if not each.role.named_only}


def _describe(table: pd.DataFrame) -> pd.DataFrame:
    """Say of every row of which family its problem is, and what is particular about it."""
    posed = {each.name: each for each in load().workloads}
    columns = {
        name: [str(getattr(posed[each], name)) for each in table["workload"]]
        for name in ("family", "schedule", "precision")
    }
    return table.assign(**columns)


def _mark(table: pd.DataFrame) -> pd.DataFrame:
    """Mark who makes the formula short that judges, and put what was measured beside what is simulated."""
    board = load()
    marks = dict.fromkeys(board.learns_from, "learns from it") | dict.fromkeys(board.shortens, "makes it short")
    measured = table[table["backend"] == Backend.MEASURED.value].set_index("strategy")
    beside = {f"measured_{name}": table["strategy"].map(measured[column]) for name, column in _BESIDE.items()}
    return table.assign(judge=[marks.get(name, "") for name in table["strategy"]], **beside)


_BESIDE = {"places": "places", "over_best": "over_best_geomean", "ended": "ok", "problems": "problems"}
"""What stands in every row of scores of what was measured, and the column that it is of."""


@cache
def _sees() -> dict[str, str]:
    return {name: _words(each.sees) for name, each in strategies().items()}


def _words(declared: frozenset[Sees] | frozenset[Move]) -> str:
    return " ".join(sorted(each.value for each in declared))


def _budget(strategy: Strategy, effort_s: float) -> Budget:
    if not learns(strategy):
        return Budget(plan_s=effort_s)
    return Budget(plan_s=(1.0 - LEARNING_SHARE) * effort_s, fit_s=LEARNING_SHARE * effort_s)


def _bound(question: CountedQuestion) -> SeriesRow:
    """``step_ms`` is proven for any plan of devices, ``ordered_ms`` for those that keep the order of frequency."""
    proven = question.bounds().steps
    if proven is None:
        raise BadInput(f"{question.problem.name}: nothing is proven about its step")
    return {
        **_head(question), "budget": BOUND, "outcome": Outcome.OK.value, "step_ms": proven.least(ordered=False).ms,
        "ordered_ms": proven.least(ordered=True).ms,
    }  # fmt: skip


def _head(question: CountedQuestion) -> dict[str, Scalar]:
    problem = question.problem
    needed, hbm = sum(map(problem.weight_bytes, problem.tables)), problem.topology.hbm_bytes
    return {
        "devices": problem.world_size, "batch_size": problem.batch_size,
        "machine_hash": content_hash(load_machine(problem.machine.name)), "fills": needed / hbm / problem.world_size,
    }  # fmt: skip


def _row(question: CountedQuestion, strategy: Strategy, answer: Answer[Simulation] | Failure) -> SeriesRow:
    """Return the row of a strategy's plan and what it comes to."""
    row: dict[str, Scalar] = {
        **_head(question), "role": strategy.role.value, "sees": _words(strategy.sees), "moves": _words(strategy.moves),
    }  # fmt: skip
    if isinstance(answer, Failure):
        return {**row, "outcome": answer.outcome.value, "cause": f"{answer.phase}: {answer.cause}"}
    planned, spent = answer.planned, answer.spent
    peak = _peak(question, answer.plan)
    if peak is not None and peak.fits is False:
        return {**row, "outcome": Outcome.INFEASIBLE.value, "cause": f"peak: {peak.words}"}
    # Imported late: TorchRec takes seconds, and listing cells must stay cheap.
    from shardbench.engine.torchrec.estimate import torchrec_estimate_ms  # noqa: PLC0415

    draws = answer.judged.draws(question.problem, question.dense, DRAWN)
    return {
        **row,
        "outcome": Outcome.OK.value,
        "step_ms": answer.judged.step_ms,
        "draws_ms": draws.step_ms if draws is not None else (),
        "bounded_by": _bounded_by(answer),
        "host_ms": answer.judged.host_ms,
        "bound_by": answer.judged.bound_by,
        "torchrec_estimate_ms": torchrec_estimate_ms(answer.plan, question.problem),
        "plan_hash": planned.plan_hash,
        "plan_s": spent.plan_s,
        "fit_s": spent.fit_s,
        "effort_cpu_s": spent.plan_cpu_s + spent.fit_cpu_s,
        "peak_gib": peak.bytes / GIB if peak is not None else None,
    }


def _peak(question: CountedQuestion, plan: Plan) -> Peak | None:
    """Return the peak of a plan, beside what its devices really have, however full the problem says that they are."""
    problem = question.problem
    dense = question.dense if "dense" in load().posed(problem.name).parameters else None
    return predicted_peak(plan, problem, dense, device_bytes(load_machine(problem.machine.name)))


def _bounded_by(answer: Answer[Simulation]) -> str:
    """Return which bound holds for a plan: that of any plan, that of plans in order, or none."""
    if NO_BOUND & set(answer.planned.moves):
        return ""
    return ORDERED if in_order(answer.plan) else ANY_PLAN


STEPS = Study(
    name="steps",
    title="Every strategy on every problem: the predicted step, its distance to the proven bound and to the best "
    "found.",
    cells=_cells,
    judge=_judge,
    brought=True,
    holds=_holds,
    optional=_optional,
    beside=_tables,
    ranked=partial(board_places, version=VERSION),
)


def studies() -> Sequence[Study]:
    """Return the leaderboard's studies."""
    return (STEPS,)
