"""Bounds kernel work of tables, with copies around it and without pooled vectors: lemma 11 of ``docs/bounds.md``."""

import numpy as np

from shardbench.base.arrays import Floats
from shardbench.cost.accounting import DECODE_BYTES, ENCODE_BYTES, INDEX_BYTES
from shardbench.cost.bounds.embedding import by_tier, cache_rate, least_backward_s, least_forward_s, reads_uvm
from shardbench.cost.costmodel import (
    GRADIENT_PASSES,
    OUTPUT_PASSES,
    backward_work_s,
    forward_work_s,
    gather_rate,
    gradient_rate,
    reach,
)
from shardbench.cost.load import VECTOR_BYTES, Load, in_uvm
from shardbench.model.problem import Problem
from shardbench.model.strategy import Move
from shardbench.model.table import Optimizer, Pooling, Precision, StepSchedule
from shardbench.model.validate import COLUMN_MULTIPLE

WIDE = (
    "lookup_bytes", "distinct_bytes", "repeat_set_bytes2", "bag_bytes", "gradient_bytes", "gradient_first_bytes",
    "gradient_set_bytes2",
)  # fmt: skip
"""Fields of a load that a narrower segment has less of."""


def hides_sources(problem: Problem) -> bool:
    """Say whether the schedule may hide what is put in place to be sent, and the bytes of lookups: not on CPUs."""
    return problem.schedule is StepSchedule.PIPELINED and problem.machine.device != "cpu"


def conversion_s(problem: Problem) -> float:
    """Return the seconds to convert a number that a device gives to an exchange or gets from it, and its gradient."""
    if problem.exchange is Precision.FP32 or problem.world_size == 1:
        return 0.0
    return (ENCODE_BYTES + DECODE_BYTES) / problem.machine.constants.vector_copy_bytes_per_s


class KernelBounds:
    """The least mean seconds of each table over the batches of ``loads`` [batches, tables]."""

    def __init__(self, loads: Load, first_by_rank: Floats, problem: Problem, moves: frozenset[Move]) -> None:
        self.problem, self.moves = problem, moves
        self.constants = constants = problem.machine.constants
        self.in_uvm = reads_uvm(problem, moves)
        self.whole = moves <= {Move.TABLE, Move.UVM}
        # Copies' gradients count by themselves, below.
        self._once = moves - {Move.REPLICATE}
        tables = problem.tables
        self.dims = np.array([t.dim for t in tables], dtype=np.float64)
        self.pooled = np.array([t.pooling is Pooling.SUM for t in tables])
        features = np.array([t.features for t in tables], dtype=np.float64)
        bags = features * problem.batch_size
        self.table_s = np.where(self.pooled, constants.table_s * features, 0.0)
        """Seconds of the calls of a pooled table on one device, in each direction."""
        self.bag_s = np.where(self.pooled, constants.bag_s * bags, 0.0)
        """Seconds of the calls of a pooled table's bags, in each direction."""
        written_s = self.dims * VECTOR_BYTES / constants.hbm_bytes_per_s
        self.vector_s = np.where(self.pooled, bags * (written_s + constants.warp_s), 0.0)
        """Seconds to start the warps of a pooled table's bags and to write their vectors, forward."""
        self.lookups = loads.all_lookups.mean(axis=0)
        self._lengths_s = constants.length_copy_s * np.where(self.pooled, bags, self.lookups)
        vectors = np.where(self.pooled, bags, self.lookups) * self.dims * VECTOR_BYTES
        vectors = vectors / constants.vector_copy_bytes_per_s
        forward = self._lengths_s + OUTPUT_PASSES * vectors
        self.placing_bags_s = np.where(self.pooled, [forward, GRADIENT_PASSES * vectors], 0.0)
        """Seconds to put a pooled table's lengths and vectors in place on one device, [directions, tables]."""
        self.placing_s = np.where(self.pooled, 0.0, [forward, GRADIENT_PASSES * vectors])
        self.placing_s[0] += constants.lookup_copy_s * self.lookups
        """Seconds to put lookups and unpooled tables' vectors in place wherever they are, as ``placing_bags_s``."""
        self.sent = float(not hides_sources(problem))
        """Weight of what is put in place to be sent."""
        self.lengths_sent = self.sent * constants.length_copy_s * bags
        """Seconds of all ranks to put a table's lengths in place for one device."""
        self.forward, self.forward_uvm = self._by_tier(loads, backward=False)
        self.backward, self.backward_uvm = self._by_tier(loads, backward=True)
        fastest_s = 1.0 / cache_rate(constants, self._once)
        slower = 1.0 / gather_rate(constants) - fastest_s
        fewer = loads.gradient_first_bytes.mean(axis=0) - first_by_rank * self.dims * VECTOR_BYTES
        slower_gradient = 1.0 / gradient_rate(constants) - fastest_s
        self.first_credit = np.where(self.pooled, np.maximum(fewer, 0.0) * slower_gradient, 0.0)
        """Seconds that pooled gradients cost less, at most, where copies share a table's bags."""
        state = np.array([problem.optimizer.state_bytes(t.dim) for t in tables], dtype=np.float64)
        row = self.dims * problem.precision.bytes + constants.access_overhead_bytes
        self.another_hbm = row * slower, 2.0 * (row + state) / gather_rate(constants)
        """Seconds of a row that one device more asks for, forward and backward."""
        host = constants.uvm_bytes_per_s
        by_host = row * (1.0 / host - fastest_s), constants.uvm_update_ratio * (row + state) / host
        least = np.minimum(self.another_hbm[0], by_host[0]), np.minimum(self.another_hbm[1], by_host[1])
        self.another = least if self.in_uvm else self.another_hbm
        """Seconds of such a row where it may be in host memory, forward and backward."""
        if not self.whole:
            self._narrow(loads)

    def _by_tier(self, loads: Load, *, backward: bool) -> tuple[Floats, Floats]:
        calls = self.table_s + self.bag_s + (0.0 if backward else self.vector_s)
        if self.whole:
            work = backward_work_s if backward else forward_work_s
            hbm, uvm = by_tier(work, loads, self.problem, self.moves)
        else:
            hbm = self._least(loads, backward=backward)
            uvm = self._least(in_uvm(loads), backward=backward) if self.in_uvm else hbm
        return hbm - calls, uvm - calls

    def _least(self, loads: Load, *, backward: bool) -> Floats:
        least = least_backward_s if backward else least_forward_s
        return np.asarray(least(loads, self.constants, self._once).mean(axis=0))

    def _narrow(self, loads: Load) -> None:
        """Compute what segments of w columns lose of the cache, [tables, widths], and what all widths pay, [tables]."""
        widths = np.arange(COLUMN_MULTIPLE, int(self.dims.max()) + 1, COLUMN_MULTIPLE, dtype=np.float64)
        share = np.minimum(widths / self.dims[:, None], 1.0)
        columns = Move.COLUMNS in self.moves
        self._fits = widths <= self.dims[:, None] if columns else widths == self.dims[:, None]
        self._more = 1.0 / share - 1.0
        narrow = Load(loads.values.copy())
        for name in WIDE:
            getattr(narrow, name)[...] = 0.0
        if self.problem.optimizer is Optimizer.ADAM:
            narrow.state_bytes[...] = 0.0
        tiers = [narrow, in_uvm(narrow)] if self.in_uvm else [narrow]
        # Segments pay calls and warps each: they are counted by themselves.
        warps_s = np.where(self.pooled, self.constants.warp_s * loads.bags.mean(axis=0), 0.0)
        self._same = [
            np.min([self._least(tier, backward=backward) for tier in tiers], axis=0) - calls
            for backward, calls in ((False, self.table_s + self.bag_s + warps_s), (True, self.table_s + self.bag_s))
        ]
        rates = [(gather_rate(self.constants), 0.0)]
        if self.in_uvm:
            rates.append((self.constants.uvm_bytes_per_s, self.constants.uvm_hit_ratio or 0.0))
        repeats = np.maximum(loads.lookup_bytes - loads.distinct_bytes, 0.0)
        forward = [self._mean_losses(repeats, loads.distinct_bytes, share, *rate) for rate in rates]
        again = loads.gradient_bytes - loads.gradient_first_bytes
        lost = self._mean_losses(again, loads.gradient_first_bytes, share, gradient_rate(self.constants))
        self._losses = [np.min(forward, axis=0), lost]

    def _mean_losses(self, repeats: Floats, sets: Floats, share: Floats, rate: float, hits: float = 0.0) -> Floats:
        """Return mean seconds that repeats [batches, tables] take beyond the cache's rate, [tables, widths].

        The cache serves a share ``hits`` of them at least.
        """
        constants = self.constants
        hit = np.maximum(hits, reach(constants) / (reach(constants) + sets[..., None] * share))
        fastest = cache_rate(constants, self._once)
        slower = hit / max(constants.cache_bytes_per_s, rate) + (1.0 - hit) / rate - 1.0 / fastest
        return np.asarray((repeats[..., None] * slower).mean(axis=0))

    def alone(self, forward: float, backward: float, exchanged: Floats) -> Floats:
        """Return least seconds that a table adds on single ranks for missing the cache, or for avoiding it, [tables].

        ``forward`` and ``backward`` are the weights of the directions; ``exchanged`` [tables] is what every further
        range of columns sends again.
        """
        if self.whole:
            return np.zeros(len(self.dims))
        copied = (self.sent + forward) * self.constants.lookup_copy_s
        placing_s = self.lookups * copied + forward * self._lengths_s + self.lengths_sent
        same = np.maximum(forward * self._same[0] + backward * self._same[1], 0.0)
        again = same + np.maximum(exchanged, 0.0) + placing_s
        one = self._narrowest(again, forward * self._losses[0] + backward * self._losses[1])
        if Move.ROWS not in self.moves:
            return one
        # A second segment of the same columns writes vectors again; one of an unpooled table is paid for as near.
        another = (backward + forward) * (self.table_s + self.bag_s) + forward * self.vector_s
        placing_again_s = forward * self.placing_bags_s[0] + backward * self.placing_bags_s[1]
        another = another + placing_again_s + self.lengths_sent * self.pooled
        read_s = (forward * INDEX_BYTES + backward * self.constants.sort_bytes) / self.constants.hbm_bytes_per_s
        streams = self.lookups * (read_s + copied)
        return np.asarray(np.minimum(one, another + self._narrowest(streams, backward * self._losses[1])))

    def _narrowest(self, again: Floats, losses: Floats) -> Floats:
        """Return the least over widths of what narrower segments pay ``again`` [tables] and lose [tables, widths]."""
        return np.asarray((self._more * again[:, None] + losses).min(axis=1, where=self._fits, initial=np.inf))
