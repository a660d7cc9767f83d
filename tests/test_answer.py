"""What a run ends with: the best of each group, what ties with it, what failed; groups of more ranks than cores."""

from pathlib import Path

import pytest
import records as make
from hypothesis import given
from hypothesis import strategies as st

from shardbench.base.errors import BadInput
from shardbench.base.generated import ascii_text
from shardbench.base.serialise import to_json
from shardbench.cli.report import print_report
from shardbench.model.strategy import Role
from shardbench.records.record import Record, Tiers
from shardbench.records.trial import Backend, Outcome
from shardbench.report.compare import versions
from shardbench.report.compare.comparison import compare_results
from shardbench.report.compare.explain import explain
from shardbench.report.compare.order import agreement
from shardbench.report.groups import ComparedBy, groups, suite_standings
from shardbench.report.prediction.against_measured import points
from shardbench.report.standing import TieMark
from shardbench.report.tables import answer
from shardbench.report.tables.answer import WIDTH, GroupAnswer, answers, answers_of_table, lines
from shardbench.report.tables.files import check_tables, write_tables
from shardbench.report.tables.leaderboard import measured_steps
from shardbench.report.tables.suite_tables import throughput
from shardbench.report.tables.text import sections
from shardbench.studies.page import write_suite_page
from shardbench.trials.calibrating import Drift, Drifts

COMPARED = [role for role in Role if role is not Role.OTHER_MODEL]
SIMULATED = {"backend": Backend.SIMULATED, "machine": "a100-40gb-2x8"}


def simulated(name: str, step_ms: float, errors: tuple[float, ...] = (0.8, 0.9, 1.1, 1.2), **changes: object) -> Record:
    drawn = {"draws": make.draws(step_ms, errors=errors)}
    return make.ok(name, (step_ms, step_ms), changes=drawn, **SIMULATED, **changes)


def repeated(name: str, *steps: float) -> list[Record]:
    return [make.ok(name, (step,), repeat=i) for i, step in enumerate(steps)]


def only(records: list[Record], results: Path = Path("nowhere")) -> GroupAnswer:
    (found,) = answers(records, results)
    return found


def test_what_trains_another_model_is_in_no_ranking_with_the_others() -> None:
    records = [simulated("a", 5.0), simulated("b", 6.0), simulated("local", 1.0, role=Role.OTHER_MODEL)]
    ordinary, other = answers(records, Path("nowhere"))
    assert [(one.strategy, one.over_best_pct) for one in ordinary.standings] == [("a", 0.0), ("b", pytest.approx(20.0))]
    assert ordinary.placed[0].mark is TieMark.BEST
    assert [(one.strategy, one.over_best_pct, one.mark) for one in other.standings] == [("local", None, None)]
    assert "another model" not in sections("throughput", throughput(records))[0].heading
    assert sections("throughput", throughput(records))[1].heading.endswith(", trains another model: local")
    assert [one.strategy for one in suite_standings(groups(records))] == ["a", "b"]
    timed = [*repeated("a", 5.0), make.ok("local", (1.0,), role=Role.OTHER_MODEL)]
    assert set(measured_steps(timed, 1, {timed[0].spec.machine: 2}, {})["strategy"]) == {"a"}


def test_measured_strategies_tie_within_the_noise() -> None:
    records = [*repeated("a", 5.0, 5.1), *repeated("b", 5.05, 5.15), *repeated("c", 9.0, 9.0)]
    found = only(records)
    assert [(one.strategy, one.mark) for one in found.placed] == [
        ("a", TieMark.BEST), ("b", TieMark.SAME), ("c", TieMark.APART),
    ]  # fmt: skip
    floor = f"{found.width_pct:.1f} %, 3 degrees of freedom"
    assert lines(found)[:4] == [
        "dlrm20 on cpu-1x2, measured, batch 1000:",
        "  best: a, 5.05 ms a step (4.92 to 5.18, 95 %), 198,000 samples/s",
        f"  ties with it, within the noise of {floor} (=): b +1.0 %",
        "  slower: c +78.2 %",
    ]
    assert lines(found, " --results r")[-1] == (
        f"  c against it: shardbench explain {records[0].key[:8]} {records[4].key[:8]} --results r"
    )


def test_nothing_is_best_where_nothing_was_repeated() -> None:
    said = lines(only([make.ok("a", (5.0,)), make.ok("b", (9.0,))]))
    assert said == [
        "dlrm20 on cpu-1x2, measured, batch 1000:",
        "  no order is claimed (?), nothing was repeated, so the noise is unknown:",
        "    a 5.00 ms, b 9.00 ms",
    ]


def test_simulated_strategies_tie_within_the_models_error(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"a100-40gb-2x8": "model error 25 %, median of 3 held-out steps"}
    monkeypatch.setattr(answer, "model_error", lambda machine, quantity: said[machine])
    found = only(
        [
            simulated("a", 10.0),
            simulated("b", 10.1, errors=(0.7, 1.0, 1.2, 1.3)),
            simulated("c", 10.0),
            simulated("d", 20.0),
            make.ok("e", (11.0,), **SIMULATED),
            simulated("f", 9.0, role=Role.SEARCH),
        ]
    )
    assert lines(found)[:-1] == [
        "dlrm20 on a100-40gb-2x8, simulated, batch 1000:",
        "  best: a, c, 10.0 ms a step (8.07 to 11.9, 95 %), 100,000 samples/s",
        "  model error 25 %, median of 3 held-out steps",
        "  ties with it, within the model's own error (~): b +1.0 %",
        "  no order is claimed (?), how sure the model is is unknown: e +10.0 %",
        "  slower: d +100.0 %",
        "  beside the contest: f -10.0 %",
    ]


def test_failures_of_one_cause_stand_together_with_their_logs(tmp_path: Path) -> None:
    bad = [make.failed(Outcome.OOM, name, repeat=i) for name in ("big", "huge") for i in (0, 1)]
    other = make.failed(Outcome.INFEASIBLE, "picky", rank=None)
    for record in bad[:3]:
        log = tmp_path / "logs" / f"{record.key}.log"
        log.parent.mkdir(exist_ok=True)
        log.write_text("what the ranks printed")
    found = only([*repeated("a", 5.0, 5.1), *bad, other], tmp_path)
    said = lines(found)
    assert len(lines(found, width=40)) > len(said)
    assert said[2:] == [
        "  failed: big, huge: oom: build of rank 1: rank 1 was killed by signal 9",
        *(f"    log: {tmp_path / 'logs' / record.key}.log" for record in bad[:3]),
        "  failed: picky: infeasible: build: rank 1 was killed by signal 9",
    ]
    assert lines(only(bad))[1] == "  no strategy that competes ended well"


def test_only_the_groups_that_were_asked_for() -> None:
    records = make.sample()
    assert [found.standings[0].backend for found in answers(records, Path())] == ["simulated", "measured"]
    assert [found.standings[0].backend for found in answers(records, Path(), of=records[:1])] == ["measured"]


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abcdefgh"),
            st.floats(0.1, 1e4),
            st.booleans(),
            st.sampled_from(COMPARED),
        ),
        min_size=1,
        unique_by=lambda trial: trial[0],
    ),
    st.sampled_from([Backend.SIMULATED, Backend.MEASURED]),
)
def test_every_strategy_has_the_mark_of_the_tables_and_lines_fit(
    trials: list[tuple[str, float, bool, Role]], backend: Backend
) -> None:
    records = [
        make.ok(
            name * 12,
            (step * off,),
            repeat=i,
            role=role,
            backend=backend,
            changes={"draws": make.draws(step * off)} if drawn and backend is Backend.SIMULATED else {},
        )
        for name, step, drawn, role in trials
        for i, off in enumerate((1.0, 1.01))
    ]
    found = only(records)
    (section,) = sections("throughput", throughput(records))
    if "vs best" in section.headers:
        place = section.headers.index("vs best")
        marks = {row[0].split()[0]: row[place].split()[-1] for row in section.rows if row[place]}
        assert marks.keys() == {one.strategy for one in found.placed}
        assert all(marks[one.strategy] == (one.mark or "%") for one in found.placed)
    said = lines(found)
    assert all(len(line) <= WIDTH and line.isascii() for line in said)
    assert all(any(one.strategy in line for line in said) for one in found.placed)


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_number_stays_beside_its_strategy(name: str) -> None:
    others = [simulated(f"{name}{i}-with-a-long-name", 20.0 + i) for i in range(9)]
    said = lines(only([simulated("best", 10.0), *others]))
    for one in others:
        assert any(f"{one.spec.strategy} +" in line for line in said)


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


def test_files_of_such_a_suite_are_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "strategy_version", lambda name: "2" if name == "b" else "1")
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
    assert "4 of 10 records are of other versions, a run makes them again: b (4)" in page
