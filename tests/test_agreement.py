"""Published points: split, loads, and that the committed table, document and constants are the code's."""

import csv
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import published_agreement
import published_held_out
import pytest
from drawn import marks
from gpu_machines import FILES, SLICES, file_text, gpu_files
from published_agreement import (
    CSV,
    DOCUMENT,
    STEPS_CSV,
    embed,
    fit,
    group_errors,
    markdown,
    point_row,
    steps_markdown,
    texts,
    whole_steps,
    with_values,
)
from published_chart import SVG, chart, draw, kind
from published_held_out import (
    JUDGED,
    TRUST_CSV,
    drawn_logs,
    factor,
    firsts,
    form_error,
    rms_log_error,
    trust_csv,
    weighed,
)
from published_held_out import markdown as held_out_tables

from shardbench.base.arrays import Floats
from shardbench.cost.published.agreement import (
    Predicted,
    held_out_steps,
    plan_of,
    predict_all,
    predicted_ms,
    published_trust,
)
from shardbench.cost.published.gpus import committed, known_gpus, rates, shared, with_shares
from shardbench.cost.published.points import (
    FIT,
    HELD_OUT,
    Family,
    PublishedKernel,
    PublishedStep,
    cache_work,
    kernel_load,
    power_law_distinct,
    published,
)
from shardbench.cost.published.steps import layers, place, step_parts, tables_of
from shardbench.model.machine_file import load_machine

ROOT = Path(__file__).parent.parent


def points(family: str) -> dict[str, PublishedKernel]:
    return {p.point: p for p in published().families[family].points if isinstance(p, PublishedKernel)}


@pytest.fixture(scope="module")
def predicted() -> list[Predicted]:
    return predict_all()


def test_committed_tables_are_what_the_code_gives(predicted: list[Predicted]) -> None:
    for path, text in texts(predicted).items():
        assert (ROOT / path).read_text() == text


def test_document_quotes_the_committed_tables(predicted: list[Predicted]) -> None:
    text = (ROOT / DOCUMENT).read_text()
    assert embed(text, markdown(predicted)) == text
    assert embed(text, steps_markdown(predicted), "whole steps") == text


def test_the_chart_of_the_front_has_every_step() -> None:
    steps = pd.read_csv(ROOT / STEPS_CSV)
    assert (ROOT / SVG).read_text("utf-8") == draw(steps)
    assert sum("predicted step, ms" in mark for mark in marks(chart(steps))) == len(steps)
    assert [kind(m) for m in ("gb200-1x4", "h100-96gb-1x8", "l40s-1x8")] == ["B200", "H100", "others"]
    assert "not verified by MLCommons" in (ROOT / "docs" / "templates" / "start.html").read_text()


def test_mlperf_figures_say_where_they_come_from() -> None:
    notice = "derived from public result logs, not verified by MLCommons"
    mlperf = {name: family for name, family in published().families.items() if "mlcommons" in family.source}
    assert len(mlperf) >= 4
    assert all(notice in family.source for family in mlperf.values())
    with (ROOT / STEPS_CSV).open() as file:
        rows = [row for row in csv.DictReader(file) if "mlcommons" in row["source"]]
    assert rows
    assert all(notice in row["source"] for row in rows)


def test_held_out_steps_are_as_near_as_the_document_says(predicted: list[Predicted]) -> None:
    errors = group_errors(row for row in whole_steps(predicted) if row.split == HELD_OUT)
    assert len(errors) > 50
    assert np.median(errors) < 1.2
    assert np.mean(np.array(errors) < 1.6) > 0.9


def test_statistics_in_the_document_are_those_of_the_csv() -> None:
    with (ROOT / CSV).open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0])[:6] == ("point", "source", "published_ms", "predicted_ms", "error_pct", "split")
    text = (ROOT / DOCUMENT).read_text()
    families = {row["family"] for row in rows if not row["family"].startswith(("step_", "pairs_"))}
    for family in families:
        groups: dict[str, float] = {}
        for row in rows:
            if (row["family"], row["split"]) == (family, HELD_OUT):
                groups[row["group"]] = max(groups.get(row["group"], 0.0), abs(float(row["error_pct"])))
        errors = list(groups.values())
        if errors:
            assert f"| {family} | {len(errors)} | {np.median(errors):.1f} % | {max(errors):.1f} % |" in text
    assert len(families) > 20


LONG = ("step_", "lent_")
"""Beginnings of the families whose draws take nine tenths of the time."""


@pytest.mark.slow
def test_document_quotes_how_well_constants_are_known() -> None:
    text = (ROOT / DOCUMENT).read_text()
    assert embed(text, held_out_tables(), "held out") == text
    assert (ROOT / TRUST_CSV).read_text() == trust_csv()


def test_document_quotes_how_well_constants_of_links_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of exchanges, whose families have few points."""
    whole = published_held_out.drawn_firsts
    monkeypatch.setattr(published_held_out, "drawn_firsts", lambda name: [] if name.startswith(LONG) else whole(name))
    made = [line for line in held_out_tables().splitlines() if line.startswith("| exchanges")]
    assert made
    assert set(made) <= set((ROOT / DOCUMENT).read_text().splitlines())
    exchanges = [line for line in trust_csv().splitlines() if ",exchanges," in line]
    assert exchanges
    assert exchanges == [line for line in (ROOT / TRUST_CSV).read_text().splitlines() if ",exchanges," in line]


LONG_TO_JUDGE = [pytest.param(name, marks=[pytest.mark.slow] if name == "steps" else []) for name in JUDGED]


@pytest.mark.parametrize("name", LONG_TO_JUDGE)
def test_drawn_constants_and_form_spread_predictions_as_far_as_held_out_errors_go(name: str) -> None:
    judged = JUDGED[name]
    points = weighed(judged.families)
    assert sum(weight for *_, weight in points) == pytest.approx(1.0)
    # By drawing, where the factor was derived by differentiating.
    deviation = np.random.default_rng(0).standard_normal((100, len(judged.constants) + 1))
    spread = 0.0
    for point, family, weight in points:
        logs = [
            np.log(predicted_ms(point, family, factors=dict(zip(judged.constants, factor(name) ** z[1:]))))
            + np.log(judged.form) * z[0]
            for z in deviation
        ]
        spread += weight * float(np.var(logs))
    assert np.sqrt(spread) == pytest.approx(rms_log_error(judged.families), rel=0.15)


@pytest.mark.parametrize("name", LONG_TO_JUDGE)
def test_the_form_is_what_the_best_constants_leave(name: str) -> None:
    judged = JUDGED[name]
    assert judged.form == round(form_error(name), 2)
    # The best constants for all points are better than the committed ones are on those held out.
    assert np.log(form_error(name)) < rms_log_error(judged.families)


def test_draws_of_a_point_are_about_its_prediction() -> None:
    family = published().families["all_to_all_others"]
    for point in family.points:
        logs = drawn_logs(point, family)
        assert np.median(logs) == pytest.approx(np.log(predicted_ms(point, family)), abs=0.05)
        assert 0.05 < logs.std() < 0.3


def test_errors_are_of_what_is_printed(predicted: list[Predicted]) -> None:
    for row in predicted:
        printed = point_row(row)
        over = float(printed["predicted_ms"]) / float(printed["published_ms"])
        assert float(printed["error_pct"]) == pytest.approx(100 * (over - 1), abs=0.2), row.point
        assert printed["source"]
        assert printed["split"] in (FIT, HELD_OUT)


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


def first_step(residuals: Callable[[Floats], Floats], start: Floats, *, bounds: Any, diff_step: float, **_: Any) -> Any:
    """Where the search goes from its start, in place of all of it: a step of Gauss and Newton, within the bounds."""
    at = residuals(start)
    slopes = [(at - residuals(start - step)) / diff_step for step in diff_step * np.eye(len(start))]
    moved = np.linalg.lstsq(np.stack(slopes, axis=1), -at, rcond=None)[0]
    return SimpleNamespace(x=np.minimum(start + moved, bounds[1]))


def test_committed_shares_are_the_fitted_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published_agreement, "least_squares", first_step)
    found = fit()
    assert found.keys() == {name for name, share in known_gpus().shares.items() if share.fitted}
    for name, value in found.items():
        # Three digits are written down.
        assert shared()[name] == pytest.approx(value, rel=0.03), name


def test_values_are_written_where_they_belong() -> None:
    text = '"a": {"value": 1.5, "prior": 1},\n"ab": {"value": 2, "prior": 1}'
    assert with_values(text, {"ab": 0.12345}) == '"a": {"value": 1.5, "prior": 1},\n"ab": {"value": 0.123, "prior": 1}'


def test_trust_in_gpus_is_of_held_out_steps_each_plan_once() -> None:
    steps, split = held_out_steps(), {}
    for family in published().families.values():
        own = family.points if family.fitted else ()
        split |= {plan_of(p): p for p in own if family.split()[p.point] == HELD_OUT and _is_step(p)}
    assert len(steps) == len(split) > 30
    others = held_out_steps(without="h100-1x8")
    assert 0 < len(others) < len(steps)
    assert not any("h100-1x8" in step.tables for step in others)
    found = published_trust()
    assert (found.plans, found.pairs >= found.pairs_right > 0) == (len(steps), True)
    assert 1.05 < found.step_error < 2.0


def _is_step(point: object) -> bool:
    return isinstance(point, PublishedStep)


def test_every_gpu_has_a_file() -> None:
    assert set(gpu_files()) >= {*known_gpus().gpus, *SLICES}


def test_published_trust_is_told_by_machine_and_quantity() -> None:
    rows = list(csv.DictReader((ROOT / TRUST_CSV).read_text().splitlines()))
    assert {row["backend"] for row in rows} == {"published"}
    assert {row["quantity"] for row in rows} == {"step", "embedding", "exchanges"}
    told = [row for row in rows if row["quantity"] == "step"]
    every = [first for name in published().families for first in firsts(name)]
    held_out = [point for point, family in every if isinstance(point, PublishedStep) and family.fitted]
    assert sum(int(row["points"]) for row in told) == len(held_out)
    assert {row["machine"] for row in told} == {point.machine for point in held_out}


@pytest.mark.parametrize("name", gpu_files())
def test_machine_files_are_data_sheets_times_shared_constants(name: str) -> None:
    assert (ROOT / FILES / f"{name}.toml").read_text() == file_text(name)


@pytest.mark.parametrize("name", known_gpus().gpus)
def test_fits_and_files_agree_on_a_machine(name: str) -> None:
    made, file = with_shares(name, shared()), load_machine(name)
    for field in made.constants.__dataclass_fields__:
        assert getattr(made.constants, field) == pytest.approx(getattr(file.constants, field), rel=1e-3), field
    assert made.matrix is not None
    assert file.matrix is not None
    assert made.matrix.dense_half_flop_per_s == pytest.approx(file.matrix.dense_half_flop_per_s, rel=1e-3)


def test_rates_of_a_data_sheet_by_hand() -> None:
    sheet, shares = known_gpus().gpus["h100-1x8"], dict.fromkeys(shared(), 0.5)
    found = rates(sheet, shares)
    assert found["vector_copy"] == 3350e9 * 0.25
    assert found["intra_bandwidth"] == 225e9
    assert found["dense_half_rate"] == 494.5e12
    assert found["lookup_copy"] == 8 / found["vector_copy"]


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


def test_kernel_loads_by_hand() -> None:
    load = kernel_load(points("tbe_width")["large/D16"])
    assert load.lookups.tolist() == [16 * 131072 * 10]
    assert load.lookup_bytes.tolist() == [16 * 131072 * 10 * 64]
    assert load.bag_bytes.tolist() == [16 * 131072 * 64]
    assert load.chain.tolist() == [10 * (1 + 16 / 170)]
    cached = points("tbe_h100")["uvm_cache/backward/adam/cfr0.8"]
    load = kernel_load(cached)
    assert load.uvm.lookups.tolist() == [0]
    assert load.state_bytes.tolist() == [0]
    assert load.uvm.state_bytes[0] == pytest.approx(433722.73 * 8 * 128, rel=1e-4)
    assert cache_work(cached).lookups.tolist() == [0]  # a warm cache: what a backward updates is in it
    work = cache_work(points("tbe_h100")["uvm_cache/forward/adam/cfr0.8"])
    assert work.lookups.tolist() == [10 * 104857]
    assert work.filled_bytes.tolist() == work.evicted_bytes.tolist() == [10 * 15022 * 512]


def steps(family: str) -> dict[str, PublishedStep]:
    return {p.point: p for p in published().families[family].points if isinstance(p, PublishedStep)}


def test_every_step_names_what_is_declared() -> None:
    for name, family in published().families.items():
        for point in family.points:
            if isinstance(point, PublishedStep):
                assert point.executor in published().executors, name
                assert point.machine in known_gpus().gpus, name
                assert point.plan in {"table_wise", "row_wise", "hybrid", *published().plans}
                assert point.gpus % point.nodes == 0


def test_published_models_have_the_tables_of_their_source() -> None:
    models = published().models
    assert len(tables_of(models["synthetic-tiny"])) == 55
    assert len(tables_of(models["synthetic-medium"])) == 311
    multihot = tables_of(models["dcnv2-multihot"])
    assert len(multihot) == 26
    assert sum(sum(table.hotness) for table in multihot) == 214
    weights = sum(p.k * p.n for p in layers(models["dcnv2-multihot"], 1.0))
    cross = 3 * 2 * 3456 * 512
    bottom = 13 * 512 + 512 * 256 + 256 * 128
    assert layers(models["dcnv2-multihot"], 1.0)[3].k == 27 * 128
    top = 3456 * 1024 + 1024 * 1024 + 1024 * 512 + 512 * 256 + 256
    assert weights == cross + bottom + top


def test_plans_are_counted_by_hand() -> None:
    step = steps("step_dcnv2_mlperf")["v3.1.NVIDIA.eos_ngc23.09_merlin_hugectr"]
    placed = place(step)
    # Table 20 lies by rows on four GPUs; alone on the second, which has no other dealt table.
    alone = 55296 * 100 / 4
    replicated = published().plans[step.plan].replicated
    tables = tables_of(published().models[step.model])
    copies = sum(sum(tables[t].hotness) for t in replicated) * 55296 / 8
    assert placed.load.lookups[1] == pytest.approx(alone + copies)
    assert placed.columns.tolist() == [128, 128, 128, 128, 4 * 128, 3 * 128, 4 * 128, 128]
    assert placed.replicated == sum(tables[t].rows for t in replicated) * 128
    assert placed.load.lookups.sum() == pytest.approx(214 * 55296)


def test_two_levels_share_a_bucket_inside_its_node() -> None:
    step = steps("step_dcnv2_mlperf")["v3.1.NVIDIA.eos_n8_ngc23.09_merlin_hugectr"]
    placed = place(step)
    assert placed.node_columns[0] == 128
    assert not placed.columns.any()
    # The GPUs of a node have the same load.
    for node in range(8):
        assert len(set(placed.load.lookups[8 * node : 8 * node + 8].round(3))) == 1
    assert placed.load.lookups.sum() == pytest.approx(214 * step.batch_size)


def test_more_gpus_are_never_slower_for_published_models() -> None:
    family = steps("step_dgx_a100")
    machine = committed("a100-80gb-1x8")
    no_host = {"host_step_s": 0.0, "host_call_s": 0.0}
    times = [step_parts(family[f"tiny/{gpus}"], machine, no_host).total for gpus in (1, 8, 16)]
    assert times == sorted(times, reverse=True)


def test_parts_add_up_and_nothing_is_exchanged_on_one_gpu() -> None:
    step = steps("step_dlrm_pytorch")["pt.DGX A100 80GB.1gpu.small.amp"]
    parts = step_parts(step, committed(step.machine), {"host_step_s": 1.0, "host_call_s": 0.0})
    assert parts.output == parts.output_backward == parts.all_reduce == parts.floor == 0.0
    assert parts.total == pytest.approx(parts.lookup + parts.dense + parts.assembly + parts.lookup_backward)
