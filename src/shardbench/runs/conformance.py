"""What every strategy must do, on small problems: the checks behind ``shardbench test NAME``.

Each plan is made in a process of its own, forked from this one: heavy imports are paid once,
and the test split can be sealed without sealing it here. The child leads its own process group
and is killed with it when time is up.
"""

import contextlib
import importlib
import math
import multiprocessing
import os
import pickle
import signal
import sys
import warnings
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from shardbench.base.errors import Infeasible, InvalidPlan, ShardBenchError, Undeclared
from shardbench.base.serialise import content_hash
from shardbench.model.discovery import declaration_fault, missing_modules
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget, Move, Strategy
from shardbench.model.validate import used_moves, validate
from shardbench.runs.conformance_problems import Case, cases
from shardbench.workloads.trace import seal_test_split

CHECKS = {
    "declares": "name, sees, moves, role and requires are well formed and the required modules are there",
    "picklable": "the strategy can be sent to the process that plans",
    "finishes": "a plan comes within the time limit",
    "declared-information": "nothing undeclared is read: neither the problem's fields nor the test trace",
    "raises-infeasible-only": "the only exception is Infeasible",
    "plans-what-fits": "Infeasible is not raised where tables fit with room to spare",
    "declines-what-does-not-fit": "Infeasible is raised where nothing fits",
    "returns-a-plan": "the result is a Plan",
    "round-trip": "the plan survives JSON",
    "world-size": "the plan is for the problem's devices",
    "valid": "coverage, overlap, capacity and the engine's limits",
    "declared-moves": "only declared moves are used",
    "leaves-input-alone": "the problem is the same before and after",
    "deterministic": "the same seed gives the same plan",
}
"""Every check by name, and what passes it."""

SEED = 7


class ConformanceError(ShardBenchError):
    """A strategy failed a check; ``check`` is its name in CHECKS."""

    def __init__(self, check: str, message: str) -> None:
        super().__init__(message)
        self.check = check


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """What a child reports: a plan's JSON, or the kind and text of what went wrong."""

    kind: str
    text: str
    untouched: bool = True


def check(strategy: Strategy, plan_s: float = 20.0, fit_s: float = 5.0) -> None:
    """Run all checks; raises ConformanceError with one line that names the first that fails.

    ``plan_s`` and ``fit_s`` are the budget of a call; after twice their sum it is killed.
    """
    fault = declaration_fault(strategy)
    missing = missing_modules(strategy) if not fault else ()
    if fault or missing:
        why = fault or f"requires {', '.join(missing)}, which cannot be imported here"
        raise ConformanceError("declares", f"{type(strategy).__name__}: check 'declares' failed: {why}")
    _import_required(strategy)
    _check_picklable(strategy)
    budget = Budget(plan_s=plan_s, fit_s=fit_s)
    for case in cases():
        first = _isolated(strategy, case, budget)
        _judge(strategy, case, first)
        second = _isolated(strategy, case, budget)
        if first != second:
            raise _failure("deterministic", strategy, case, f"seed {SEED} gave two different results")


def _import_required(strategy: Strategy) -> None:
    # Before forking, so that the cost of large packages is paid once and not by every child.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in strategy.requires:
            importlib.import_module(module)


def _check_picklable(strategy: Strategy) -> None:
    why = ""
    try:
        copy = pickle.loads(pickle.dumps(strategy))  # noqa: S301 - just made
    except Exception as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())}"
    else:
        if type(copy) is not type(strategy):
            why = f"a pickled copy is a {type(copy).__name__}"
    if why:
        raise ConformanceError("picklable", f"{strategy.name}: check 'picklable' failed: {why}")


def _failure(name: str, strategy: Strategy, case: Case, why: str) -> ConformanceError:
    return ConformanceError(name, f"{strategy.name}: check '{name}' failed on problem '{case.problem.name}': {why}")


def _judge(strategy: Strategy, case: Case, outcome: _Outcome) -> None:
    if outcome.kind in CHECKS:
        raise _failure(outcome.kind, strategy, case, outcome.text)
    if not outcome.untouched:
        raise _failure("leaves-input-alone", strategy, case, "the problem changed while planning")
    if outcome.kind == "infeasible":
        if case.fits_with(strategy.moves):
            raise _failure("plans-what-fits", strategy, case, f"declined: {outcome.text}")
        return
    _judge_plan(strategy, case, Plan.from_json(outcome.text))


def _judge_plan(strategy: Strategy, case: Case, plan: Plan) -> None:
    problem = case.problem
    if plan.world_size != problem.world_size:
        why = f"the plan is for {plan.world_size} devices, the problem has {problem.world_size}"
        raise _failure("world-size", strategy, case, why)
    try:
        validate(plan, problem, frozenset(Move))
    except InvalidPlan as error:
        name = "valid" if case.anything_fits else "declines-what-does-not-fit"
        raise _failure(name, strategy, case, str(error)) from error
    undeclared = used_moves(plan, problem) - strategy.moves
    if undeclared:
        raise _failure("declared-moves", strategy, case, f"used without declaring: {', '.join(sorted(undeclared))}")


def _isolated(strategy: Strategy, case: Case, budget: Budget) -> _Outcome:
    limit_s = 2.0 * (budget.plan_s + (budget.fit_s if _learns(strategy) else 0.0))
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(strategy, case.problem, budget, sender))
    with warnings.catch_warnings():
        # Python 3.12 warns about forking beside threads; the child starts none of their work.
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    sender.close()
    try:
        if not receiver.poll(limit_s):
            return _Outcome(kind="finishes", text=f"no plan after {limit_s:g} s, killed")
        outcome: _Outcome = receiver.recv()
        return outcome
    except EOFError:
        child.join(1.0)
        return _Outcome(kind="raises-infeasible-only", text=f"the process died with exit code {child.exitcode}")
    finally:
        receiver.close()
        _kill(child.pid)
        child.join()
        child.close()


def _kill(pid: int | None) -> None:
    # The child is not yet reaped, so its id cannot belong to anyone else.
    if pid is None:
        return
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError):
            kill(pid, signal.SIGKILL)


def _learns(strategy: Strategy) -> bool:
    return type(strategy).fit is not Strategy.fit


def _child(strategy: Strategy, problem: Problem, budget: Budget, sender: Connection) -> None:
    os.setsid()
    if "torch" in sys.modules:
        # Worker threads do not survive a fork: with more than one, OpenMP would wait for ever.
        sys.modules["torch"].set_num_threads(1)
    seal_test_split()
    sender.send(_outcome(strategy, problem, budget))


def _outcome(strategy: Strategy, problem: Problem, budget: Budget) -> _Outcome:
    given = problem.restricted_to(strategy.sees)
    before = _state(problem, given)
    try:
        if _learns(strategy):
            strategy.fit((given,), budget, SEED)
        made: object = strategy.plan(given, budget, SEED)
    except Infeasible as error:
        return _Outcome(kind="infeasible", text=str(error), untouched=_state(problem, given) == before)
    except Undeclared as error:
        return _Outcome(kind="declared-information", text=str(error))
    except Exception as error:
        text = f"{type(error).__name__}: {error}".replace("\n", " ")
        return _Outcome(kind="raises-infeasible-only", text=text)
    if not isinstance(made, Plan):
        return _Outcome(kind="returns-a-plan", text=f"got {type(made).__name__}")
    untouched = _state(problem, given) == before
    try:
        text = made.to_json()
        same = Plan.from_json(text) == made
    except (ValueError, TypeError, ShardBenchError) as error:
        return _Outcome(kind="round-trip", text=str(error).replace("\n", " "))
    if not same:
        return _Outcome(kind="round-trip", text="the plan read back differs from the one written")
    return _Outcome(kind="plan", text=text, untouched=untouched)


def _state(problem: Problem, given: Problem) -> tuple[Any, ...]:
    """What must not change: the problem's content, what its profiles answer, and the given object's fields."""
    answers = [profile.cdf(np.linspace(0.0, profile.rows, 9)) for profile in problem.profiles]
    expected = [profile.expected_distinct(math.sqrt(profile.rows)) for profile in problem.profiles]
    fields = tuple(sorted((name, id(value)) for name, value in vars(given).items() if name != "fingerprint"))
    return content_hash(problem.to_json(), *answers, expected), fields
