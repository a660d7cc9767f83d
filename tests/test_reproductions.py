"""The studies and claims that baselines bring: well-formed, and their numbers are what their definitions say."""

import importlib
from pathlib import Path

import pandas as pd
import pytest
from records import ok, totals

from shardbench.reproduction.claim import Evidence, claims_frame
from shardbench.reproduction.files import check_files, frame_csv
from shardbench.reproduction.found import find_reproduction, reproduction_names
from shardbench.reproduction.study_store import StudyStore, cell_key
from shardbench.trial import Backend

RESULTS = Path(__file__).parent.parent / "results"
NAMES = reproduction_names()
COMMITTED = sorted(path.name for path in (RESULTS / "studies").glob("*") if path.is_dir())
GREEDIES = ("greedy-size", "greedy-lookup", "greedy-size-lookup")


@pytest.mark.parametrize("name", NAMES)
def test_cells_are_distinct_and_quick_ones_are_among_them(name: str) -> None:
    for study in find_reproduction(name).studies:
        full = [cell_key(study.name, study.version, cell) for cell in study.cells(False)]
        quick = {cell_key(study.name, study.version, cell) for cell in study.cells(True)}
        assert len(set(full)) == len(full), study.name
        assert quick <= set(full), study.name
        assert (study.__doc__ or "").strip(), study.name


@pytest.mark.parametrize("name", NAMES)
def test_claims_are_untested_without_evidence_and_sourced_ones_name_the_paper(name: str) -> None:
    found = find_reproduction(name)
    assert found.claims
    assert found.observe is not None
    frame = claims_frame(found.claims, found.observe(Evidence(records=(), tables={})), name)
    assert set(frame["verdict"]) == {"not tested"}
    for claim in found.claims:
        assert "memory" not in claim.source or not claim.sourced, claim.name


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_tables_are_what_the_records_give(name: str) -> None:
    found = find_reproduction(name)
    assert check_files(found, RESULTS) == [], f"make them again with: nox -s publish -- {name}"
    for study in found.studies:
        known = StudyStore(RESULTS, name, study.name).latest()
        missing = [cell for cell in study.cells(False) if cell_key(study.name, study.version, cell) not in known]
        assert missing == [], f"make them again with: nox -s publish -- {name}"
        environments = {path.stem for path in (RESULTS / "environments").glob("*.json")}
        assert {record.environment for record in known.values()} <= environments


def test_recshard_divides_by_the_best_greedy_and_by_each() -> None:
    observe = importlib.import_module("shardbench.baselines.recshard.claims").observations
    simulated = {"backend": Backend.SIMULATED, "workload": "rm2"}
    times = {"recshard": (2.0, 2.0, 4.0), "greedy-size": (1.0, 9.0, 40.0), "greedy-lookup": (2.0, 3.0, 12.0)}
    times["greedy-size-lookup"] = (2.0, 2.0, 20.0)
    off = {"recshard": 5.0, "greedy-size": 500.0, "greedy-lookup": 50.0, "greedy-size-lookup": 100.0}
    records = tuple(
        ok(name, (1.0,), embedding, changes={"traffic": totals(off_hbm_lookups=off[name])}, **simulated)
        for name, embedding in times.items()
    )
    seen = observe(Evidence(records=records, tables={}))
    assert seen["throughput"] == [3.0]
    assert sorted(seen["throughput-each"]) == [3.0, 5.0, 10.0]
    assert seen["slow-accesses"] == [10.0]
    assert sorted(seen["slow-accesses-each"]) == [10.0, 20.0, 100.0]
    ours, lookup = pd.Series([2.0, 2.0, 4.0]).std(ddof=0), pd.Series([2.0, 3.0, 12.0]).std(ddof=0)
    assert seen["balance"] == pytest.approx([lookup / ours])
    without = tuple(record for record in records if record.spec.strategy != "greedy-size")
    assert observe(Evidence(records=without, tables={})) == {}


def test_recshard_sensitivity_averages_ratios_over_draws() -> None:
    table = importlib.import_module("shardbench.baselines.recshard.studies").sensitivity_table
    rows = []
    for seed, ours in ((0, 2.0), (1, 4.0)):
        for name, slowest in (*zip(GREEDIES, (8.0, 12.0, 20.0)), ("recshard", ours), ("recshard-unseen", 1.0)):
            rows.append({
                "factor": "uvm_gb_per_s", "value": 8.0, "features_seed": seed, "strategy": name, "slowest_ms": slowest,
                "std_ms": slowest / 2, "off_hbm_lookups_pct": 1.0,
                "off_hbm_lookups": 0.0 if name == "recshard" else 10.0,
            })  # fmt: skip
    ours, unseen = table(pd.DataFrame(rows)).to_dict("records")
    assert (ours["throughput_x"], ours["throughput_low_x"], ours["throughput_high_x"]) == (3.0, 2.0, 4.0)
    assert ours["n"] == 2
    assert ours["off_hbm_x"] != ours["off_hbm_x"], "a ratio to nothing is no number"
    assert (unseen["strategy"], unseen["throughput_x"], unseen["off_hbm_x"]) == ("recshard-unseen", 8.0, 1.0)


def test_dreamshard_margins_are_over_the_best_greedy() -> None:
    observe = importlib.import_module("shardbench.baselines.dreamshard.claims").observations
    costs = {
        "shuffle": 30.0,
        "greedy-size": 26.0,
        "greedy-lookup": 22.0,
        "dreamshard": 20.0,
        "dreamshard-untrained": 25.0,
    }
    rows = [
        {"task": "DLRM-20 (4)", "split": split, "strategy": name, "cost_ms_mean": cost * scale}
        for split, scale in (("train", 1.0), ("test", 2.0))
        for name, cost in costs.items()
    ]
    seen = observe(Evidence(records=(), tables={"table": pd.DataFrame(rows), "mixed": pd.DataFrame(rows)}))
    assert seen["gain-over-random"] == pytest.approx([50.0])
    assert seen["margin-equal-widths"] == pytest.approx([10.0])
    assert seen["largest-margin"] == pytest.approx([10.0])
    assert seen["generalises"] == pytest.approx([0.0])
    assert seen["learning-helps"] == pytest.approx([25.0, 25.0])


def test_dreamshard_knows_the_papers_table() -> None:
    published = importlib.import_module("shardbench.baselines.dreamshard.published")
    assert len(published.published_rows()) == 26
    assert published.published_ms("DLRM-20 (4)", "train", "dreamshard") == 18.6
    assert published.published_ms("Mixed-80 (8)", "test", "greedy-dim") == 41.9
    assert published.published_ms("DLRM-20 (4)", "train", "autoshard") is None


def test_csv_has_six_significant_digits_and_no_word_for_nothing() -> None:
    frame = pd.DataFrame({"a": [1.0, 0.123456789, None], "b": ["x", None, "y,z"], "c": [True, False, True]})
    assert frame_csv(frame) == 'a,b,c\n1,x,true\n0.123457,,false\n,"y,z",true\n'
