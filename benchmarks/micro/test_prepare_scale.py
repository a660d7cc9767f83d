"""Rows of Criteo's form prepared per CPU second, at a tenth of a million rows."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from prepare_scale import one, packed, write_log

ROWS = 100_000


@pytest.mark.parametrize("file", ["text", "gz"])
@pytest.mark.parametrize("data_set", ["criteo_kaggle", "criteo_terabyte"])
def test_prepare(benchmark, tmp_path, data_set, file):
    plain = tmp_path / "day_0"
    write_log(plain, ROWS)
    source = packed(plain) if file == "gz" else plain
    targets = (tmp_path / f"out{number}" for number in range(9))
    seconds = []
    benchmark.pedantic(
        lambda: seconds.append(one(data_set, source, next(targets))[0]), rounds=5, iterations=1, warmup_rounds=1
    )
    benchmark.extra_info["rows_per_cpu_s"] = round(ROWS / sorted(seconds[1:])[2])
