"""A run held against another: every difference is planted, and every number worked out by hand."""

import json
import math
from pathlib import Path

import pandas as pd
import pytest
import records as make

import shardbench
from shardbench.base.errors import BadInput
from shardbench.records.cell import CellRecord, cell_key
from shardbench.records.store import cell_store
from shardbench.records.trial import Backend, Outcome
from shardbench.report.compare.comparison import OVER_CONTROL, STEP, text_lines

CLAIMS = (
    "paper,claim,statement,paper_value,ours,low,high,unit,direction,magnitude,region_share,strength,n,n_unit,"
    "conditions,defined_in,judged_in,relation,sourced,definition_of,definition,source,kind,defined_first,first_judged,redefined\n"
)


def simulated(strategy="a", steps=(8.0, 8.0), *, plan="0" * 16, **spec):
    return make.ok(
        strategy, steps, backend=Backend.SIMULATED, changes={"planned": make.planned(plan_hash=plan)}, **spec
    )


def measured(strategy, ms, *, control=10.0, plan=None):
    """Two repeats 1 % apart."""
    return [
        make.ok(
            strategy, (ms * share,) * 4, repeat=i,
            changes={
                "control": make.control(*(control,) * 4),
                "planned": make.planned(plan_hash=plan or (strategy * 16)),
            },
        )
        for i, share in enumerate((1.0, 1.01))
    ]  # fmt: skip


def cell(number, study="draws", **row):
    parameters = {"draw": number}
    return CellRecord(
        key=cell_key(study, 1, parameters), environment="e" * 16, provenance=make.provenance(), study=study, version=1,
        cell=parameters, wall_s=1.0, cpu_s=0.5, rows=({"backend": "simulated", **row},),
    )  # fmt: skip


def claim(name, direction, paper="recshard"):
    return (
        f"{paper},{name},It is so.,,1.5,,,x,{direction},not stated,,simulated,5,draw,all,,,at least,true,ours,A ratio,"
    )


def write(folder, records=(), cells=(), claims=(), suite="quick"):
    make.kept(folder, *records, suite=suite)
    for one in cells:
        cell_store(folder, "recshard", "draws").append(one)
    (folder / "tables").mkdir(parents=True, exist_ok=True)
    if claims:
        (folder / "tables" / "claims.csv").write_text(CLAIMS + "".join(f"{line}\n" for line in claims))
    return folder


def compared(tmp_path, ours, theirs):
    return shardbench.compare_results(write(tmp_path / "ours", *ours), write(tmp_path / "committed", *theirs))


@pytest.mark.parametrize(
    ("ours", "ratio", "equal", "reason"),
    [
        (simulated(), 1.0, True, ""),
        (simulated(steps=(8.0 + 1e-8, 8.0)), 1.0, True, ""),
        (simulated(steps=(8.8, 8.8)), 1.1, False, "the same plan, other charges"),
        (simulated(steps=(4.0, 4.0), plan="1" * 16), 0.5, False, "another plan"),
        (simulated(steps=(8.0, 8.0, 16.0), iterations=3), 1.0, False, "another number of batches"),
        (simulated(steps=(6.0, 6.0), workload_fingerprint="0" * 16), 0.75, False, "another version of the workload"),
        (simulated(steps=(6.0, 6.0), machine_hash="0" * 16), 0.75, False, "another machine file"),
        (make.failed(Outcome.OOM, "a", backend=Backend.SIMULATED), None, False, "another outcome"),
        (simulated(seed=3), None, False, "no seed in common"),
    ],
)
def test_simulated_rows_are_equal_or_it_says_how_far_they_are_and_why(tmp_path, ours, ratio, equal, reason):
    (row,) = compared(tmp_path, ([ours],), ([simulated()],)).of("simulated").to_dict("records")
    assert (row["where"], row["same"], row["reason"]) == ("both", equal, reason)
    assert pd.isna(row["ratio"]) if ratio is None else row["ratio"] == pytest.approx(ratio)


def test_alike_failures_are_equal(tmp_path):
    failed = [make.failed(Outcome.INFEASIBLE, "a", backend=Backend.SIMULATED)]
    (row,) = compared(tmp_path, (failed,), (failed,)).of("simulated").to_dict("records")
    assert row["same"] is True


def test_only_trials_of_the_same_seed_are_held_against_each_other(tmp_path):
    ours = [simulated(seed=0), simulated(steps=(9.0, 9.0), seed=1)]
    theirs = [simulated(seed=0), simulated(steps=(7.0, 7.0), seed=2)]
    (row,) = compared(tmp_path, (ours,), (theirs,)).of("simulated").to_dict("records")
    assert (row["n"], row["same"]) == (1, True)


def test_what_stands_in_one_only_is_there(tmp_path):
    found = compared(tmp_path, ([simulated("a"), simulated("b")],), ([simulated("a"), simulated("c")],))
    assert dict(zip(found.of("simulated")["name"], found.of("simulated")["where"])) == {
        "a": "both", "b": "this run only", "c": "committed only",
    }  # fmt: skip
    assert "simulated: 1 of 1 equal; 1 this run only, 1 committed only" in text_lines(found)


def test_the_suite_of_the_name_comes_before_others_and_others_before_none(tmp_path):
    ours = write(tmp_path / "ours", [simulated()], suite="mine")
    theirs = write(tmp_path / "committed", [simulated(steps=(4.0, 4.0))], suite="another")
    (row,) = shardbench.compare_results(ours, theirs).differences.to_dict("records")
    assert (row["suite"], row["committed_suite"], row["ratio"]) == ("mine", "another", pytest.approx(2.0))
    write(theirs, [simulated()], suite="mine")
    rows = shardbench.compare_results(ours, theirs).differences.set_index("committed_suite")["where"]
    assert rows.to_dict() == {"mine": "both", "another": "committed only"}


def test_simulated_is_never_held_against_measured(tmp_path):
    found = compared(tmp_path, ([simulated()],), (measured("a", 8.0),))
    assert found.of("simulated")["where"].tolist() == ["this run only"]
    assert found.of("measured")["where"].tolist() == ["committed only"]
    assert "simulated: none in both; 1 this run only, 0 committed only" in text_lines(found)
    assert "measured, step (ms): none in both; 0 this run only, 1 committed only" in text_lines(found)


def test_measured_rows_have_a_ratio_whose_interval_is_of_the_noise_of_repeats(tmp_path):
    ours = [*measured("a", 20.0, control=20.0), *measured("b", 40.0, control=20.0)]
    theirs = [*measured("a", 10.0), *measured("b", 40.0, control=10.0)]
    rows = compared(tmp_path, (ours,), (theirs,)).of("measured").set_index(["name", "quantity"])
    step, over = rows.loc[("a", STEP)], rows.loc[("a", OVER_CONTROL)]
    assert (step.ratio, step.same, step.n, step.committed_n) == (pytest.approx(2.0), False, 2, 2)
    # Four pairs of repeats, each 1 % apart: the deviation is ln(1.01) / sqrt(2), with four degrees of freedom.
    reach = 2.7764 * math.log(1.01) / math.sqrt(2.0)
    assert math.log(step.ratio_high / step.ratio) == pytest.approx(reach, rel=1e-4)
    assert math.log(step.ratio / step.ratio_low) == pytest.approx(reach, rel=1e-4)
    # Twice as slow a machine is twice as slow under the control plan as well.
    assert (over.ratio, over.same) == (pytest.approx(1.0), True)
    assert rows.loc[("b", OVER_CONTROL)].ratio == pytest.approx(0.5)
    assert rows.loc[("b", STEP)].same


def test_without_repeats_nothing_is_called_beyond_the_noise(tmp_path):
    found = compared(tmp_path, ([make.ok("a", (20.0,) * 4)],), ([make.ok("a", (10.0,) * 4)],))
    (row,) = found.differences.to_dict("records")
    assert row["ratio"] == pytest.approx(2.0)
    assert pd.isna(row["same"])
    assert any("of 1 that is unknown" in line for line in text_lines(found))


def test_measured_rows_of_unlike_lookups_have_no_ratio(tmp_path):
    other = [make.ok("a", (20.0,) * 4, workload_fingerprint="0" * 16)]
    (row,) = compared(tmp_path, (other,), ([make.ok("a", (10.0,) * 4)],)).differences.to_dict("records")
    assert pd.isna(row["ratio"])
    assert row["reason"] == "another version of the workload"


def test_orders_of_a_suite_are_compared_as_those_of_a_second_run(tmp_path):
    ours = [*measured("a", 20.0), *measured("b", 10.0)]
    theirs = [*measured("a", 10.0), *measured("b", 20.0)]
    found = compared(tmp_path, (ours,), (theirs,))
    (one,) = found.order["quick"]
    assert (one.pairs_beyond_noise, one.same_order, one.opposite_beyond_noise) == (1, 0, 1)
    assert any("1 in the other one beyond" in line for line in text_lines(found))


@pytest.mark.parametrize(
    ("row", "ratio", "column"),
    [
        ({"ms": 4.0}, None, ""),
        ({"ms": 4.0, "plan_s": 9.0}, None, ""),
        ({"ms": 5.0}, 1.25, "ms"),
        ({"ms": 4.0, "series": (1.0, 3.0)}, 1.5, "series"),
        ({"ms": 4.0, "kind": "other"}, None, "kind"),
        ({"ms": 4.0, "more": 1.0}, None, "more"),
        ({"ms": 5.0, "series": (1.0, 4.0)}, 2.0, "series"),
    ],
)
def test_cells_are_equal_but_for_seconds(tmp_path, row, ratio, column):
    same = {"ms": 4.0, "plan_s": 1.0, "series": (1.0, 2.0), "kind": "one"}
    found = compared(
        tmp_path, ((), [cell(0, **same), cell(1, **{**same, **row})]), ((), [cell(0, **same), cell(1, **same)])
    )
    equal, other = found.of("cells").to_dict("records")
    assert (equal["suite"], equal["name"], equal["same"]) == ("recshard", "draws draw=0", True)
    assert (other["same"], other["quantity"]) == (not column, column)
    assert pd.isna(other["ratio"]) if ratio is None else other["ratio"] == pytest.approx(ratio)
    assert any(line.startswith(f"cells: {1 + (not column)} of 2 equal") for line in text_lines(found))


def test_claims_are_compared_by_their_answers(tmp_path):
    ours = [claim("same", "reproduced"), claim("other", "not reproduced"), claim("mine", "reproduced")]
    theirs = [claim("same", "reproduced"), claim("other", "reproduced"), claim("theirs", "reproduced", "fae")]
    found = compared(tmp_path, ((), (), ours), ((), (), theirs))
    rows = found.of("claims").set_index("name")
    assert rows["where"].to_dict() == {
        "same": "both", "other": "both", "mine": "this run only", "theirs": "committed only",
    }  # fmt: skip
    assert rows["same"][["same", "other"]].tolist() == [True, False]
    assert rows["same"][["mine", "theirs"]].isna().all()
    assert rows["backend"].tolist() == ["simulated"] * 4
    lines = text_lines(found)
    assert "claims: 1 of 2 with the same answers; 1 this run only, 1 committed only" in lines
    (told,) = [line for line in lines if "recshard other" in line]
    assert "direction not reproduced, magnitude not stated (1.50 x)" in told


def test_the_command_exits_well_whatever_differs(tmp_path, command):
    ours = write(tmp_path / "ours", [simulated(steps=(9.0, 9.0)), *measured("b", 20.0)], [cell(0, ms=1.0)])
    theirs = write(tmp_path / "committed", [simulated(), *measured("b", 10.0)], [cell(0, ms=2.0)])
    out = command("compare", ours, "--with", theirs)
    told = {line.split("  ")[1]: line.split() for line in out.splitlines() if line.startswith("  ")}
    assert " ".join(told["dlrm20 on cpu-1x2, a"][4:]) == "step (ms) 9 8 1.12 1 and 1 the same plan, other charges"
    assert told["recshard draws draw=0"][3:] == ["ms", "1", "2", "0.500"]
    data = json.loads(command("compare", ours, "--with", theirs, "--json"))
    rows = {(row["kind"], row["quantity"]): row for row in data["differences"]}
    assert rows["simulated", STEP]["ratio"] == pytest.approx(1.125)
    assert rows["measured", STEP]["same"] is False
    assert rows["simulated", STEP]["backend"] == "simulated"


def test_without_a_clone_the_other_folder_is_to_be_named(tmp_path, command, monkeypatch):
    ours = write(tmp_path / "ours", [simulated()])
    monkeypatch.chdir(tmp_path)
    # This package lies in a clone itself, whose results would be taken.
    monkeypatch.setattr("shardbench.cli.compare.__file__", str(tmp_path / "site-packages" / "compare.py"))
    assert "is in no clone of ShardBench" in command("compare", ours, code=2)
    (tmp_path / "clone" / "src" / "shardbench").mkdir(parents=True)
    inner = tmp_path / "clone" / "docs"
    inner.mkdir()
    write(tmp_path / "clone" / "results", [simulated()])
    monkeypatch.chdir(inner)
    assert "1 of 1 equal" in command("compare", ours)


def test_a_folder_is_not_compared_with_itself(tmp_path):
    ours = write(tmp_path / "ours", [simulated()])
    with pytest.raises(BadInput, match="are one folder"):
        shardbench.compare_results(ours, tmp_path / "." / "ours")


def test_the_committed_second_run_is_a_run_to_compare():
    results = Path(__file__).parent.parent / "results"
    found = shardbench.compare_results(results / "again", results)
    both = found.of("measured").query("where == 'both'")
    assert len(both) > 20
    assert {one.workload for one in found.order["measured"] if one.pairs > 100} >= {
        "criteo", "giant", "histories", "mixed"
    }  # fmt: skip
    assert set(found.of("simulated")["where"]) == {"committed only"}
