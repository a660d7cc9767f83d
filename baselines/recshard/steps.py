"""The choices of the program: for every table, how many of its hottest rows go to HBM."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from shardbench.base.arrays import Floats, Ints
from shardbench.base.errors import Infeasible
from shardbench.cost.costmodel import gather_rate
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile

STEPS = 100
"""Steps of the inverse CDF: a table keeps 0, 1, ... or 100 % of its sampled accesses in HBM."""

TAIL_STEPS = 20
"""Steps among the rows that the sample never saw, where these are expected to be looked up."""


class Statistics(StrEnum):
    """The statistics from which a table's traffic is computed, beside its CDF."""

    CDF = "cdf"
    CDF_COVERAGE = "cdf+coverage"
    CDF_POOLING = "cdf+pooling"
    ALL = "cdf+coverage+pooling"


@dataclass(frozen=True, kw_only=True)
class RowSteps:
    """All choices of all tables, table by table, fewest HBM rows first; arrays [steps] unless said otherwise."""

    first: Ints
    """[tables + 1]: choices of table j are first[j] to first[j + 1]."""
    table: Ints
    rows: Ints
    """Hottest rows in HBM; the rest of the table is in UVM."""
    hbm_bytes: Ints
    uvm_bytes: Ints
    cost_ms: Floats
    """Time to read the table's rows in one iteration."""
    unseen_ms: Floats
    """[tables]: time that never-seen rows would take in UVM (orders choices of equal cost, is no cost)."""

    @property
    def tables(self) -> int:
        """The number of tables."""
        return len(self.first) - 1

    def of(self, tables: Ints) -> Ints:
        """Return the numbers of all choices of these tables, in the tables' order."""
        counts = self.first[tables + 1] - self.first[tables]
        before = np.cumsum(counts) - counts
        return np.asarray(np.arange(int(counts.sum())) + np.repeat(self.first[tables] - before, counts))

    def least(self, values: Floats) -> Floats:
        """Return the smallest of ``values`` [steps] among the choices of each table, [tables]."""
        return np.asarray(np.minimum.reduceat(values, self.first[:-1]))

    def argleast(self, values: Floats) -> Ints:
        """Return the first choice with the smallest of ``values`` for each table, [tables]."""
        smallest = values <= self.least(values)[self.table]
        least = np.flatnonzero(smallest)
        return np.asarray(least[np.searchsorted(self.table[least], np.arange(self.tables))])


def traffic_bytes(problem: Problem, statistics: Statistics) -> Floats:
    """Return the bytes read for each table in one iteration of the global batch, float64 [tables].

    B x coverage x pooling x dim x bytes; a statistic that is left out counts as one. A table that
    the sample never looked up reads nothing, whatever is left out.
    """
    row_bytes = [float(table.dim * problem.precision.bytes) for table in problem.tables]
    lookups = [_lookups_a_sample(profile, statistics) for profile in problem.profiles]
    return np.asarray(problem.batch_size * np.array(row_bytes) * np.array(lookups))


def _lookups_a_sample(profile: AccessProfile, statistics: Statistics) -> float:
    if not profile.lookups:
        return 0.0
    coverage = profile.coverage if statistics in (Statistics.CDF_COVERAGE, Statistics.ALL) else 1.0
    present = statistics in (Statistics.CDF_POOLING, Statistics.ALL)
    return coverage * (profile.mean_pooling / profile.coverage if present else 1.0)


def make_steps(problem: Problem, statistics: Statistics, *, expects_unseen: bool = False) -> RowSteps:
    """Return every table's choices that fit one device; raises Infeasible for a table that has none.

    ``expects_unseen`` takes from the seen rows the share of accesses that never-seen rows are
    expected to get, spreads it over these evenly, and adds choices among them (deviation 7).
    """
    constants, topology = problem.machine.constants, problem.topology
    traffic = traffic_bytes(problem, statistics)
    rows, shares, row_bytes = [], [], []
    grid = np.arange(STEPS + 1) / STEPS
    for table, profile in zip(problem.tables, problem.profiles, strict=True):
        each = problem.weight_bytes(table) // table.rows
        # Steps with equal rows are one choice; the whole table is one more (deviation 3).
        choice = np.unique(np.append(profile.inverse_cdf(grid), table.rows))
        if expects_unseen:
            choice = np.union1d(choice, np.linspace(profile.seen_rows, table.rows, TAIL_STEPS + 1).astype(np.int64))
        fits = (choice * each <= topology.hbm_bytes) & ((table.rows - choice) * each <= topology.uvm_bytes)
        choice = choice[fits]
        if not len(choice):
            raise Infeasible(
                f"table '{table.name}' ({table.rows * each} bytes) does not fit a device's {topology.hbm_bytes} bytes "
                f"of HBM and {topology.uvm_bytes} of UVM at any of its {len(fits)} steps, and tables stay on one device"
            )
        rows.append(choice)
        # deviation 4: the share that the rows really take, at least the step's
        shares.append(expected_share(profile, choice, expects_unseen=expects_unseen))
        row_bytes.append(each)
    kept = [len(choice) for choice in rows]
    unseen = [profile.unseen_share for profile in problem.profiles]
    table_of = np.repeat(np.arange(len(kept)), kept)
    all_rows, share = np.concatenate(rows), np.concatenate(shares)
    each_of = np.array(row_bytes)[table_of]
    size = np.array([t.rows for t in problem.tables])[table_of]
    in_hbm, in_uvm = 1e3 / gather_rate(constants), 1e3 / constants.uvm_bytes_per_s  # deviation 2
    return RowSteps(
        first=np.concatenate([[0], np.cumsum(kept)]),
        table=table_of,
        rows=all_rows,
        hbm_bytes=all_rows * each_of,
        uvm_bytes=(size - all_rows) * each_of,
        cost_ms=traffic[table_of] * (share * in_hbm + (1.0 - share) * in_uvm),
        unseen_ms=traffic * np.array(unseen) * in_uvm,
    )


def expected_share(profile: AccessProfile, rows: Ints, *, expects_unseen: bool) -> Floats:
    """Return the share of a table's accesses that its hottest ``rows`` [n] rows take, [n].

    The accesses are the sample's, or with ``expects_unseen`` those that are expected in new samples.
    """
    share = np.where(rows < profile.rows, profile.cdf(rows), 1.0)
    unseen = profile.unseen_share if expects_unseen else 0.0
    if unseen == 0.0:
        return share
    tail = np.clip(rows - profile.seen_rows, 0, None) / (profile.rows - profile.seen_rows)
    return np.asarray((1.0 - unseen) * share + unseen * tail)
