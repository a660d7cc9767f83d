"""Calibration: the fit finds known constants, the writer keeps what was not measured, two real ranks measure."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from shardbench.base.errors import BadInput
from shardbench.calibrate.calibration import Calibration, _finish
from shardbench.calibrate.fit import fit, residuals
from shardbench.calibrate.points import (
    BATCHES,
    MESSAGE_BYTES,
    bags,
    kernel_plan,
    kernel_points,
    lookups_of,
    on_one_device,
    probe_plan,
    probe_steps,
    problem_of,
)
from shardbench.calibrate.rank import Order
from shardbench.calibrate.session import KernelTime, Measurements, MessageTime, ProbeTime, gather, measure_ranks
from shardbench.calibrate.summary import bandwidth_by_width, data, fused_over_single, lines
from shardbench.calibrate.write import GUESSED_ERROR, base_of, in_unit, write_machine
from shardbench.cost.costmodel import backward_s, forward_s, step_time
from shardbench.cost.phases import EXCHANGE_PHASES
from shardbench.cost.traffic import count
from shardbench.model.machine import _FIELDS, Machine, load_machine, parse_machine
from shardbench.model.plan import Tier

FILES = Path(__file__).parent.parent / "benchmarks" / "machines"


def imagined(truth: Machine, start: Machine) -> Measurements:
    """What a machine that obeys the cost model to the letter would measure."""
    kernels, probes = [], []
    for point in kernel_points(tiers=(Tier.HBM,), quick=True):
        small = replace(point, batch=min(point.batch, 256))
        problem = problem_of(small, on_one_device(truth))
        load = count(
            kernel_plan(small, problem), problem, lookups_of(small, 0), probe_steps(2, quick=True)[0].dense
        ).load
        forward, backward = (1e3 * float(f(load, truth.constants)[0]) for f in (forward_s, backward_s))
        kernels.append(KernelTime(point=small, load=load, forward_ms=forward, backward_ms=backward))
    for probe in probe_steps(2, quick=True):
        problem = problem_of(probe.point, truth)
        traffic = count(probe_plan(probe, problem), problem, lookups_of(probe.point, 0), probe.dense)
        step = step_time(traffic, truth, probe.dense, problem.tables, problem.batch_size)
        phases = {**step.phases_ms, "update": 0.0}
        phases["output_backward"] += phases.pop("all_reduce")
        probes.append(
            ProbeTime(
                probe=probe, traffic=traffic, phases_ms=phases, step_ms=step.step_ms,
                exchange_ms=sum(phases[phase] for phase in EXCHANGE_PHASES), embedding_ms=step.embedding_ms,
            )
        )  # fmt: skip
    rate = truth.constants.intra_bytes_per_s
    messages = tuple(
        MessageTime(nbytes=n, all_to_all_ms=1e3 * n / 2 / rate, all_reduce_ms=1e3 * n / rate) for n in MESSAGE_BYTES
    )
    return Measurements(
        machine=start, kernels=tuple(kernels), messages=messages, probes=tuple(probes),
        stream_bytes_per_s=truth.constants.hbm_bytes_per_s, cache_bytes=None, noise_pct=0.0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def truth() -> Machine:
    machine = load_machine("cpu-1x2")
    changes = {"launch_s": 3e-4, "dispatch_s": 0.0, "sort_bytes": 90.0, "gather_efficiency_ratio": 0.8}
    links = {"intra_bytes_per_s": 2e9, "intra_latency_s": 8e-4, "dense_flop_per_s": 7e10}
    return replace(machine, constants=replace(machine.constants, **changes, **links))


@pytest.fixture(scope="module")
def measured(truth) -> Measurements:
    return imagined(truth, load_machine("cpu-1x2"))


def test_the_fit_finds_the_constants_of_a_machine_that_obeys_the_model(truth, measured):
    found = fit(measured)
    errors = [abs(np.exp(residual.log_error(found.machine)) - 1) for residual in residuals(measured)]
    assert np.median(errors) < 0.01
    assert max(errors) < 0.15
    for name in ("hbm_bytes_per_s", "launch_s", "intra_latency_s", "dense_flop_per_s"):
        assert getattr(found.machine.constants, name) == pytest.approx(getattr(truth.constants, name), rel=0.05), name
    assert found.quality["embedding"].median_pct < 1.0
    # Few quick points tell pages, bags and bytes apart.
    assert found.held_out["embedding"].median_pct < 2.0


def test_only_constants_that_a_prediction_depends_on_are_fitted(measured):
    fitted = fit(measured).fitted
    assert {"launch_s", "sort_bytes", "gather_efficiency_ratio", "dense_flop_per_s"} <= set(fitted)
    assert not {"hbm_bytes_per_s", "inter_bytes_per_s", "inter_latency_s", "uvm_bytes_per_s"} & set(fitted)


def test_a_written_file_loads_and_keeps_what_was_not_measured(tmp_path, measured):
    out = tmp_path / "cpu-1x2.toml"
    base = base_of("cpu", 2, out)
    found = fit(measured)
    machine, sources = _finish(base, measured, found)
    write_machine(out, base, machine, sources)
    loaded = load_machine(str(out))
    assert loaded.topology == load_machine("cpu-1x2").topology
    for field in fields(loaded.constants):
        written = getattr(machine.constants, field.name)
        assert getattr(loaded.constants, field.name) == pytest.approx(written, rel=1e-3), field.name
    assert loaded.sources["launch_s"].startswith("measured by shardbench doctor --calibrate on ")
    assert "median error" in loaded.sources["launch_s"]
    assert loaded.errors == machine.errors
    assert loaded.errors["launch_s"] == max(1.01, round(found.held_out["embedding"].factor, 2))
    assert loaded.errors["peer_latency_s"] == load_machine("cpu-1x2").errors["peer_latency_s"]
    constants = loaded.constants
    assert constants.uvm_bytes_per_s <= constants.hbm_bytes_per_s * constants.gather_efficiency_ratio
    assert constants.intra_latency_s <= constants.inter_latency_s
    done = Calibration(measured=measured, fit=found, machine=machine, path=out)
    assert all(line.isascii() for line in lines(done))
    assert data(done)["constants"]["launch_s"] == machine.constants.launch_s


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


def test_emulated_nodes_are_calibrated_as_they_are_and_their_links_alike(measured, tmp_path):
    out = tmp_path / "cpu-2x2.toml"
    base = base_of("cpu", 4, out)
    assert (base.machine.topology.nodes, base.machine.topology.devices_per_node) == (2, 2)
    found = fit(replace(measured, machine=load_machine("cpu-1x2")))
    two = replace(base.machine, constants=replace(found.machine.constants, inter_bytes_per_s=1e8, inter_latency_s=5e-3))
    machine, sources = _finish(base, replace(measured, machine=base.machine), replace(found, machine=two))
    assert machine.constants.intra_bytes_per_s == machine.constants.inter_bytes_per_s == 1e8
    assert machine.constants.intra_latency_s == machine.constants.inter_latency_s == 5e-3
    assert "emulated" in sources["intra_bytes_per_s"]
    with pytest.raises(BadInput, match="is 2x2 cpu, this calibration is 1x2 cpu"):
        base_of("cpu", 2, out)


def test_a_hosts_link_and_rate_stay_in_the_file(tmp_path):
    out = tmp_path / "v100-16gb-1x4.toml"
    base = base_of("cuda", 4, out)
    write_machine(out, base, base.machine, {"dense_flop_per_s": "made up for this test"})
    loaded, shipped = load_machine(str(out)), load_machine("v100-16gb-1x4")
    assert shipped.host is not None
    assert loaded.host == shipped.host


@pytest.mark.parametrize("name", [path.stem for path in sorted(FILES.glob("*.toml"))])
def test_units_keep_the_number(name):
    machine = load_machine(name)
    for field, dimension in _FIELDS.values():
        value = getattr(machine.constants, field, None) or getattr(machine.topology, field, 0)
        text, unit = in_unit(value, dimension)
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
    assert {point.tier for point in kernel_points(tiers=(Tier.HBM, Tier.UVM), quick=True)} == set(Tier)
    for world in (2, 4):
        for probe in probe_steps(world, quick=False):
            assert probe.point.batch % world == 0
            assert (probe.point.tables - probe.row_wise - probe.replicated) >= world - 1


def test_two_real_ranks(tmp_path):
    machine = load_machine("cpu-1x2")
    points = kernel_points(tiers=(Tier.HBM,), quick=True)
    order = Order(
        machine=machine,
        kernels=tuple(replace(p, rows=1000, batch=min(p.batch, 64)) for p in (points[4], points[7], points[-1])),
        probes=probe_steps(2, quick=True)[:2],
        rounds=1,
    )
    ranks = measure_ranks(order)
    assert [len(times) for times in ranks[0].kernels] == [BATCHES] * 3
    measured = gather(order, ranks)
    assert all(k.forward_ms > 0 and k.backward_ms > 0 for k in measured.kernels)
    assert [m.nbytes for m in measured.messages] == list(MESSAGE_BYTES)
    assert all(m.all_to_all_ms > 0 and m.all_reduce_ms > 0 for m in measured.messages)
    assert measured.probes[1].step_ms > sum(measured.probes[1].embedding_ms) / 2
    assert measured.stream_bytes_per_s > 0
    assert {row["row_bytes"] for row in bandwidth_by_width(measured)} == {64}
    assert fused_over_single(measured) is not None
    base = base_of("cpu", 2, tmp_path / "cpu-1x2.toml")
    found, sources = _finish(base, measured, fit(measured))
    write_machine(tmp_path / "cpu-1x2.toml", base, found, sources)
    assert parse_machine((tmp_path / "cpu-1x2.toml").read_text(), "written").name == "cpu-1x2"
