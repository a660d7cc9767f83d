"""Counting 60 synthetic tables at 65,536 samples against plans for 8, 128 and 1,024 devices."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from counting_scale import measure

TABLES = 60


@pytest.mark.parametrize("devices", [8, 128, 1024])
def test_counting_scale(benchmark, devices):
    (row,) = benchmark.pedantic(measure, (TABLES, (devices,)), rounds=1, iterations=1)
    benchmark.extra_info.update(row)
    assert row["peak_bytes"] < 8e9
