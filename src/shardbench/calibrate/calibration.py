"""The whole of ``doctor --calibrate``: measure, fit, say where every number comes from, write, report."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from shardbench.base.errors import BadInput
from shardbench.base.host import Environment
from shardbench.base.memory import RANK_BYTES, free_memory_bytes
from shardbench.base.serialise import to_data
from shardbench.calibrate.cases import PlanCase
from shardbench.calibrate.fit import Fit, Quality, errors_without, fit
from shardbench.calibrate.session import QUICK_VISITS, VISITS, Measurements, Order, gather, measure, orders_of
from shardbench.calibrate.write import (
    GUESSED_ERROR,
    NOT_MEASURED,
    Base,
    base_of,
    refuse_overwriting,
    write_machine,
)
from shardbench.cost.costmodel import step_time
from shardbench.cost.phases import StepPhase
from shardbench.cost.uncertainty import HeldOutStep, off_text, trust
from shardbench.model.calibrated import chip_of, measured_on
from shardbench.model.machine import Machine, Topology, Trust, dense_key

_IN_STEP = {
    "exchange": (
        "intra_bytes_per_s", "inter_bytes_per_s", "intra_latency_s", "inter_latency_s", "peer_latency_s",
        "vector_copy_bytes_per_s", "reduce_bytes_per_s",
    ),
    "input": ("lookup_copy_s", "length_copy_s", "bucketise_s"),
    "dense": ("dense_flop_per_s", "dense_step_s", "dense_layer_s", "activation_bytes_per_s"),
}  # fmt: skip
_APART, _SIGNIFICANT = 0.05, 1.96
"""Plans whose measured steps differ by less than this share, or by less than the noise of two, have no order."""
IN_STEP_KINDS = {
    name: f"{phase if phase != 'exchange' else 'output'} in step" for phase, names in _IN_STEP.items() for name in names
}
"""Which kind of time tells the error of a constant; of all others, those of kernels, it is _OF_KERNELS."""
_OF_KERNELS = f"{StepPhase.LOOKUP_BACKWARD} in step"
NOISY_PCT = 10.0
"""A calibration with more noise than this should be repeated."""
Cells = dict[str, float | int | str | None]


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What a calibration measured and made of it."""

    measured: Measurements
    fit: Fit
    machine: Machine
    """The machine as it is written."""
    path: Path


def calibrate(
    device: str,
    ranks: int,
    out: Path,
    *,
    quick: bool,
    force: bool,
    nodes: int = 1,
    models: Sequence[PlanCase] = (),
    noted: Callable[[str], None] = lambda _: None,
) -> Calibration:
    """Measure ``ranks`` local ranks and write the machine file ``out``, of ``nodes`` computers like this one.

    The dense models of ``models``, such as a suite's workloads under their control plans, are measured as well.
    ``noted`` gets lines that say how much is done.

    Raises BadInput before anything is measured where ``out`` may not be written, TrialFailed
    where a rank fails.
    """
    refuse_overwriting(out, force=force)
    base = base_of(device, ranks, out, alone=nodes == 1)
    orders = orders_of(base.machine, quick=quick, models=models)
    need, free = max(map(_memory_bytes, orders)), free_memory_bytes()
    if device == "cpu" and need > free:
        smaller = "stop other programs" if quick else "give --quick"
        raise BadInput(f"calibration needs about {need / 1e9:.1f} GB of memory, {free / 1e9:.1f} are free: {smaller}")
    measured = gather(orders, measure(orders, visits=QUICK_VISITS if quick else VISITS, noted=noted))
    best_fit = fit(measured)
    machine, sources = _finish(base, measured, best_fit, errors_without(measured, best_fit.fitted))
    if nodes > 1:
        several = f"{nodes} machines, each {machine.description}; the links between them are not measured"
        machine = replace(machine, description=several, topology=replace(machine.topology, nodes=nodes))
    write_machine(out, base, machine, sources)
    return Calibration(measured=measured, fit=best_fit, machine=machine, path=out)


def _finish(
    base: Base, measured: Measurements, best_fit: Fit, without: dict[str, tuple[float, float]] | None = None
) -> tuple[Machine, dict[str, str]]:
    """Return the machine with what follows from the fit, and the source of every new number."""
    chip = chip_of(Environment.here(), measured.machine.device)
    sources = {name: _source(name, chip, best_fit.quality) for name in best_fit.fitted}
    for name, (with_it, bare) in ({} if without is None else without).items():
        sources[name] += f"; kernels by themselves, held out: {with_it:.1f} % with this term, {bare:.1f} % without"
    sources["hbm_bytes_per_s"] = f"{measured_on(chip)}, plain copy of 128 MiB, read and written"
    if measured.cache_bytes is not None:
        sources["cache_bytes"] = "reported by the system (doctor --calibrate): a rank's share of the last-level cache"
    if measured.machine.device == "cpu":
        same = f"{measured_on(chip)}: the same memory as hbm"
        sources["uvm_bytes_per_s"] = f"{same}, half its gather rate, as reads and writes share it"
        sources["host_bytes_per_s"] = f"{same}, at its gather rate"
        sources["host_launch_s"] = f"{measured_on(chip)}: the same CPU, as launch"
        sources["host_table_s"] = f"{measured_on(chip)}: the same CPU, as table_call"
        sources["bag_step_s"] = f"{measured_on(chip)}: one thread reads bag after bag, so that no tail is left"
        sources["dispatch_s"] = f"{measured_on(chip)}: nothing hides it on a CPU, it is part of launch"
    if measured.machine.topology.nodes > 1:
        same_link = f"{measured_on(chip)}: its nodes are emulated, the link inside them is the one between them"
        sources |= {"intra_bytes_per_s": same_link, "intra_latency_s": same_link}
    constants, machine = best_fit.machine.constants, with_ties(best_fit.machine)
    if constants.inter_bytes_per_s > machine.constants.intra_bytes_per_s:
        sources["inter_bytes_per_s"] = f"{NOT_MEASURED} on one node: no faster than inside it"
    if constants.inter_latency_s < machine.constants.intra_latency_s:
        sources["inter_latency_s"] = f"{NOT_MEASURED} on one node: no lower than inside it"
    errors = base.machine.errors | {name: _error(name, source, best_fit) for name, source in sources.items()}
    errors = {name: error for name, error in errors.items() if name in base.machine.errors}
    machine = replace(machine, errors=errors, dense_steps=dense_steps(measured))
    machine = replace(machine, trust=trust_in(machine, measured))
    if base.own:
        return machine, sources
    topology, of_memory = _capacities(machine)
    return replace(machine, topology=topology), sources | of_memory


def with_ties(machine: Machine) -> Machine:
    """Return the machine with those constants set that follow others: on a CPU, on emulated nodes, between nodes."""
    constants = machine.constants
    if machine.device == "cpu":
        gather = _rounded_down(constants.hbm_bytes_per_s * constants.gather_efficiency_ratio)
        # The model writes UVM rows back while it reads others. One memory does both here: at the full
        # rate UVM would look faster than HBM, and planners would move tables there.
        constants = replace(
            constants, uvm_bytes_per_s=gather / 2.0, host_bytes_per_s=gather, dispatch_s=0.0, bag_step_s=0.0,
            host_launch_s=constants.launch_s, host_table_s=constants.table_s,
        )  # fmt: skip
        if machine.topology.nodes > 1:
            constants = replace(
                constants, intra_bytes_per_s=constants.inter_bytes_per_s, intra_latency_s=constants.inter_latency_s
            )
    inter_bytes_per_s = min(constants.inter_bytes_per_s, constants.intra_bytes_per_s)
    inter_latency_s = max(constants.inter_latency_s, constants.intra_latency_s)
    constants = replace(constants, inter_bytes_per_s=inter_bytes_per_s, inter_latency_s=inter_latency_s)
    return replace(machine, constants=constants)


def trust_in(machine: Machine, measured: Measurements) -> Trust | None:
    """Return how far held-out plans trust the machine's predictions of whole steps; None where none was held out."""
    held_out = [plan for plan in measured.plans if plan.case.held_out and not plan.case.model]
    if not held_out:
        return None
    steps = []
    for plan in held_out:
        case, tables = plan.case, plan.case.problem(measured.machine).tables
        foreseen = step_time(plan.traffic, machine, case.dense, tables, case.batch_size)
        steps.append(HeldOutStep(tables=case.group, predicted_ms=foreseen.step_ms, measured_ms=plan.step_ms))
    noise = median(plan.step_noise for plan in held_out)
    chip = chip_of(Environment.here(), machine.device)
    source = f"{measured_on(chip)}: whole steps of random plans, held out"
    return trust(steps, least_log(noise), source)


def least_log(noise: float) -> float:
    """Return the difference of the logarithms of two steps from which on they are ordered, ``noise`` that of one."""
    return max(math.log1p(_APART), _SIGNIFICANT * math.sqrt(2.0) * noise)


def dense_steps(measured: Measurements) -> dict[str, float]:
    """Return the seconds of the dense models that were measured for their own sake, by ``dense_key``."""
    world = measured.machine.topology.world_size
    seconds_by_key = {}
    for plan in measured.plans:
        if plan.case.model:
            case = plan.case
            ms = plan.work_ms[StepPhase.DENSE] + plan.work_ms[StepPhase.UPDATE]
            seconds_by_key[dense_key(case.dense, case.tables, case.batch_size, world)] = 1e-3 * ms
    return seconds_by_key


def _memory_bytes(order: Order) -> int:
    """Return the bytes of all ranks together: every kernel's tables on every rank, a step's tables once."""
    world = order.machine.topology.world_size
    kernels = {point.kernel: point.weight_bytes for point in order.kernels}
    return world * (sum(kernels.values()) + RANK_BYTES) + sum(case.weight_bytes for case in order.plans)


def _source(name: str, chip: str, quality: dict[str, Quality]) -> str:
    kind = _kind_of(name, quality)
    kind_quality = quality[kind]
    return f"{measured_on(chip)}, {kind_quality.n} points ({kind}), median error {kind_quality.median_pct:.1f} %"


def _error(name: str, source: str, best_fit: Fit) -> float:
    """Return a new constant's error factor: the RMS error of times left out of the fit, or of all where none was."""
    if source.startswith(NOT_MEASURED):
        return GUESSED_ERROR
    kind = _kind_of(name, best_fit.quality)
    quality = best_fit.held_out.get(kind, best_fit.quality[kind])
    return max(1.01, round(quality.factor, 2))


def _kind_of(name: str, quality: dict[str, Quality]) -> str:
    """Return the kind of time that tells the error of a constant, of those that ``quality`` has."""
    # No random plan has rows in UVM: kernels by themselves tell of it.
    kind = "embedding" if name == "uvm_bytes_per_s" else IN_STEP_KINDS.get(name, _OF_KERNELS)
    # One rank exchanges nothing: whole steps tell of what it does around exchanges.
    return kind if kind in quality else "whole step"


def _rounded_down(value: float) -> float:
    scale = 10.0 ** (math.floor(math.log10(value)) - 2)
    return math.floor(value / scale) * scale


def _capacities(machine: Machine) -> tuple[Topology, dict[str, str]]:
    """Return the capacities of this machine, for a file that has none of its own."""
    ranks = machine.topology.devices_per_node
    # Half of the memory stays with the ranks' programs, batches and gradients.
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    share = _megabytes(host // ranks)
    topology = replace(machine.topology, hbm_bytes=share, uvm_bytes=share, host_bytes=_megabytes(host))
    half = "half of this machine's memory"
    sources = {"uvm_bytes": f"{half}, shared by {ranks} ranks", "host_bytes": half}
    if machine.device == "cpu":
        return topology, sources | {"hbm_bytes": f"{half}, shared by {ranks} ranks"}
    import torch  # noqa: PLC0415 - seconds, and only a GPU is asked for its memory

    memory = _megabytes(9 * torch.cuda.get_device_properties(0).total_memory // 10)
    return replace(topology, hbm_bytes=memory), sources | {"hbm_bytes": "nine tenths of the GPU's memory"}


def _megabytes(nbytes: int) -> int:
    return nbytes // 10**6 * 10**6


def bandwidth_by_width(measured: Measurements) -> list[Cells]:
    """Return the forward lookup bandwidth (GB/s of weight bytes) by row width in bytes, the best point of each."""
    best: dict[tuple[str, int], float] = {}
    for kernel in measured.kernels:
        nbytes = float((kernel.load.lookup_bytes + kernel.load.uvm.lookup_bytes)[0])
        key = (kernel.point.tier.value, 4 * kernel.point.dim)
        best[key] = max(best.get(key, 0.0), nbytes / kernel.forward_ms / 1e6)
    return [{"tier": tier, "row_bytes": width, "gb_per_s": rate} for (tier, width), rate in sorted(best.items())]


def as_data(done: Calibration) -> dict[str, object]:
    """Return everything as plain data, for ``--json``."""
    measured = done.measured
    return {
        "file": str(done.path),
        "bandwidth_by_width": bandwidth_by_width(measured),
        "messages": [to_data(m) for m in measured.messages],
        "noise_pct": measured.noise_pct,
        "stream_bytes_per_s": measured.stream_bytes_per_s,
        "constants": to_data(done.machine.constants),
        "fitted": list(done.fit.fitted),
        "fit": {kind: to_data(q) for kind, q in done.fit.quality.items()},
        "held_out": {kind: to_data(q) for kind, q in done.fit.held_out.items()},
    }


def as_lines(done: Calibration) -> list[str]:
    """Write the report for people, in ASCII lines."""
    measured = done.measured
    noise = f"noise of repeated times: {measured.noise_pct:.1f} %"
    if measured.noise_pct > NOISY_PCT:
        noise += "; ranks share cores, with each other or with other programs: stop those and use --force"
    report = [noise, f"memory copy: {measured.stream_bytes_per_s / 1e9:.1f} GB/s a rank"]
    report += [
        f"lookup, {row['tier']}, rows of {row['row_bytes']} bytes: {row['gb_per_s']:.2f} GB/s"
        for row in bandwidth_by_width(measured)
    ]
    report += [
        f"{m.nbytes} bytes: all-to-all {m.all_to_all_ms:.3f} ms, all-reduce {m.all_reduce_ms:.3f} ms, "
        f"reduce-scatter {m.reduce_scatter_ms:.3f} ms"
        for m in measured.messages
    ]
    for kind, quality in done.fit.quality.items():
        judged = done.fit.held_out.get(kind)
        rest = f"; held out: {judged.median_pct:.1f} % (n={judged.n})" if judged else ""
        report.append(f"fit, {kind}: median error {quality.median_pct:.1f} % (n={quality.n}){rest}")
    for kind in done.fit.held_out.keys() - done.fit.quality.keys():
        judged = done.fit.held_out[kind]
        report.append(f"check, {kind}: median error {judged.median_pct:.1f} % (n={judged.n})")
    return [*report, f"machine file: {done.path}", *_trusted(done.machine)]


def _trusted(machine: Machine) -> list[str]:
    """Say in a line how far to trust the file: what it predicts of plans that took no part in its making."""
    stated = machine.trust
    if stated is None:
        return []
    steps = f"whole steps {100.0 * (stated.step_error - 1.0):.0f} % off (RMS of {stated.plans} plans)"
    if stated.pair_error is not None and stated.pair_low is not None and stated.pair_high is not None:
        steps += f", ratios of two plans {off_text(stated.pair_error, stated.pair_low, stated.pair_high)}"
    order = f"{stated.pairs_right} of {stated.pairs} pairs of plans in the right order"
    return [f"how far to trust it, held out: {steps}, {order}; pairs differ by 5 % and by more than their noise"]
