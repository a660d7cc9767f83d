"""Groups with more ranks than cores: what they show, and that nothing compares their times."""

from pathlib import Path

import pytest
import records as make

from shardbench.base.errors import BadInput
from shardbench.base.generated import ascii_text
from shardbench.base.serialise import to_json
from shardbench.cli.report import print_report
from shardbench.records.record import Record, Tiers
from shardbench.records.trial import Outcome
from shardbench.report.compare.comparison import compare_results
from shardbench.report.compare.explain import explain
from shardbench.report.compare.order import agreement
from shardbench.report.groups import ComparedBy, groups, suite_standings
from shardbench.report.prediction.against_measured import points
from shardbench.report.tables.answer import answers, answers_of_table, lines
from shardbench.report.tables.files import check_tables, write_tables
from shardbench.report.tables.leaderboard import measured_steps
from shardbench.report.tables.suite_tables import throughput
from shardbench.report.tables.text import sections
from shardbench.studies.page import write_suite_page
from shardbench.trials.calibrating import Drift, Drifts


def group(cores: int | None, tiers: Tiers = Tiers.COUNTED, **changes: object) -> list[Record]:
    """Three strategies of two ranks, twice each, on so many cores; one failed."""
    ran = {"cores": cores, "tiers": tiers}
    steps = {"a": (5.0, 5.1), "b": (9.0, 9.1)}
    made = [
        make.ok(name, (step,), repeat=repeat, changes=ran, **changes)
        for name, several in steps.items()
        for repeat, step in enumerate(several)
    ]
    return [*made, make.failed(Outcome.OOM, "c", **changes)]


@pytest.mark.parametrize(
    ("cores", "tiers", "shared"),
    [(1, Tiers.COUNTED, True), (2, Tiers.COUNTED, False), (None, Tiers.COUNTED, False), (1, Tiers.PHYSICAL, False)],
)
def test_a_record_shares_cores_where_its_ranks_on_cpus_are_more(cores: int | None, tiers: Tiers, shared: bool) -> None:
    record = group(cores, tiers)[0]
    assert record.shares_cores is shared
    (found,) = groups([record])
    assert found.compared is not shared


def test_no_rank_is_stated_of_ranks_that_shared_cores() -> None:
    (found,) = groups(group(1))
    assert found.compared_by is ComparedBy.NOTHING
    assert (found.best, found.noise, found.noise_pct, found.pairs_beyond_noise) == (None,) * 4
    assert found.pairs == ()
    standing = found.standings["a"]
    assert standing.step_ms == pytest.approx(5.05, rel=1e-3)
    assert (standing.mark, standing.over_best_pct, standing.vs_best_pct, standing.same) == (None,) * 4
    assert suite_standings([found]) == []


def test_tables_and_answers_show_times_and_say_that_none_is_compared() -> None:
    frame = throughput(group(1))
    assert set(frame["compared_by"][:2]) == {"nothing"}
    assert frame["vs_best_pct"].isna().all()
    (section,) = sections("throughput", frame)
    says = "times are not compared: more ranks than cores ran; what ranks send is checked all the same"
    assert section.note.endswith(says)
    assert "vs best" not in section.headers
    for found in (*answers(group(1), Path("nowhere")), *answers_of_table(frame)):
        assert found.data()["compared"] is False
        assert lines(found) == [
            "dlrm20 on cpu-1x2, measured, batch 1000:",
            "  times are not compared: more ranks than cores ran; what ranks send is checked",
            "    all the same",
            "  ran: a 5.05 ms, b 9.05 ms",
            "  failed: c: oom: build of rank 1: rank 1 was killed by signal 9",
        ]


def test_groups_that_are_compared_come_first() -> None:
    mine = [*group(1, workload="first"), *group(2, workload="last")]
    assert [one.condition.workload for one in groups(mine)] == ["last", "first"]
    assert {one.workload for one in suite_standings(groups(mine))} == {"last"}


def test_nothing_else_compares_their_times(tmp_path: Path) -> None:
    shared, own = group(1), group(2, workload="other")
    with pytest.raises(BadInput, match="nothing to compare"):
        agreement(shared, shared)
    assert [one.workload for one in agreement([*shared, *own], [*shared, *own])] == ["other"]
    with pytest.raises(BadInput, match=f"record {shared[0].key} is of more ranks than cores"):
        explain(shared[0], shared[2], shared)
    assert points(shared) == []
    board = measured_steps([*shared, *own], 2, {own[0].spec.machine: 2}, {})
    assert set(board["workload"]) == {"other"}
    assert {point.condition.workload for point in points([*shared, *own])} == {"other"}
    for folder in ("ours", "theirs"):
        make.kept(tmp_path / folder, *shared, *own)
    compared = compare_results(tmp_path / "ours", tmp_path / "theirs").of("measured")
    refused = compared[compared["ratio"].isna() & compared["value"].isna()]
    assert set(refused["reason"]) == {"more ranks than cores"}
    assert set(compared.loc[compared["ratio"].notna(), "workload"]) == {"other"}


def test_files_of_such_a_suite_are_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make.kept(tmp_path, *group(1), *group(2, workload="other"))
    drift = Drift(
        workload="other", machine="cpu-1x2", machine_hash="a" * 16, before_ms=10.0, after_ms=10.5, error_pct=9.0
    )
    folder = tmp_path / "machines" / "quick"
    folder.mkdir(parents=True)
    (folder / "drift.json").write_text(to_json(Drifts(drifts=(drift,))))
    write_tables(tmp_path, "quick")
    assert check_tables(tmp_path, "quick") == []
    print_report(tmp_path, "quick", tables=True)
    assert f"\n{ascii_text(drift.text)}\n" in capsys.readouterr().out
    assert "differs by +5.0 %" in drift.text
    page = write_suite_page(tmp_path, "quick").read_text()
    assert "times are not compared" in page
