"""One question on several machines, and the fewest devices of a machine on which its answer is good enough."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardbench.advice.best_plan import PlanSearch
from shardbench.model.machine import Machine
from shardbench.model.machine_file import resized

MOST_DEVICES = 1024
"""The largest size of a machine that is tried."""
Ask = Callable[[Machine, float], PlanSearch]
"""Looks for the best plan on a machine within so many seconds."""


@dataclass(frozen=True, kw_only=True)
class OnMachine:
    """What a machine makes of the tables."""

    search: PlanSearch
    most_ms: float = float("inf")
    """The longest step that is good enough."""
    steps_ms: Mapping[int, float | None] = field(default_factory=dict)
    """The step by devices of the sizes that were tried, None without a plan; empty where no size was sought."""

    @property
    def fits(self) -> bool | None:
        """Tell whether there is a plan that the devices have memory for; None where only tables are known to fit."""
        best = self.search.best
        if best is None:
            return False
        return best.peak.fits if best.peak is not None else None

    @property
    def good(self) -> bool:
        """Tell whether it fits, for all that is known, and its step is short enough."""
        best = self.search.best
        return best is not None and self.fits is not False and best.step_ms <= self.most_ms

    @property
    def spare_bytes(self) -> float | None:
        """Return what the fullest device has left beside the step's peak; beside tables where that is not known.

        It is negative where the peak is more than there is, and None without a plan.
        """
        best = self.search.best
        if best is None:
            return None
        if best.peak is not None and best.peak.device_bytes is not None:
            return best.peak.device_bytes - best.peak.bytes
        return float(min(room - used for room, used in zip(best.hbm_room_bytes, best.hbm_used_bytes)))

    @property
    def samples_per_s(self) -> float | None:
        """Return the samples a second of all devices together; None without a plan."""
        best = self.search.best
        return None if best is None else 1e3 * self.search.problem.batch_size / best.step_ms

    @property
    def cause(self) -> str:
        """Say why there is no plan, in the first strategy's words; empty where there is one."""
        return "" if self.search.best is not None else f"{self.search.tried[0].cause}; {self.search.memory}"


def on_machines(
    machines: Sequence[Machine], ask: Ask, budget_s: float, *, batch_size: int, most_ms: float | None = None
) -> list[OnMachine]:
    """Ask about machines in turn, each for an equal share of the time; an interruption leaves out the rest.

    With ``most_ms`` each is taken in the smallest size that fits with such a step, of those that share the batch out
    evenly; or else in that of the shortest step. Sizes are about doubled until one is good enough; then
    the range between that and the one before is halved, as if no larger one in it were worse. All sizes have equal
    shares of the machine's time.
    """
    share_s, answers = budget_s / len(machines), list[OnMachine]()
    for machine in machines:
        if most_ms is None:
            answers.append(OnMachine(search=ask(machine, share_s)))
        else:
            answers.append(_fewest(_sizes(machine, batch_size), ask, share_s, most_ms))
        if answers[-1].search.interrupted:
            break
    return answers


def _fewest(sizes: Sequence[Machine], ask: Ask, budget_s: float, most_ms: float) -> OnMachine:
    share_s, tried = budget_s / (2 * len(sizes).bit_length()), dict[int, OnMachine]()
    # What is too small, and what is good enough.
    low, high, at = -1, len(sizes), 0
    while low + 1 < high:
        one = tried[at] = OnMachine(search=ask(sizes[at], share_s), most_ms=most_ms)
        low, high = (low, at) if one.good else (at, high)
        if one.search.interrupted:
            break
        at = (low + high) // 2 if high < len(sizes) else min(2 * at + 1, high - 1)
    answer = tried[high] if high in tried else min(tried.values(), key=_shortness)
    steps_ms = {
        one.search.problem.world_size: None if one.search.best is None else one.search.best.step_ms
        for _, one in sorted(tried.items())
    }
    return replace(answer, search=replace(answer.search, interrupted=one.search.interrupted), steps_ms=steps_ms)


def _shortness(one: OnMachine) -> float:
    return float("inf") if one.search.best is None else one.search.best.step_ms


def _sizes(machine: Machine, batch_size: int) -> list[Machine]:
    """Return the machine with part of a node, by powers of two, and then with more and more nodes.

    Each device gets as many samples of a batch as the others. Links, and the memory of a device and beside it, are the
    machine's own whatever its size.
    """
    local = machine.topology.devices_per_node
    parts = [(1, 2**power) for power in range((local - 1).bit_length())]
    shapes = [*parts, *((nodes, local) for nodes in range(1, MOST_DEVICES // local + 1))]
    return [resized(machine, *shape) for shape in shapes if batch_size % (shape[0] * shape[1]) == 0]
