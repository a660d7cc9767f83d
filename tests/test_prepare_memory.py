"""Preparing eight times the rows takes no more memory."""

import prepare_scale
import pytest


@pytest.mark.slow
def test_peak_memory_does_not_grow_with_the_rows() -> None:
    rows = prepare_scale.measure((250_000, 2_000_000), repeated_rows=0)
    peaks = {(row["data_set"], row["file"], row["rows"]): row["peak_bytes"] for row in rows}
    for data_set in ("criteo_kaggle", "criteo_terabyte"):
        assert peaks[data_set, "text", 2_000_000] < 1.2 * peaks[data_set, "text", 250_000]
