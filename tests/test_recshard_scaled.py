"""RecShard's models in small: the slice of the machine, the same milliseconds, and what a condition asks."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from shardbench.baselines.recshard.reproduction import scaled
from shardbench.baselines.recshard.reproduction.scaled import RmCondition, ask, metrics, never_touched_pct, slice_of
from shardbench.cost.costmodel import embedding_ms
from shardbench.cost.load import Load
from shardbench.datasets.rm import RmConfig
from shardbench.model.machine import Constants
from shardbench.model.machine_file import load_machine
from shardbench.model.table import DenseShape
from shardbench.trials.suite import load_suite

WHOLE = load_machine(scaled.MACHINE)


def test_the_suites_machine_is_the_slice_that_models_in_small_take() -> None:
    part, made = load_machine("a100-24gb-512th-2x8"), slice_of(WHOLE, scaled.ROW_SCALE)
    assert part.topology == made.topology
    for field in fields(Constants):
        ours, expected = (getattr(machine.constants, field.name) for machine in (part, made))
        assert ours == pytest.approx(expected, rel=1e-3), field.name
    assert part.errors == WHOLE.errors


def test_the_suites_dense_model_is_as_much_smaller_as_its_models() -> None:
    configs = [
        RmConfig.model_validate(fields) for fields in load_suite("recshard").workloads if fields["dataset"] == "rm"
    ]
    assert len(configs) == 3
    for config in configs:
        tables = config.build(Path()).tables
        usual, own = (shape.parameters(tables) for shape in (DenseShape(), config.dense))
        assert own / usual == pytest.approx(config.row_scale, rel=0.01)
        assert config.row_scale == scaled.ROW_SCALE
        assert config.profile_samples == scaled.ROW_SCALE * scaled.SAMPLES
        assert config.batch_size == scaled.ROW_SCALE * scaled.BATCH


def test_a_slice_takes_the_same_time_for_as_small_a_share_of_a_load() -> None:
    load = Load(np.random.default_rng(0).uniform(1e6, 1e8, size=(5, Load.zeros(1).values.shape[1])))
    # Bytes times bytes shrink twice; a bag is as long as before.
    powers = np.ones(load.values.shape[1])
    small = Load(load.values * 0.01**powers)
    for what in (small, small.uvm):
        what.repeat_set_bytes2[...] *= 0.01
    small.gradient_set_bytes2[...] *= 0.01
    small.chain[...] = load.chain
    times = embedding_ms(small, slice_of(WHOLE, 0.01).constants)
    np.testing.assert_allclose(times, embedding_ms(load, WHOLE.constants), rtol=1e-12)


def test_milliseconds_in_small_are_those_of_four_times_the_size() -> None:
    base = RmCondition(parts=scaled.QUARTER, row_scale=1 / 512, samples=scaled.SMALL_SAMPLES)
    small, large = base.question(), replace(base, row_scale=1 / 128).question()
    assert small.problem.batch_size * 4 == large.problem.batch_size
    assert never_touched_pct(small.problem) == pytest.approx(never_touched_pct(large.problem), rel=0.01)
    for strategy in ("greedy-lookup", "recshard"):
        ours, theirs = (metrics(ask(question, strategy).judged) for question in (small, large))
        assert ours["mean_ms"] == pytest.approx(theirs["mean_ms"], rel=0.05)
        assert ours["off_hbm_lookups_pct"] == pytest.approx(theirs["off_hbm_lookups_pct"], rel=0.25)


def test_hbm_of_a_condition() -> None:
    base = RmCondition(samples=scaled.SMALL_SAMPLES // 16, row_scale=1 / 1024)
    topology = base.question().problem.topology
    assert topology.hbm_bytes == pytest.approx(WHOLE.topology.hbm_bytes / 1024, rel=1e-4)
    assert topology.world_size == 16
    quarter = replace(base, hbm=0.25, parts=4).question().problem
    assert (quarter.world_size, len(quarter.tables)) == (4, 100)
    needed = sum(quarter.weight_bytes(table) for table in quarter.tables)
    held = quarter.world_size * quarter.topology.hbm_bytes / needed
    assert held == pytest.approx(0.25 * 384 / 634.5, rel=0.01)
    share = replace(base, hbm_share=0.1, parts=4, uvm_gb_per_s=4.0).question().problem
    assert share.world_size * share.topology.hbm_bytes == pytest.approx(0.1 * needed, rel=1e-3)
    assert share.machine.constants.uvm_bytes_per_s == pytest.approx(4e9 / 1024)


def test_ratios_add_one_lookup_to_counts_and_average_by_logarithms() -> None:
    rows = []
    for draw, ours, off in ((0, 2.0, 0), (1, 8.0, 3)):
        numbers = {name: (slow, 99) for name, slow in zip(scaled.GREEDIES, (16.0, 24.0, 40.0))}
        numbers |= {"recshard": (ours, off), "recshard-unseen": (1.0, 0)}
        rows += [
            {
                "workload": "rm2", "features_seed": draw, "strategy": name, "slowest_ms": slow, "std_ms": slow / 2,
                "cv": slow / 4, "off_hbm_lookups": count, "off_hbm_lookups_pct": count / 10,
            }
            for name, (slow, count) in numbers.items()
        ]  # fmt: skip
    ours, unseen = scaled.ratio_table(pd.DataFrame(rows), ("workload",)).to_dict("records")
    assert ours["throughput_x"] == pytest.approx((8 * 2) ** 0.5)
    assert (ours["throughput_low_x"], ours["throughput_high_x"]) == (2.0, 8.0)
    assert ours["balance_x"] == ours["balance_cv_x"] == pytest.approx(4.0)
    # 99 lookups off HBM against none count as 100 to 1, against three as 100 to 4.
    assert ours["slow_accesses_x"] == pytest.approx((100 * 25) ** 0.5)
    assert ours["off_hbm_lookups_pct"] == pytest.approx(0.15)
    assert (unseen["strategy"], unseen["draws"]) == ("recshard-unseen", 2)
    assert unseen["slow_accesses_x"] == pytest.approx(100.0)
