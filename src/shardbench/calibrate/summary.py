"""What a calibration found, as lines for people and as plain data."""

import numpy as np

from shardbench.base.serialise import to_data
from shardbench.calibrate.calibration import Calibration
from shardbench.calibrate.session import KernelTime, Measurements
from shardbench.cost.uncertainty import off_text
from shardbench.model.machine import Machine

NOISY_PCT = 10.0
"""A calibration with more noise than this should be repeated."""

Cells = dict[str, float | int | str | None]


def bandwidth_by_width(measured: Measurements) -> list[Cells]:
    """Return the forward lookup bandwidth (GB/s of weight bytes) by row width in bytes, the best point of each."""
    best: dict[tuple[str, int], float] = {}
    for kernel in measured.kernels:
        nbytes = float((kernel.load.lookup_bytes + kernel.load.uvm.lookup_bytes)[0])
        key = (kernel.point.tier.value, 4 * kernel.point.dim)
        best[key] = max(best.get(key, 0.0), nbytes / kernel.forward_ms / 1e6)
    return [{"tier": tier, "row_bytes": width, "gb_per_s": rate} for (tier, width), rate in sorted(best.items())]


def fused_over_single(measured: Measurements) -> float | None:
    """Time of a fused kernel over that of its tables one by one; None where no pair was measured."""
    singles = {_shape(kernel): kernel for kernel in measured.kernels if kernel.point.tables == 1}
    ratios = []
    for kernel in measured.kernels:
        single = singles.get(_shape(kernel))
        if single is not None and kernel.point.tables > 1:
            ratios.append(_total_ms(kernel) / (kernel.point.tables * _total_ms(single)))
    return float(np.median(ratios)) if ratios else None


def launch_floor_ms(measured: Measurements) -> tuple[float, float]:
    """Return (forward, backward) ms of the emptiest kernel."""
    emptiest = min(measured.kernels, key=_total_ms)
    return emptiest.forward_ms, emptiest.backward_ms


def data(done: Calibration) -> dict[str, object]:
    """Return everything as plain data, for ``--json``."""
    measured = done.measured
    return {
        "file": str(done.path),
        "bandwidth_by_width": bandwidth_by_width(measured),
        "fused_over_single": fused_over_single(measured),
        "launch_floor_ms": list(launch_floor_ms(measured)),
        "messages": [to_data(m) for m in measured.messages],
        "noise_pct": measured.noise_pct,
        "stream_bytes_per_s": measured.stream_bytes_per_s,
        "constants": to_data(done.machine.constants),
        "fitted": list(done.fit.fitted),
        "fit": {kind: to_data(q) for kind, q in done.fit.quality.items()},
        "held_out": {kind: to_data(q) for kind, q in done.fit.held_out.items()},
    }


def lines(done: Calibration) -> list[str]:
    """Write the report for people, in ASCII lines."""
    measured = done.measured
    forward, backward = launch_floor_ms(measured)
    ratio = fused_over_single(measured)
    noise = f"noise of repeated times: {measured.noise_pct:.1f} %"
    if measured.noise_pct > NOISY_PCT:
        noise += "; ranks share cores, with each other or with other programs: stop those and use --force"
    report = [noise, f"memory copy: {measured.stream_bytes_per_s / 1e9:.1f} GB/s a rank"]
    report += [
        f"lookup, {row['tier']}, rows of {row['row_bytes']} bytes: {row['gb_per_s']:.2f} GB/s"
        for row in bandwidth_by_width(measured)
    ]
    if ratio is not None:
        report.append(f"fused kernel: {ratio:.2f}x the time of its tables one by one")
    report.append(f"launch floor: {1e3 * forward:.0f} us forward, {1e3 * backward:.0f} us backward")
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
    return [*report, f"machine file: {done.path}", *trusted(done.machine)]


def trusted(machine: Machine) -> list[str]:
    """Say in a line how far to trust the file: what it predicts of plans that took no part in its making."""
    trust = machine.trust
    if trust is None:
        return []
    steps = f"whole steps {100.0 * (trust.step_error - 1.0):.0f} % off (RMS of {trust.plans} plans)"
    if trust.pair_error is not None and trust.pair_low is not None and trust.pair_high is not None:
        steps += f", ratios of two plans {off_text(trust.pair_error, trust.pair_low, trust.pair_high)}"
    order = f"{trust.pairs_right} of {trust.pairs} pairs of plans in the right order"
    return [f"how far to trust it, held out: {steps}, {order}; pairs differ by 5 % and by more than their noise"]


def _shape(kernel: KernelTime) -> tuple[object, ...]:
    point = kernel.point
    return point.rows, point.dim, point.batch, point.pooling, point.skew, point.tier


def _total_ms(kernel: KernelTime) -> float:
    return kernel.forward_ms + kernel.backward_ms
