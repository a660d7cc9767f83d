"""The user's own plan, to compare the best one with: whoever made it and in whichever of three forms it is written."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardbench.base.errors import BadInput
from shardbench.base.serialise import from_json
from shardbench.model.plan import Plan
from shardbench.model.table import Table

if TYPE_CHECKING:
    from shardbench.advice.best_plan import Best, Yours

PlanOf = Callable[[Sequence[Table], int], Plan]
"""Gives the plan for some tables and a number of devices; raises BadInput where it is for others."""


def read_plan(path: Path) -> PlanOf:
    """Read a plan's JSON, an exported one's, or TorchRec's sharding plan, as JSON or as its planner prints it.

    Raises BadInput that names the first wrong field.
    """
    from shardbench.model.sharding_plan import ShardedModules, check_sizes, plan_of, read_sharding_plan  # noqa: PLC0415

    text, what = path.read_bytes(), f"plan {path}"
    # The statistics that TorchRec's planner prints are no JSON.
    fields = from_json(dict[str, Any], text, what) if text.lstrip()[:1] in (b"{", b"") else {}
    plan: Plan | None = None
    modules: ShardedModules = {}
    if "segments" in fields:
        plan = Plan.from_json(text, what)
    elif "devices_per_node" in fields:
        from shardbench.torchrec import Exported  # noqa: PLC0415

        plan = Exported.from_json(text, what).plan()
    else:
        modules = read_sharding_plan(text, what)

    def plan_for(tables: Sequence[Table], world_size: int) -> Plan:
        try:
            users_plan = plan if plan is not None else plan_of(modules, tables, world_size)
            check_sizes(users_plan, tables, world_size)
        except BadInput as error:
            raise BadInput(f"{what}: {error}") from error
        return users_plan

    return plan_for


def yours_line(yours: "Yours", best: "Best | None") -> str:
    """Say how the user's plan and the best one compare, in one line."""
    if best is None or yours.less_pct is None:
        return f"yours: {yours.step_ms:.4g} ms a step"
    from shardbench.report.tables.text import significant  # noqa: PLC0415

    direction = "less" if yours.less_pct >= 0.0 else "more"
    trust = {True: "sure", False: "not told apart", None: "the machine states no errors"}[yours.sure]
    size = f"{significant(abs(yours.less_pct), digits=2)} % {direction}"
    return f"yours: {yours.step_ms:.4g} ms, best {best.step_ms:.4g} ms ({size}; {trust})"
