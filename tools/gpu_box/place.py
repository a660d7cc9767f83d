"""Make placements.json: who places which table where in the first tasks of the rows of DreamShard's result table.

    python tools/gpu_box/place.py [FOLDER]

It needs no GPU and was run once, in an environment with the locked packages. The tasks are the first of the 50 test
tasks of DreamShard's reproduction, and all strategies are trained and asked as its study ``table`` does it, with seed
0. What learns nothing has that table's costs on these tasks; trainings with the same seed differ from machine to
machine, and agree with the table in the mean. Pools and trainings are kept in FOLDER, so that an interrupted run goes
on; without one they are made afresh. All of it took 7.5 minutes of one core, almost all of them trainings.

The file has, of every table of the test pool, its lookups, distinct rows and longest bag in the test batch on which
placements are judged, as they were counted here: whoever draws the lookups again can compare.
"""

import argparse
import json
import tempfile
from pathlib import Path

import numpy as np

from shardbench.baselines.dreamshard.reproduction.names import COST_GREEDY, GREEDIES, OURS, RANDOM, RNN
from shardbench.learned.tasks.pools import DLRM_ROWS, Pool, TaskRow
from shardbench.model.strategy import Budget
from shardbench.studies.contests.contest import JUDGED_SPLIT, fit_strategy, place_all, pool_of, tasks_of
from shardbench.studies.contests.contest_study import FIT_S, PLAN_S

PLACEMENTS = Path(__file__).with_name("placements.json")
TASKS = 3
"""Test tasks of a row: of eight minutes, the part that measures them has time for little more than one."""
STRATEGIES = (RANDOM, *GREEDIES, RNN, OURS, COST_GREEDY)
"""The paper's, and as a control greedy on the costs of single tables."""
SEED = 0
RNN_TABLES = 40
"""The RNN placed the tables of rows of at most so many."""


def main() -> None:
    """Place all tasks and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    with tempfile.TemporaryDirectory() as scratch:
        # Pools are kept beside the folder of a reproduction.
        folder = (parser.parse_args().folder or Path(scratch)) / "dreamshard"
        folder.mkdir(parents=True, exist_ok=True)
        (folder.parent / "pools").mkdir(exist_ok=True)
        pool = pool_of(JUDGED_SPLIT, folder, DLRM_ROWS[0].widths)
        rows = {row.name: {"devices": row.devices, "tasks": _place(row, pool, folder)} for row in DLRM_ROWS}
    counts = np.stack([pool.lookups, pool.distinct, pool.longest_bag], axis=1).astype(np.int64).tolist()
    PLACEMENTS.write_text(_text({"pool": JUDGED_SPLIT, "batch": pool.batch_size, "rows": rows, "counts": counts}))


def _place(row: TaskRow, pool: Pool, folder: Path) -> list[dict[str, object]]:
    """Return the row's tasks: numbers of the pool's tables, and by strategy a digit for the device of each table."""
    numbers = {table.name: number for number, table in enumerate(pool.tables)}
    budget = Budget(fit_s=FIT_S, plan_s=PLAN_S)
    tasks = tasks_of(row, JUDGED_SPLIT, folder)[:TASKS]
    placements: list[dict[str, str]] = [{} for _ in tasks]
    for name in STRATEGIES:
        if name == RNN and row.tables > RNN_TABLES:
            continue
        strategy, seconds = fit_strategy(name, tasks_of(row, "train", folder), budget, SEED, folder)
        answers = place_all(strategy, tasks, budget, SEED)
        for own, placement in zip(placements, answers.judged, strict=True):
            if placement is not None:
                own[name] = "".join(str(device) for device in placement)
        print(f"{row.name}: {name} was trained in {seconds:.1f} CPU seconds", flush=True)
    return [
        {"tables": [numbers[table.name] for table in task.problem.tables], "placements": own}
        for task, own in zip(tasks, placements, strict=True)
    ]


def _text(data: dict[str, object]) -> str:
    """Return the data as JSON with one line a row of tasks."""
    rows = data.pop("rows")
    assert isinstance(rows, dict)
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    others = "".join(f" {json.dumps(name)}: {json.dumps(value)},\n" for name, value in data.items())
    return f'{{\n{others} "rows": {{\n{lines}\n }}\n}}\n'


if __name__ == "__main__":
    main()
