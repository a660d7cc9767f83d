"""Whether somebody's records of the leaderboard can stand in it: what can be checked of them, checked."""

import math
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shardbench.base.code import JUDGE_VERSION, LEADERBOARD
from shardbench.base.errors import BadInput, one_line
from shardbench.base.reading import file_bytes
from shardbench.base.serialise import content_hash
from shardbench.base.wall import Kind
from shardbench.conformance.problems import too_good
from shardbench.engine.processes.failures import failed
from shardbench.model.plan import MAX_JSON_BYTES, Plan
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget, Strategy
from shardbench.records.cell import Cell, CellRecord, Scalar, Series, SeriesRow, cell_key, cell_text
from shardbench.records.store import cell_store, plan_path
from shardbench.records.trial import Outcome
from shardbench.report.standing import same
from shardbench.report.tables.leaderboard import ANY_PLAN, ORDERED
from shardbench.studies.beside import is_current
from shardbench.studies.reproduction import find_reproduction
from shardbench.studies.session import cell_version, run_cell
from shardbench.studies.study import Study
from shardbench.trials.discovery import get_strategy, strategies
from shardbench.trials.evaluate import Answer, Planner, Question
from shardbench.trials.planning import Spent, learns, ours

OWNER, STUDY = LEADERBOARD.rpartition(".")[2], "steps"
ROUNDING = 1e-9
WORSE = 0.005
"""Share by which a step may be longer when it is made again: plans made against the clock differ."""
FRESH = 3
"""Draws of test lookups that nobody knew, on which plans of cells made again are judged."""
SURE = 20
"""So many in all where these raise a suspicion: a few lookups that leave HBM make an honest plan's step vary by 5 %."""
LEAST_PLAN_S = 1e-4
"""The fastest strategy of the leaderboard takes 35 times that for its smallest problem."""
SPENT = frozenset({"plan_s", "fit_s", "effort_cpu_s"})
"""What a row says that does not follow from its plan."""
_HASH = re.compile(r"[0-9a-f]{16}")


@dataclass(kw_only=True)
class CheckReport:
    """The records that were looked at, what was found out about them, and the faults."""

    strategies: tuple[str, ...]
    cells: int
    bounds_on_record: int = 0
    """Bounds that were held against those of the repository, which this code proved."""
    bounds_proven: int = 0
    """Bounds that were held against those that were proven for this check."""
    plans: int = 0
    """Submitted plans that were judged, and give the rows that were submitted."""
    seed: int
    """What the cells that are made again were drawn with."""
    made_again: int = 0
    not_made_again: int
    """Cells of which it is only stated that the strategy made the plans, and how long it took."""
    again: tuple[str, ...] = ()
    """Cells made anew, and what their plans came to on fresh test lookups, or why that is not known; one line each."""
    faults: tuple[str, ...] = ()
    """One line each; none is good."""


def check_submission(
    results: Path,
    *,
    again: int = 0,
    seed: int | None = None,
    committed: Path | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> CheckReport:
    """Hold the leaderboard's records of a results folder against its rules, and judge its plans.

    Bounds are those of the results folder ``committed`` where this code proved them, else they are proven now.
    ``again`` cells of each strategy, drawn with ``seed`` or with one that nobody knew, are made anew. Their plans are
    judged on fresh test lookups too, where there are others than those on record: each of FRESH draws (SURE where there
    is a suspicion) costs a drawing, and a counting a plan. ``tell`` hears what is done. Raises BadInput
    where there are no records, a line is malformed or was edited, or a strategy is not installed.
    """
    study = find_reproduction(OWNER).study(STUDY)
    store = cell_store(results, OWNER, STUDY)
    records = store.latest()
    owners = {key: name for key, record in records.items() if isinstance(name := record.cell.get("strategy"), str)}
    names = sorted(set(owners.values()))
    if not names:
        raise BadInput(f"{store.path} has no records of a strategy; make them: shardbench reproduce {OWNER}")
    for name in names:
        get_strategy(name)
    seed = secrets.randbits(32) if seed is None else seed
    picks = {key for name in names for key in _choose_cells([k for k in owners if owners[k] == name], again, seed)}
    listed = {cell_key(STUDY, study.version, cell): cell for cell in study.cells(False)}
    report = CheckReport(strategies=tuple(names), cells=len(records), seed=seed, not_made_again=len(owners))
    check = _Check(study, results, committed, tell, report)
    for key, cell in listed.items():
        if key in records:  # in the list's order: what is drawn of a problem is kept for the next cell
            check.record(records[key], anew=key in picks)
        elif cell["strategy"] in (None, *names):
            check.fault(cell, f"has no record; run: shardbench reproduce {OWNER}")
    for key in records.keys() - listed.keys():
        check.fault(records[key].cell, "is no cell of the leaderboard")
    return report


class _Check:
    """What is known of a submission while its records are checked, each problem's bound before its plans."""

    def __init__(
        self, study: Study, results: Path, committed: Path | None, tell: Callable[[str], None], report: CheckReport
    ) -> None:
        self._study, self._results, self._tell, self._report = study, results, tell, report
        self._folder = results / "cache" / OWNER
        committed_records = {} if committed is None else cell_store(committed, OWNER, STUDY).latest()
        bounds = ((key, record) for key, record in committed_records.items() if record.cell.get("strategy") is None)
        self._committed = {key: record for key, record in bounds if is_current(study, record)}
        self._bounds: dict[tuple[Scalar, Scalar], SeriesRow] = {}

    def fault(self, cell: Cell, *faults: str) -> None:
        """Add faults of a cell."""
        self._report.faults += tuple(f"{cell_text(STUDY, cell)}: {fault}" for fault in faults)

    def record(self, record: CellRecord, *, anew: bool) -> None:
        """Check a record; ``anew`` says whether its strategy is asked once more."""
        outdated = tuple(_outdated(self._study, record))
        self.fault(record.cell, *_origin(record), *outdated)
        if record.failure is not None or outdated:
            return  # it stands in no table
        if record.cell["strategy"] is None:
            self.fault(record.cell, *_differences(record, self._bound(record)))
            return
        now = self._judge(record)
        differences = [*_differences(record, now), *_below(now, self._bounds.get(_problem(record.cell), {}))]
        self._report.plans += 0 if differences else sum(row["outcome"] == Outcome.OK for row in now.rows)
        self.fault(record.cell, *differences, *(self._make_again(record) if anew else ()))

    def _bound(self, record: CellRecord) -> CellRecord:
        now = self._committed.get(record.key)
        if now is None:
            self._tell(f"proves: {cell_text(STUDY, record.cell)}")
            now = run_cell(lambda: self._study, record.cell, self._folder, record.environment)
            self._report.bounds_proven += 1
        else:
            self._report.bounds_on_record += 1
        self._bounds |= {_problem(record.cell): row for row in now.rows}
        return now

    def _judge(self, record: CellRecord) -> CellRecord:
        """Return the record as the submitted plans make it."""
        self._tell(f"judges: {cell_text(STUDY, record.cell)}")
        judging = self._study.judging(partial(_planner_of, self._results, record))
        return run_cell(lambda: judging, record.cell, self._folder, record.environment)

    def _make_again(self, record: CellRecord) -> Iterator[str]:
        """Ask the strategy once more, and yield what is wrong about its record by what it gives now."""
        self._report.made_again += 1
        self._report.not_made_again -= 1
        self._say(f"again: {cell_text(STUDY, record.cell)}")
        answers: list[Answer[Any]] = []
        telling = self._study.telling(answers.append)
        now = run_cell(lambda: telling, record.cell, self._folder, record.environment)
        yield from _worse(record, now)
        for line, suspicion in _on_fresh_lookups(now, answers):
            self._say(f"  {line}")
            if suspicion:
                yield suspicion

    def _say(self, line: str) -> None:
        self._report.again += (line,)
        self._tell(line)


def _problem(cell: Cell) -> tuple[Scalar, Scalar]:
    return cell.get("workload"), cell.get("machine")


def _origin(record: CellRecord) -> Iterator[str]:
    if record.failure is not None:
        yield f"failed: {record.failure}; run it again with --retry error"
    provenance = record.provenance
    if provenance is None or provenance.commit is None or provenance.dirty:
        yield "made in no clean checkout: commit what was changed and make it again"
    if _is_unconfined(record):
        yield "planned by an unconfined process: make it again where bubblewrap is installed"


def _is_unconfined(record: CellRecord) -> bool:
    """Tell whether no wall was around the planner of a strategy that is not of this repository."""
    name, provenance = record.cell.get("strategy"), record.provenance
    strategy = strategies().get(str(name))
    reviewed = name is None or (strategy is not None and ours(strategy))
    return not reviewed and (provenance is None or provenance.wall in (None, Kind.UNCONFINED))


def _outdated(study: Study, record: CellRecord) -> Iterator[str]:
    provenance, here = record.provenance, cell_version(study, record.cell)
    if provenance is None or provenance.judge_version != JUDGE_VERSION:
        yield "judged by another version than what is installed here"
    elif not record.is_of(here):
        yield f"made by {provenance.made_by or 'code without a file'}, and {here} is installed here"


def _planner_of(results: Path, record: CellRecord, budget: str) -> Planner:
    """Return who brings the plan that a record says was made within a budget, and what it says that this took."""
    row = next((row for row in record.rows if row.get("budget") == budget), {})

    def bring(strategy: Strategy, problem: Problem, limits: Budget, seed: int, fitted: bool) -> tuple[str, Spent]:
        if row.get("outcome") != Outcome.OK:
            outcome = next((one for one in Outcome if one == row.get("outcome")), Outcome.ERROR)
            raise failed(outcome, "as submitted", "plan")  # no plan is claimed
        try:
            plan_s, fit_s = _seconds(row, "plan_s"), _seconds(row, "fit_s")
            if plan_s < LEAST_PLAN_S:
                raise BadInput(f"a row's plan_s is {plan_s!r}: in less than {LEAST_PLAN_S:g} s nobody plans")
            name = _word(row, "plan_hash")
            if not _HASH.fullmatch(name):
                raise BadInput(f"'{name}' is no hash of a plan")
            text = file_bytes(plan_path(results, name), most=MAX_JSON_BYTES).decode()
        except (BadInput, UnicodeDecodeError) as error:
            raise failed(Outcome.INVALID, one_line(str(error)), "plan") from error
        # Who does not learn has no time apart for it.
        return text, Spent(plan_s=plan_s, fit_s=fit_s) if learns(strategy) else Spent(plan_s=plan_s + fit_s)

    return bring


def _seconds(row: SeriesRow, name: str) -> float:
    value = _number(row, name)
    if not 0.0 <= value < math.inf:
        raise BadInput(f"a row's {name} is {value!r}: the line was not made by this program")
    return value


def _word(row: SeriesRow, name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise BadInput(f"a row's {name} is {value!r}, which is no word: the line was not made by this program")
    return value


def _number(row: SeriesRow, name: str) -> float:
    value = row.get(name)
    if not isinstance(value, int | float):
        raise BadInput(f"a row's {name} is {value!r}, which is no number: the line was not made by this program")
    return float(value)


def _choose_cells(keys: Iterable[str], number: int, seed: int) -> list[str]:
    """Choose cells to make again: by the seed and by what they are, whatever their records say and in which order."""
    ordered = sorted(keys)
    return [ordered[i] for i in np.random.default_rng(seed).permutation(len(ordered))[:number]]


def _differences(record: CellRecord, now: CellRecord) -> Iterator[str]:
    """Say where a record is not what the code that is here makes of its bound or plans."""
    if now.failure is not None:
        yield f"checked here it fails: {now.failure}"
        return
    budgets, right_budgets = ([_word(row, "budget") for row in one.rows] for one in (record, now))
    if budgets != right_budgets:
        yield f"has rows of {' and '.join(budgets)}; those of {' and '.join(right_budgets)} are asked for"
        return
    for row, other in zip(record.rows, now.rows, strict=True):
        budget = row["budget"]
        if row.get("outcome") == Outcome.OK != other["outcome"]:
            yield f"{budget}: its plan ends in {other['outcome']}: {other.get('cause')}"
            continue
        for name in sorted((row.keys() | other.keys()) - SPENT - {"cause"}):
            submitted, ours = row.get(name), other.get(name)
            if not _alike(submitted, ours):
                yield f"{budget}: {name} is {_short(submitted)}; checked here it is {_short(ours)}"


def _alike(one: Scalar | Series, other: Scalar | Series) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, int | float) and isinstance(other, int | float):
        return same([one], [other])
    return one == other


def _short(value: Scalar | Series) -> str:
    if isinstance(value, tuple):
        return f"of {len(value)} numbers"
    return f"{value:.6g}" if isinstance(value, float) else one_line(str(value))


def _below(now: CellRecord, bound: SeriesRow) -> Iterator[str]:
    for row in now.rows:
        name = {ANY_PLAN: "step_ms", ORDERED: "ordered_ms"}.get(str(row.get("bounded_by", "")))
        if name is None or name not in bound:
            continue
        ms, least_ms = _number(row, "step_ms"), _number(bound, name)
        if ms < least_ms * (1.0 - ROUNDING):
            yield f"{row['budget']}: {ms:.6g} ms is below the proven bound, {least_ms:.6g} ms: no plan is that fast"


def _worse(record: CellRecord, now: CellRecord) -> Iterator[str]:
    """Say where a strategy that is asked once more is not as good as its record says."""
    if now.failure is not None:
        yield f"made again it failed: {now.failure}"
    rows = {_word(row, "budget"): row for row in now.rows}
    for row in record.rows:
        other = rows.get(_word(row, "budget"))
        if other is None or _word(row, "outcome") != Outcome.OK:
            continue
        if other["outcome"] != Outcome.OK:
            yield f"{row['budget']}: made again it ended in {other['outcome']}: {other.get('cause')}"
        elif _number(other, "step_ms") > _number(row, "step_ms") * (1.0 + WORSE):
            yield f"{row['budget']}: {_number(row, 'step_ms'):.6g} ms, made again {_number(other, 'step_ms'):.6g} ms"


def _on_fresh_lookups(now: CellRecord, answers: Sequence[Answer[Any]]) -> Iterator[tuple[str, str]]:
    """Make a line for each plan of a cell made again, and what is suspicious of it, or an empty string."""
    alike: dict[str, list[Answer[Any]]] = {}
    for answer in answers:
        # Efforts often give one plan, with other notes.
        alike.setdefault(content_hash(replace(answer.plan, notes={})), []).append(answer)
    if not alike:
        yield "no plan to judge on fresh test lookups", ""
        return
    plans, known_ms = zip(*((group[0].plan, group[0].judged.step_ms) for group in alike.values()))

    def draw(number: int) -> list[list[float]]:
        return [_fresh_ms(answers[0].question, plans) for _ in range(number)]

    draws = draw(FRESH)
    if not all(draws):
        yield "not judged on fresh test lookups: those of this problem are on record, there are no others", ""
        return
    if any(too_good(ms, fresh) for ms, *fresh in zip(known_ms, *draws)):
        draws += draw(SURE - FRESH)
    for group, ms, *fresh in zip(alike.values(), known_ms, *draws):
        hashes = {answer.planned.plan_hash for answer in group}
        budgets = " and ".join(_word(row, "budget") for row in now.rows if row.get("plan_hash") in hashes)
        words = f"{min(fresh):.6g} to {max(fresh):.6g} ms on {len(fresh)} fresh draws of them"
        suspicion = too_good(ms, fresh)
        yield (
            f"{budgets}: {ms:.6g} ms a step on the known test lookups, {words}",
            f"{budgets}: {suspicion}" if suspicion else "",
        )


def _fresh_ms(question: Question[Any], plans: Sequence[Plan]) -> list[float]:
    """Time each plan's mean step on test lookups that are drawn now, and of which no one knew; empty without such."""
    others = question.held_out()
    return [] if others is None else [others.judge(plan).step_ms for plan in plans]
