"""Profiling, planning and counting 5.3 billion rows stays under 6 GiB."""

import importlib

import pytest

from shardbench.base.errors import BadInput

peak = importlib.import_module("shardbench.baselines.recshard.reproduction.peak")
GIB = 2**30


@pytest.mark.parametrize(
    "samples", [pytest.param(1024, id="few"), pytest.param(1 << 20, id="suite", marks=pytest.mark.slow)]
)
def test_rm3_stays_under_six_gib(samples: int) -> None:
    used = peak.peak_rss_bytes("rm3", samples)
    # Less would mean that nothing was measured: the libraries alone take more.
    assert GIB / 16 < used < 6 * GIB


def test_an_unknown_model_is_refused() -> None:
    with pytest.raises(BadInput, match="there is no model rm9: it is one of rm1, rm2, rm3"):
        peak.peak_rss_bytes("rm9", 1024)


def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(BadInput, match="planning rm1 in a process of its own failed: "):
        peak.peak_rss_bytes("rm1", 0)
