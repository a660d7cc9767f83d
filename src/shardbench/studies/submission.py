"""Whether somebody's records of the leaderboard can stand in it: what can be checked of them, checked."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from shardbench.base.code import LEADERBOARD, checkout
from shardbench.base.errors import BadInput
from shardbench.base.serialise import content_hash
from shardbench.model.plan import Plan
from shardbench.records.cell import Cell, CellRecord, SeriesRow, cell_key, cell_text
from shardbench.records.store import cell_store
from shardbench.records.trial import Outcome
from shardbench.report.tables.leaderboard import ANY_PLAN, BOUND, ORDERED
from shardbench.runs.discovery import get_strategy
from shardbench.runs.evaluate import Answer, Question
from shardbench.runs.held_out import too_good
from shardbench.studies.reproduction import find_reproduction
from shardbench.studies.session import cell_code, run_cell
from shardbench.studies.study import Study

OWNER, STUDY = LEADERBOARD.rpartition(".")[2], "steps"
ROUNDING = 1e-9
WORSE = 0.005
"""Share by which a step may be longer when it is made again: plans made against the clock differ."""
FRESH = 3
"""Draws of test lookups that nobody knew, on which plans of cells made again are judged."""
SURE = 20
"""So many in all where these raise a suspicion: a few lookups that leave HBM make an honest plan's step vary by 5 %."""
Problem = tuple[object, object]


@dataclass(frozen=True, kw_only=True)
class Checked:
    """The records that were looked at, and the faults that were found."""

    strategies: tuple[str, ...]
    cells: int
    again: tuple[str, ...]
    """Cells made anew, and what their plans came to on fresh test lookups, or why that is not known; one line each."""
    faults: tuple[str, ...]
    """One line each; none is good."""


def check_submission(
    results: Path, *, again: int = 0, folder: Path | None = None, told: Callable[[str], None] | None = None
) -> Checked:
    """Hold the leaderboard's records of a results folder against its rules; ``again`` cells are made anew.

    Their plans are judged on fresh test lookups too, where there are others than those on record: each of FRESH draws
    (SURE where there is a suspicion) costs a drawing, and a counting a plan. ``folder`` is where those cells may keep
    files, ``told`` hears the lines of ``Checked.again`` as they come. Raises BadInput where there are no records, a
    line is malformed or was edited, or a strategy is not installed.
    """
    study = find_reproduction(OWNER).study(STUDY)
    store = cell_store(results, OWNER, STUDY)
    known = store.latest()
    names = sorted({name for record in known.values() if isinstance(name := record.cell.get("strategy"), str)})
    if not names:
        raise BadInput(f"{store.path} has no records of a strategy; make them: shardbench reproduce {OWNER}")
    for name in names:
        get_strategy(name)
    faults = [*_missing(study, known, names)]
    bounds = _bounds(known.values())
    for record in known.values():
        faults += [f"{cell_text(STUDY, record.cell)}: {fault}" for fault in _faults(study, record, bounds)]
    lines: list[str] = []
    for record in _drawn(store.path, known, again):
        text = cell_text(STUDY, record.cell)
        _say(f"again: {text}", lines, told)
        answers: list[Answer[Any]] = []
        telling = partial(study.telling, answers.append)
        made = run_cell(telling, record.cell, folder or results / "cache" / OWNER, record.environment)
        faults += [f"{text}: {fault}" for fault in _differences(record, made)]
        for line, suspicion in _on_fresh_lookups(made, answers):
            _say(f"  {line}", lines, told)
            faults += [f"{text}: {suspicion}"] if suspicion else []
    return Checked(strategies=tuple(names), cells=len(known), again=tuple(lines), faults=tuple(faults))


def _say(line: str, lines: list[str], told: Callable[[str], None] | None) -> None:
    lines.append(line)
    if told is not None:
        told(line)


def _missing(study: Study, known: Mapping[str, CellRecord], names: Sequence[str]) -> Iterator[str]:
    for cell in study.cells(False):
        if cell["strategy"] in (None, *names) and cell_key(STUDY, study.version, cell) not in known:
            yield f"{cell_text(STUDY, cell)}: has no record; run: shardbench reproduce {OWNER}"


def _bounds(records: Iterable[CellRecord]) -> dict[Problem, dict[str, float]]:
    proven = [(record.cell, row) for record in records for row in record.rows if _word(row, "budget") == BOUND]
    return {
        _problem(cell): {ANY_PLAN: _number(row, "step_ms"), ORDERED: _number(row, "ordered_ms")} for cell, row in proven
    }


def _problem(cell: Cell) -> Problem:
    return cell.get("workload"), cell.get("machine")


def _faults(study: Study, record: CellRecord, bounds: Mapping[Problem, Mapping[str, float]]) -> Iterator[str]:
    if record.failure is not None:
        yield f"failed: {record.failure}; run it again with --retry error"
    provenance = record.provenance
    if provenance is None or provenance.commit is None or provenance.dirty:
        yield "made in no clean checkout: commit what was changed and make it again"
    elif not record.made_by(cell_code(study, record.cell)):
        yield "made by other code than what is installed here"
    elif provenance.package_code != checkout().package:
        yield "judged by other code than what is installed here"
    for row in record.rows:
        if _word(row, "budget") == BOUND or _word(row, "outcome") != Outcome.OK:
            continue
        bound = bounds.get(_problem(record.cell), {}).get(_word(row, "bounded_by"))
        if bound is not None and _number(row, "step_ms") < bound * (1.0 - ROUNDING):
            yield f"{_number(row, 'step_ms'):.6g} ms is below the proven bound, {bound:.6g} ms: no plan is that fast"
        spent, effort = _number(row, "plan_s") + _number(row, "fit_s"), _word(row, "budget")
        if effort.endswith(" s") and spent > _seconds(effort):
            yield f"took {spent:.1f} s of a budget of {effort}"


def _word(row: SeriesRow, name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str):
        raise BadInput(f"a row's {name} is {value!r}, which is no word: the line was not made by this program")
    return value


def _seconds(effort: str) -> float:
    try:
        return float(effort.removesuffix(" s"))
    except ValueError as error:
        raise BadInput(f"a row's budget is '{effort}': the line was not made by this program") from error


def _number(row: SeriesRow, name: str) -> float:
    value = row.get(name)
    if not isinstance(value, int | float):
        raise BadInput(f"a row's {name} is {value!r}, which is no number: the line was not made by this program")
    return float(value)


def _drawn(path: Path, known: Mapping[str, CellRecord], number: int) -> list[CellRecord]:
    """Choose cells to make again, by the file's digest: who submits cannot choose them."""
    seed = int.from_bytes(hashlib.sha256(path.read_bytes()).digest()[:8], "big")
    keys = sorted(known)
    chosen = np.random.default_rng(seed).permutation(len(keys))[:number]
    return [known[keys[i]] for i in chosen]


def _differences(record: CellRecord, made: CellRecord) -> Iterator[str]:
    if made.failure is not None:
        yield f"made again it failed: {made.failure}"
    rows = {_word(row, "budget"): row for row in made.rows}
    for row in record.rows:
        other = rows.get(_word(row, "budget"))
        if other is None or _word(row, "outcome") != Outcome.OK:
            continue
        if other["outcome"] != Outcome.OK:
            yield f"{row['budget']}: made again it ended in {other['outcome']}"
        elif _number(other, "step_ms") > _number(row, "step_ms") * (1.0 + WORSE):
            yield f"{row['budget']}: {_number(row, 'step_ms'):.6g} ms, made again {_number(other, 'step_ms'):.6g} ms"


def _on_fresh_lookups(made: CellRecord, answers: Sequence[Answer[Any]]) -> Iterator[tuple[str, str]]:
    """Make a line for each plan of a cell made again, and what is suspicious of it, or an empty string."""
    alike: dict[str, list[Answer[Any]]] = {}
    for answer in answers:
        # Efforts often give one plan, with other notes.
        alike.setdefault(content_hash(replace(answer.plan, notes={})), []).append(answer)
    if not alike:
        yield "no plan to judge on fresh test lookups", ""
        return
    plans, known = [same[0].plan for same in alike.values()], [same[0].judged.step_ms for same in alike.values()]

    def drawn(number: int) -> list[list[float]]:
        return [_fresh_ms(answers[0].question, plans) for _ in range(number)]

    draws = drawn(FRESH)
    if not all(draws):
        yield "not judged on fresh test lookups: those of this problem are on record, there are no others", ""
        return
    if any(too_good(ms, fresh) for ms, *fresh in zip(known, *draws)):
        draws += drawn(SURE - FRESH)
    for same, ms, *fresh in zip(alike.values(), known, *draws):
        hashes = {answer.planned.plan_hash for answer in same}
        budgets = " and ".join(_word(row, "budget") for row in made.rows if row.get("plan_hash") in hashes)
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
