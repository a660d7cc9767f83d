"""The studies and claims that baselines bring: well-formed, and their numbers are what their definitions say."""

import importlib
from pathlib import Path

import pandas as pd
import pytest

from shardbench.records.cell import cell_key
from shardbench.records.store import cell_store
from shardbench.report.files import frame_csv
from shardbench.studies.claim import Evidence
from shardbench.studies.files import check_study_files
from shardbench.studies.reproduction import find_reproduction, reproduction_names

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
    assert not any(found.observe(Evidence(records=(), tables={})).values())
    for claim in found.claims:
        assert "memory" not in claim.source or not claim.sourced, claim.name


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_tables_are_what_the_records_give(name: str) -> None:
    found = find_reproduction(name)
    assert check_study_files(found, RESULTS) == [], f"make them again with: nox -s publish -- {name}"
    for study in found.studies:
        known = cell_store(RESULTS, name, study.name).latest()
        missing = [
            cell
            for cell in study.cells(False)
            if cell_key(study.name, study.version, cell) not in known and not study.optional(cell)
        ]
        assert missing == [], f"make them again with: nox -s publish -- {name}"
        environments = {path.stem for path in (RESULTS / "environments").glob("*.json")}
        assert {record.environment for record in known.values()} <= environments


def recshard_rows(numbers: dict[str, tuple[float, float, float]], **keys: object) -> list[dict[str, object]]:
    """One a strategy -> slowest, spread, lookups off HBM; every mean is 2 ms, and 80 % of the rows are untouched."""
    more = {"never_touched_pct": 80.0, "off_hbm_lookups_pct": 1.0}
    return [
        {**keys, **more, "strategy": name, "slowest_ms": a, "std_ms": b, "cv": b / 2.0, "off_hbm_lookups": c}
        for name, (a, b, c) in numbers.items()
    ]


def test_recshard_claims_are_one_number_a_draw_against_the_best_greedy_and_against_each() -> None:
    observe = importlib.import_module("shardbench.baselines.recshard.reproduction.claims").observations
    greedies = dict(zip(GREEDIES, ((40.0, 9.0, 499.0), (12.0, 6.0, 49.0), (20.0, 3.0, 99.0))))
    ours = (
        ("rm2", "machine", 0, 4.0, 4.0), ("rm3", "machine", 0, 2.0, 0.0), ("rm2", "machine", 1, 1.0, 0.0),
        ("rm1", "machine", 0, 99.0, 9.0), ("rm2", "quarter", 1, 3.0, 49.0),
    )  # fmt: skip
    rows = [
        row
        for form, hbm, draw, slowest, off in ours
        for row in recshard_rows(
            {**greedies, "recshard": (slowest, 1.0, off)}, workload=form, hbm=hbm, features_seed=draw
        )
    ]
    seen = observe(Evidence(records=(), tables={"draws": pd.DataFrame(rows)}))
    # Draw 0: rm2 gives 12 / 4 and rm3 12 / 2; draw 1 has rm2 alone, 12 / 1; rm1 fits and does not count.
    assert seen["throughput"] == pytest.approx([18**0.5, 12.0])
    assert seen["throughput-each"] == pytest.approx([(10 * 3 * 5 * 20 * 6 * 10) ** (1 / 6), (40 * 12 * 20) ** (1 / 3)])
    assert seen["balance"] == seen["balance-cv"] == pytest.approx([3.0, 3.0])
    # One lookup more for all: 50 to 5 and 50 to 1, and no ratio to nothing.
    assert seen["slow-accesses"] == pytest.approx([(10 * 50) ** 0.5, 50.0])
    assert seen["slow-accesses-each"] == pytest.approx(
        [(100 * 10 * 20 * 500 * 50 * 100) ** (1 / 6), (500 * 50 * 100) ** (1 / 3)]
    )
    assert seen["throughput-quarter"] == pytest.approx([4.0])
    assert seen["slow-accesses-quarter"] == pytest.approx([1.0])
    assert seen["hash-under-use"] == [80.0, 80.0]


def test_dreamshard_margins_are_over_the_best_greedy() -> None:
    observe = importlib.import_module("shardbench.baselines.dreamshard.reproduction.claims").observations
    costs = {
        "shuffle": 30.0,
        "greedy-size": 26.0,
        "greedy-lookup": 22.0,
        "dreamshard": 20.0,
        "dreamshard-untrained": 25.0,
        "greedy-cost": 19.0,
    }
    rows = [
        {"task": "DLRM-20 (4)", "split": split, "strategy": name, "cost_ms_mean": cost * scale}
        for split, scale in (("train", 1.0), ("test", 2.0))
        for name, cost in costs.items()
    ]
    seen = observe(Evidence(records=(), tables={"table": pd.DataFrame(rows), "mixed": pd.DataFrame(rows)}))
    assert seen["gain-over-random"] == pytest.approx([1.5])
    assert seen["margin-equal-widths"] == pytest.approx([1.1])
    assert seen["largest-margin"] == pytest.approx([1.1])
    assert seen["rows-ahead"] == [100.0]
    assert seen["generalises"] == pytest.approx([1.0])
    assert seen["learning-helps"] == pytest.approx([1.25, 1.25])
    assert seen["beats-greedy-cost"] == pytest.approx([0.95, 0.95])


def test_dreamshards_paper_numbers_are_the_papers_table_by_our_definitions() -> None:
    found = find_reproduction("dreamshard")
    published = importlib.import_module("shardbench.baselines.dreamshard.reproduction.paper_table")
    rows = [
        {"task": task, "split": split, "strategy": name, "cost_ms_mean": ms}
        for (task, split), cells in published.published_rows().items()
        for name, (ms, _) in cells.items()
    ]
    table = pd.DataFrame(rows)
    mixed = table["task"].str.startswith("Mixed")
    assert found.observe is not None
    seen = found.observe(Evidence(records=(), tables={"table": table[~mixed], "mixed": table[mixed]}))
    for name in ("gain-over-random", "margin-equal-widths", "rows-ahead", "generalises", "margin-mixed-widths"):
        (claim,) = [claim for claim in found.claims if claim.name == name]
        numbers = [claim.scale.shown(number) for number in seen[name]]
        assert claim.paper == pytest.approx(sum(numbers) / len(numbers), abs=6e-3), name
    assert published.published_as("Mixed-80 (8)") == "Prod-80 (8)"
    assert published.published_as("DLRM-20 (4)") == "DLRM-20 (4)"


def test_autoshard_is_held_against_the_best_greedy_task_by_task() -> None:
    observe = importlib.import_module("shardbench.baselines.autoshard.reproduction.claims").observations

    def tasks(row: str, **kernel_ms: tuple[float, float]) -> pd.DataFrame:
        named = {name.replace("_", "-"): ms for name, ms in kernel_ms.items()}
        return pd.DataFrame({"task": row, "split": "test", "number": [0, 1], **named})

    # Dim is best in the mean: that it is not on the second task does not count.
    mine = tasks("Auto-80 (8)", autoshard=(10.0, 20.0), greedy_dim=(12.0, 30.0), greedy_lookup=(30.0, 28.0))
    mine["autoshard-untrained"] = [20.0, 60.0]
    other = tasks("Auto-40 (4)", autoshard=(10.0, 10.0), greedy_dim=(9.0, 9.0), greedy_lookup=(9.5, 9.5))
    trained = pd.concat([mine, other, mine.assign(split="train", autoshard=1.0)])
    one_width = tasks("DLRM-20 (4)", autoshard=(10.0, 10.0), greedy_dim=(40.0, 10.0), greedy_lookup=(99.0, 99.0))
    seen = observe(Evidence(records=(), tables={"table_tasks": trained, "equal_tasks": one_width}))
    assert seen["beats-heuristics"] == pytest.approx([1.2, 1.5])
    assert seen["beats-heuristics-rows"] == pytest.approx([(1.2 * 1.5) ** 0.5, 0.9, 2.0])
    assert seen["learning-helps"] == pytest.approx([2.0, 3.0])
    transfer = pd.DataFrame(
        {
            "trained_on": ["a"] * 6,
            "used_on": ["b", "b", "a", "a", "a", "a"],
            "task_set": ["test", "test", "test", "shares", "shares", "shares"],
            "unseen_tables_pct": [100.0, 100.0, 100.0, 50.0, 100.0, 0.0],
            "kernel_ms": [9.0, 11.0, 10.0, 10.0, 10.0, 1.0],
            "best_greedy_ms": [11.0, 11.0, 12.0, 50.0, 9.0, 9.0],
        }
    )
    seen = observe(Evidence(records=(), tables={"transfer": transfer}))
    # Two seeds of one pair are one number; of shares only tasks with a table that was not seen in training count.
    assert seen["transfers"] == pytest.approx([1.1])
    assert seen["unseen-tables"] == pytest.approx([5.0, 0.9])


def test_the_rnn_is_held_against_random_its_order_and_chance() -> None:
    observe = importlib.import_module("shardbench.baselines.rnn_placer.reproduction.claims").observations
    costs = {
        "best device": 10.0,
        "one sample": 11.0,
        "best of 64 samples": 8.0,
        "best of 64 random placements": 9.0,
        "dealt out": 12.0,
    }
    rows = [
        {"task": task, "order": order, "acting": acting, "cost_ms_mean": scale * cost, "random_ms": 15.0}
        for task in ("DLRM-20 (4)", "DLRM-80 (8)")
        for order, scale in (("as given", 2.0), ("by cost", 1.0))
        for acting, cost in costs.items()
    ]
    seen = observe(Evidence(records=(), tables={"acting": pd.DataFrame(rows)}))
    assert seen["ahead-on-4-devices"] == pytest.approx([0.75])
    assert seen["behind-on-8-devices"] == pytest.approx([0.75])
    assert seen["order-decides"] == pytest.approx([2.0, 2.0])
    assert seen["more-than-its-order"] == pytest.approx([1.2] * 4)
    assert seen["samples-beat-chance"] == pytest.approx([9.0 / 8.0] * 4)


def test_dreamshard_knows_the_papers_table() -> None:
    published = importlib.import_module("shardbench.baselines.dreamshard.reproduction.paper_table")
    assert len(published.published_rows()) == 26
    assert published.published_ms("DLRM-20 (4)", "train", "dreamshard") == 18.6
    assert published.published_ms("Mixed-80 (8)", "test", "greedy-dim") == 41.9
    assert published.published_ms("DLRM-20 (4)", "train", "autoshard") is None


def test_csv_has_six_significant_digits_and_no_word_for_nothing() -> None:
    frame = pd.DataFrame({"a": [1.0, 0.123456789, None], "b": ["x", None, "y,z"], "c": [True, False, True]})
    assert frame_csv(frame) == 'a,b,c\n1,x,true\n0.123457,,false\n,"y,z",true\n'
