"""Numbers move with a version or not at all: a sample of the committed rows is made again, of every kind of cost.

tests/test_results.py does the same with the suite `quick`: every strategy's plans, groups, host tables, schedules and
two bytes a number. Here are caches and what only studies have.
"""

from pathlib import Path

import pytest
from kept_folders import Silent
from test_results import RESULTS

from shardbench.base.code import JUDGE_VERSION
from shardbench.records.store import cell_store, trial_store
from shardbench.studies.reproduction import find_reproduction
from shardbench.studies.session import run_cell
from shardbench.trials.discovery import get_strategy, strategies
from shardbench.trials.runner import RunOptions, run_suite
from shardbench.trials.suite import load_suite

RAISE = (
    f"a number moved under judge version {JUDGE_VERSION}: raise JUDGE_VERSION (src/shardbench/base/code.py) or the "
    "strategy's version, name the moved numbers in CHANGELOG.md, and make them again (nox -s publish)"
)
CELLS = {
    "drifted rows": ("drift", "hot_rows", {"problem": "criteo", "strategy": "recshard"}),
    "hot and cold batches": ("fae", "region", {"point": 40}),
    "every plan": ("flexshard", "gap", {"case": "one-table", "seed": 8, "budget": 1.1}),
    "histories": ("flexshard", "communication", {"workload": "taobao", "nodes": 2, "draw": 0, "local_batch": 1024}),
    "rows of models in small": ("recshard", "ablation", {"workload": "rm3", "hbm": "quarter", "features_seed": 1}),
}
LONG = ("rows of models in small",)
"""A slow test: drawing the model's features takes most of it, and tiers are those of the test of caches too."""


def same(ours: object, theirs: object) -> bool:
    if isinstance(theirs, tuple):
        return isinstance(ours, tuple) and len(ours) == len(theirs) and all(map(same, ours, theirs))
    return ours == (pytest.approx(theirs, rel=1e-6) if isinstance(theirs, float) else theirs)


def skip_older(record) -> None:
    version = record.provenance.judge_version
    if version != JUDGE_VERSION:
        pytest.skip(f"the committed row is of judge version {version}: nox -s publish makes it again")


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind in LONG else []) for kind in CELLS]
)
def test_cells_are_what_the_versions_give(tmp_path: Path, kind: str) -> None:
    owner, name, wanted = CELLS[kind]
    study, known = find_reproduction(owner).study(name), cell_store(RESULTS, owner, name).latest()
    committed = next(record for record in known.values() if wanted.items() <= record.cell.items())
    skip_older(committed)
    made = run_cell(lambda: study, committed.cell, tmp_path, committed.environment)
    assert made.failure is None
    for ours, theirs in zip(made.rows, committed.rows, strict=True):
        # What a row took in seconds is not of the version.
        moved = [name for name in theirs if not name.endswith("_s") and not same(ours.get(name), theirs[name])]
        assert not moved, RAISE


@pytest.mark.usefixtures("few_draws")
def test_plans_with_tiers_and_caches_are_what_the_versions_give(tmp_path: Path) -> None:
    suite, on = load_suite("recshard"), ("dcnv2-like", "a100-40gb-2x8+hbm_capacity-3.043GiB")
    (job,) = [job for job in suite.jobs if (job.workload, job.load_machine().name) == on]
    moves = {"recshard": {"rows", "table", "uvm"}, "torchrec-table-wise": {"cache", "table", "uvm"}}
    known = [
        one for one in trial_store(RESULTS, "recshard").latest().values() if (one.spec.workload, one.spec.machine) == on
    ]
    committed = {one.spec.strategy: one for one in known if one.spec.strategy in moves}
    for one in committed.values():
        skip_older(one)
    options = RunOptions(results=tmp_path, data=Path("data"), strategies=tuple(moves))
    again = {one.spec.strategy: one for one in run_suite(suite.model_copy(update={"jobs": (job,)}), options, Silent())}
    assert {strategy: set(made.planned.moves) for strategy, made in again.items()} == moves
    for strategy, made in again.items():
        assert made.planned.plan_hash == committed[strategy].planned.plan_hash, RAISE
        assert made.timing.step_ms == pytest.approx(committed[strategy].timing.step_ms, rel=1e-6), RAISE


def test_every_strategy_states_a_version() -> None:
    assert all(get_strategy(name).version >= 1 for name in strategies())
