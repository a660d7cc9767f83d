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
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

import numpy as np

from shardbench.base.errors import ShardBenchError
from shardbench.base.serialise import content_hash
from shardbench.model.discovery import declaration_fault, missing_modules
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget, Strategy
from shardbench.records.trial import Failure, Outcome
from shardbench.runs.conformance_problems import Case, cases
from shardbench.runs.evaluate import RulesOnly, evaluate, learns
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
SLACK = 2.0
"""Times its budget after which a strategy does not finish: checks run on machines of any speed."""
AMPLE = 4.0
"""Times the fitting budget with which a training that gave two results is asked again."""
INFEASIBLE = "infeasible"


class ConformanceError(ShardBenchError):
    """A strategy failed a check; ``check`` is its name in CHECKS."""

    def __init__(self, check: str, message: str) -> None:
        super().__init__(message)
        self.check = check


@dataclass(frozen=True, kw_only=True)
class _Outcome:
    """What a child reports: a plan's JSON, or the rule that was broken and how."""

    rule: str
    text: str


def check(strategy: Strategy, plan_s: float = 20.0, fit_s: float = 5.0) -> None:
    """Run all checks; raises ConformanceError with one line that names the first that fails.

    ``plan_s`` and ``fit_s`` are the budget of a call; after twice their sum it is killed. A learned strategy that
    gave two results is asked again with more time: the clock may have ended its training.
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
        if first != _isolated(strategy, case, budget) and not _same_with_time(strategy, case, budget):
            raise _failure("deterministic", strategy, case, f"seed {SEED} gave two different results")


def _same_with_time(strategy: Strategy, case: Case, budget: Budget) -> bool:
    """Whether two trainings give one result that no busy machine cuts short."""
    if not learns(strategy):
        return False
    ample = replace(budget, fit_s=AMPLE * budget.fit_s)
    return _isolated(strategy, case, ample) == _isolated(strategy, case, ample)


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
    if outcome.rule == INFEASIBLE:
        if case.fits_with(strategy.moves):
            raise _failure("plans-what-fits", strategy, case, f"declined: {outcome.text}")
    elif outcome.rule:
        name = outcome.rule if outcome.rule != "valid" or case.anything_fits else "declines-what-does-not-fit"
        raise _failure(name, strategy, case, outcome.text)


def _isolated(strategy: Strategy, case: Case, budget: Budget) -> _Outcome:
    limit_s = SLACK * (budget.plan_s + (budget.fit_s if learns(strategy) else 0.0))
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
            return _Outcome(rule="finishes", text=f"no plan after {limit_s:g} s, killed")
        outcome: _Outcome = receiver.recv()
        return outcome
    except EOFError:
        child.join(1.0)
        return _Outcome(rule="raises-infeasible-only", text=f"the process died with exit code {child.exitcode}")
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


def _child(strategy: Strategy, problem: Problem, budget: Budget, sender: Connection) -> None:
    os.setsid()
    if "torch" in sys.modules:
        # Worker threads do not survive a fork: with more than one, OpenMP would wait for ever.
        sys.modules["torch"].set_num_threads(1)
    seal_test_split()
    sender.send(_outcome(strategy, problem, budget))


def _outcome(strategy: Strategy, problem: Problem, budget: Budget) -> _Outcome:
    before = _state(problem)
    answer = evaluate(RulesOnly(problem), strategy, budget, SEED, sealed=False, slack=SLACK)
    if isinstance(answer, Failure):
        infeasible = answer.outcome is Outcome.INFEASIBLE
        found = _Outcome(rule=INFEASIBLE if infeasible else answer.rule or "raises-infeasible-only", text=answer.cause)
    else:
        found = _Outcome(rule="", text=answer.plan.to_json())
    # A changed problem makes nonsense of what was found against it.
    if found.rule in ("", INFEASIBLE, "valid", "world-size", "declared-moves") and _state(problem) != before:
        return _Outcome(rule="leaves-input-alone", text="the problem changed while planning")
    return found


def _state(problem: Problem) -> str:
    """What must not change: the problem's content, and what its profiles answer."""
    answers = [profile.cdf(np.linspace(0.0, profile.rows, 9)) for profile in problem.profiles]
    expected = [profile.expected_distinct(math.sqrt(profile.rows)) for profile in problem.profiles]
    return content_hash(problem.to_json(), *answers, expected)
