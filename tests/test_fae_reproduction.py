"""FAE's region, its counts of skew, and the public code's rule, against cases by hand."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from shardbench.baselines.fae.reproduction.claims import observations
from shardbench.baselines.fae.reproduction.region import KNOBS, PART, REGION, SmallKaggle, skewed
from shardbench.baselines.fae.reproduction.studies import top_share, tutorial_row
from shardbench.datasets.criteo_like import HeadTailLaw
from shardbench.datasets.laws.power_law import PowerLaw
from shardbench.studies.claim import Evidence


def test_the_share_of_the_top_rows_by_hand():
    counts = np.array([9, 5, 5, 1, 1, 1, 1])
    accesses = np.array([9, 5, 5, 1, 0])
    assert top_share(counts, accesses, 1) == pytest.approx(1 / 5)
    assert top_share(counts, accesses, 2) == pytest.approx((1 + 2 * 0.5) / 5), "one of two rows with five accesses"
    assert top_share(counts, accesses, 3) == pytest.approx(3 / 5)
    assert top_share(counts, accesses, 5) == pytest.approx((3 + 0.5) / 5)
    assert top_share(counts, accesses, 100) == pytest.approx(4 / 5), "never-seen rows are not among the top"


def test_a_law_to_a_power_has_all_frequencies_to_it():
    law = HeadTailLaw(
        head=np.array([8.0, 4.0, 2.0]), tail=PowerLaw(rows=1000, exponent=1.5, shift=2.0), tail_weight=20.0
    )
    assert law.tail is not None
    same = skewed(law, law.rows, 1.0)
    assert same.tail == law.tail
    assert same.tail_weight == pytest.approx(law.tail_weight)
    flat = skewed(law, 503, 0.5)
    assert flat.rows == 503
    np.testing.assert_allclose(flat.head**2, law.head)
    first = [one.tail_weight * float(one.tail.cdf(np.array([1.0]))[0]) for one in (law, flat)]
    assert first[1] ** 2 == pytest.approx(first[0])
    assert skewed(law, 2, 2.0).head.tolist() == [64.0, 16.0]


def test_kaggle_in_small_has_its_tables_and_links_its_knobs():
    kind = {"batch_size": 1024, "logged": 4096, "dense_scale": 2.0, "dependence": 0.5}
    small = SmallKaggle(skew=1.0, **kind)
    assert (small.tables[2].rows, small.tables[8].rows) == (-(-10_131_227 // PART), 1)
    assert (small.dense.bottom, small.dense.top) == ((1024, 512, 128, 16), (1024, 512, 1))
    steep = SmallKaggle(skew=1.3, **kind)
    assert steep.profiles[2].seen_rows < small.profiles[2].seen_rows
    assert {"skew", "column_dependence"} < {knob.name for knob in KNOBS}
    assert len(REGION.cells(False)) == 64
    assert all(knob.reason for knob in KNOBS)


def test_the_public_rule_on_columns_that_depend_and_on_independent_ones():
    dependent, independent = (tutorial_row(Path(), scale, 0) for scale in (1.0, 0.0))
    assert dependent["hot_rows"] == 8_388_608
    for row in (dependent, independent):
        # Filled room is a quarter of all rows: inputs with a few never-logged values become hot, too.
        assert row["hot_without_filling_pct"] < row["hot_inputs_pct"] < 100.0
    assert dependent["hot_inputs_pct"] > 1.5 * independent["hot_inputs_pct"]
    claimed = observations(
        Evidence(
            records=(),
            tables={
                "tutorial": pd.DataFrame(
                    [dependent | {"column_dependence": 1}, independent | {"column_dependence": 0}]
                ),
                "skew": pd.DataFrame(
                    {"table": ["C3", "all"], "hottest_over_median_x": [5.0, 7.0], "top_rows_accesses_pct": [None, 80.0]}
                ),
            },
        )
    )  # fmt: skip
    assert claimed["hot-inputs"] == [independent["hot_inputs_pct"]], "the dependence was fitted to shares of hot inputs"
    assert (claimed["skew"], claimed["top-rows"]) == ([5.0], [80.0])
