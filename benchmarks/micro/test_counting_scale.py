"""Counting 60 synthetic tables at 65,536 samples against plans for 128 and 1,024 devices, beside one for 8."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from counting_scale import measure
from ratios import Ratio, add

TABLES = 60


@pytest.mark.parametrize("devices", [128, 1024])
def test_counting_scale(benchmark, devices):
    few, many = benchmark.pedantic(measure, (TABLES, (8, devices)), rounds=1, iterations=1)
    add(benchmark, Ratio.of("counting for 8 devices", [many["cpu_s"]], [few["cpu_s"]]))
    assert many["peak_bytes"] < 8e9
