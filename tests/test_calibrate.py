"""Calibration: the fit finds known constants, the writer keeps what was not measured, two real ranks measure."""

from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from problems import machine

from shardbench.base.errors import BadInput
from shardbench.calibrate import calibration, session
from shardbench.calibrate.calibration import (
    IN_STEP_KINDS,
    Calibration,
    _finish,
    _source,
    as_data,
    as_lines,
    bandwidth_by_width,
    dense_steps,
    trust_in,
)
from shardbench.calibrate.cases import (
    BATCHES,
    MESSAGE_BYTES,
    PLAN_BATCHES,
    QUICK_PLANS,
    QUICK_SETS,
    PlanCase,
    bags,
    kernel_plan,
    kernel_points,
    on_one_device,
    plan_cases,
    problem_of,
)
from shardbench.calibrate.fit import Fit, direct_constants, fit, reduce_bytes_per_s, residuals
from shardbench.calibrate.session import (
    KernelTime,
    Measurements,
    MessageTime,
    Order,
    PlanTime,
    RankTimes,
    gather,
    measure,
    measure_ranks,
    orders_of,
)
from shardbench.calibrate.write import GUESSED_ERROR, base_of, in_unit, write_machine
from shardbench.cost.costmodel import backward_s, forward_s, step_time
from shardbench.cost.phases import EXCHANGE_PHASES, StepPhase
from shardbench.cost.traffic import count
from shardbench.engine.processes.failures import TrialFailed, failed
from shardbench.model.machine import Machine, Trust
from shardbench.model.machine_file import KEYS, load_machine, parse_machine
from shardbench.model.plan import OnRank, Replicated, RowWise, Tier
from shardbench.model.strategy import Move
from shardbench.model.table import DenseShape, Pooling
from shardbench.model.validate import validate
from shardbench.records.trial import Outcome

FILES = Path(__file__).parent.parent / "benchmarks" / "machines"


def imagined(truth: Machine, start: Machine) -> Measurements:
    """What a machine that obeys the cost model to the letter would measure."""
    kernels, plans = [], []
    for point in kernel_points(tiers=(Tier.HBM,), quick=True):
        small = replace(point, batch=min(point.batch, 256))
        problem = problem_of(small, on_one_device(truth))
        load = count(kernel_plan(small, problem), problem, partial(bags, small, 0), DenseShape()).load
        forward, backward = (1e3 * float(f(load, truth.constants)[0]) for f in (forward_s, backward_s))
        forward += 1e3 * truth.constants.module_s
        kernels.append(KernelTime(point=small, load=load, forward_ms=forward, backward_ms=backward))
    for case in plan_cases(2, quick=True):
        problem = case.problem(truth)
        traffic = count(case.plan, problem, lambda i, case=case: case.bags(0, i), case.dense)
        step = step_time(traffic, truth, case.dense, problem.tables, problem.batch_size)
        phases = {**step.phases_ms, StepPhase.UPDATE: 0.0}
        phases[StepPhase.OUTPUT_BACKWARD] += phases.pop(StepPhase.ALL_REDUCE)
        kernels_ms = {StepPhase.LOOKUP: step.forward_ms, StepPhase.LOOKUP_BACKWARD: step.backward_ms}
        plans.append(PlanTime(case=case, traffic=traffic, kernels_ms=kernels_ms, work_ms=phases, step_ms=step.step_ms))
    rate = truth.constants.intra_bytes_per_s
    messages = tuple(
        MessageTime(
            nbytes=n, all_to_all_ms=1e3 * n / 2 / rate, all_reduce_ms=1e3 * n / rate,
            reduce_scatter_ms=1e3 * n / 2 * (1 / rate + 1 / truth.constants.reduce_bytes_per_s),
        )
        for n in MESSAGE_BYTES
    )  # fmt: skip
    return Measurements(
        machine=start, kernels=tuple(kernels), messages=messages, plans=tuple(plans),
        stream_bytes_per_s=truth.constants.hbm_bytes_per_s, cache_bytes=None, noise_pct=0.0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def truth() -> Machine:
    machine = load_machine("cpu-1x2")
    changes = {"launch_s": 3e-4, "dispatch_s": 0.0, "sort_bytes": 90.0, "gather_efficiency_ratio": 0.8}
    changes |= {"vector_copy_bytes_per_s": 5e9, "activation_bytes_per_s": 2e9, "module_s": 5e-4, "lookup_copy_s": 6e-9}
    changes |= {"length_copy_s": 3e-8, "bucketise_s": 2e-8, "reduce_bytes_per_s": 3e9}
    links = {"intra_bytes_per_s": 2e9, "intra_latency_s": 8e-4, "dense_flop_per_s": 7e10}
    # Not those of the file, which is calibrated anew now and then.
    changes |= {"hbm_bytes_per_s": 1.4e10, "cache_bytes_per_s": 5e10, "cache_reach_ratio": 1.0}
    changes |= {"access_overhead_bytes": 70.0, "table_s": 4e-6, "bag_s": 1.5e-8, "page_s": 2.4e-8}
    changes |= {"sequence_row_s": 1.3e-6, "sequence_half_rows": 9e3, "dense_step_s": 2e-4, "dense_layer_s": 3e-4}
    return replace(machine, constants=replace(machine.constants, **changes, **links))


@pytest.fixture(scope="module")
def measured(truth) -> Measurements:
    return imagined(truth, load_machine("cpu-1x2"))


@pytest.fixture(scope="module")
def fitted(measured) -> Fit:
    return fit(measured)


def test_the_fit_finds_the_constants_of_a_machine_that_obeys_the_model(truth, measured, fitted):
    errors = [abs(np.exp(residual.log_error(fitted.machine)) - 1) for residual in residuals(measured)]
    assert np.median(errors) < 0.02
    # What few points tell apart, such as a map of sequences, stays near its guess.
    assert np.percentile(errors, 90) < 0.15
    for name in ("hbm_bytes_per_s", "launch_s", "intra_latency_s", "dense_flop_per_s"):
        assert getattr(fitted.machine.constants, name) == pytest.approx(getattr(truth.constants, name), rel=0.15), name
    assert fitted.quality["embedding"].median_pct < 2.0
    # Few quick points tell pages, bags and bytes apart.
    assert fitted.held_out["embedding"].median_pct < 3.0


def test_adding_up_in_a_reduce_scatter_is_told_from_its_bytes(truth, measured):
    assert reduce_bytes_per_s(measured) == pytest.approx(truth.constants.reduce_bytes_per_s, rel=0.02)
    hidden = [replace(m, reduce_scatter_ms=m.all_to_all_ms) for m in measured.messages]
    rate = truth.constants.intra_bytes_per_s
    assert reduce_bytes_per_s(replace(measured, messages=tuple(hidden))) == pytest.approx(10 * rate, rel=0.02)


def test_only_constants_that_a_prediction_depends_on_are_fitted(fitted):
    names = set(fitted.fitted)
    assert {"launch_s", "sort_bytes", "gather_efficiency_ratio", "dense_flop_per_s"} <= names
    assert not {"hbm_bytes_per_s", "inter_bytes_per_s", "inter_latency_s", "uvm_bytes_per_s"} & names


def test_one_rank_tells_nothing_of_links(measured):
    one = replace(measured.machine, topology=replace(measured.machine.topology, devices_per_node=1))
    alone = replace(measured, machine=one)
    assert direct_constants(measured).keys() - direct_constants(alone).keys() == {
        "intra_bytes_per_s", "reduce_bytes_per_s"
    }  # fmt: skip
    assert {r.what for r in residuals(measured)} - {r.what for r in residuals(alone)} == {
        f"{phase} in step" for phase in EXCHANGE_PHASES
    }


def test_whole_steps_tell_of_constants_whose_phase_one_rank_has_not(fitted):
    found = fitted.quality
    name = next(name for name, kind in IN_STEP_KINDS.items() if kind == "output in step")
    alone = {kind: quality for kind, quality in found.items() if kind != "output in step"}
    assert "(output in step)" in _source(name, "a CPU", found)
    assert "(whole step)" in _source(name, "a CPU", alone)


def test_each_set_of_tables_has_processes_of_its_own():
    kernels, *sets = orders_of(load_machine("cpu-1x2"), quick=True)
    assert kernels.kernels and not kernels.plans
    assert [len(one.plans) for one in sets] == [QUICK_PLANS] * QUICK_SETS
    assert not any(one.kernels for one in sets)
    assert all(len({case.group for case in one.plans}) == 1 for one in sets)


def test_a_calibration_says_how_far_it_is(monkeypatch):
    turn = RankTimes(kernels=(((1.0, 2.0),),), messages=(), plans=({"step": (3.0,)},), stream_bytes_per_s=1.0)
    monkeypatch.setattr(session, "measure_ranks", lambda order: [turn])
    order, lines = Order(machine=load_machine("cpu-1x2"), kernels=(), plans=(), rounds=1), []
    ((times,), _) = measure([order, order], visits=2, noted=lines.append)
    assert times.kernels == (((1.0, 2.0), (1.0, 2.0)),)
    assert times.plans == ({"step": (3.0, 3.0)},)
    assert lines == [f"calibrating: {done} of 4 parts measured" for done in (1, 2, 3, 4)]


def test_the_rank_at_fault_is_the_one_that_is_told_of(monkeypatch):
    causes = ["RuntimeError: Connection closed by peer [127.0.0.1]:1", "RuntimeError: no room", "Timed out waiting"]

    def fails(call, arguments, *, phase, **_):
        raise failed(Outcome.ERROR, causes[arguments[2]], phase)

    monkeypatch.setattr("shardbench.calibrate.session.call_in_child", fails)
    order, *_ = orders_of(replace(machine(1, 3), device="cpu"), quick=True)
    with pytest.raises(TrialFailed, match="no room"):
        measure_ranks(order)
    causes[1] = causes[0]
    with pytest.raises(TrialFailed, match="closed by peer"):
        measure_ranks(order)


def test_gpus_are_calibrated_and_several_such_machines_written(tmp_path, monkeypatch):
    def gather(orders, _):
        assert {point.tier for point in orders[0].kernels} == {Tier.HBM, Tier.UVM}
        machine = orders[0].machine
        return imagined(replace(load_machine("h100-1x8"), topology=machine.topology), machine)

    monkeypatch.setattr(calibration, "measure", lambda orders, **_: [])
    monkeypatch.setattr(calibration, "gather", gather)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=80 * 10**9))
    out = tmp_path / "cuda-2x2.toml"
    done = calibration.calibrate("cuda", 2, out, quick=True, force=False, nodes=2)
    assert max(quality.median_pct for quality in done.fit.held_out.values()) < 1.0
    written = load_machine(str(out))
    assert (written.name, written.device, written.topology.nodes) == ("cuda-2x2", "cuda", 2)
    assert (written.topology.devices_per_node, written.topology.hbm_bytes) == (2, 72 * 10**9)
    assert written.description.startswith("2 machines, each 2 GPUs of one machine, nccl")
    assert written.errors["inter_bytes_per_s"] == GUESSED_ERROR
    assert written.sources["inter_bytes_per_s"].startswith("not measured")


def test_a_file_of_several_machines_is_no_file_of_one(tmp_path):
    out = tmp_path / "cpu-2x2.toml"
    assert base_of("cpu", 4, out).machine.topology.nodes == 2  # emulated here
    assert not base_of("cpu", 2, out, alone=False).own
    out.write_text((FILES / "cpu-2x2.toml").read_text())
    base = base_of("cpu", 2, out, alone=False)
    assert (base.own, base.machine.name, base.machine.topology.devices_per_node) == (False, "cpu-2x2", 2)


def test_a_written_file_loads_and_keeps_what_was_not_measured(tmp_path, measured, fitted):
    out = tmp_path / "cpu-1x2.toml"
    base = base_of("cpu", 2, out)
    machine, sources = _finish(base, measured, fitted)
    write_machine(out, base, machine, sources)
    loaded = load_machine(str(out))
    assert loaded.topology == load_machine("cpu-1x2").topology
    for field in fields(loaded.constants):
        written = getattr(machine.constants, field.name)
        if written is None:
            assert getattr(loaded.constants, field.name) is None
            continue
        assert getattr(loaded.constants, field.name) == pytest.approx(written, rel=1e-3), field.name
    assert loaded.sources["launch_s"].startswith("measured by shardbench doctor --calibrate on ")
    assert "median error" in loaded.sources["launch_s"]
    assert loaded.errors == machine.errors
    assert loaded.errors["launch_s"] == max(1.01, round(fitted.held_out["lookup_backward in step"].factor, 2))
    assert loaded.errors["peer_latency_s"] == load_machine("cpu-1x2").errors["peer_latency_s"]
    constants = loaded.constants
    assert constants.uvm_bytes_per_s <= constants.hbm_bytes_per_s * constants.gather_efficiency_ratio
    assert constants.intra_latency_s <= constants.inter_latency_s
    done = Calibration(measured=measured, fit=fitted, machine=machine, path=out)
    assert all(line.isascii() for line in as_lines(done))
    assert as_data(done)["constants"]["launch_s"] == machine.constants.launch_s


def test_a_machine_without_a_file_gets_its_own_capacities(tmp_path, measured):
    out = tmp_path / "laptop.toml"
    base = base_of("cpu", 2, out)
    assert not base.own
    own = replace(measured, machine=base.machine)
    machine, sources = _finish(base, own, fit(own))
    write_machine(out, base, machine, sources)
    loaded = load_machine(str(out))
    assert loaded.name == "laptop"
    assert loaded.sources["hbm_bytes"] == "half of this machine's memory, shared by 2 ranks"
    assert loaded.sources["inter_bytes_per_s"].startswith("not measured")
    assert loaded.errors == machine.errors
    assert loaded.errors["inter_bytes_per_s"] == loaded.errors["peer_latency_s"] == GUESSED_ERROR


def test_a_file_that_exists_is_the_base(tmp_path):
    text = (FILES / "cpu-1x2.toml").read_text()
    (tmp_path / "mine.toml").write_text(text.replace("value = 6\n", "value = 3\n", 1))
    assert base_of("cpu", 2, tmp_path / "mine.toml").machine.topology.hbm_bytes == 3 * 10**9
    with pytest.raises(BadInput, match="is 1x2 cpu, this calibration is 1x4 cpu"):
        base_of("cpu", 4, tmp_path / "mine.toml")


def test_emulated_nodes_are_calibrated_as_they_are_and_their_links_alike(measured, fitted, tmp_path):
    out = tmp_path / "cpu-2x2.toml"
    base = base_of("cpu", 4, out)
    assert (base.machine.topology.nodes, base.machine.topology.devices_per_node) == (2, 2)
    links = {"inter_bytes_per_s": 1e8, "inter_latency_s": 5e-3}
    two = replace(base.machine, constants=replace(fitted.machine.constants, **links))
    machine, sources = _finish(base, replace(measured, machine=base.machine), replace(fitted, machine=two))
    assert machine.constants.intra_bytes_per_s == machine.constants.inter_bytes_per_s == 1e8
    assert machine.constants.intra_latency_s == machine.constants.inter_latency_s == 5e-3
    assert "emulated" in sources["intra_bytes_per_s"]
    with pytest.raises(BadInput, match="is 2x2 cpu, this calibration is 1x2 cpu"):
        base_of("cpu", 2, out)


def test_a_hosts_link_and_rate_stay_in_the_file(tmp_path):
    out = tmp_path / "v100-16gb-1x4.toml"
    base = base_of("cuda", 4, out)
    trust = Trust(step_error=1.25, plans=3, source='made up, by "hand"')
    write_machine(out, base, replace(base.machine, trust=trust), {"dense_flop_per_s": "made up for this test"})
    loaded, shipped = load_machine(str(out)), load_machine("v100-16gb-1x4")
    assert shipped.host is not None
    assert loaded.host == shipped.host
    assert loaded.trust == trust
    # What is calibrated anew is not what those steps were predicted with.
    assert base_of("cuda", 4, out).machine.trust is None


@pytest.mark.parametrize("name", [path.stem for path in sorted(FILES.glob("*.toml"))])
def test_units_keep_the_number(name):
    machine = load_machine(name)
    for key in KEYS.values():
        value = getattr(getattr(machine, key.holder), key.field, None) or 0
        text, unit = in_unit(value, key.dimension)
        source = f'[constants.x]\nvalue = {text}\nunit = "{unit}"\n'
        assert float(text) >= 0, source
    assert in_unit(2.5e9, "bytes_per_s") == ("2.5", "GB/s")
    assert in_unit(0.00123456, "s") == ("1.235", "ms")
    assert in_unit(0.0, "s") == ("0", "ns")
    assert in_unit(0.5, "ratio") == ("0.5", "ratio")


def test_points_are_always_the_same_and_cover_what_they_say():
    points = kernel_points(tiers=(Tier.HBM,), quick=False)
    assert len(set(points)) == len(points)
    assert {8, 16, 64, 256} <= {point.dim for point in points}
    assert (
        {True, False} == {point.unpooled for point in points} == {point.unpooled for point in points if point.held_out}
    )
    assert {1, 200} <= {point.pooling for point in points}
    assert any(point.held_out for point in points)
    assert not all(point.held_out for point in points)
    one, again = bags(points[0], 1, 0), bags(points[0], 1, 0)
    np.testing.assert_array_equal(one.values, again.values)
    assert {point.tier for point in kernel_points(tiers=(Tier.HBM, Tier.UVM), quick=True)} == {Tier.HBM, Tier.UVM}


@pytest.mark.parametrize("world", [2, 3, 4])
def test_plans_are_always_the_same_valid_and_of_every_kind(world):
    cases, again = plan_cases(world, quick=False), plan_cases(world, quick=False)
    assert [case.plan for case in cases] == [case.plan for case in again]
    np.testing.assert_array_equal(cases[0].bags(1, 0).values, again[0].bags(1, 0).values)
    assert {case.held_out for case in cases if case.group == "tables-1"} == {True}
    assert sum(case.held_out for case in cases) == len(cases) / 2
    kinds, narrow, sequences = set(), 0, 0
    for case in cases:
        problem = case.problem(machine(1, world))
        validate(case.plan, problem, frozenset(Move))
        kinds |= {type(segment.placement) for segment in case.plan.segments}
        widths = {table.name: table.dim for table in case.tables}
        narrow += any(segment.columns < widths[segment.table] for segment in case.plan.segments)
        sequences += any(table.pooling is Pooling.NONE for table in case.tables)
    assert kinds == {OnRank, RowWise, Replicated}
    assert narrow > 5
    assert sequences > 5


def test_trust_counts_held_out_plans_alone(truth, measured):
    found = trust_in(truth, measured)
    assert (found.step_error, found.pair_error) == (1.0, 1.0)
    assert found.plans == sum(plan.case.held_out for plan in measured.plans)
    assert 0 < found.pairs == found.pairs_right <= found.plans
    slower = [replace(plan, step_ms=plan.step_ms * (1.5 if plan.case.held_out else 9.0)) for plan in measured.plans]
    found = trust_in(truth, replace(measured, plans=tuple(slower)))
    # All plans alike: their ratios are what they were.
    assert (found.step_error, found.pair_error) == (1.5, 1.0)
    none = tuple(plan for plan in measured.plans if not plan.case.held_out)
    assert trust_in(truth, replace(measured, plans=none)) is None


def test_a_measured_dense_model_goes_before_the_formula(truth, measured):
    plan = measured.plans[0]
    case = replace(plan.case, model=True)
    kept = dense_steps(replace(measured, plans=(replace(plan, case=case, work_ms=plan.work_ms | {"dense": 7.0}),)))
    assert list(kept.values()) == [7e-3]
    known = replace(truth, dense_steps=kept)
    problem = case.problem(truth)
    step = step_time(plan.traffic, known, case.dense, problem.tables, problem.batch_size)
    assert step.phases_ms["dense"] == 7.0
    other = step_time(plan.traffic, known, DenseShape(), problem.tables, problem.batch_size)
    assert other.phases_ms["dense"] != 7.0


def small_case(at: int) -> PlanCase:
    """A drawn plan on a batch of few samples."""
    case = plan_cases(2, quick=True)[at]
    return replace(case, batch_size=16, source=replace(case.source, batch_size=16))


def test_two_real_ranks(tmp_path):
    machine = load_machine("cpu-1x2")
    points = kernel_points(tiers=(Tier.HBM,), quick=True)
    few = tuple(replace(p, rows=1000, batch=min(p.batch, 64)) for p in (points[4], points[7], points[-1]))
    orders = (
        Order(machine=machine, kernels=few, plans=(), rounds=1),
        Order(machine=machine, kernels=(), plans=(small_case(0), small_case(2)), rounds=1),
    )
    times = measure(orders, visits=2)
    assert [len(kernel) for kernel in times[0][0].kernels] == [2 * BATCHES] * 3
    assert [len(plan["step"]) for plan in times[1][1].plans] == [2 * PLAN_BATCHES] * 2
    measured = gather(orders, times)
    assert all(k.forward_ms > 0 and k.backward_ms > 0 for k in measured.kernels)
    assert [m.nbytes for m in measured.messages] == list(MESSAGE_BYTES)
    assert all(m.all_to_all_ms > 0 and m.all_reduce_ms > 0 for m in measured.messages)
    assert all(m.reduce_scatter_ms > 0 for m in measured.messages)
    for plan in measured.plans:
        slowest = max(ms for kernel in plan.kernels_ms.values() for ms in kernel)
        assert plan.step_ms > slowest > 0
        assert all(ms > 0 for ms in plan.work_ms.values())
    assert measured.stream_bytes_per_s > 0
    assert {row["row_bytes"] for row in bandwidth_by_width(measured)} == {64}
    base = base_of("cpu", 2, tmp_path / "cpu-1x2.toml")
    found, sources = _finish(base, measured, fit(measured))
    write_machine(tmp_path / "cpu-1x2.toml", base, found, sources)
    assert parse_machine((tmp_path / "cpu-1x2.toml").read_text(), "written").name == "cpu-1x2"
