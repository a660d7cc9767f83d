"""The studies and claims that baselines bring: well-formed, and their numbers are what their definitions say."""

import inspect
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from shardbench.base.statistics import log_mean
from shardbench.baselines.autoshard.reproduction import claims as autoshard_claims
from shardbench.baselines.dreamshard.reproduction import beside_paper
from shardbench.baselines.dreamshard.reproduction import claims as dreamshard_claims
from shardbench.baselines.dreamshard.reproduction.studies import TRANSFER
from shardbench.baselines.recshard.reproduction import claims as recshard_claims
from shardbench.baselines.rnn_placer.reproduction import claims as rnn_claims
from shardbench.records.cell import cell_key
from shardbench.records.store import cell_store
from shardbench.report.tables.files import frame_csv
from shardbench.studies import ledger
from shardbench.studies.claim import Evidence
from shardbench.studies.contests.contest import BEST_FOUND
from shardbench.studies.reproduction import find_reproduction
from shardbench.trials.discovery import reproduction_names, strategies

RESULTS = Path(__file__).parent.parent / "results"
NAMES = reproduction_names()
COMMITTED = sorted(path.name for path in (RESULTS / "studies").glob("*") if path.is_dir())
OURS = ("drift", "joint", "leaderboard")
"""They reproduce no paper: nobody claimed anything."""
LEDGER_ONCE = cache(ledger.check_ledger)
"""Every paper's check holds the ledger of all of them against the records: that takes seconds."""
GREEDIES = ("greedy-size", "greedy-lookup", "greedy-size-lookup")


@pytest.mark.parametrize("name", NAMES)
def test_cells_are_distinct_ask_known_strategies_and_quick_ones_are_some_of_them(name: str) -> None:
    for study in find_reproduction(name).studies:
        full = [cell_key(study.name, study.version, cell) for cell in study.cells(False)]
        quick = {cell_key(study.name, study.version, cell) for cell in study.cells(True)}
        assert len(set(full)) == len(full), study.name
        assert quick < set(full) or not full, study.name
        asked = {name for cell in study.cells(False) for name in study.strategies_of(cell)}
        assert asked <= {*strategies(), BEST_FOUND}, study.name
        for cell in study.cells(False):
            inspect.signature(study.judge).bind(Path(), **cell)
        assert study.title.strip(), study.name


@pytest.mark.parametrize("name", NAMES)
def test_claims_are_untested_without_evidence_and_sourced_ones_name_the_paper(name: str) -> None:
    found = find_reproduction(name)
    if name in OURS:
        assert not found.claims
        return
    assert found.claims
    assert found.observe is not None
    assert not any(found.observe(Evidence(records=(), tables={})).values())
    for claim in found.claims:
        assert "memory" not in claim.source or not claim.sourced, claim.name


@pytest.mark.parametrize("name", COMMITTED)
def test_committed_tables_are_what_the_records_give(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "check_ledger", LEDGER_ONCE)
    found = find_reproduction(name)
    assert ledger.check_study_files(found, RESULTS) == [], f"make them again with: nox -s publish -- {name}"
    for study in found.studies:
        known = cell_store(RESULTS, name, study.name).latest()
        missing = [
            cell
            for cell in study.cells(False)
            if cell_key(study.name, study.version, cell) not in known and not study.optional(cell)
        ]
        assert missing == [], f"make them again with: nox -s publish -- {name}"
        backends = {row["backend"] for record in known.values() for row in record.rows}
        assert backends <= {study.backend}, study.name
        environments = {path.stem for path in (RESULTS / "environments").glob("*.json")}
        assert {record.environment for record in known.values()} <= environments


def seen_by(claims: ModuleType, tables: Mapping[str, pd.DataFrame]) -> Mapping[str, Sequence[float]]:
    numbers: Mapping[str, Sequence[float]] = claims.observations(Evidence(records=(), tables=tables))
    return numbers


def recshard_rows(numbers: dict[str, tuple[float, float, float]], **keys: object) -> list[dict[str, object]]:
    """One a strategy -> slowest, spread, lookups off HBM; every mean is 2 ms, and 80 % of the rows are untouched."""
    more = {"never_touched_pct": 80.0, "off_hbm_lookups_pct": 1.0, "gap_pct": 0.5}
    return [
        {**keys, **more, "strategy": name, "slowest_ms": a, "std_ms": b, "cv": b / 2.0, "off_hbm_lookups": c}
        for name, (a, b, c) in numbers.items()
    ]


def test_recshard_claims_are_one_number_a_draw_against_the_best_greedy_and_against_each() -> None:
    greedies = dict(zip(GREEDIES, ((40.0, 9.0, 499.0), (12.0, 6.0, 49.0), (20.0, 3.0, 99.0))))
    ours = (
        ("rm2", "machine", 0, 4.0, 4.0),
        ("rm3", "machine", 0, 2.0, 0.0),
        ("rm2", "machine", 1, 1.0, 0.0),
        ("rm1", "machine", 0, 99.0, 9.0),
        ("rm2", "quarter", 1, 3.0, 49.0),
    )
    rows = [
        row
        for form, hbm, draw, slowest, off in ours
        for row in recshard_rows(
            {**greedies, "recshard": (slowest, 1.0, off)}, workload=form, hbm=hbm, features_seed=draw
        )
    ]
    seen = seen_by(recshard_claims, {"draws": pd.DataFrame(rows)})
    # Draw 0: rm2 gives 12 / 4 and rm3 12 / 2; draw 1 has rm2 alone, 12 / 1; rm1 fits and does not count.
    assert seen["throughput-stand-in"] == pytest.approx([18**0.5, 12.0])
    assert seen["throughput-stand-in-each"] == pytest.approx(
        [(10 * 3 * 5 * 20 * 6 * 10) ** (1 / 6), (40 * 12 * 20) ** (1 / 3)]
    )
    assert seen["balance-stand-in"] == seen["balance-stand-in-cv"] == pytest.approx([3.0, 3.0])
    # One lookup more for all: 50 to 5 and 50 to 1, and no ratio to nothing.
    assert seen["slow-accesses-stand-in"] == pytest.approx([(10 * 50) ** 0.5, 50.0])
    assert seen["slow-accesses-stand-in-each"] == pytest.approx(
        [(100 * 10 * 20 * 500 * 50 * 100) ** (1 / 6), (500 * 50 * 100) ** (1 / 3)]
    )
    assert seen["throughput-stand-in-quarter"] == pytest.approx([4.0])
    assert seen["slow-accesses-stand-in-quarter"] == pytest.approx([1.0])
    assert seen["optimal-stand-in"] == [0.5, 0.5]
    columns = [(4.0, 5_000, 1.0), (1.0, 5_000, 37.0), (1.0, 20, 30.0)]
    hashed = pd.DataFrame(columns, columns=["values_a_row", "values", "never_touched_pct"])
    assert seen_by(recshard_claims, {"hashing": hashed})["hash-under-use-public"] == [37.0]
    assert seen["hash-under-use-stand-in"] == [80.0, 80.0]


def task_rows(task: str, split: str, **costs: tuple[float, ...]) -> list[dict[str, object]]:
    """A task table's lines: costs by strategy (a dash is written _), one a task."""
    names = [name.replace("_", "-") for name in costs]
    return [
        {"task": task, "split": split, "number": number, **dict(zip(names, of_task))}
        for number, of_task in enumerate(zip(*costs.values(), strict=True))
    ]


def dreamshards_numbers(table: pd.DataFrame, mixed: pd.DataFrame) -> Mapping[str, Sequence[float]]:
    rows = beside_paper.row_table(table[table["split"] == "test"])
    return seen_by(dreamshard_claims, {"table_tasks": table, "mixed_tasks": mixed, "table_rows": rows})


def test_dreamshard_is_held_against_the_strongest_baseline_task_by_task() -> None:
    on_20, on_40, even = "DLRM-20 (4)", "DLRM-40 (4)", (10.0, 10.0)
    rows = [
        # greedy-dim is the cheapest in the mean of the first row, though not on its second task.
        task_rows(on_20, "test", dreamshard=even, greedy_dim=(11.0, 12.0), shuffle=(30.0, 11.0)),
        task_rows(on_40, "test", dreamshard=even, greedy_dim=(9.0, 9.0), shuffle=(8.0, 8.0)),
        task_rows(on_20, "train", dreamshard=even, greedy_dim=(9.0, 9.0), shuffle=(20.0, 20.0)),
        task_rows(on_40, "train", dreamshard=even, greedy_dim=(9.0, 9.0), shuffle=(20.0, 20.0)),
    ]
    table = pd.DataFrame([line for lines in rows for line in lines])
    mixed = pd.DataFrame(task_rows("Mixed-80 (8)", "test", dreamshard=even, rnn_rl=(12.0, 5.0)))
    seen = dreamshards_numbers(table, mixed)
    # By row, over the paper's own margins: 18.3 over 17.6 and 33.0 over 32.4, and over random 23.0 and 41.1.
    own = [18.3 / 17.6 - 1.0, 33.0 / 32.4 - 1.0]
    assert seen["margin-open-tables"] == pytest.approx([((1.1 * 1.2) ** 0.5 - 1.0) / own[0], -0.2 / own[1]])
    random = [23.0 / 17.6 - 1.0, 41.1 / 32.4 - 1.0]
    assert seen["over-random"] == pytest.approx([((3.0 * 1.1) ** 0.5 - 1.0) / random[0], -0.2 / random[1]])
    assert seen["unseen-tables"] == pytest.approx([(3.0 * 0.8) ** 0.5 / 2.0, (1.1 * 0.8) ** 0.5 / 2.0])
    assert seen["margin-open-tables-region"] == pytest.approx([(1.1 * 1.2) ** 0.5, 0.8])
    assert seen["largest-margin-stand-in"] == seen["margin-production-stand-in"] == pytest.approx([1.2, 0.5])
    # Two rows: the paper's margins fall from the first to the second, as ours do.
    assert seen["margin-open-tables-order"] == pytest.approx([1.0])
    assert "over-rnn" not in seen
    assert "learning-helps" not in seen


def test_dreamshard_trained_elsewhere_is_held_against_itself_trained_there() -> None:
    rows = pd.DataFrame(
        {
            "trained_on": ["a", "a", "a", "b", "b", "b", "a"],
            "seed": [0, 1, 0, 0, 0, 1, 0],
            "used_on": ["a", "a", "b", "a", "b", "b", "a"],
            "task_set": ["test"] * 6 + ["shares"],
            "unseen_tables_pct": 100.0,
            "cost_ms": [9.0, 11.0, 25.0, 8.0, 20.0, 20.0, 1.0],
            "bound_ms": 1.0,
            "best_greedy": "g",
            "best_greedy_ms": 1.0,
            "infeasible": 0,
        }
    )
    tables = TRANSFER.tables(rows)
    # A policy that is used on its own row alone tells nothing of other rows.
    assert seen_by(dreamshard_claims, tables) == {"other-sizes": pytest.approx([20.0 / 25.0, 10.0 / 8.0])}


def test_dreamshards_paper_numbers_are_the_papers_table_by_our_definitions() -> None:
    rows = [
        {"number": 0, **{name: cell[0] if isinstance(cell, list) else cell for name, cell in row.items()}}
        for row in beside_paper.paper_rows().values()
    ]
    table = pd.DataFrame(rows)
    mixed = table["task"].str.startswith("Mixed")
    seen = dreamshards_numbers(table[~mixed], table[mixed])
    claims = {claim.name: claim for claim in find_reproduction("dreamshard").claims}
    for name in ("margin-open-tables", "over-random", "over-rnn"):
        assert seen[name] == pytest.approx([1.0] * 10), name
    for name in ("margin-production", "largest-margin"):
        number = log_mean(seen[f"{name}-stand-in"]).value
        assert claims[name].paper == pytest.approx(claims[name].scale.in_print(number), abs=0.06), name
    assert seen["margin-open-tables-order"] == pytest.approx([1.0])
    assert min(seen["margin-open-tables-region"]) > 1.01
    assert beside_paper.published_as("Mixed-80 (8)") == "Prod-80 (8)"
    assert beside_paper.published_as("DLRM-20 (4)") == "DLRM-20 (4)"


def test_dreamshards_rows_stand_beside_the_papers_and_their_orders_are_compared() -> None:
    # The paper: 17.6, 32.4 and 9.4 ms; over the strongest baseline 4.0, 1.9 and 1.1 %.
    ours = {
        "DLRM-20 (4)": ((8.8, 8.8), (8.8, 8.8)),
        "DLRM-40 (4)": ((16.2, 16.2), (17.82, 17.82)),
        "DLRM-40 (8)": ((18.8, 18.8), (22.56, 22.56)),
    }
    tasks = pd.DataFrame(
        [row for task, (own, dim) in ours.items() for row in task_rows(task, "test", dreamshard=own, greedy_dim=dim)]
    )
    table = beside_paper.row_table(tasks)
    assert table["ours_over_paper"].tolist() == pytest.approx([0.5, 0.5, 2.0])
    assert table["gain_strongest_pct"].tolist() == pytest.approx([0.0, 10.0, 20.0])
    assert table["gain_strongest_paper_pct"].tolist() == pytest.approx([3.977, 1.852, 1.064], abs=1e-3)
    assert table["strongest_paper"].tolist() == ["greedy-lookup"] * 3
    gains, published = (table[f"gain_strongest_{ending}"].tolist() for ending in ("pct", "paper_pct"))
    assert beside_paper.spearman(gains, published) == pytest.approx(-1.0)
    assert beside_paper.spearman([1.0, 1.0], [1.0, 2.0]) is None


def test_autoshard_is_held_against_the_best_greedy_task_by_task() -> None:
    # Dim is best in the mean: that it is not on the second task does not count.
    mine, other = (
        pd.DataFrame(task_rows(row, "test", autoshard=ours, greedy_dim=dim, greedy_lookup=lookup))
        for row, ours, dim, lookup in (
            ("Auto-80 (8)", (10.0, 20.0), (12.0, 30.0), (30.0, 28.0)),
            ("Auto-40 (4)", (10.0, 10.0), (9.0, 9.0), (9.5, 9.5)),
        )
    )
    mine["autoshard-untrained"] = [20.0, 60.0]
    trained = pd.concat([mine, other, mine.assign(split="train", autoshard=1.0)])
    means = pd.DataFrame(
        {
            "task": ["a", "a", "a", "a", "b", "b"],
            "split": ["test", "test", "test", "train", "test", "test"],
            "strategy": ["autoshard", "greedy-dim", "greedy-lookup", "greedy-dim", "autoshard", "greedy-dim"],
            "kernel_ms_mean": [10.0, 12.0, 11.0, 1.0, 10.0, 9.0],
        }
    )
    seen = seen_by(autoshard_claims, {"table": means, "equal": means, "table_tasks": trained})
    assert seen["beats-heuristics"] == pytest.approx([1.2, 1.5])
    assert seen["beats-heuristics-rows"] == pytest.approx([1.1, 0.9] * 2)
    assert seen["learning-helps"] == pytest.approx([2.0, 3.0])
    transfer = pd.DataFrame(
        {
            "trained_on": ["a"] * 6,
            "seed": [0, 1, 0, 0, 0, 1],
            "used_on": ["b", "b", "a", "a", "a", "a"],
            "task_set": ["test", "test", "test", "shares", "shares", "shares"],
            "unseen_tables_pct": [100.0, 100.0, 100.0, 50.0, 100.0, 0.0],
            "kernel_ms": [9.0, 11.0, 10.0, 10.0, 10.0, 1.0],
            "best_greedy_ms": [11.0, 11.0, 12.0, 50.0, 9.0, 9.0],
        }
    )
    seen = seen_by(autoshard_claims, {"transfer": transfer})
    # A seed is a policy; of shares only tasks with a table that was not seen in training count.
    assert seen["transfers-other-sizes"] == pytest.approx([11.0 / 9.0, 1.0])
    assert seen["transfers-unseen-tables"] == pytest.approx([(5.0 * 0.9) ** 0.5])
    assert seen["transfers"] == pytest.approx([(11.0 / 9.0 * 5.0 * 0.9) ** (1 / 3), 1.0])


def test_the_rnn_is_held_against_its_order_and_chance() -> None:
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
    seen = seen_by(rnn_claims, {"acting": pd.DataFrame(rows)})
    assert seen["order-decides"] == pytest.approx([2.0, 2.0])
    assert seen["more-than-its-order"] == pytest.approx([1.2] * 4)
    assert seen["samples-beat-chance"] == pytest.approx([9.0 / 8.0] * 4)


def test_autoshards_predictions_are_held_against_sums_task_by_task() -> None:
    rows = [
        {"task": task, "seed": seed, "number": 0, "network_error_pct": 1.0 + 2.0 * seed, "sum_error_pct": error}
        for task, error in (("Auto-80 (8)", 8.0), ("Auto-40 (4)", 1.0))
        for seed in range(2)
    ]
    assert seen_by(autoshard_claims, {"prediction": pd.DataFrame(rows)})["predicts"] == pytest.approx([4.0])


def test_the_rnn_is_held_against_random_row_by_row() -> None:
    rows = [
        {"task": task, "split": "test", "number": number, "dreamshard": 8.0, "shuffle": shuffle, "rnn-rl": rnn_ms}
        for task, shuffle, rnn_ms in (("DLRM-20 (4)", 15.0, 10.0), ("DLRM-80 (8)", 15.0, 20.0))
        for number in range(2)
    ]
    seen = seen_by(dreamshard_claims, {"table_tasks": pd.DataFrame(rows)})
    assert seen["rnn-ahead-on-4-devices"] == pytest.approx([1.5])
    assert seen["rnn-behind-on-8-devices"] == pytest.approx([0.75])


def test_dreamshard_knows_the_papers_table() -> None:
    assert len(beside_paper.paper_rows()) == 26
    assert beside_paper.published_ms("DLRM-20 (4)", "train", "dreamshard") == 18.6
    assert beside_paper.published_ms("Mixed-80 (8)", "test", "greedy-dim") == 41.9
    assert beside_paper.published_ms("DLRM-20 (4)", "train", "autoshard") is None


def test_csv_has_six_significant_digits_and_no_word_for_nothing() -> None:
    frame = pd.DataFrame({"a": [1.0, 0.123456789, None], "b": ["x", None, "y,z"], "c": [True, False, True]})
    assert frame_csv(frame) == 'a,b,c\n1,x,true\n0.123457,,false\n,"y,z",true\n'
