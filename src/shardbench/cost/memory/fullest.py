"""The predicted peak of a plan's fullest device, beside the memory that it has."""

from dataclasses import dataclass

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.base.errors import Unsupported
from shardbench.base.memory import gib
from shardbench.cost.memory.peak import PeakMemory, Term
from shardbench.cost.memory.step import peak_memory
from shardbench.model.machine import Machine
from shardbench.model.plan import Plan
from shardbench.model.problem import Problem
from shardbench.model.table import DenseShape

TABLES_SHARE, STATED = 0.8, "assumption: 80 % of the device's"
"""The share of a device's memory that most machine files give tables, and how the source of ``hbm_bytes`` begins there.

Other files give tables a capacity that says nothing of the device.
"""
LEAST_TERM = 0.01
"""The least share of a peak that is named."""


@dataclass(frozen=True, kw_only=True)
class Peak:
    """What the fullest device of a plan holds at most, by the lookups that profiles expect."""

    device: int
    """The device that has least left, or that holds most where nobody knows what there is."""
    bytes: float
    device_bytes: float | None
    """The memory of that device; None where nobody stated it."""
    moment: str
    """The phase of the step in which it holds that."""
    terms_bytes: dict[str, float]
    """What the peak consists of, the largest part first."""
    fits: bool | None
    """Whether the device has that much memory; None where nobody stated it."""
    judged: bool
    """Whether peaks of real ranks were held against predictions for such a machine."""
    has_dense: bool = True
    """Whether the dense model is in it: nothing is counted of one that nobody stated."""

    @property
    def words(self) -> str:
        """Say which device holds how much, when, and of what."""
        least_bytes = LEAST_TERM * self.bytes
        terms = ", ".join(f"{name} {gib(size)}" for name, size in self.terms_bytes.items() if size >= least_bytes)
        of = f" of {gib(self.device_bytes)}" if self.device_bytes is not None else ""
        judged = "" if self.judged else "; judged by no measurement on such devices"
        return f"device {self.device} holds {gib(self.bytes)}{of} GiB, in {self.moment}: {terms}{judged}"


def device_bytes(machine: Machine) -> float | None:
    """Return the memory of a device; None where the machine's file tells only what tables may take."""
    is_stated = machine.sources.get("hbm_bytes", "").startswith(STATED)
    return machine.topology.hbm_bytes / TABLES_SHARE if is_stated else None


def peaks_of(plan: Plan, problem: Problem, dense: DenseShape | None) -> PeakMemory:
    """Return the peaks of a plan by the lookups that profiles expect; raises Unsupported as ``peak_memory`` does.

    Of a dense model that nobody stated (None) nothing is counted.
    """
    if dense is not None:
        return peak_memory(plan, problem, dense)
    return peak_memory(plan, problem, DenseShape(), activation_bytes=0.0).without(Term.DENSE)


def predicted_peak(
    plan: Plan, problem: Problem, dense: DenseShape | None, there_bytes: Floats | float | None = None
) -> Peak | None:
    """Return the peak of a plan's fullest device; None for plans whose peaks are not predicted.

    ``there_bytes`` is the memory of devices, of all alike or by device, [world].
    """
    try:
        peaks = peaks_of(plan, problem, dense)
    except Unsupported:
        return None
    device = peaks.fullest if there_bytes is None else int((there_bytes - peaks.peak).argmin())
    own_bytes = None if there_bytes is None else float(np.broadcast_to(there_bytes, problem.world_size)[device])
    terms = sorted(peaks.terms(device).items(), key=lambda term: -term[1])
    return Peak(
        device=device,
        bytes=float(peaks.peak[device]),
        device_bytes=own_bytes,
        moment=peaks.moment(device).value,
        terms_bytes={term.value: size for term, size in terms},
        fits=None if own_bytes is None else bool(peaks.peak[device] <= own_bytes),
        judged=peaks.judged,
        has_dense=dense is not None,
    )
