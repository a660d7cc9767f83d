"""Preparing a tenth of a million rows of Criteo's form, beside reading their columns."""

import pyarrow.csv
import pytest
from cases.case import cpu_s
from prepare_scale import one, packed, write_log
from ratios import beside

ROWS = 100_000


@pytest.mark.benchmark(timer=cpu_s)
@pytest.mark.parametrize("file", ["text", "gz"])
@pytest.mark.parametrize("data_set", ["criteo_kaggle", "criteo_terabyte"])
def test_prepare(benchmark, tmp_path, data_set, file):
    plain = tmp_path / "day_0"
    write_log(plain, ROWS)
    source = packed(plain) if file == "gz" else plain
    targets = (tmp_path / f"out{number}" for number in range(9))
    benchmark.pedantic(lambda: one(data_set, source, next(targets)), rounds=5, iterations=1, warmup_rounds=1)
    options = {
        "read_options": pyarrow.csv.ReadOptions(autogenerate_column_names=True),
        "parse_options": pyarrow.csv.ParseOptions(delimiter="\t"),
    }
    beside(benchmark, "reading it with pyarrow", lambda: pyarrow.csv.read_csv(source, **options))
