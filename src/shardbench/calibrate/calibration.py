"""The whole of ``doctor --calibrate``: measure, fit, say where every number comes from, write."""

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path

from shardbench.base.errors import BadInput
from shardbench.base.host import Environment
from shardbench.base.memory import RANK_BYTES, free_memory_bytes
from shardbench.calibrate.fit import Fit, Quality, errors_without, fit
from shardbench.calibrate.rank import Order
from shardbench.calibrate.session import Measurements, gather, measure_ranks, order_of
from shardbench.calibrate.write import (
    GUESSED_ERROR,
    NOT_MEASURED,
    Base,
    base_of,
    refuse_overwriting,
    write_machine,
)
from shardbench.model.calibrated import chip_of, measured_on
from shardbench.model.machine import Machine, Topology

_LINKS = ("intra_bytes_per_s", "inter_bytes_per_s", "intra_latency_s", "inter_latency_s", "peer_latency_s")
_DENSE = ("dense_flop_per_s", "dense_step_s", "dense_layer_s")
IN_STEP_KINDS = dict.fromkeys(_LINKS, "collectives in step") | dict.fromkeys(_DENSE, "dense in step")
"""Which kind of time tells the error of a constant; of all others, the embedding kernels."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """What a calibration measured and made of it."""

    measured: Measurements
    fit: Fit
    machine: Machine
    """The machine as it is written."""
    path: Path


def calibrate(device: str, ranks: int, out: Path, *, quick: bool, force: bool) -> Calibration:
    """Measure ``ranks`` local ranks and write the machine file ``out``.

    Raises BadInput before anything is measured where ``out`` may not be written, TrialFailed
    where a rank fails.
    """
    refuse_overwriting(out, force=force)
    base = base_of(device, ranks, out)
    order = order_of(base.machine, quick=quick)
    need, free = _memory_bytes(order), free_memory_bytes()
    if device == "cpu" and need > free:
        smaller = "stop other programs" if quick else "give --quick"
        raise BadInput(f"calibration needs about {need / 1e9:.1f} GB of memory, {free / 1e9:.1f} are free: {smaller}")
    measured = gather(order, measure_ranks(order))
    found = fit(measured)
    machine, sources = _finish(base, measured, found, errors_without(measured, found.fitted))
    write_machine(out, base, machine, sources)
    return Calibration(measured=measured, fit=found, machine=machine, path=out)


def _finish(
    base: Base, measured: Measurements, found: Fit, without: dict[str, float] | None = None
) -> tuple[Machine, dict[str, str]]:
    """Return the machine with what follows from the fit, and the source of every new number."""
    chip = chip_of(Environment.here(), measured.machine.device)
    sources = {name: _source(name, chip, found.quality) for name in found.fitted}
    held_out = found.held_out.get("embedding")
    for name, error_pct in ({} if without is None else without).items():
        with_it = "" if held_out is None else f"{held_out.median_pct:.1f} % (n={held_out.n}) with this term, "
        sources[name] += f"; held out: {with_it}{error_pct:.1f} % without"
    sources["hbm_bytes_per_s"] = f"{measured_on(chip)}, plain copy of 128 MiB, read and written"
    constants = found.machine.constants
    if measured.cache_bytes is not None:
        sources["cache_bytes"] = "reported by the system (doctor --calibrate): a rank's share of the last-level cache"
    if measured.machine.device == "cpu":
        gather = _rounded_down(constants.hbm_bytes_per_s * constants.gather_efficiency_ratio)
        # The model writes UVM rows back while it reads others. One memory does both here: at the full
        # rate UVM would look faster than HBM, and planners would move tables there.
        constants = replace(
            constants, uvm_bytes_per_s=gather / 2.0, host_bytes_per_s=gather, dispatch_s=0.0, bag_step_s=0.0,
            host_launch_s=constants.launch_s, host_table_s=constants.table_s,
        )  # fmt: skip
        same = f"{measured_on(chip)}: the same memory as hbm"
        sources["uvm_bytes_per_s"] = f"{same}, half its gather rate, as reads and writes share it"
        sources["host_bytes_per_s"] = f"{same}, at its gather rate"
        sources["host_launch_s"] = f"{measured_on(chip)}: the same CPU, as launch"
        sources["host_table_s"] = f"{measured_on(chip)}: the same CPU, as table_call"
        sources["bag_step_s"] = f"{measured_on(chip)}: one thread reads bag after bag, so that no tail is left"
        sources["dispatch_s"] = f"{measured_on(chip)}: nothing hides it on a CPU, it is part of launch"
    if measured.machine.topology.nodes > 1:
        constants = replace(
            constants, intra_bytes_per_s=constants.inter_bytes_per_s, intra_latency_s=constants.inter_latency_s
        )
        same_link = f"{measured_on(chip)}: its nodes are emulated, the link inside them is the one between them"
        sources |= {"intra_bytes_per_s": same_link, "intra_latency_s": same_link}
    if constants.inter_bytes_per_s > constants.intra_bytes_per_s:
        constants = replace(constants, inter_bytes_per_s=constants.intra_bytes_per_s)
        sources["inter_bytes_per_s"] = f"{NOT_MEASURED} on one node: no faster than inside it"
    if constants.inter_latency_s < constants.intra_latency_s:
        constants = replace(constants, inter_latency_s=constants.intra_latency_s)
        sources["inter_latency_s"] = f"{NOT_MEASURED} on one node: no lower than inside it"
    errors = base.machine.errors | {name: _error(name, source, found) for name, source in sources.items()}
    errors = {name: error for name, error in errors.items() if name in base.machine.errors}
    machine = replace(found.machine, constants=constants, errors=errors)
    if base.own:
        return machine, sources
    topology, of_memory = _capacities(machine)
    return replace(machine, topology=topology), sources | of_memory


def _memory_bytes(order: Order) -> int:
    """Return the bytes of all ranks together: every kernel's tables on every rank, a step's tables once."""
    world = order.machine.topology.world_size
    kernels = {point.kernel: point.weight_bytes for point in order.kernels}
    return world * (sum(kernels.values()) + RANK_BYTES) + sum(probe.point.weight_bytes for probe in order.probes)


def _source(name: str, chip: str, quality: dict[str, Quality]) -> str:
    kind = _kind(name)
    found = quality[kind]
    return f"{measured_on(chip)}, {found.n} points ({kind}), median error {found.median_pct:.1f} %"


def _error(name: str, source: str, found: Fit) -> float:
    """Return a new constant's error factor: the RMS error of times left out of the fit, or of all where none was."""
    if source.startswith(NOT_MEASURED):
        return GUESSED_ERROR
    kind = _kind(name)
    quality = found.held_out.get(kind, found.quality[kind])
    return max(1.01, round(quality.factor, 2))


def _kind(name: str) -> str:
    return IN_STEP_KINDS.get(name, "embedding")


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
