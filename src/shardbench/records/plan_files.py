"""The files of a results folder for plans, and for what the train split expects of their segments."""

import json
from pathlib import Path

from shardbench.base.atomic import write_atomically
from shardbench.base.serialise import content_hash
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem

_DECIMALS = 9


def plan_path(results: Path, plan_hash: str) -> Path:
    """Return the path of a plan's file."""
    return results / "plans" / f"{plan_hash}.json"


def lookups_path(results: Path, plan_hash: str, workload_fingerprint: str) -> Path:
    """Return the path of the lookups of a plan's segments on a workload."""
    return results / "lookups" / f"{plan_hash}-{workload_fingerprint}.json"


def keep_plan(results: Path, plan: Plan) -> None:
    """Keep a plan as ``plans/<hash>.json``."""
    write_atomically(plan_path(results, content_hash(plan)), plan.to_json() + "\n")


def keep_lookups(results: Path, plan: Plan, problem: Problem, workload_fingerprint: str) -> None:
    """Keep beside a valid plan how often a sample looks each of its segments up, expected of the train split."""
    profiles = {table.name: profile for table, profile in zip(problem.tables, problem.profiles, strict=True)}
    lookups = [
        profiles[segment.table].share(segment.row_start, segment.row_stop) * profiles[segment.table].mean_pooling
        for segment in plan.segments
    ]
    path = lookups_path(results, content_hash(plan), workload_fingerprint)
    write_atomically(path, json.dumps([round(number, _DECIMALS) for number in lookups]) + "\n")
