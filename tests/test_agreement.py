"""Published points: split, loads, and that the committed table, document and constants are the code's."""

import csv
from pathlib import Path

import numpy as np
import pytest
from published_agreement import COLUMNS, CSV, DOCUMENT, cells, embed, fit, markdown, table_csv
from published_held_out import JUDGED, drawn_logs, factor, form_error, rms_log_error, scaled_ms, weighed
from published_held_out import markdown as held_out_tables

from shardbench.cost.published.agreement import predict_all, predicted_ms
from shardbench.cost.published.points import (
    FIT,
    HELD_OUT,
    Family,
    PublishedKernel,
    kernel_load,
    missed_bytes,
    power_law_distinct,
    power_law_share,
    published,
)
from shardbench.cost.published.steps import model_loads, step_s
from shardbench.model.machine import load_machine

ROOT = Path(__file__).parent.parent


def points(family: str) -> dict[str, PublishedKernel]:
    return {p.point: p for p in published().families[family].points if isinstance(p, PublishedKernel)}


def test_committed_table_is_what_the_code_gives() -> None:
    assert (ROOT / CSV).read_text() == table_csv(predict_all())


def test_document_quotes_the_committed_table() -> None:
    text = (ROOT / DOCUMENT).read_text()
    assert embed(text, markdown(predict_all())) == text


def test_statistics_in_the_document_are_those_of_the_csv() -> None:
    with (ROOT / CSV).open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0])[:6] == ("point", "source", "published_ms", "predicted_ms", "error_pct", "split")
    assert tuple(rows[0]) == COLUMNS
    text = (ROOT / DOCUMENT).read_text()
    for family in {row["family"] for row in rows}:
        cells = []
        for split in (FIT, HELD_OUT):
            groups: dict[str, float] = {}
            for row in rows:
                if (row["family"], row["split"]) == (family, split):
                    groups[row["group"]] = max(groups.get(row["group"], 0.0), abs(float(row["error_pct"])))
            errors = list(groups.values())
            cells.append(f"{len(errors)} | {np.median(errors):.1f} % | {max(errors):.1f} %" if errors else "0 | - | -")
        assert f"| {family} | {cells[0]} | {cells[1]} |" in text


def test_document_quotes_how_well_constants_are_known() -> None:
    text = (ROOT / DOCUMENT).read_text()
    assert embed(text, held_out_tables(), "held out") == text


@pytest.mark.parametrize("name", JUDGED)
def test_drawn_constants_and_form_spread_predictions_as_far_as_held_out_errors_go(name: str) -> None:
    judged = JUDGED[name]
    points = weighed(judged.families)
    assert sum(weight for *_, weight in points) == pytest.approx(1.0)
    # By drawing, where the factor was derived by differentiating.
    deviation = np.random.default_rng(0).standard_normal((400, len(judged.constants) + 1))
    spread = 0.0
    for point, family, weight in points:
        logs = [
            np.log(scaled_ms(point, family, dict(zip(judged.constants, factor(name) ** z[1:]))))
            + np.log(judged.form) * z[0]
            for z in deviation
        ]
        spread += weight * float(np.var(logs))
    assert np.sqrt(spread) == pytest.approx(rms_log_error(judged.families), rel=0.15)


def test_the_form_is_what_the_best_constants_leave() -> None:
    for name in ("tbe_h100+tbe_width", "all_to_all_rtx6000d+all_to_all_others"):
        assert JUDGED[name].form == round(form_error(name), 2)
        # The best constants for all points are better than the committed ones are on those held out.
        assert np.log(form_error(name)) < rms_log_error(JUDGED[name].families)


def test_draws_of_a_point_are_about_its_prediction() -> None:
    family = published().families["all_to_all_others"]
    for point in family.points:
        logs = drawn_logs(point, family)
        assert np.median(logs) == pytest.approx(np.log(predicted_ms(point, family)), abs=0.05)
        assert 0.1 < logs.std() < 0.3


def test_errors_are_of_what_is_printed() -> None:
    for row in predict_all():
        point, source, is_published, is_predicted, error, split, *_ = cells(row)
        assert float(error) == pytest.approx(100 * (float(is_predicted) / float(is_published) - 1), abs=0.2), point
        assert source
        assert split in (FIT, HELD_OUT)


def test_half_of_the_groups_are_fitted_and_repeats_stay_together() -> None:
    for name, family in published().families.items():
        split = family.split()
        groups = {p.group: split[p.point] for p in family.points}
        assert all(split[p.point] == groups[p.group] for p in family.points)
        fitted = list(groups.values()).count(FIT)
        assert fitted == ((len(groups) + 1) // 2 if family.fitted else 0), name


def test_split_alternates_over_sorted_groups() -> None:
    order = ["c", "a", "b", "a"]
    made = [{"kind": "all_to_all", "point": f"p{i}", "group": g, "published_ms": 1.0, "bytes": 1, "nodes": 1,
             "devices_per_node": 2, "constants": {}} for i, g in enumerate(order)]  # fmt: skip
    plain = {"title": "t", "source": "s", "device": "d", "machine": "m", "assumptions": ()}
    family = Family(points=tuple(made), **plain)  # type: ignore[arg-type]
    assert family.split() == {"p0": FIT, "p1": FIT, "p2": HELD_OUT, "p3": FIT}
    assert set(Family(points=tuple(made), fitted=False, **plain).split().values()) == {HELD_OUT}  # type: ignore[arg-type]


@pytest.mark.parametrize("plan", published().fits, ids=lambda plan: "+".join(plan.families))
def test_committed_constants_are_the_fitted_ones(plan) -> None:  # type: ignore[no-untyped-def]
    found = fit(plan)
    for name in plan.families:
        family = published().families[name]
        assert family.fitted
        machine = load_machine(family.machine).constants
        for constant, value in found.items():
            own = family.constants.get(constant)
            if own is None and not hasattr(machine, constant):
                continue  # a constant of another family of this fit
            committed = own.value if own is not None else getattr(machine, constant)
            # Three digits are written down; steps with a greedy placement are not smooth in them.
            assert committed == pytest.approx(value, rel=0.03 if name.startswith("step") else 0.005), constant


def test_distinct_rows_agree_with_the_published_counts() -> None:
    for point in points("tbe_h100").values():
        assert point.alpha is not None
        expected = power_law_distinct(point.rows, point.lookups, point.alpha)
        assert expected == pytest.approx(point.distinct, rel=2e-4)


@pytest.mark.parametrize("rows", [10, 4096, 5000, 20000])
@pytest.mark.parametrize("lookups", [1.0, 300.0, 1e5])
def test_distinct_rows_of_a_power_law_equal_the_plain_sum(rows: int, lookups: float) -> None:
    ends = np.arange(1.0, rows + 2)
    shares = np.diff((1 - ends**-0.05) / (1 - (rows + 1.0) ** -0.05))
    plain = float(np.sum(1 - (1 - shares) ** lookups))
    assert power_law_distinct(rows, lookups, 1.05) == pytest.approx(plain, rel=5e-3)
    assert power_law_share(rows, rows, 1.05) == pytest.approx(1)
    assert power_law_share(rows, rows // 2, 1.05) == pytest.approx(shares[: rows // 2].sum())


def test_kernel_loads_by_hand() -> None:
    load = kernel_load(points("tbe_width")["large/D16"])
    assert load.lookups.tolist() == [16 * 131072 * 10]
    assert load.lookup_bytes.tolist() == [16 * 131072 * 10 * 64]
    assert load.bag_bytes.tolist() == [16 * 131072 * 64]
    assert load.longest_bag.tolist() == [10]
    cached = points("tbe_h100")["uvm_cache/backward/adam/cfr0.8"]
    load = kernel_load(cached)
    assert load.uvm.lookups.tolist() == [0]
    assert load.state_bytes.tolist() == [0]
    assert load.uvm.state_bytes[0] == pytest.approx(433722.73 * 8 * 128, rel=1e-4)
    assert 0 < missed_bytes(cached) < 0.01 * load.lookup_bytes[0]
    assert missed_bytes(points("tbe_h100")["uvm/forward/sgd"]) == 0


def test_published_models_have_the_tables_of_their_source() -> None:
    models = published().families["step_dgx_a100"].models
    loads, columns = model_loads(models["tiny"], 65536)
    assert len(columns) == 55
    assert columns.sum() == 2 * 8 + 2 * 16 + 2 * 16 + 16 + 16 * 8 + 10 * 8 + 4 * 8 + 2 * 16 + 19 * 16
    assert loads.lookups.sum() == 65536 * (3 * 11 + 1 + 16 + 10 + 4 + 2 + 19)
    assert len(model_loads(models["medium"], 65536)[1]) == 311


def test_more_gpus_are_never_slower_for_published_models() -> None:
    model = published().families["step_dgx_a100"].models["tiny"]
    machine = load_machine("a100-40gb-2x8")
    times = [step_s(model, gpus, 65536, machine) for gpus in (1, 2, 4, 8)]
    assert times == sorted(times, reverse=True)
