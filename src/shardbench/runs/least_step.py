"""The least that a measured step takes: the bytes that ranks send, at the link rates that calibration reached.

What is not here: rows are read at no rate that could be stated as a limit, for those that are asked for twice come
from a cache of unknown depth; and the proven bounds are of the cost model's times, which real ranks may beat.
"""

import statistics

from shardbench.model.calibrated import is_calibrated
from shardbench.model.machine import Machine
from shardbench.processes.failures import failed
from shardbench.records.record import Timing, TrafficTotals
from shardbench.records.trial import Outcome


def least_step_ms(traffic: TrafficTotals, machine: Machine) -> float | None:
    """Return the milliseconds that a step takes at least; None where ``doctor --calibrate`` measured no link.

    The busiest rank sends at least its share, and no faster than the link by its own error; what goes over both links
    may go at once.
    """
    constants, world = machine.constants, machine.topology.world_size
    sent = zip(*traffic.collectives.values()) if traffic.collectives else ((), ())
    inside, across = (sum(numbers) for numbers in sent)
    rates = {"intra_bytes_per_s": constants.intra_bytes_per_s, "inter_bytes_per_s": constants.inter_bytes_per_s}
    taken = [
        1e3 * size / world / (rate * machine.errors.get(name, 1.0))
        for size, (name, rate) in zip((inside, across), rates.items())
        if is_calibrated(machine, name)
    ]
    return max(taken, default=None)


def refuse_too_fast(timing: Timing, least_ms: float | None) -> None:
    """Raise TrialFailed (``invalid``) where the median step is below ``least_ms``, if that is known."""
    step_ms = statistics.median(timing.step_ms)
    if least_ms is not None and step_ms < least_ms:
        cause = (
            f"the step, {step_ms:.6g} ms, is shorter than its bytes take at the link rates calibrated on these "
            f"processors, {least_ms:.6g} ms: too good to be true, or calibrate again"
        )
        raise failed(Outcome.INVALID, cause, "bytes", "bandwidth")
