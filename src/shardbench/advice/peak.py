"""The predicted peak of a plan's fullest device, beside the memory that it has."""

from dataclasses import dataclass

from shardbench.base.errors import Unsupported
from shardbench.cost.memory.step import peak_memory
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.model.table import DenseShape

TABLES_SHARE, STATED = 0.8, "assumption: 80 % of the device's"
"""The share of a device's memory that most machine files give tables, and how the source of ``hbm_bytes`` begins there.

Other files give tables a capacity that says nothing of the device.
"""


@dataclass(frozen=True, kw_only=True)
class Peak:
    """What the fullest device of a plan holds at most, by the lookups that profiles expect."""

    device: int
    bytes: float
    device_bytes: float | None
    """The memory of a device; None where the machine's file does not tell it."""
    moment: str
    """The phase of the step in which it holds that."""
    terms_bytes: dict[str, float]
    """What the peak consists of, the largest part first."""
    fits: bool | None
    """Whether the device has that much memory; None where the machine's file does not tell."""
    judged: bool
    """Whether peaks of real ranks were held against predictions for such a machine."""


def predicted_peak(plan: Plan, problem: Problem, dense: DenseShape) -> Peak | None:
    """Return the peak of a plan's fullest device; None for plans whose peaks are not predicted."""
    try:
        peaks = peak_memory(plan, problem, dense)
    except Unsupported:
        return None
    machine, device = problem.machine, peaks.fullest
    is_stated = machine.sources.get("hbm_bytes", "").startswith(STATED)
    device_bytes = machine.topology.hbm_bytes / TABLES_SHARE if is_stated else None
    terms = sorted(peaks.terms(device).items(), key=lambda term: -term[1])
    return Peak(
        device=device,
        bytes=float(peaks.peak[device]),
        device_bytes=device_bytes,
        moment=peaks.moment(device).value,
        terms_bytes={term.value: size for term, size in terms},
        fits=None if device_bytes is None else bool(peaks.peak[device] <= device_bytes),
        judged=peaks.judged,
    )
