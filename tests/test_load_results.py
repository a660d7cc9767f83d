"""Results folders as data frames: a small one made by hand, and the committed one."""

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import records as make

import shardbench
from shardbench.base.errors import BadInput
from shardbench.records.cell import CellRecord, cell_key
from shardbench.records.store import cell_store, trial_store
from shardbench.records.trial import TRAINING, Backend
from shardbench.report.results import COLUMNS, NOT_STATED

RESULTS = Path(__file__).parent.parent / "results"
NAMED = ("records", "trials", "steps", "ranks", "claims")


def cell(number, rows=(), failure=None, study="draws"):
    parameters = {"draw": number}
    return CellRecord(
        key=cell_key(study, 1, parameters), environment="e" * 16, provenance=make.provenance(), study=study, version=1,
        cell=parameters, wall_s=1.0, cpu_s=0.5, rows=rows, failure=failure,
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """Two trials, of which one was made twice and one failed; one study of two cells; two tables."""
    store = trial_store(tmp_path, "quick")
    store.append(make.ok("a", (1.0, 3.0)))
    store.append(make.ok("a", (2.0, 4.0), changes={"control": make.control(1.0, 1.0)}))
    store.append(make.failed(strategy="b"))
    store.append(
        make.ok("a", (8.0, 8.0), backend=Backend.SIMULATED, changes={"draws": make.draws(8.0), "bound_ms": 3.0})
    )
    cells = cell_store(tmp_path, "recshard", "draws")
    cells.append(cell(0, ({"backend": "simulated", "slowest_ms": 5.0, "task_ms": (1.0, None)},)))
    cells.append(cell(1, failure="no room"))
    tables = tmp_path / "tables" / "recshard"
    tables.mkdir(parents=True)
    (tables / "draws_summary.csv").write_text("strategy,slowest_ms\na,5\nb,\n")
    (tables / "throughput.csv").write_text("strategy,backend,cause\na,measured,NA\n")
    return tmp_path


def test_frames_hold_what_the_files_do(folder):
    found = shardbench.load_results(str(folder))
    trials = found.trials.set_index(["strategy", "backend"])
    assert len(trials) == 3
    measured, failed, simulated = (
        trials.loc[("a", "measured")],
        trials.loc[("b", "measured")],
        trials.loc[("a", "simulated")],
    )
    assert (measured.step_ms_fast, measured.control_ms_fast, measured.iterations) == (3.0, 1.0, 2)
    assert pd.isna(measured.bound_ms)
    assert (failed.outcome, failed.cause) == ("oom", "build (rank 1): rank 1 was killed by signal 9")
    assert pd.isna(failed.step_ms_p50)
    assert simulated.bound_ms == 3.0
    assert simulated.step_ms_low < 8.0 < simulated.step_ms_high
    assert (simulated.sent_intra_bytes, simulated.sent_inter_bytes) == (1144.0, 2266.0)
    steps = found.steps[found.steps.backend == "measured"]
    assert steps[["iteration", "step_ms", "control_ms"]].to_numpy().tolist() == [[0, 2.0, 1.0], [1, 4.0, 1.0]]
    ranks = found.ranks[found.ranks.backend == "simulated"]
    assert ranks[["rank", "embedding_ms", "hbm_memory_bytes"]].to_numpy().tolist() == [[0, 2.0, 4000], [1, 4.0, 6000]]
    assert found.records["kind"].tolist() == ["trial"] * 4 + ["cell"] * 2
    assert found.records["current"].tolist() == [False, True, True, True, True, True]
    assert found.records["backend"].tolist() == ["measured"] * 3 + ["simulated"] * 2 + [""]
    assert found.records["outcome"].tolist() == ["ok", "ok", "oom", "ok", "ok", "failed"]
    (study,) = found.studies.values()
    assert study[["draw", "backend", "slowest_ms", "task_ms"]].to_numpy().tolist() == [
        [0, "simulated", 5.0, (1.0, None)]
    ]
    assert found.tables["recshard/draws_summary"]["backend"].tolist() == ["simulated", "simulated"]
    assert found.tables["recshard/throughput"]["cause"].tolist() == ["NA"]
    assert found.claims.empty


def test_frames_have_the_columns_that_are_documented(folder):
    for results in (shardbench.load_results(folder), shardbench.load_results(RESULTS)):
        for name in NAMED:
            assert list(getattr(results, name).columns) == list(COLUMNS[name])
        for frame in (*(getattr(results, name) for name in NAMED), *results.studies.values(), *results.tables.values()):
            assert "backend" in frame.columns


def test_committed_results_are_read_whole_and_say_what_they_are():
    found = shardbench.load_results(RESULTS)
    assert len(found.trials) == found.trials["key"].nunique() > 500
    assert set(found.trials["backend"]) == {"simulated", "measured"}
    csv = sorted(
        path.relative_to(RESULTS / "tables").with_suffix("").as_posix() for path in RESULTS.glob("tables/**/*.csv")
    )
    assert sorted(found.tables) == csv
    for name, frame in found.tables.items():
        assert NOT_STATED not in set(frame["backend"]), name
    for name, frame in found.studies.items():
        assert frame["backend"].isin(["simulated", "measured", "counted"]).all(), name
        assert frame["key"].notna().all()
    testable = found.claims["direction"] != "not testable here"
    assert found.claims.loc[testable, "backend"].isin(["simulated", "measured", "counted"]).all()
    assert (found.claims.loc[~testable, "backend"] == "").all()
    # The table is the trials' numbers: a row of one measured strategy by hand.
    quick = found.tables["quick/throughput"]
    row = quick[(quick["backend"] == "simulated") & (quick["n"] == 1)].iloc[0]
    same = found.trials.query("suite == 'quick' and current").merge(
        row.to_frame().T[["workload", "machine", "backend", "strategy", "batch_size", *TRAINING]]
    )
    assert same["step_ms_p50"].tolist() == pytest.approx([row["step_ms"]], rel=1e-4)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: folder / "gone", "gone: no such folder"),
        (lambda folder: folder / "tables" / "recshard", "is no folder of results"),
        (lambda folder: cut(folder / "records" / "quick.jsonl", folder), "line 4 is truncated"),
        (lambda folder: changed(folder / "records" / "quick.jsonl", folder), "the line was edited"),
        (lambda folder: changed(folder / "studies" / "recshard" / "draws.jsonl", folder), "draws.jsonl: line 1"),
        (lambda folder: cut(folder / "tables" / "recshard" / "throughput.csv", folder), "its last line is cut off"),
        (lambda folder: added(folder / "tables" / "recshard" / "throughput.csv", folder), "no table"),
        (lambda folder: claimless(folder / "tables", folder), "has no column 'paper'"),
    ],
)
def test_a_missing_or_damaged_folder_is_one_clear_line(folder, damage, message):
    place = damage(folder)
    with pytest.raises(BadInput, match=message) as caught:
        shardbench.load_results(place)
    assert "\n" not in str(caught.value).strip()


def cut(path, folder):
    path.write_bytes(path.read_bytes()[:-2])
    return folder


def changed(path, folder):
    path.write_text(path.read_text().replace('"seed":0', '"seed":5', 1).replace('"draw":0', '"draw":7', 1))
    return folder


def added(path, folder):
    path.write_text(path.read_text() + "one,two,three,four\n")
    return folder


def claimless(tables, folder):
    (tables / "claims.csv").write_text("strength\nsimulated\n")
    return folder


def test_importing_the_package_imports_no_reader():
    code = (
        "import sys, shardbench; print('shardbench.report' in sys.modules, 'pandas' in sys.modules); shardbench.Results"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_a_name_that_the_package_lacks_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'load_result'"):
        shardbench.load_result  # noqa: B018
