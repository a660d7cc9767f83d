"""A proven lower bound on the cost (slowest device's row sum) of any placement of a task's tables.

Write c(S) for the row sum of a device that holds the set S of tables, L for its two launches, x for
the fixed time of the two exchanges, and q for the seconds a byte of pooled vectors takes to leave a
device: the larger, over the two links, of (share of the batch that crosses the link) / bandwidth.
A device spends at least x + 2 q b(S) in the exchanges, where b(S) is the bytes of its pooled vectors
(the larger of sent and received is at least what is sent), and b is additive. With the work w of
``shardbench.cost.bounds.embedding`` (super-additive, lemma 5 of ``docs/bounds.md``) a device with any table costs

    c(S) >= L + x + sum of v_t over t in S,   v_t = w({t}) + 2 q b_t.

*No exchange is short.* Every device receives its samples' share of all vectors that it does not hold, so
that one that sends little receives much: with B the bytes of all tables' vectors, a device that holds b of them
in a node that holds n spends e >= 0 beside the fixed time in an exchange, with

    e >= q b,   e >= (n - b) / (W r) over the links inside the node,   e >= (B - n) / (W s) over those between nodes,

for W devices and bandwidths r and s (a link that nobody uses counts 0). Adding up b + (n - b) + (B - n) = B gives
e >= E = B / (1/q + W r + W s), whatever the placement: on one node, q = (W - 1) / (W r), it is
E = B (W - 1) / (W^2 r), what a device with an equal share of the bytes takes.
A device of no tables at all waits for it.

So the slowest device costs at least

 1. L + x + the mean of v over devices, because the device with the largest sum of v holds a table;
 2. by the pigeonhole principle, for any k, L + x + the k + 1 smallest among the k W + 1 largest v;
    and as much with w for v and 2 E on top, because that device's exchanges take E each at least;
 3. c of the dearest single table, f({t}) + x + 2 max(q b_t, E), because f grows with the set
    (lemma 6) and so does q b.

Memory limits and UVM are not used: the bound holds with any capacity.
"""

from shardbench.cost.bounds.embedding import ROUNDING, pigeonhole_ms, split_bound
from shardbench.cost.collectives import bytes_s, latencies_s
from shardbench.cost.costmodel import embedding_ms, work_ms
from shardbench.learned.tasks.task import Task
from shardbench.model.machine import Machine
from shardbench.model.strategy import Move


def placement_bound_ms(task: Task, *, counted: bool) -> float:
    """Bound the milliseconds that no placement of whole tables in device memory can cost less than.

    For the simulated oracle with the same ``counted``; proof in the module's docstring.
    """
    load, machine = task.loads(counted=counted), task.problem.machine
    if not load.bags.any():
        return 0.0
    constants, world = machine.constants, task.devices
    fixed_ms, per_byte_ms = _exchange(machine)
    sent_bytes = load.bag_bytes * task.problem.sent_ratio
    sent_ms = 2.0 * per_byte_ms * sent_bytes
    least_ms = 2.0 * least_exchange_ms(float(sent_bytes.sum()), machine)
    work = work_ms(load, constants)
    start_ms = 1e3 * (constants.launch_s + constants.backward_launch_s) + 2.0 * fixed_ms
    least_step_ms = max(
        start_ms + float((work + sent_ms).sum()) / world,
        start_ms + pigeonhole_ms(work + sent_ms, world),
        start_ms + pigeonhole_ms(work, world) + least_ms,
        2.0 * fixed_ms + float((embedding_ms(load, constants) + sent_ms.clip(min=least_ms)).max()),
    )
    return least_step_ms * (1.0 - ROUNDING)


def shards_bound_ms(task: Task, *, counted: bool) -> float:
    """Bound the milliseconds that no placement of column shards in device memory can cost less than.

    However columns are split, the bytes B of all pooled vectors stay what they are, so that every device is in each
    exchange for its fixed time and E at least (above); and the slowest device's kernels take what
    lemma 3 proves of any split. That device pays both.
    """
    load, machine = task.loads(counted=counted), task.problem.machine
    kernels = split_bound(load, task.problem, frozenset({Move.TABLE, Move.COLUMNS})).ms
    if not kernels:
        return 0.0
    fixed_ms, _ = _exchange(machine)
    sent_bytes = float(load.bag_bytes.sum()) * task.problem.sent_ratio
    exchange_ms = fixed_ms + least_exchange_ms(sent_bytes, machine)
    return kernels + 2.0 * exchange_ms * (1.0 - ROUNDING)


def least_exchange_ms(vector_bytes: float, machine: Machine) -> float:
    """Bound what an exchange of ``vector_bytes`` pooled vectors takes every device, beside its fixed time: E above."""
    topology, constants = machine.topology, machine.constants
    if topology.world_size == 1:
        return 0.0
    _, per_byte_ms = _exchange(machine)
    inside = constants.intra_bytes_per_s if topology.devices_per_node > 1 else 0.0
    across = constants.inter_bytes_per_s if topology.nodes > 1 else 0.0
    return 1e3 * vector_bytes / (1e3 / per_byte_ms + topology.world_size * (inside + across))


def _exchange(machine: Machine) -> tuple[float, float]:
    """Give the fixed ms of one exchange, and ms a byte of pooled vectors takes to leave its device."""
    topology, world = machine.topology, machine.topology.world_size
    if world == 1:
        return 0.0, 0.0
    local = topology.devices_per_node
    per_byte_s = bytes_s((local - 1) / world, (world - local) / world, machine.constants)
    return 1e3 * latencies_s(machine).world, 1e3 * float(per_byte_s)
