"""Pools of the synthetic tables and tasks drawn from them, at a small size."""

import dataclasses
import gzip

import numpy as np
import pytest
import torch
from problems import table_loads

from shardbench.base.errors import BadInput
from shardbench.learned.tasks.oracle import SimulatedOracle
from shardbench.learned.tasks.pools import (
    CAP_BYTES,
    DLRM_ROWS,
    MIXED_ROWS,
    MIXED_WIDTHS,
    PUBLIC,
    TaskRow,
    draw_tasks,
    load_pool,
    machine_of,
    pool_bags,
)  # fmt: skip
from shardbench.learned.tasks.task import Task
from shardbench.workloads.trace import Split

SMALL = {"tables": 12, "batch_size": 64}
ROW = TaskRow(name="small (2)", tables=6, devices=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pools")


def test_rows_are_the_papers():
    assert [(r.tables, r.devices) for r in DLRM_ROWS] == [
        (20, 4), (40, 4), (60, 4), (80, 4), (100, 4), (40, 8), (80, 8), (120, 8), (160, 8), (200, 8),
    ]  # fmt: skip
    assert {r.widths for r in DLRM_ROWS} == {(16,)}
    assert [(r.tables, r.devices, r.widths) for r in MIXED_ROWS] == [
        (20, 2, MIXED_WIDTHS), (40, 4, MIXED_WIDTHS), (80, 8, MIXED_WIDTHS),
    ]  # fmt: skip


def test_a_pool_is_drawn_once_and_its_loads_are_those_of_the_batch(folder):
    drawn = load_pool("train", folder, **SMALL)
    (path,) = folder.glob("pool-train-*.json")
    stamp = path.stat().st_mtime_ns
    again = load_pool("train", folder, **SMALL)
    assert path.stat().st_mtime_ns == stamp
    assert again.profiles == drawn.profiles
    task = draw_tasks(ROW, drawn, 1, seed=0)[0]
    fresh = Task.of(task.problem)
    np.testing.assert_array_equal(fresh.features, task.features)
    for field in dataclasses.fields(fresh.expected):
        name = field.name
        np.testing.assert_allclose(getattr(task.expected, name), getattr(fresh.expected, name), err_msg=name)
    bags, _ = pool_bags(Split.TEST, **SMALL)
    counted = table_loads(task.problem, lambda i: bags(task.problem.tables[i]))
    for field in dataclasses.fields(counted):
        name = field.name
        np.testing.assert_allclose(getattr(task.counted, name), getattr(counted, name), err_msg=name)


def test_a_pool_is_drawn_again_by_another_version(tmp_path, monkeypatch):
    load_pool("train", tmp_path, **SMALL)
    monkeypatch.setattr("shardbench.learned.tasks.pools.JUDGE_VERSION", 99)
    load_pool("train", tmp_path, **SMALL)
    assert len(list(tmp_path.glob("pool-train-*.json"))) == 2


def test_widths_change_nothing_but_the_width(folder):
    narrow, mixed = load_pool("train", folder, **SMALL), load_pool("train", folder, widths=MIXED_WIDTHS, **SMALL)
    assert len(list(folder.glob("pool-train-*.json"))) == 1
    assert [(t.name, t.rows) for t in narrow.tables] == [(t.name, t.rows) for t in mixed.tables]
    assert len({t.dim for t in mixed.tables}) > 1
    assert {t.dim for t in mixed.tables} <= set(MIXED_WIDTHS)


def test_pools_share_no_table_and_shares_are_what_is_asked(folder):
    train, test = load_pool("train", folder, **SMALL), load_pool("test", folder, **SMALL)
    mine, theirs = {t.name for t in train.tables}, {t.name for t in test.tables}
    assert not mine & theirs
    for share, foreign in ((0.0, 0), (0.5, 3), (1.0, 6)):
        for task in draw_tasks(ROW, train, 3, seed=1, other=test, share=share):
            names = [t.name for t in task.problem.tables]
            assert len(set(names)) == 6
            assert sum(name in theirs for name in names) == foreign


def test_tasks_of_two_shares_differ_in_the_replaced_tables_alone(folder):
    train, test = load_pool("train", folder, **SMALL), load_pool("test", folder, **SMALL)
    theirs = {t.name for t in test.tables}
    drawn = [draw_tasks(ROW, train, 3, seed=1, other=test, share=share) for share in (0.0, 1 / 6, 0.5, 1.0)]
    for less, more in zip(drawn, drawn[1:]):
        for few, many in zip(less, more, strict=True):
            before, after = ({t.name for t in task.problem.tables} for task in (few, many))
            assert before & theirs < after & theirs
            assert after - theirs < before - theirs
    # Without another pool they are the tasks of the contest, whatever the shares are.
    assert draw_tasks(ROW, train, 1, seed=1)[0].key == drawn[0][0].key


def test_tasks_are_seeded_and_on_the_stated_machine(folder):
    train = load_pool("train", folder, **SMALL)
    first, again, other = (draw_tasks(ROW, train, 2, seed=s) for s in (0, 0, 1))
    assert [t.key for t in first] == [t.key for t in again]
    assert first[0].key != other[0].key
    problem = first[0].problem
    assert (problem.world_size, problem.precision.bytes, problem.topology.uvm_bytes) == (2, 2, 0)
    assert first[0].capacity_bytes == CAP_BYTES
    assert SimulatedOracle(counted=True).measure(first[0], np.zeros((1, 6), dtype=int)).overall_ms[0] > 0


def test_a_pool_may_be_of_the_public_file(tmp_path, monkeypatch):
    monkeypatch.setattr("shardbench.learned.tasks.pools.DATA", tmp_path)
    with pytest.raises(BadInput, match="download embedding_bag/2021/fbgemm_t856_bs65536"):
        load_pool("train", tmp_path, tables=12, batch_size=2, dataset=PUBLIC)
    # Four samples of one lookup in each of 856 tables: of table i the row i, and of its last sample row i + 1.
    rows = np.repeat(np.arange(856), 4)
    rows[3::4] += 1
    parts = [torch.from_numpy(part) for part in (rows, np.arange(856 * 4 + 1), np.ones((856, 4), dtype=np.int64))]
    file = tmp_path / "dlrm_datasets" / "fbgemm_t856_bs65536.pt.gz"
    file.parent.mkdir()
    with gzip.open(file, "wb", compresslevel=0) as packed:
        torch.save(tuple(parts), packed)
    train, test = (load_pool(side, tmp_path, tables=12, batch_size=2, dataset=PUBLIC) for side in ("train", "test"))
    assert not {t.name for t in train.tables} & {t.name for t in test.tables}
    for pool in (train, test):
        assert [t.rows for t in pool.tables] == [max(100, int(t.name[1:]) + 2) for t in pool.tables]
        # Both train samples look up one row; the test samples look up that one and another.
        assert {(p.counts, p.row_counts) for p in pool.profiles} == {((2,), (1,))}
        assert (pool.lookups.tolist(), pool.distinct.tolist()) == ([2.0] * 12, [2.0] * 12)


def test_a_broken_pool_file_is_named(folder, tmp_path):
    load_pool("test", tmp_path, **SMALL)
    (path,) = tmp_path.glob("pool-test-*.json")
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(BadInput, match="delete it to draw it again"):
        load_pool("test", tmp_path, **SMALL)


def test_a_table_of_no_pool_cannot_be_measured(folder):
    bags, _ = pool_bags(Split.TRAIN, **SMALL)
    table = load_pool("train", folder, **SMALL).tables[0]
    assert bags(table).batch_size == 64
    with pytest.raises(BadInput, match="is in neither pool"):
        bags(dataclasses.replace(table, name="other"))


def test_machines_take_another_shape():
    machine = machine_of("v100-32gb-1x8", 4)
    assert (machine.name, machine.topology.world_size) == ("v100-32gb-1x4", 4)
    assert machine.topology.hbm_bytes == machine_of("v100-32gb-1x8", 2).topology.hbm_bytes
