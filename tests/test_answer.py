"""What a run ends with: the best of each group, what ties with it, what failed and where its log is."""

from pathlib import Path

import pytest
import records as make
from hypothesis import given
from hypothesis import strategies as st

from shardbench.model.strategy import Role
from shardbench.records.record import Record
from shardbench.records.trial import Backend, Outcome
from shardbench.report.groups import groups, suite_standings
from shardbench.report.standing import TieMark
from shardbench.report.tables import answer
from shardbench.report.tables.answer import WIDTH, GroupAnswer, answers, lines
from shardbench.report.tables.leaderboard import measured_steps
from shardbench.report.tables.suite_tables import throughput
from shardbench.report.tables.text import sections

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
