"""What ``shardbench plan`` takes: seconds with many tables, and answers within short budgets on a busy machine.

``python tools/plan_command.py speed OUT.csv`` asks, each in a process of its own on one core: the command about 2,000
tables (CPU seconds in all, and those of the strategies), and ``joint`` about 856 tables on 128 devices and 5,000 on
1,024. Seconds stand beside those of sorting ten million numbers in the same run, since they belong to a machine.

``python tools/plan_command.py loaded OUT.csv`` runs the command with budgets of 0.1 to 2 s about 100 tables, five at a
time beside eight processes that do nothing but compute, and counts the runs that end in a plan.

``python tools/plan_command.py session OUT.txt`` installs the wheel in ``dist/`` into a new environment, asks it, and
writes what a terminal shows, with the seconds of each command.
"""

import csv
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
from cases.made_up import made_problem

from shardbench.base.atomic import write_atomically
from shardbench.cost.costmodel import estimate
from shardbench.model.strategy import Budget
from shardbench.model.table import DenseShape
from shardbench.model.validate import validate
from shardbench.trials.discovery import get_strategy

DIST = Path(__file__).parents[1] / "dist"
MACHINE = "a100-40gb-2x8"
TABLES, BATCH = 2000, 65_536
PLANNED = {(856, 128): (3.0, 60.0), (5000, 1024): (10.0,)}
"""Budgets of ``joint`` in seconds by numbers of tables and devices; steps are held against that of the last budget."""
SORTED = 10_000_000
REPEATS = 3
LOAD, AT_ONCE = 8, 5
"""Processes that do nothing but compute, and runs of the command that go on beside them at a time."""
SESSION = ("pip install --quiet {wheel}", "shardbench plan quick h100-1x8 --workload criteo-kaggle-like --budget 10")
LOADED_TABLES, BUDGETS, RUNS = 100, (0.1, 0.2, 0.5, 1.0, 2.0), 10


def table_list(tables: int, folder: Path) -> Path:
    """Write a list of tables with log-uniform rows (1e3 to 1e7) and mixed widths, and return its path."""
    rng, path = np.random.default_rng(tables), folder / f"tables{tables}.csv"
    rows, dims = 10 ** rng.uniform(3, 7, tables), rng.choice([16, 32, 64, 128], tables)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("name", "rows", "dim"))
        writer.writerows((f"t{i}", int(rows[i]), dims[i]) for i in range(tables))
    return path


def ask(tables: Path, *options: str) -> tuple[dict[str, Any] | None, float, float]:
    """Run the command; return its answer (None where it exits with an error), and its wall and CPU seconds."""
    start_s, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = ["shardbench", "plan", str(tables), MACHINE, "--json", *options]
    process = subprocess.run(command, check=False, stdout=subprocess.PIPE, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(process.stdout) if process.returncode == 0 else None, time.perf_counter() - start_s, cpu_s


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
            answer, _, cpu_s = ask(tables, "--batch-size", str(BATCH))
            if answer is None:
                raise SystemExit("the command has no plan")
            # Those that have a process of their own plan beside the others: on one core in turn with them.
            times.append((cpu_s, sum(one["plan_s"] for one in answer["tried"])))
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


def _ask(tables: Path, budget: float, number: int) -> tuple[dict[str, Any] | None, float, float]:
    answer = ask(tables, "--batch-size", "4096", "--budget", str(budget))
    print(f"{budget:g} s, run {number + 1}: {'a plan' if answer[0] else 'NO plan'} after {answer[1]:.1f} s", flush=True)
    return answer


def under_load() -> list[dict[str, object]]:
    """Return a row for each budget: how many runs end in a plan, and what became of the strategies."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as folder, load(LOAD):
        tables = table_list(LOADED_TABLES, Path(folder))
        for budget in BUDGETS:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                runs = list(pool.map(partial(_ask, tables, budget), range(RUNS)))
            answers = [answer for answer, _, _ in runs if answer is not None]
            attempts = [one for answer in answers for one in answer["tried"]]
            rows.append(
                {
                    "tables": LOADED_TABLES, "budget": f"{budget:g} s", "load": LOAD, "at_once": AT_ONCE,
                    "backend": "measured", "n": RUNS, "n_counts": "runs", "with_a_plan": len(answers),
                    "strategies": len(attempts) // max(len(answers), 1),
                    "without_plan": sum(one["step_ms"] is None for one in attempts),
                    "late": sum(one["late"] for one in attempts),
                    "wall_s": statistics.median(wall for _, wall, _ in runs), "most_wall_s": max(w for _, w, _ in runs),
                }
            )  # fmt: skip
    return rows


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


def as_csv(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows as CSV, with all columns that any of them has."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    lines = [",".join(columns)]
    for row in rows:
        cells = (row.get(name, "") for name in columns)
        lines.append(",".join(f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells))
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> None:
    """Run the command line."""
    what, out = arguments
    text = session() if what == "session" else as_csv({"speed": speed, "loaded": under_load}[what]())
    write_atomically(Path(out), text)
    print(text, end="")


if __name__ == "__main__":
    main(sys.argv[1:])
