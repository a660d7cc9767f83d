"""The region of a learned placement policy: widths, tables a device, device and training, each point trained anew."""

from collections.abc import Sequence
from pathlib import Path

from shardbench.learned.tasks.pools import TaskRow, draw_tasks
from shardbench.learned.tasks.task import Task
from shardbench.studies.contests.contest import SIDES, cheapest, judge, learner_of, pool_of, trained_with
from shardbench.studies.regions.region import Knob, region_study
from shardbench.studies.study import Row, Study

DEVICES = 4
"""The papers' smaller number: a training on four is the cheaper one."""
TASKS = 20
"""Training tasks and test tasks of a point; the papers have 50 of each."""
WIDTHS = (16, 32, 64, 128)
ROOMY_BYTES = 40 * 2**30
"""Memory of a device: more than a quarter of any point's tables takes, so that it decides nothing."""
KNOBS = (
    Knob(
        name="widths", low=1, high=len(WIDTHS), scale="integer",
        reason="How many of 16, 32, 64, 128 a table's width is drawn from: open tasks have 1 (DreamShard) or 2 "
        "(AutoShard); those of production tables are not public, 16 to 128 is what systems of the time support.",
    ),
    Knob(
        name="tables_a_device", low=5, high=25, scale="integer",
        reason="DreamShard's rows have 5 (DLRM-20 on 4 devices, DLRM-40 on 8) to 25 (DLRM-100 on 4, DLRM-200 on 8).",
    ),
    Knob(
        name="device", scale="choice", values=("2080ti-1x4", "v100-32gb-1x8", "a100-40gb-2x8"),
        reason="Comments in AutoShard's code name cache sizes of 2080 class and V100 devices; A100 is the next one.",
    ),
    Knob(
        name="effort", low=0.1, high=1.0, scale="log",
        reason="Share of the published updates. At most all of them; a tenth keeps a point at seconds.",
    ),
)  # fmt: skip


def placement_region(
    *, title: str, strategy: str, scaled: Sequence[str], greedies: tuple[str, ...], judged: str
) -> Study:
    """Make a study of tasks of unseen tables: the best of some heuristics over a policy that was trained for the point.

    A point is one training (its number is the seed of tables, tasks and training) of 20 tasks in place of 50, on 4
    devices; other points draw other tables. All settings of the learned ``strategy`` are as published, but that a point
    has the share ``effort`` of those that are ``scaled``. ``judged`` is the number that is compared, a key of
    ``judge``: ``cost_ms`` or ``kernel_ms``.
    """

    def measure(folder: Path, *, point: int, widths: int, tables_a_device: int, device: str, effort: float) -> Row:
        train, test = point_tasks(folder, point, widths, tables_a_device, device)
        learner = learner_of(strategy)
        published = learner.training_type().settings_type()
        changes = {name: max(1, round(effort * getattr(published, name))) for name in scaled}
        trained, _ = trained_with(learner, train, point, None, **changes)
        ours = judge(learner.place(trained, test), test)[judged]
        best, best_ms = cheapest(greedies, test, judged)
        return {
            "margin_x": best_ms / ours,
            "ours_ms": ours,
            "best_greedy": best,
            "best_greedy_ms": best_ms,
            "oracle_calls": trained.oracle_calls,
        }

    return region_study(
        title=title, knobs=KNOBS, outcomes=("margin_x",), measure=measure, uses=greedies,
        columns=("backend", "margin_x", "ours_ms", "best_greedy", "best_greedy_ms", "oracle_calls"),
    )  # fmt: skip


def point_tasks(
    folder: Path, point: int, widths: int, tables_a_device: int, device: str
) -> tuple[tuple[Task, ...], tuple[Task, ...]]:
    """Draw training tasks and test tasks of a point, of disjoint pools."""
    tables = DEVICES * tables_a_device
    row = TaskRow(
        name=f"region-{tables}",
        tables=tables,
        devices=DEVICES,
        widths=WIDTHS[:widths],
        machine=device,
        cap_bytes=ROOMY_BYTES,
    )
    train, test = (draw_tasks(row, pool_of(side, folder, row.widths), TASKS, seed=point) for side in SIDES)
    return train, test
