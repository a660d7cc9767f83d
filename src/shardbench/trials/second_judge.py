"""Another judge of plans beside the cost model, in a process of its own in which what it loaded stays."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from shardbench.base.temporary import temporary_folder
from shardbench.engine.processes.launch import Worker
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem, Sees

StepJudge: TypeAlias = Callable[[Plan, Problem], float | None]
"""Gives the milliseconds of a step, None where it cannot judge the plan; it crosses to its process by its name."""
NEEDS = frozenset({Sees.TABLES, Sees.ACCESS_PROFILE, Sees.MACHINE})
"""What of a problem a judge gets."""


SecondJudge: TypeAlias = Callable[[Plan, Problem, float], float | None]
"""A StepJudge in its process, with the seconds that it may take; raises TrialFailed where it fails or takes longer."""


@contextmanager
def second_judge(judge: StepJudge | None) -> Iterator[SecondJudge | None]:
    """Give the judge for as long as the context lasts; its process begins with the first plan. None gives None."""
    if judge is None:
        yield None
        return
    lock = threading.Lock()

    def step_ms(plan: Plan, problem: Problem, timeout_s: float) -> float | None:
        # Threads ask it one after the other.
        with lock:
            return worker.call(judge, (plan, problem.restricted_to(NEEDS)), timeout_s=timeout_s, phase="count")

    with temporary_folder() as folder, Worker(folder / "judge.log") as worker:
        yield step_ms
