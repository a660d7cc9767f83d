"""Time from traffic and machine constants: the simulated backend and the strategies' oracle.

Per rank, forward:   max(dispatch, launch + calls + warps + pages + gather + (indices + outputs) / hbm + chain)
Per rank, backward:  launch + launches of the sort + calls + 2 pages + sequences + gradients + sort + update
Calls are what a CPU pays a table and a bag; they, pages of rows and sequences cost nothing on devices, which run them
side by side, a warp a bag; ``chain`` is what one warp takes for the longest bag. Before and after its kernels a rank
puts what it received and what it sends in place: copies, which lengthen the step where they are on the rank that is
busy longest.
A row that a table meets again is served by the cache with a share that falls with the working set
of the tables' repeats; one fused launch serves all tables. Neither adds up over tables
(``docs/costmodel.md`` has every formula and its reason, ``docs/costmodel_evidence.md`` the constants and errors).
Rows on the host are looked up by its CPUs at their rate and copied, by each node's first rank; on a machine of CPU
ranks by that rank's kernels, as its own rows are.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.cost.accounting import INDEX_BYTES, Sources
from shardbench.cost.caching import CacheWork
from shardbench.cost.collectives import CollectiveName, calls_latency_s, waits_s
from shardbench.cost.dense import DenseWork, dense_s
from shardbench.cost.load import Load, TierRows
from shardbench.cost.phases import EXCHANGE_PHASES, KERNELS, WAITS, StepPhase
from shardbench.cost.published.gpus import shared
from shardbench.cost.traffic import Synchronisation, Traffic, expect
from shardbench.model.machine import Constants, Machine
from shardbench.model.plan import DenseHome, Plan
from shardbench.model.problem import Problem
from shardbench.model.table import DenseShape, StepSchedule, Table

OUTPUT_PASSES = 1.0
"""Copies of a rank's pooled vectors into one buffer, from which TorchRec sends them."""
GRADIENT_PASSES = 2.0
"""Copies of their gradients from the buffers in which they arrive to those that the kernels read."""


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """Predicted milliseconds of one step; per-rank arrays float64 [world]."""

    forward_ms: Floats
    backward_ms: Floats
    sources_ms: Floats
    """Time to put in place lookups that are sent; a part of ``input``."""
    arrived_ms: Floats
    """Time to put in place lookups that arrived; a part of ``input``."""
    placing_ms: Floats
    """Time to put in place vectors that are sent, and to convert them where they travel in another format; a part of
    ``output``."""
    placing_backward_ms: Floats
    """The same of gradients; a part of ``output_backward``."""
    phases_ms: dict[StepPhase, float]
    """Duration of each phase for the whole world, in order; they add up to the step.

    A phase of kernels is that of the rank which is busy longest with them and with putting things in place. What goes
    on beside other phases is in none.
    """
    hidden_ms: dict[StepPhase, float] = field(default_factory=dict)
    """Milliseconds of phases that go on beside others, and so are not in ``phases_ms``."""
    host_ms: float = 0.0
    """Time in which the host of an eager TorchRec step starts its kernels and collectives, beside what devices do: a
    step takes no less, whatever the plan. Zero on CPUs, whose calls are parts of the phases."""

    @property
    def embedding_ms(self) -> Floats:
        """Milliseconds of forward and backward embedding time of each rank, [world]."""
        return self.forward_ms + self.backward_ms

    @property
    def step_ms(self) -> float:
        """Milliseconds of the whole step."""
        return sum(self.phases_ms.values())


HOST = "host"
"""What binds an eager step whose host takes longer to start it than its devices to run it."""


def reach(constants: Constants) -> float:
    """Return the bytes of a table's working set at which half of its repeats miss the cache."""
    return constants.cache_reach_ratio * constants.cache_bytes


def bound_by(phases_ms: Mapping[StepPhase, float], host_ms: float) -> str:
    """Return what a step of these phases takes most of its time for: host, kernels, exchange or dense."""
    parts = {
        "kernels": sum(phases_ms[phase] for phase in KERNELS),
        "exchange": sum(phases_ms[phase] for phase in (*EXCHANGE_PHASES, StepPhase.ALL_REDUCE)),
        "dense": phases_ms[StepPhase.DENSE],
    }
    parts["exchange"] += phases_ms.get(StepPhase.SYNCHRONISE, 0.0)
    return HOST if host_ms > sum(parts.values()) else max(parts, key=parts.__getitem__)


def host_ms(traffic: Traffic, machine: Machine) -> float:
    """Return the milliseconds in which a host starts an eager TorchRec step: a base, and a part for each collective."""
    if machine.device == "cpu":
        return 0.0
    sent = (collective.calls for collective in traffic.collectives.values() if collective.sent.any())
    # The last number of calls is of peers, which take part in one.
    calls = sum(sum(numbers[:-1]) for numbers in sent)
    return 1e3 * (shared()["host_step_s"] + shared()["host_call_s"] * calls)


def hit_share(repeats: Floats, set_bytes2: Floats, constants: Constants) -> Floats:
    """Return the share of repeated accesses that the cache serves, 0..1: reach / (reach + mean working set).

    ``repeats`` are bytes, ``set_bytes2`` each repeat's bytes times its working set's, summed. The
    share is convex in the working set: that is what makes work super-additive (lemma 5 of ``docs/bounds.md``).
    """
    working_set = np.divide(set_bytes2, repeats, out=np.zeros_like(repeats), where=repeats > 0)
    return np.asarray(reach(constants) / (reach(constants) + working_set))


def _repeated_s(repeats: Floats, hit: Floats | float, rate: float, constants: Constants) -> Floats:
    """Return the seconds to read bytes again from the cache or, where they miss, at the tier's rate."""
    cached = max(constants.cache_bytes_per_s, rate)
    return np.asarray(repeats * (hit / cached + (1.0 - hit) / rate))


def _gather_s(rows: TierRows, rate: float, constants: Constants) -> Floats:
    """Return the seconds to read the rows of one tier: distinct rows at its rate, the others mostly cached."""
    overhead = constants.access_overhead_bytes
    first = (rows.distinct_bytes + overhead * rows.distinct) / rate
    repeats = np.maximum(rows.lookup_bytes - rows.distinct_bytes, 0.0)
    again = _repeated_s(repeats, hit_share(repeats, rows.repeat_set_bytes2, constants), rate, constants)
    wasted = overhead * np.maximum(rows.lookups - rows.distinct, 0.0) / max(constants.cache_bytes_per_s, rate)
    return np.asarray(first + again + wasted)


def _uvm_gather_s(rows: TierRows, constants: Constants) -> Floats:
    """Return the same of rows in host memory, of whose repeats a GPU's cache serves the same share of any table."""
    rate, overhead = constants.uvm_bytes_per_s, constants.access_overhead_bytes
    if constants.uvm_hit_ratio is None:
        return _gather_s(rows, rate, constants)
    repeats = np.maximum(rows.lookup_bytes - rows.distinct_bytes, 0.0)
    repeats = repeats + overhead * np.maximum(rows.lookups - rows.distinct, 0.0)
    first = (rows.distinct_bytes + overhead * rows.distinct) / rate
    return np.asarray(first + _repeated_s(repeats, constants.uvm_hit_ratio, rate, constants))


def gather_rate(constants: Constants) -> float:
    """Return the bytes a second of random rows out of HBM."""
    return constants.hbm_bytes_per_s * constants.gather_efficiency_ratio


def gradient_rate(constants: Constants) -> float:
    """Return the bytes a second of gradient rows, in the order of sorted lookups."""
    return constants.gradient_ratio * gather_rate(constants)


def calls_s(load: Load, constants: Constants) -> Floats:
    """Return the seconds that a kernel spends on tables and bags, whatever they hold, [n]."""
    return np.asarray(constants.table_s * load.tables + constants.bag_s * load.bags)


def forward_calls_s(load: Load, constants: Constants) -> Floats:
    """Return the same of the forward kernel, which starts a warp for every bag on a GPU, [n]."""
    return calls_s(load, constants) + constants.warp_s * load.bags


def _sequences_s(load: Load, constants: Constants) -> Floats:
    """Return the seconds to collect unpooled tables' gradients in a map, [n]; convex in its rows, so super-additive."""
    rows = load.sequence_rows
    share = np.divide(rows, rows + constants.sequence_half_rows, out=np.zeros_like(rows), where=rows > 0)
    return np.asarray(constants.sequence_row_s * rows * share)


def forward_work_s(load: Load, constants: Constants) -> Floats:
    """Return the seconds of memory traffic and calls of the forward lookup, [n]."""
    hbm, uvm = _gather_s(load, gather_rate(constants), constants), _uvm_gather_s(load.uvm, constants)
    streams = (INDEX_BYTES * load.all_lookups + load.bag_bytes) / constants.hbm_bytes_per_s
    return np.asarray(hbm + uvm + streams + forward_calls_s(load, constants) + constants.page_s * load.pages)


def backward_work_s(load: Load, constants: Constants) -> Floats:
    """Return the seconds of backward and optimiser, [n]: calls, gradients, sort, rows and state read and written."""
    rate, gradient, overhead = gather_rate(constants), gradient_rate(constants), constants.access_overhead_bytes
    # One gradient row is read per lookup; the lookups of one bag share it.
    repeats = load.gradient_bytes - load.gradient_first_bytes
    again = _repeated_s(repeats, hit_share(repeats, load.gradient_set_bytes2, constants), gradient, constants)
    gradients = load.gradient_first_bytes / gradient + again
    sort = constants.sort_bytes * load.all_lookups / constants.hbm_bytes_per_s
    update = 2.0 * (load.distinct_bytes + overhead * load.distinct + load.state_bytes) / rate
    # Written back while the next rows are read: the host link is full duplex, or nearly so.
    rows = load.uvm
    uvm = constants.uvm_update_ratio * (rows.distinct_bytes + overhead * rows.distinct + rows.state_bytes)
    calls = calls_s(load, constants) + 2.0 * constants.page_s * load.pages + _sequences_s(load, constants)
    return np.asarray(gradients + sort + update + uvm / constants.uvm_bytes_per_s + calls)


def work_ms(load: Load, constants: Constants) -> Floats:
    """Return forward and backward milliseconds without launches, dispatch and tail, [n]; super-additive over tables."""
    return np.asarray(1e3 * (forward_work_s(load, constants) + backward_work_s(load, constants)))


def caching_s(work: CacheWork, constants: Constants, directory_s: float) -> Floats:
    """Return the seconds in which caches find a batch's rows and fetch what they lack, before the lookup, [n].

    Rows that leave are written back while others are read: the host link is full duplex.
    """
    read_bytes, written_bytes = (
        bytes_ + constants.access_overhead_bytes * rows
        for bytes_, rows in ((work.filled_bytes, work.filled), (work.evicted_bytes, work.evicted))
    )
    return np.asarray(directory_s * work.lookups + np.maximum(read_bytes, written_bytes) / constants.uvm_bytes_per_s)


def forward_s(
    load: Load, constants: Constants, cache_s: Floats | float = 0.0, placing_s: Floats | float = 0.0
) -> Floats:
    """Return the seconds of the fused forward lookup, ``cache_s`` among them, [n]; zero where a rank has no bag.

    With ``placing_s`` they last from the arrival of a rank's lookups until its vectors leave: what is put in place
    before and after the kernel is device work as well, behind which the dispatch hides.
    """
    kernel = constants.launch_s + cache_s + forward_work_s(load, constants) + constants.bag_step_s * load.chain
    return np.where(load.bags > 0, np.maximum(constants.dispatch_s, kernel + placing_s), 0.0)


def backward_s(load: Load, constants: Constants) -> Floats:
    """Return the seconds of the fused backward and optimiser, [n]; zero where a rank has no bag."""
    return np.where(load.bags > 0, constants.backward_launch_s + backward_work_s(load, constants), 0.0)


def arrived_s(load: Load, constants: Constants) -> Floats:
    """Return the seconds to put the lookups that arrived in place, [n]; linear in the load."""
    return np.asarray(constants.lookup_copy_s * load.all_lookups + constants.length_copy_s * load.bags)


def placing_forward_s(load: Load, constants: Constants) -> Floats:
    """Return the seconds to put lookups that arrived and vectors that are sent in place, [n]; linear in the load."""
    return arrived_s(load, constants) + OUTPUT_PASSES * load.bag_bytes / constants.vector_copy_bytes_per_s


def placing_backward_s(load: Load, constants: Constants) -> Floats:
    """Return the seconds to put gradients of vectors that arrived in place, [n]; linear in the load."""
    return np.asarray(GRADIENT_PASSES * load.bag_bytes / constants.vector_copy_bytes_per_s)


def sources_s(sources: Sources, constants: Constants) -> Floats:
    """Return the seconds of each rank to put the lookups of its samples in place, by owner where dealt, [world]."""
    copied = constants.lookup_copy_s * sources.lookups + constants.length_copy_s * sources.lengths
    sorting = constants.sort_bytes / constants.hbm_bytes_per_s * sources.repeated
    return np.asarray(copied + constants.bucketise_s * sources.bucketed + sorting)


def host_forward_s(load: Load, constants: Constants, copy_bytes_per_s: float) -> Floats:
    """Return the seconds of a node's CPUs to look up and pool their rows, and of the copy to a device, [nodes]."""
    rows = load.lookup_bytes + constants.access_overhead_bytes * load.lookups
    streamed = INDEX_BYTES * load.lookups + load.bag_bytes
    copied = load.bag_bytes / copy_bytes_per_s
    return _host_calls_s(load, constants) + (rows + streamed) / constants.host_bytes_per_s + copied


def _host_calls_s(load: Load, constants: Constants) -> Floats:
    """Return seconds of a node's CPUs for the call and for going through its tables, [nodes]; zero without a bag."""
    return np.where(load.bags > 0, constants.host_launch_s + constants.host_table_s * load.tables, 0.0)


def host_backward_s(load: Load, constants: Constants, copy_bytes_per_s: float) -> Floats:
    """Return the seconds of the gradients' copy to the host and of its CPUs' update, [nodes]."""
    rows = load.distinct_bytes + constants.access_overhead_bytes * load.distinct + load.state_bytes
    moved = load.gradient_bytes + constants.sort_bytes * load.lookups + 2.0 * rows
    copied = load.bag_bytes / copy_bytes_per_s
    return _host_calls_s(load, constants) + moved / constants.host_bytes_per_s + copied


def copy_bytes_per_s(machine: Machine) -> float:
    """Return the rate of a device's block copies from and to its host; the UVM rate where the machine states none."""
    return machine.host.link_bytes_per_s if machine.host is not None else machine.constants.uvm_bytes_per_s


def synchronisation_s(copies: Synchronisation, machine: Machine) -> float:
    """Return the seconds of a batch schedule's copies of hot rows, per iteration; devices copy side by side."""
    each = copies.to_device_bytes / machine.topology.world_size + copies.to_host_bytes
    return each / copy_bytes_per_s(machine)


def embedding_ms(load: Load, constants: Constants) -> Floats:
    """Return forward and backward milliseconds, [n]: the quantity that strategies balance."""
    return np.asarray(1e3 * (forward_s(load, constants) + backward_s(load, constants)))


def step_time(
    traffic: Traffic,
    machine: Machine,
    dense: DenseShape,
    tables: tuple[Table, ...],
    batch_size: int,
    *,
    schedule: StepSchedule = StepSchedule.SEQUENTIAL,
    work: DenseWork | None = None,
) -> StepTime:
    """Predict the time of one step under a schedule.

    Phases follow one another, but for what ``hidden_ms`` says. What the host's floor leaves of a short step is in
    ``dense``, which no plan changes. ``work`` is the dense model's around the tables, for whoever asks many times.
    """
    constants, exchanged = machine.constants, traffic.dense is DenseHome.DEVICES
    modules_s = constants.module_s * traffic.modules
    cache_s = caching_s(traffic.caching, constants, shared()["cache_directory_s"]) if traffic.caching else 0.0
    forward, backward = forward_s(traffic.load, constants, cache_s), backward_s(traffic.load, constants)
    arrived = arrived_s(traffic.load, constants) * exchanged
    # The dispatch may hide some of it.
    busy = forward_s(traffic.load, constants, cache_s, placing_forward_s(traffic.load, constants))
    placing = (busy - forward) * exchanged
    placing_backward = placing_backward_s(traffic.load, constants) * exchanged
    # A node's first rank runs its host lookups, one after the other with its own.
    first = slice(None, None, machine.topology.devices_per_node)
    if machine.device == "cpu" and machine.host is None:
        # The ranks' own CPUs: the same kernels on the same memory, and nothing to copy.
        forward[first] += forward_s(traffic.host, constants)
        backward[first] += backward_s(traffic.host, constants)
        arrived[first] += arrived_s(traffic.host, constants) * exchanged
        placing[first] += placing_forward_s(traffic.host, constants) * exchanged
        placing_backward[first] += placing_backward_s(traffic.host, constants) * exchanged
    else:
        copy_rate = copy_bytes_per_s(machine) if exchanged else math.inf
        forward[first] += host_forward_s(traffic.host, constants, copy_rate)
        backward[first] += host_backward_s(traffic.host, constants, copy_rate)
    forward += modules_s
    sources = sources_s(traffic.sources, constants)
    arrived = np.minimum(arrived, placing)
    # One end converts before the exchange and the other one after it: neither is beside the kernels.
    convert, convert_backward = traffic.converted_bytes / constants.vector_copy_bytes_per_s

    waits_ms = {
        phase: 1e3 * sum(float(waits_s(name, traffic.collectives[name], machine).max()) for name in names)
        for phase, names in WAITS.items()
    }
    first_busy, last_busy = int((forward + placing).argmax()), int((backward + placing_backward).argmax())
    copies_s = synchronisation_s(traffic.synchronisation, machine)
    dense_ms = 1e3 * dense_s(traffic.history_columns, machine, dense, tables, batch_size, home=traffic.dense, work=work)
    phases_ms = {
        StepPhase.INPUT: waits_ms[StepPhase.INPUT] + 1e3 * float(sources.max() + arrived[first_busy]),
        StepPhase.LOOKUP: 1e3 * float(forward[first_busy]),
        StepPhase.OUTPUT: waits_ms[StepPhase.OUTPUT]
        + 1e3 * float((placing - arrived)[first_busy] + convert.max()),
        StepPhase.DENSE: dense_ms,
        StepPhase.OUTPUT_BACKWARD: waits_ms[StepPhase.OUTPUT_BACKWARD]
        + 1e3 * float(placing_backward[last_busy] + convert_backward.max()),
        StepPhase.LOOKUP_BACKWARD: 1e3 * float(backward[last_busy]),
        StepPhase.ALL_REDUCE: waits_ms[StepPhase.ALL_REDUCE],
    } | ({StepPhase.SYNCHRONISE: 1e3 * copies_s} if copies_s else {})  # fmt: skip
    hidden = hidden_ms(traffic, machine, phases_ms, waits_ms, sources_ms=1e3 * float(sources.max()), schedule=schedule)
    for phase, ms in hidden.items():
        phases_ms[phase] = max(0.0, phases_ms[phase] - ms)
    phases_ms[StepPhase.DENSE] += max(0.0, 1e3 * constants.step_floor_s - sum(phases_ms.values()))
    return StepTime(
        forward_ms=1e3 * forward,
        backward_ms=1e3 * backward,
        sources_ms=1e3 * sources,
        arrived_ms=1e3 * arrived,
        placing_ms=1e3 * (placing - arrived + convert),
        placing_backward_ms=1e3 * (placing_backward + convert_backward),
        phases_ms=phases_ms,
        hidden_ms=hidden,
        host_ms=host_ms(traffic, machine),
    )


def hides_all_reduce(machine: Machine) -> bool:
    """Say whether DDP's all-reduces go on beside the backward pass: on GPUs; gloo's threads share the ranks' cores."""
    return machine.device != "cpu"


def hidden_ms(
    traffic: Traffic,
    machine: Machine,
    phases_ms: Mapping[StepPhase, float],
    waits_ms: Mapping[StepPhase, float],
    *,
    sources_ms: float,
    schedule: StepSchedule,
) -> dict[StepPhase, float]:
    """Return the milliseconds of whole phases that go on beside others (``docs/costmodel.md``, section 2).

    ``waits_ms`` are of all collectives of each phase, ``sources_ms`` of putting lookups in place to send them.
    """
    hidden: dict[StepPhase, float] = {}
    if hides_all_reduce(machine):
        reduced = {
            CollectiveName.ROWS_ALL_REDUCE: traffic.replicas,
            CollectiveName.DENSE_ALL_REDUCE: traffic.collectives[CollectiveName.DENSE_ALL_REDUCE],
        }
        reduced_ms = 1e3 * sum(float(waits_s(name, collective, machine).max()) for name, collective in reduced.items())
        beside = phases_ms[StepPhase.OUTPUT_BACKWARD] + phases_ms[StepPhase.LOOKUP_BACKWARD]
        hidden[StepPhase.ALL_REDUCE] = min(reduced_ms, beside)
    if schedule is StepSchedule.PIPELINED:
        ahead = waits_ms[StepPhase.INPUT] + sources_ms
        step = sum(phases_ms.values()) - sum(hidden.values()) - ahead
        linked = sum(waits_ms.values()) - waits_ms[StepPhase.INPUT]
        if machine.device == "cpu":
            # A core copies messages and puts lookups in place; while it waits for peers it computes.
            calls = [traffic.collectives[name] for name in WAITS[StepPhase.INPUT]]
            calls_ms = 1e3 * sum(calls_latency_s(call.calls, machine) for call in calls if call.sent.any())
            hidden[StepPhase.INPUT] = min(calls_ms, step - linked)
        else:
            # Kernels go on while the device waits for links or its host's copies, exchanges while no other one does.
            idle = linked - hidden[StepPhase.ALL_REDUCE] + phases_ms.get(StepPhase.SYNCHRONISE, 0.0)
            free = max(0.0, step - linked)
            exposed = max(0.0, sources_ms - idle, waits_ms[StepPhase.INPUT] - free, ahead - step)
            hidden[StepPhase.INPUT] = ahead - exposed
    return hidden


def estimate(plan: Plan, problem: Problem, dense: DenseShape | None = None) -> StepTime:
    """Predict the time of a plan under the training profiles, which is what a strategy may ask."""
    shape = dense or problem.dense or DenseShape()
    traffic = expect(plan, problem, shape)
    return step_time(traffic, problem.machine, shape, problem.tables, problem.batch_size, schedule=problem.schedule)
