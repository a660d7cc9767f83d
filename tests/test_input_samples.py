"""Samples of single train inputs: what strategies may see of them."""

from pathlib import Path

import numpy as np
import pytest

from shardbench.base.errors import BadInput
from shardbench.datasets.criteo_like import CONFIG as CRITEO_LIKE
from shardbench.datasets.trace_file import CONFIG as TRACE
from shardbench.workloads.hotness import HotPrefix, hot_samples
from shardbench.workloads.trace import Bags, Split, last_rows
from shardbench.workloads.workload import SAMPLED_INPUTS


def test_last_rows_of_samples():
    bags = Bags(values=np.array([4, 9, 2, 7]), offsets=np.array([0, 2, 2, 2, 3, 4, 4]), features=2)
    assert last_rows(bags).tolist() == [9, 2, 7]
    assert last_rows(Bags(values=np.array([], dtype=np.int64), offsets=np.array([0, 0, 0]))).tolist() == [-1, -1]


def test_a_sample_of_a_drawn_workload_counts_hot_inputs_as_the_test_split_has_them():
    workload = CRITEO_LIKE(batch_size=4096, profile_samples=16_384, test_batches=2).build(Path("nowhere"))
    hot = [min(profile.seen_rows, table.rows) for profile, table in zip(workload.profiles, workload.tables)]
    rows = [HotPrefix(hot=n, rows=table.rows) for n, table in zip(hot, workload.tables)]
    found = [hot_samples(lambda i, b=b: workload.bags(Split.TEST, b, i), rows, 4096).mean() for b in range(2)]
    sample = workload.input_sample
    assert sample is workload.input_sample
    assert (len(sample.coldest), len(sample.coldest[0]), sample.train_inputs) == (26, SAMPLED_INPUTS, None)
    # Two shares of 8,192 inputs: five standard errors of their difference.
    assert sample.hot_share(hot) == pytest.approx(float(np.mean(found)), abs=0.04)
    assert 0.3 < sample.hot_share(hot) < 0.5
    with pytest.raises(BadInput, match="hot rows of 1 tables for inputs of 26"):
        sample.hot_share(hot[:1])


def trace(tmp_path, **fields):
    (tmp_path / "ids.txt").write_text("\n".join(str(i) for i in range(40)) + "\n")
    return TRACE(files=("ids.txt",), rows=(100,), pooling=1, batch_size=4, test_batches=1, **fields).build(tmp_path)


def test_recorded_workloads_profile_some_samples_and_show_others(tmp_path):
    whole, some = trace(tmp_path), trace(tmp_path, profile_samples=5)
    assert [whole.profiles[0].samples, some.profiles[0].samples] == [20, 5]
    assert some.profiles[0].seen_rows == 5
    # Samples 0, 4, 8, 12 and 16 are profiled, 15 others are left.
    assert some.ranking(0)(np.array([0, 4, 8, 12, 16])).max() == 4
    assert len(some.input_sample.coldest[0]) == 15
    assert some.input_sample.hot_share([5]) == 0.0
    assert some.input_sample.train_inputs == whole.input_sample.train_inputs == 20
    assert whole.input_sample.hot_share([20]) == 1.0, "where all are profiled, they are the inputs"
    assert whole.recipe()["config"].keys() == some.recipe()["config"].keys() - {"profile_samples"}
    with pytest.raises(BadInput, match="20 train samples, not the 21 to be profiled"):
        trace(tmp_path, profile_samples=21)
