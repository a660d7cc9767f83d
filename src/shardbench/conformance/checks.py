"""What every strategy must do, on small problems: the checks behind ``shardbench test NAME``.

A strategy plans in processes of its own, as in a trial. What comes out is judged here.
"""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from shardbench.base.errors import ShardBenchError
from shardbench.base.serialise import content_hash
from shardbench.conformance.problems import (
    Case,
    cases,
    drawn_case,
    known_and_held_out_ms,
    renamed,
    reordered,
    too_good,
    write_known,
)
from shardbench.engine.processes.failures import TrialFailed
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget, Strategy
from shardbench.records.trial import Failure, Outcome
from shardbench.trials.described import declaration_fault
from shardbench.trials.discovery import missing_modules
from shardbench.trials.evaluate import RulesOnly, evaluate
from shardbench.trials.planning import Spent, learns, traits_of
from shardbench.trials.planning_process import PlanningProcess

CHECKS = {
    "declares": "name, sees, moves, role and requires are well formed and the required modules are there",
    "picklable": "the strategy can be sent to the process that plans",
    "finishes": "a plan comes within the time limit",
    "budget": "planning keeps the budget that it is told, and learning about does",
    "declared-information": "nothing undeclared is read: neither the problem's fields nor the test trace",
    "out-of-reach": "nothing closed to planners is read, changed or signalled, where the kernel can tell",
    "raises-infeasible-only": "the only exception is Infeasible",
    "plans-what-fits": "Infeasible is not raised where tables fit with room to spare",
    "declines-what-does-not-fit": "Infeasible is raised where nothing fits",
    "returns-a-plan": "the result is a Plan",
    "round-trip": "the plan survives JSON",
    "world-size": "the plan is for the problem's devices",
    "valid": "coverage, overlap, capacity and the engine's limits",
    "declared-moves": "only declared moves are used",
    "leaves-input-alone": "the problem is the same before and after",
    "repeatable": "asked again in the same process, the same seed gives the same plan",
    "deterministic": "the same seed gives the same plan in another process, folder, home and month",
    "any-seed": "another seed gives a valid plan too",
    "names": "tables and a problem of other names get the same plan",
    "held-out": "plans are no better on test lookups that everyone can draw than on draws that nobody knew",
    "order": "tables in another order get the same plan, where a strategy neither draws nor learns",
}
"""Every check by name, and what passes it."""

SLACK = 2.0
"""A strategy is ended after so many times its budget: checks run on machines of any speed."""
SEED, OTHER_SEED = 7, 1 << 20
AMPLE = 4.0
"""Times the fitting budget with which a training that gave two results, or overran, is asked again."""
INFEASIBLE = "infeasible"


class ConformanceError(ShardBenchError):
    """A strategy failed a check; ``check`` is its name in CHECKS."""

    def __init__(self, check: str, message: str) -> None:
        super().__init__(message)
        self.check = check


def check(
    strategy: Strategy, plan_s: float = 20.0, fit_s: float = 5.0, *, problems: Sequence[Case] | None = None
) -> None:
    """Run all checks; raises ConformanceError with one line that names the first that fails.

    ``plan_s`` and ``fit_s`` are the budget of a call; after twice that it is killed. A learned strategy that
    gave two results or overran is asked again with more time: the clock may have ended its training. ``problems`` are
    all (``cases``) unless they are given.
    """
    fault = declaration_fault(strategy)
    missing = missing_modules(strategy) if not fault else ()
    if fault or missing:
        why = fault or f"requires {', '.join(missing)}, which cannot be imported here"
        name = traits_of(strategy).kind.rpartition(".")[2]
        raise ConformanceError("declares", f"{name}: check 'declares' failed: {why}")
    budget = Budget(plan_s=plan_s, fit_s=fit_s)
    with _closed_folder() as closed:
        on_cases = [(_check, case) for case in (cases() if problems is None else problems)]
        for run, case in [*on_cases, (_check_held_out, drawn_case(strategy.moves))]:
            try:
                run(strategy, case, budget, closed)
            except ConformanceError as breach:
                where = f"failed on problem '{case.problem.name}': {breach}"
                raise ConformanceError(breach.check, f"{strategy.name}: check '{breach.check}' {where}") from breach


@contextmanager
def _closed_folder() -> Iterator[Path]:
    """Make a folder with test batches and records, which no strategy has business in."""
    with tempfile.TemporaryDirectory(prefix="shardbench-closed-") as folder:
        closed = Path(folder)
        write_known(closed / "batches")
        records = closed / "results" / "records"
        records.mkdir(parents=True)
        (records / "suite.jsonl").write_text("")
        yield closed


@contextmanager
def _planning(
    strategy: Strategy, case: Case, budget: Budget, closed: Path, *, elsewhere: bool = False
) -> Iterator["_CaseProcess"]:
    """Give a process to ask; raises ConformanceError where the closed folder is another one afterwards."""
    before = _content(closed)
    try:
        with PlanningProcess(strategy, [closed], elsewhere=elsewhere) as process:
            copy, kind = process.hand_over(), traits_of(strategy).kind
            if copy != kind:
                raise ConformanceError("picklable", f"a pickled copy is a {copy}")
            if process.received_s > SLACK * budget.plan_s:
                took = f"to be made out of its pickle took {process.received_s:.1f} s"
                raise ConformanceError("budget", f"{took}, the budget for planning is {budget.plan_s:g} s")
            yield _CaseProcess(process, strategy, case, budget)
    except TrialFailed as error:
        raise ConformanceError(error.failure.rule or "picklable", error.failure.cause) from error
    finally:
        if _content(closed) != before:
            raise ConformanceError("out-of-reach", "test batches or records were changed while it planned")


def _content(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return content_hash(*(part for path in files for part in (str(path), path.read_bytes())))


def _check(strategy: Strategy, case: Case, budget: Budget, closed: Path) -> None:
    try:
        _check_within(strategy, case, budget, closed)
    except ConformanceError as breach:
        if breach.check != "budget" or not learns(strategy):
            raise
        # What a busy machine adds to a training is little beside a longer one.
        _check_within(strategy, case, replace(budget, fit_s=AMPLE * budget.fit_s), closed)


def _check_within(strategy: Strategy, case: Case, budget: Budget, closed: Path) -> None:
    with _planning(strategy, case, budget, closed) as first:
        result = first.plan()
        if first.plan(fitted=True) != result:
            raise ConformanceError("repeatable", f"asked twice in one process, seed {SEED} gave two different results")
        if case.asked_in_other_words:
            _check_other_words(first, result)
    if not case.asked_in_other_words or result == _elsewhere(strategy, case, budget, closed):
        return
    if not _same_with_time(strategy, case, budget, closed):
        raise ConformanceError("deterministic", f"seed {SEED} gave two different results")


def _check_held_out(strategy: Strategy, case: Case, budget: Budget, closed: Path) -> None:
    with _planning(strategy, case, budget, closed) as process:
        text = process.plan()
    # Drawn after it planned: it could not have read them off this process.
    suspicion = too_good(*known_and_held_out_ms(Plan.from_json(text), case.problem)) if text else ""
    if suspicion:
        raise ConformanceError("held-out", suspicion)


def _elsewhere(strategy: Strategy, case: Case, budget: Budget, closed: Path) -> str:
    with _planning(strategy, case, budget, closed, elsewhere=True) as process:
        return process.plan()


def _same_with_time(strategy: Strategy, case: Case, budget: Budget, closed: Path) -> bool:
    """Tell whether two trainings give one result that no busy machine cuts short."""
    if not learns(strategy):
        return False
    ample = replace(budget, fit_s=AMPLE * budget.fit_s)
    one, other = (_elsewhere(strategy, case, ample, closed) for _ in range(2))
    return one == other


def _check_other_words(process: "_CaseProcess", result: str) -> None:
    """Ask one problem in other words and by another seed; raises ConformanceError where a name or an order matters."""
    case = process.case
    problem, old_names = renamed(case.problem)
    if _placements(process.plan(replace(case, problem=problem), fitted=True), old_names) != _placements(result):
        raise ConformanceError("names", "the same tables under other names got another plan")
    try:
        other_plan = process.plan(fitted=True, seed=OTHER_SEED)
    except ConformanceError as breach:
        raise ConformanceError("any-seed", f"with seed {OTHER_SEED}: {breach}") from breach
    if learns(process.strategy) or _placements(other_plan) != _placements(result):
        return
    if _placements(process.plan(replace(case, problem=reordered(case.problem)), fitted=True)) != _placements(result):
        raise ConformanceError("order", "the same tables in another order got another plan, and no other seed did")


def _placements(text: str, names: dict[str, str] | None = None) -> object:
    """Return what a plan does, whatever its notes say and in whichever order it says so; ``names`` are put in."""
    if not text:
        return ""
    plan = Plan.from_json(text)
    segments = (replace(s, table=(names or {}).get(s.table, s.table)) for s in plan.segments)
    return sorted(content_hash(segment) for segment in segments), plan.schedule, plan.dense


class _CaseProcess:
    """A process, and what it is asked of one case."""

    def __init__(self, process: PlanningProcess, strategy: Strategy, case: Case, budget: Budget) -> None:
        self.process, self.strategy, self.case, self.budget = process, strategy, case, budget

    def plan(self, case: Case | None = None, *, fitted: bool = False, seed: int = SEED) -> str:
        """Return a valid plan's JSON, empty where there rightly is none; raises ConformanceError."""
        case = case or self.case
        text, spent = self._answer(case, fitted, seed)
        if text and spent.plan_s > self.budget.plan_s:
            # Once more: the machine may have been busy.
            text, spent = self._answer(case, True, seed)
            if spent.plan_s > self.budget.plan_s:
                raise ConformanceError(
                    "budget", f"planning took {spent.plan_s:.1f} s, its budget is {self.budget.plan_s:g} s"
                )
        return text

    def _answer(self, case: Case, fitted: bool, seed: int) -> tuple[str, Spent]:
        question = RulesOnly(case.problem)
        answer = evaluate(
            question, self.strategy, self.budget, seed, fitted=fitted, slack=SLACK, planner=self._make_plan
        )
        if not isinstance(answer, Failure):
            return answer.plan.to_json(), answer.spent
        self._judge(case, answer)
        return "", Spent()

    def _make_plan(
        self, strategy: Strategy, problem: Problem, budget: Budget, seed: int, fitted: bool
    ) -> tuple[str, Spent]:
        self.process.take(problem.restricted_to(strategy.sees))
        return self.process.make_plan(budget, seed, fitted=fitted, slack=SLACK)

    def _judge(self, case: Case, failure: Failure) -> None:
        if failure.outcome is Outcome.INFEASIBLE:
            if case.fits_with(self.strategy.moves):
                raise ConformanceError("plans-what-fits", f"declined: {failure.cause}")
            return
        rule = failure.rule or "raises-infeasible-only"
        if rule == "valid" and not case.anything_fits:
            rule = "declines-what-does-not-fit"
        if rule == "finishes" and not failure.cause.endswith("killed"):
            rule = "budget"
        raise ConformanceError(rule, failure.cause)
