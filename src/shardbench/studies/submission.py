"""Whether somebody's records of the leaderboard can stand in it: what can be checked of them, checked."""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from shardbench.base.code import LEADERBOARD
from shardbench.base.errors import BadInput
from shardbench.model.discovery import get_strategy
from shardbench.records.cell import Cell, CellRecord, SeriesRow, cell_key, cell_text
from shardbench.records.store import cell_store
from shardbench.records.trial import Outcome
from shardbench.report.leaderboard import ANY_PLAN, BOUND, ORDERED
from shardbench.studies.reproduction import find_reproduction
from shardbench.studies.session import cell_code, run_cell
from shardbench.studies.study import Study

OWNER, STUDY = LEADERBOARD.rpartition(".")[2], "steps"
ROUNDING = 1e-9
WORSE = 0.005
"""By how much of itself a step may be longer when it is made again: plans made against the clock differ."""
Problem = tuple[object, object]


@dataclass(frozen=True, kw_only=True)
class Checked:
    """What was looked at, and what is wrong with it."""

    strategies: tuple[str, ...]
    cells: int
    faults: tuple[str, ...]
    """One line each; none is good."""


def check_submission(
    results: Path, *, again: int = 0, folder: Path | None = None, told: Callable[[str], None] | None = None
) -> Checked:
    """Hold the leaderboard's records of a results folder against its rules; ``again`` cells are made anew.

    ``folder`` is where those may keep files, ``told`` hears of each. Raises BadInput where there are no records, a
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
    for record in _drawn(store.path, known, again):
        if told is not None:
            told(f"again: {cell_text(STUDY, record.cell)}")
        made = run_cell(lambda: study, record.cell, folder or results / "cache" / OWNER, record.environment)
        faults += [f"{cell_text(STUDY, record.cell)}: {fault}" for fault in _differences(record, made)]
    return Checked(strategies=tuple(names), cells=len(known), faults=tuple(faults))


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
    """Cells to make again, chosen by the file's digest: who submits cannot choose them."""
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
