"""What `shardbench plan` takes with many tables, and what it answers within its budgets, also on a busy machine.

``python tools/plan_command.py FOLDER [NAME ...]`` writes these files, or those that are named:

- ``speed.csv``: each in a process of its own on one core, the command about 2,000 tables (CPU seconds in all, and those
  of the strategies), and ``joint`` about 856 tables on 128 devices and 5,000 on 1,024. Seconds stand beside those of
  sorting ten million numbers in the same run, since they belong to a machine.
- ``session.txt``: the wheel in ``dist/`` is installed into a new environment and asked: what a terminal shows, with the
  seconds of each command.
- ``grid.csv``, only where it is named: the command about 100 to 5,000 tables on 8 to 1,024 devices with ample, short
  and too little HBM, within 1, 10 and 30 s, alone and beside eight processes that do nothing but compute; each plan
  beside that of ``joint`` within 60 s. Cells that the file has are not asked again: who stops it can go on.
"""

import csv
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cases.made_up import made_problem
from table_files import rows_csv, write_tables

from shardbench.base.atomic import write_atomically
from shardbench.cost.costmodel import estimate
from shardbench.model.expected import as_expected
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.model.strategy import Budget
from shardbench.model.table import DenseShape
from shardbench.model.validate import validate
from shardbench.trials.discovery import get_strategy
from shardbench.trials.quiet import Quiet
from shardbench.workloads.kinds import workload_config

DIST = Path(__file__).parents[1] / "dist"
MACHINE = "a100-40gb-2x8"
TABLES, BATCH = 2000, 65_536
PLANNED = {(856, 128): (3.0, 60.0), (5000, 1024): (10.0,)}
"""Budgets of ``joint`` in seconds by numbers of tables and devices; steps are held against that of the last budget."""
SORTED = 10_000_000
REPEATS = 3
LOAD = 8
"""Processes that do nothing but compute."""
SESSION = ("pip install --quiet {wheel}", "shardbench plan quick h100-1x8 --workload criteo-kaggle-like --budget 10")
GRID = {100: "a100-40gb-1x8", 856: "a100-40gb-16x8", 2000: MACHINE, 5000: "a100-40gb-128x8"}
FILLS = {"ample": 0.1, "tight": 0.85, "beyond": 2.0}
"""Bytes of all tables over the HBM of all devices."""
GRID_BUDGETS, LONGEST = (1, 10, 30), 60
"""Budgets of the command, and of ``joint`` alone beside which its plans stand, in seconds."""
JUDGED_SAMPLES = 4096
"""Samples of the profiles under which all plans of a problem are judged, whatever those had by which they were made."""
CELL = ("tables", "machine", "memory", "strategies", "budget_s", "load")
"""The columns that name a row."""


class Asked(NamedTuple):
    """What the command came to; ``answer`` is None where it exits with an error."""

    answer: dict[str, Any] | None
    wall_s: float
    cpu_s: float
    peak_bytes: int
    """The most that one process had."""


def table_list(tables: int, folder: Path, size: float | None = None) -> Path:
    """Write a list of tables with log-uniform rows (1e3 to 1e7) and mixed widths, and return its path.

    With ``size`` all have as many times the rows as make so many bytes of fp32.
    """
    rng, path = np.random.default_rng(tables), folder / f"tables{tables}.csv"
    rows, dims = 10 ** rng.uniform(3, 7, tables), rng.choice([16, 32, 64, 128], tables)
    rows *= 1.0 if size is None else size / float(4 * rows @ dims)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("name", "rows", "dim"))
        writer.writerows((f"t{i}", int(rows[i]), dims[i]) for i in range(tables))
    return path


def ask(tables: Path, machine: str, *options: str) -> Asked:
    """Run the command about a list of tables on a machine."""
    start_s, command = time.perf_counter(), ["shardbench", "plan", str(tables), machine, "--json", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        text = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    answer = json.loads(text) if process.returncode == 0 else None
    return Asked(answer, time.perf_counter() - start_s, usage.ru_utime + usage.ru_stime, 1024 * usage.ru_maxrss)


def sorting_s() -> float:
    """Return CPU seconds of sorting ten million numbers, the median of repeats."""
    numbers, seconds = np.random.default_rng(0).random(SORTED), []
    for _ in range(REPEATS):
        start_s = time.process_time()
        np.sort(numbers)
        seconds.append(time.process_time() - start_s)
    return statistics.median(seconds)


def speed() -> list[dict[str, object]]:
    """Return a row for the whole command, and for each problem and budget of ``joint``."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    sort_s, rows = sorting_s(), list[dict[str, object]]()
    with tempfile.TemporaryDirectory() as folder:
        tables, times = table_list(TABLES, Path(folder)), list[tuple[float, float]]()
        for _ in range(REPEATS):
            asked = ask(tables, MACHINE, "--batch-size", str(BATCH))
            if asked.answer is None:
                raise SystemExit("the command has no plan")
            # Those that have a process of their own plan beside the others: on one core in turn with them.
            times.append((asked.cpu_s, sum(one["plan_s"] for one in asked.answer["tried"])))
        whole, planning = (statistics.median(column) for column in zip(*times))
        rows.append(
            {
                "what": "shardbench plan", "tables": TABLES, "devices": 16, "budget_s": 30.0, "backend": "measured",
                "n": REPEATS, "n_counts": "runs", "cpu_s": whole, "strategies_s": planning,
                "overhead_over_strategies": (whole - planning) / planning, "cpu_over_sort": whole / sort_s,
            }
        )  # fmt: skip
    for (count, devices), budgets in PLANNED.items():
        problem, strategy, steps = made_problem(count, devices), get_strategy("joint"), dict[float, float]()
        for budget in budgets:
            seconds = []
            for _ in range(1 if budget == max(budgets) and len(budgets) > 1 else REPEATS):
                start_s, start_cpu_s = time.perf_counter(), time.process_time()
                plan = strategy.plan(problem, Budget(plan_s=budget), 0)
                seconds.append((time.process_time() - start_cpu_s, time.perf_counter() - start_s))
            validate(plan, problem, strategy.moves)
            steps[budget] = estimate(plan, problem, DenseShape()).step_ms
            cpu_s, wall_s = (statistics.median(column) for column in zip(*seconds))
            rows.append(
                {
                    "what": "joint", "tables": count, "devices": devices, "budget_s": budget,
                    "backend": "measured", "n": len(seconds), "n_counts": "runs", "cpu_s": cpu_s, "wall_s": wall_s,
                    "cpu_over_sort": cpu_s / sort_s, "step_ms": steps[budget],
                }
            )  # fmt: skip
        for row in rows[-len(budgets) :]:
            row["over_longest_budget_pct"] = 100.0 * (steps[float(str(row["budget_s"]))] / steps[max(budgets)] - 1.0)
    return rows


def _compute() -> None:
    while True:
        sum(range(10_000))


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep so many processes computing."""
    busy = [multiprocessing.Process(target=_compute, daemon=True) for _ in range(processes)]
    for one in busy:
        one.start()
    try:
        yield
    finally:
        for one in busy:
            one.kill()


def grid(out: Path) -> str:
    """Ask about each cell that the file lacks, write the file after each, and return its text."""
    rows = list[dict[str, object]]()
    if out.exists():
        with out.open(newline="") as file:
            rows += csv.DictReader(file)
    known = {tuple(str(row[name]) for name in CELL): row for row in rows}
    for (count, machine), memory in product(GRID.items(), FILLS):
        cells, steps = product((0, LOAD), ("default",), GRID_BUDGETS), list[float]()
        with tempfile.TemporaryDirectory() as folder:
            for busy, strategies, budget in ((0, "joint", LONGEST), *cells):
                cell = (str(count), machine, memory, strategies, str(budget), str(busy))
                if cell not in known:
                    known[cell] = dict(zip(CELL, cell)) | _grid_row(Path(folder), *cell)
                steps.append(float(str(known[cell]["step_ms"] or "nan")))
                if known[cell] not in rows:
                    known[cell]["over_longest_pct"] = 100.0 * (steps[-1] / steps[0] - 1.0)
                    rows.append(known[cell])
                    write_atomically(out, rounded(rows))
                    print(rounded(rows[-1:]), end="", flush=True)
    return rounded(rows)


def _grid_row(
    folder: Path, count: str, machine: str, memory: str, strategies: str, budget: str, busy: str
) -> dict[str, object]:
    """Ask about one cell of the grid, and return what is measured of it."""
    on, plan = load_machine(machine), folder / "plan.json"
    tables = table_list(int(count), folder, FILLS[memory] * on.topology.world_size * on.topology.hbm_bytes)
    options = ["--batch-size", str(BATCH), "--budget", budget, "--out", str(plan)]
    options += [] if strategies == "default" else ["--strategy", strategies]
    _, others = Quiet().take(partial(time.sleep, 1.0), "a second")
    with load(int(busy)):
        asked = ask(tables, machine, *options)
    answer = asked.answer or {}
    return {
        "devices": on.topology.world_size, "backend": "measured", "n": 1, "n_counts": "runs",
        "others_busy_share": others, "wall_s": asked.wall_s, "after_imports_s": answer.get("took_s", ""),
        "cpu_s": asked.cpu_s, "peak_gb": asked.peak_bytes / 1e9,
        "strategy": answer["best"]["strategy"] if answer else "",
        "step_ms": _judged_ms(plan, _grid_problem(tables, machine)) if answer else "",
    }  # fmt: skip


@cache
def _grid_problem(tables: Path, machine: str) -> Problem:
    """Return the problem under whose profiles all plans of a list are judged."""
    config = {"dataset": "described", "name": tables.stem, "table_list": str(tables), "batch_size": BATCH}
    workload = workload_config(config, tables.name).build(tables.parent).quicker(JUDGED_SAMPLES)
    on = load_machine(machine)
    return as_expected(Problem.of(workload.name, workload.tables, workload.profiles, on, batch_size=BATCH))


def _judged_ms(plan: Path, problem: Problem) -> float:
    return estimate(Plan.from_json(plan.read_text(), plan.name), problem, DenseShape()).step_ms


def session() -> str:
    """Return what a terminal shows of a new environment that the wheel is installed into and asked in."""
    wheels, outputs = sorted(DIST.glob("*.whl")), []
    if len(wheels) != 1:
        raise SystemExit(f"{DIST} has {len(wheels)} wheels: make one with nox -s build")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        environment = {**os.environ, "PATH": f"{folder}/bin{os.pathsep}{os.environ['PATH']}"}
        for command in SESSION:
            line, start_s = command.format(wheel=wheels[0].name), time.perf_counter()
            process = subprocess.run(
                line.split(), cwd=DIST, env=environment, check=True, stdout=subprocess.PIPE, text=True
            )
            outputs.append(f"$ {line}  # {time.perf_counter() - start_s:.0f} s\n{process.stdout}")
    return "".join(outputs)


def rounded(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows as CSV, numbers with four digits."""
    return rows_csv({name: f"{v:.4g}" if isinstance(v, float) else v for name, v in row.items()} for row in rows)


if __name__ == "__main__":
    write_tables(
        {
            "speed.csv": lambda _: rounded(speed()),
            "session.txt": lambda _: session(),
            "grid.csv": grid,
        },
        when_named=["grid"],
    )
