"""The committed kernel times give the committed measured table again, on a machine that measures nothing."""

import csv
from pathlib import Path

import pytest

from shardbench.baselines.dreamshard.timed import HEURISTICS, TRAINED, UNTRAINED, costs_path, timed_rows
from shardbench.learned.recorded import RecordedOracle
from shardbench.trace import Split

RESULTS = Path(__file__).parents[1] / "results"
SHOWN = ("cost_ms_mean", "cost_ms_sem", "kernel_ms_mean", "modelled_cost_ms_mean")
AGAIN = "make it again with: nox -s publish -- dreamshard --study measured --force"


def _agree(folder, strategies):
    learned_from, judged = (RecordedOracle(costs_path(RESULTS, split)) for split in (Split.TRAIN, Split.TEST))
    with (RESULTS / "tables" / "dreamshard" / "measured.csv").open() as lines:
        committed = {row["strategy"]: row for row in csv.DictReader(lines)}
    rows = timed_rows(0, folder, learned_from, judged, strategies)
    assert [row["strategy"] for row in rows] == list(strategies)
    for row in rows:
        for column in SHOWN:
            expected = float(committed[row["strategy"]][column])
            assert row[column] == pytest.approx(expected, rel=1e-4), (row["strategy"], column, AGAIN)


def test_heuristics_judged_by_committed_times(tmp_path):
    _agree(tmp_path / "cache" / "dreamshard", HEURISTICS)


@pytest.mark.slow
def test_dreamshard_learns_from_committed_times(tmp_path):
    """Another processor may round the networks otherwise, then ask for sets that are not there."""
    _agree(tmp_path / "cache" / "dreamshard", (TRAINED, UNTRAINED))
