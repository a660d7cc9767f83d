"""Parsers of what programs leave: plans, records, jobs and results of ranks, tables, costs."""

import contextlib
import io
import json
from pathlib import Path
from random import Random
from typing import Any

import mutations
import records
from learned_tasks import random_problem
from parser import ROOT, Parser
from problems import machine
from rich.console import Console

from shardbench.base.errors import BadInput, InvalidPlan
from shardbench.base.host import Environment
from shardbench.base.host import load as load_environment
from shardbench.base.jsonlines import digested
from shardbench.base.serialise import from_json, to_json
from shardbench.conformance.submission import check_submission
from shardbench.cost.collectives import Calls
from shardbench.cost.phases import StepPhase
from shardbench.engine.measure import gather
from shardbench.engine.processes.blame import fault
from shardbench.engine.processes.failures import TrialFailed
from shardbench.engine.processes.job import RankError, RankJob, RankResult
from shardbench.engine.processes.trial_folder import phase_of, progress_of, read_job, write_job
from shardbench.engine.torchrec.exported import Exported
from shardbench.model.plan import Plan, Replicated, RowWise, Tier, whole_table, whole_tables
from shardbench.model.strategy import Move
from shardbench.model.table import DenseShape
from shardbench.model.validate import validate
from shardbench.records.cell import CellRecord, cell_key
from shardbench.records.store import lookups_path, plan_path
from shardbench.report.compare.explain import explain, lines, read_all
from shardbench.report.groups import groups
from shardbench.report.page.explorer import explored_plans
from shardbench.report.results import load_results
from shardbench.report.tables import layout
from shardbench.report.tables import suite_tables as tables
from shardbench.torchrec import export, inexpressible


def _plans(_: Path) -> list[bytes]:
    problem = random_problem(4)
    whole = Plan(world_size=4, segments=whole_tables(problem.tables, (0, 1, 2, 3)), notes={"a": 1, "b": "x", "c": 0.5})
    dealt = [whole_table(problem.tables[0], RowWise(ranks=(0, 1, 2, 3), tier=Tier.UVM))]
    dealt += [whole_table(table, Replicated(ranks=(0, 1, 2, 3))) for table in problem.tables[1:]]
    return [whole.to_json().encode(), Plan(world_size=4, segments=tuple(dealt)).to_json().encode()]


def _plan(path: Path) -> object:
    plan = Plan.from_json(path.read_bytes(), "plan")
    with contextlib.suppress(InvalidPlan):
        validate(plan, random_problem(4), frozenset(Move))
    cannot = inexpressible(plan, devices_per_node=2)
    return cannot or export(plan, devices_per_node=4)


def _exported(folder: Path) -> list[bytes]:
    return [export(Plan.from_json(text), devices_per_node=4).to_json().encode() for text in _plans(folder)]


def _lines(*values: Any) -> bytes:
    return b"".join(digested(to_json(value).encode()) + b"\n" for value in values)


def _redigested(data: bytes, random: Random) -> bytes:
    """A record's line changed as JSON with a digest that fits, or just changed."""
    lines = data.splitlines()
    at = random.randrange(len(lines))
    if random.randrange(6) == 0:
        return mutations.some_bytes(data, random)
    tree = json.loads(lines[at])
    tree.pop("digest")
    made = mutations.json_bytes(mutations.changed_tree(tree, random))
    lines[at] = digested(made) if made.endswith(b"}") else made
    return b"\n".join(lines) + b"\n"


def _trials(folder: Path) -> list[bytes]:
    _others(folder)
    sample = records.sample()
    return [_lines(sample[0], sample[6]), _lines(sample[4]), _lines(*sample)]


def _others(folder: Path) -> None:
    problem = random_problem(2, on=machine())
    plan = Plan(world_size=2, segments=whole_tables(problem.tables, (0, 1)))
    path = plan_path(folder, "0" * 16)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(plan.to_json())
    lookups_path(folder, "0" * 16, "f" * 16).parent.mkdir(exist_ok=True)
    lookups_path(folder, "0" * 16, "f" * 16).write_text("[1.5, 2.5]\n")


def _results(path: Path) -> object:
    folder = path.parents[1]
    found = load_results(folder)
    quick = [record for record in read_all(folder) if record.spec.suite == path.stem]
    by_group = groups(quick)
    for group in by_group:
        explored_plans(folder, group, 2)
    frames = tables.tables(quick)
    layout.print_tables(frames, Console(file=io.StringIO()), folder)
    for first, second in zip(quick, quick[1:]):
        with contextlib.suppress(BadInput):
            lines(explain(first, second, quick))
    return found


def _cells(_: Path) -> list[bytes]:
    cell = {"strategy": "greedy-size", "workload": "w", "machine": "m", "seed": 0, "budget": 1.5}
    key = cell_key("steps", 1, cell)
    row = {"backend": "simulated", "step_ms": 2.5, "each": (1.0, None), "ok": True}
    facts = {"key": key, "environment": "e" * 16, "study": "steps", "version": 1, "cell": cell, "wall_s": 1, "cpu_s": 1}
    return [
        _lines(CellRecord(**facts, rows=(row,), provenance=records.provenance())),
        _lines(CellRecord(**facts, failure="broke", provenance=None)),
    ]


def _submitted(_: Path) -> list[bytes]:
    lines = (ROOT / "results" / "studies" / "leaderboard" / "steps.jsonl").read_bytes().splitlines(keepends=True)
    of_one = [line for line in lines if b'"workload":"kaggle"' in line]
    bound, one, other = sorted(of_one, key=lambda line: b'"effort":"bound"' not in line)[:3]
    return [bound + one, bound + one + other]


def _environments(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted((ROOT / "results" / "environments").glob("*.json"))]


def _environment(path: Path) -> object:
    with contextlib.suppress(BadInput):
        load_environment(path.parents[1], path.stem)
    found = from_json(Environment, path.read_bytes(), "environment")
    return found.hash


def _job() -> RankJob:
    problem = random_problem(2, on=machine())
    plan = Plan(world_size=2, segments=whole_tables(problem.tables, (0, 1)))
    return RankJob(
        plan=plan, tables=problem.tables, topology=problem.topology, dense=DenseShape(), batch_size=64,
        precision=problem.precision, optimizer=problem.optimizer, warmup=1, iterations=2, seed=0, device="cpu",
        timeout_s=10.0, batches="../batches",
    )  # fmt: skip


def _jobs(_: Path) -> list[bytes]:
    return [to_json(_job()).encode()]


def _failures(_: Path) -> list[bytes]:
    return [to_json(RankError(failure=records.failed().failure, ran=None)).encode()]


def _failure(path: Path) -> object:
    folder = path.parent
    for name in ("rank0.phase", "rank0.progress"):
        (folder / name).write_bytes(path.read_bytes())
    fault(folder, {0: 1}, None)
    phase_of(folder, 0)
    progress_of(folder, 0)
    return from_json(RankError, path.read_bytes(), "error")


def _rank_results(folder: Path) -> list[bytes]:
    write_job(_job(), folder)
    made = []
    for rank in (0, 1):
        result = RankResult(
            rank=rank, job=read_job(folder)[1], took_s=1.0, ms={name: [1.0, 2.0] for name in ("step", *StepPhase)},
            sent=[{"a": (1.0, 2.0)}], calls=[{"a": Calls()}], shares=[1.0],
        )  # fmt: skip
        made.append(digested(to_json(result).encode()))
        (folder / f"rank{rank}.json").write_bytes(made[-1])
    return made[:1]


def _measured(path: Path) -> object:
    try:
        return gather(path.parent)
    except TrialFailed as failure:
        raise BadInput(failure.failure.cause) from failure


def _whole_redigested(data: bytes, random: Random) -> bytes:
    return _redigested(data, random).rstrip(b"\n")


def _tables_csv(folder: Path) -> list[bytes]:
    return [
        (ROOT / "results" / "tables" / "claims.csv").read_bytes()[:3000].rpartition(b"\n")[0] + b"\n",
        (ROOT / "results" / "tables" / "quick" / "throughput.csv").read_bytes()[:2000].rpartition(b"\n")[0] + b"\n",
    ]


def _written_tables(path: Path) -> object:
    return load_results(path.parents[2])


LEFT = (
    Parser("plan", "plan.json", _plans, mutations.as_json, _plan, 30),
    Parser(
        "exported plan", "plan.json", _exported, mutations.as_json, lambda p: Exported.from_json(p.read_bytes()), 25
    ),
    Parser("records of trials", "records/quick.jsonl", _trials, _redigested, _results, 4),
    Parser(
        "records of cells", "studies/mine/steps.jsonl", _cells, _redigested, lambda p: load_results(p.parents[2]), 15
    ),
    Parser(
        "submission",
        "studies/leaderboard/steps.jsonl",
        _submitted,
        _redigested,
        lambda p: check_submission(p.parents[2], committed=ROOT / "results"),
        1,
    ),
    Parser("environment", "environments/e.json", _environments, mutations.as_json, _environment, 20),
    Parser("job of ranks", "job.json", _jobs, mutations.as_json, lambda p: read_job(p.parent), 20),
    Parser("failure of a rank", "rank0.error.json", _failures, mutations.as_json, _failure, 10),
    Parser("result of a rank", "rank0.json", _rank_results, _whole_redigested, _measured, 10),
    Parser("written tables", "tables/x/x.csv", _tables_csv, mutations.lines, _written_tables, 2),
)
