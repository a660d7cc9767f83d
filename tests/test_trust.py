"""How far the model's own errors hold: bands and sure orders against measurements, and the words beside a number."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import records as make

from shardbench.cost.published.agreement import machine_of
from shardbench.cost.published.points import published
from shardbench.model.machine import Trust
from shardbench.model.machine_file import load_machine, overridden
from shardbench.records.record import Draws, Record
from shardbench.report.prediction import model_error as module
from shardbench.report.prediction.against_measured import points
from shardbench.report.prediction.model_error import model_error
from shardbench.report.prediction.trust import TrustCounts, trust_by_machine, trust_csv


def repeated(
    name: str, ms: float, drawn_ms: tuple[float, ...], embedding: tuple[float, float] = (2.0, 4.0), **spec: Any
) -> list[Record]:
    """Return two trials of one plan that differ by a per cent; embedding times of the slowest rank spread by 10 %."""
    return [
        make.ok(
            name,
            changes={
                "timing": make.timing((step, step), embedding),
                "predicted": make.timing((drawn_ms[0], drawn_ms[0]), embedding),
                "planned": make.planned(plan_hash=name * 16),
                "draws": Draws(
                    step_ms=drawn_ms, embedding_ms=tuple(4.0 * off for off in np.linspace(0.9, 1.1, len(drawn_ms)))
                ),
            },
            repeat=i,
            **spec,
        )
        for i, step in enumerate((ms, 1.01 * ms))
    ]


def test_counts_worked_out_by_hand() -> None:
    records = [
        *repeated("a", 10.0, (9.0, 10.0, 11.0)),
        # Inside its band, and surely slower than a: rightly so.
        *repeated("b", 20.0, (19.0, 20.0, 21.0)),
        # Outside, and surely the slowest: rightly so against a, wrongly against b.
        *repeated("c", 15.0, (29.0, 30.0, 31.0)),
        # Outside; against a the draws say nothing, and they are wrong that it is surely faster than b and c.
        *repeated("d", 40.0, (9.5, 10.0, 10.5)),
    ]
    step, embedding = trust_by_machine(points(records))
    assert step == TrustCounts(
        backend="measured", machine="cpu-1x2", quantity="step", points=4, inside=2, pairs=6, sure=5, right=2
    )
    # All are alike, so that no pair lies beyond the noise of exact repeats.
    assert (embedding.quantity, embedding.points, embedding.inside, embedding.pairs) == ("embedding", 4, 4, 0)
    assert trust_csv(points(records)).splitlines() == [
        "backend,machine,quantity,points,inside_pct,pairs,pairs_sure,right_pct",
        "measured,cpu-1x2,step,4,50.0,6,5,40.0",
        "measured,cpu-1x2,embedding,4,100.0,0,0,",
    ]


def test_an_embedding_time_is_the_slowest_ranks() -> None:
    records = repeated("a", 10.0, (10.0,) * 3, embedding=(4.3, 2.0)) + repeated(
        "b", 10.0, (10.0,) * 3, embedding=(2.0, 4.5)
    )
    embedding = trust_by_machine(points(records))[1]
    assert (embedding.points, embedding.inside) == (2, 1)


def test_machines_stand_apart_and_records_without_draws_say_nothing() -> None:
    bare = make.ok("z", changes={"predicted": make.timing((1.0, 1.0), (1.0, 1.0))})
    records = [bare, *repeated("a", 10.0, (10.0, 11.0)), *repeated("b", 20.0, (20.0, 21.0), machine="cpu-1x4")]
    found = [one for one in trust_by_machine(points(records)) if one.quantity == "step"]
    assert [(one.machine, one.points, one.pairs) for one in found] == [("cpu-1x2", 1, 0), ("cpu-1x4", 1, 0)]
    assert trust_by_machine(points([bare])) == []


@pytest.fixture
def fresh() -> Iterator[None]:
    model_error.cache_clear()
    yield
    model_error.cache_clear()


def test_a_machine_without_published_steps_is_judged_by_what_its_file_says(
    fresh: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = load_machine("cpu-1x2")
    own = Trust(step_error=1.09, pair_error=1.03, plans=20, source="made up for this test")
    known = {"cpu-1x2": replace(machine, trust=own)}
    monkeypatch.setattr(module, "load_machine", lambda name: known.get(name) or load_machine(name))
    assert model_error("cpu-1x2", "step") == (
        "model error 9 %, root mean square of 20 held-out steps: made up for this test"
    )
    assert model_error("cpu-1x2+hbm_capacity-1GB", "step") == model_error("cpu-1x2", "step")
    # Other constants are another machine, and whole steps judge no kernels.
    assert model_error("cpu-1x2+launch-9us", "step") == "not judged by any published step"
    assert overridden(replace(machine, trust=own), {"launch": "9 us"}).trust is None


def test_points_judge_the_machines_that_they_were_predicted_with(fresh: None) -> None:
    assert model_error("nobody-1x8", "step") == "not judged by any published step"
    for machine in ("cpu-1x2", "nobody-1x8"):
        assert model_error(machine, "embedding") == "not judged by any published kernel"
        assert model_error(machine, "exchanges") == "not judged by any published exchange"
    known = model_error("h100-1x8", "embedding")
    assert known.startswith("model error ")
    assert known.endswith(" held-out kernels")
    # The links of several nodes are not those of one, and kernels use none.
    assert model_error("a100-40gb-16x8", "embedding") == model_error("a100-40gb-2x8", "embedding")


def test_steps_on_a_gpu_that_is_a_guess_judge_no_machine() -> None:
    guessed = [family for family in published().families.values() if not family.fitted]
    assert guessed
    for name in {machine_of(point, family) for family in guessed for point in family.points}:
        judges = list(module._points(load_machine(name), "step"))
        assert judges
        assert all(family.fitted for _, family in judges)
