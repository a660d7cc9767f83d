"""Preparing eight times the rows takes no more memory."""

import importlib.util
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / "tools" / "prepare_scale.py"


@pytest.mark.slow
def test_peak_memory_does_not_grow_with_the_rows() -> None:
    spec = importlib.util.spec_from_file_location("prepare_scale", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    rows = script.measure((250_000, 2_000_000), repeated_rows=0)
    peaks = {(row["data_set"], row["file"], row["rows"]): row["peak_bytes"] for row in rows}
    for data_set in ("criteo_kaggle", "criteo_terabyte"):
        assert peaks[data_set, "text", 2_000_000] < 1.2 * peaks[data_set, "text", 250_000]
