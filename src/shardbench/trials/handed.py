"""Plans that somebody else made, in the place of strategies: a suite names them by their files."""

from functools import cached_property
from pathlib import Path

from shardbench.base.reading import JSON_BYTES, file_text
from shardbench.base.serialise import content_hash
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem, Sees
from shardbench.model.strategy import Budget, Move, Strategy
from shardbench.records.provenance import GIVEN_PLAN
from shardbench.trials.discovery import get_strategy, strategy_version


class HandedPlan(Strategy):
    """A plan that somebody else made, as a strategy that gives it whatever the problem."""

    sees = frozenset({Sees.TABLES})
    # Validation reads off the plan which it uses; copies that drift apart train another model.
    moves = frozenset(Move) - {Move.LOCAL_STEPS}

    def __init__(self, name: str, plan: Plan) -> None:
        self.name, self.fixed_plan = name, plan

    @cached_property
    def plan_hash(self) -> str:
        """Return the hash by which records know the plan."""
        return content_hash(self.fixed_plan)

    def plan(self, problem: Problem, budget: Budget, seed: int) -> Plan:
        """Return the plan that was handed in."""
        return self.fixed_plan


def get_entrant(entry: str) -> Strategy:
    """Return a strategy by its name, or a plan by the path of its file (.json), whose name it has; raises BadInput."""
    if not entry.endswith(".json"):
        return get_strategy(entry)
    path = Path(entry)
    return HandedPlan(path.stem, Plan.from_json(file_text(path, "plan", JSON_BYTES), f"plan {path}"))


def entrant_version(entrant: Strategy) -> str | None:
    """Return the version of a strategy; a plan's is its hash: whoever made it, another plan's trial is not its."""
    return f"{GIVEN_PLAN}{entrant.plan_hash}" if isinstance(entrant, HandedPlan) else strategy_version(entrant.name)
