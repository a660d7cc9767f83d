"""One question on several machines, and the fewest devices of a machine on which its answer is good enough."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shardbench.advice.best_plan import Best, PlanSearch
from shardbench.base.errors import BadInput
from shardbench.model.machine import Machine
from shardbench.model.machine_file import resized

MOST_DEVICES = 1024
"""The largest size of a machine that is tried."""
Ask = Callable[[Machine, float], PlanSearch]
"""Looks for the best plan on a machine within so many seconds."""


@dataclass(frozen=True, kw_only=True)
class OnMachine:
    """What a machine makes of the tables."""

    machine: Machine
    search: PlanSearch | None
    """What was tried; None where the devices cannot share the batch out evenly, so that nothing was."""
    most_ms: float = float("inf")
    """The longest step that is good enough."""
    steps_ms: Mapping[int, float | None] = field(default_factory=dict)
    """The step by devices of the sizes that were tried, None without a plan; empty where no size was sought."""

    @property
    def best(self) -> Best | None:
        """Return the best plan; None without any."""
        return None if self.search is None else self.search.best

    @property
    def fits(self) -> bool | None:
        """Tell whether there is a plan that the devices have memory for; None where only tables are known to fit."""
        if self.best is None:
            return False
        return self.best.peak.fits if self.best.peak is not None else None

    @property
    def good(self) -> bool:
        """Tell whether it fits, for all that is known, and its step is short enough."""
        return self.best is not None and self.fits is not False and self.best.step_ms <= self.most_ms

    @property
    def spare_bytes(self) -> float | None:
        """Return what the fullest device has left beside the step's peak; beside tables where that is not known.

        It is negative where the peak is more than there is, and None without a plan.
        """
        best = self.best
        if best is None:
            return None
        if best.peak is not None and best.peak.device_bytes is not None:
            return best.peak.device_bytes - best.peak.bytes
        return float(min(room - used for room, used in zip(best.hbm_room_bytes, best.hbm_used_bytes)))

    @property
    def samples_per_s(self) -> float | None:
        """Return the samples a second of all devices together; None without a plan."""
        search = self.search
        if search is None or search.best is None:
            return None
        return 1e3 * search.problem.batch_size / search.best.step_ms

    @property
    def cause(self) -> str:
        """Say why there is no plan, in the first strategy's words; empty where there is one."""
        if self.search is None:
            return f"the batch is not a multiple of its {self.machine.topology.world_size} devices"
        return "" if self.search.best is not None else f"{self.search.tried[0].cause}; {self.search.memory}"


def on_machines(
    machines: Sequence[Machine], ask: Ask, budget_s: float, *, batch_size: int, most_ms: float | None = None
) -> list[OnMachine]:
    """Ask about machines in turn, each for an equal share of the time; an interruption leaves out the rest.

    Those that cannot share the batch out evenly are not asked and take no time. Raises BadInput where none can.
    With ``most_ms`` each is taken in the smallest size that fits with such a step, of those that share the batch out
    evenly; or else in that of the shortest step. Sizes are about doubled until one is good enough; then
    the range between that and the one before is halved, as if no larger one in it were worse. All sizes have equal
    shares of the machine's time.
    """
    even = [one for one in machines if most_ms is not None or batch_size % one.topology.world_size == 0]
    if not even:
        sizes = ", ".join(str(one.topology.world_size) for one in machines)
        raise BadInput(f"batch size {batch_size} is not a multiple of any machine's devices, {sizes}: set --batch-size")
    share_s, answers = budget_s / len(even), list[OnMachine]()
    for machine in machines:
        if machine not in even:
            answer = OnMachine(machine=machine, search=None)
        elif most_ms is None:
            answer = OnMachine(machine=machine, search=ask(machine, share_s))
        else:
            answer = _fewest(_sizes(machine, batch_size), ask, share_s, most_ms)
        answers.append(answer)
        if answer.search is not None and answer.search.interrupted:
            break
    return answers


def _fewest(sizes: Sequence[Machine], ask: Ask, budget_s: float, most_ms: float) -> OnMachine:
    share_s, tried = budget_s / (2 * len(sizes).bit_length()), dict[int, PlanSearch]()
    # What is too small, and what is good enough.
    low, high, at = -1, len(sizes), 0
    while low + 1 < high:
        search = tried[at] = ask(sizes[at], share_s)
        is_good = OnMachine(machine=sizes[at], search=search, most_ms=most_ms).good
        low, high = (low, at) if is_good else (at, high)
        if search.interrupted:
            break
        at = (low + high) // 2 if high < len(sizes) else min(2 * at + 1, high - 1)
    steps_ms = {at: None if one.best is None else one.best.step_ms for at, one in sorted(tried.items())}
    at = high if high in tried else min(tried, key=lambda at: steps_ms[at] or float("inf"))
    return OnMachine(
        machine=sizes[at],
        search=replace(tried[at], interrupted=search.interrupted),
        most_ms=most_ms,
        steps_ms={sizes[at].topology.world_size: step_ms for at, step_ms in steps_ms.items()},
    )


def _sizes(machine: Machine, batch_size: int) -> list[Machine]:
    """Return the machine with part of a node, by powers of two, and then with more and more nodes.

    Each device gets as many samples of a batch as the others. Links, and the memory of a device and beside it, are the
    machine's own whatever its size.
    """
    local = machine.topology.devices_per_node
    parts = [(1, 2**power) for power in range((local - 1).bit_length())]
    shapes = [*parts, *((nodes, local) for nodes in range(1, MOST_DEVICES // local + 1))]
    return [resized(machine, *shape) for shape in shapes if batch_size % (shape[0] * shape[1]) == 0]
