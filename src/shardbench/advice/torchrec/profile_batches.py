"""Profiles where nobody counted lookups, and batches drawn by profiles: a plan can be judged without a data set."""

import numpy as np

from shardbench.base.errors import BadInput
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.workloads.materialise import BatchSource
from shardbench.workloads.trace import Bags, bag_offsets

SAMPLES = 65_536
"""Samples of a profile that is made up."""


def even_profile(rows: int, pooling: float) -> AccessProfile:
    """Make up the profile of a table of equally likely rows: ``pooling`` lookups a sample, in SAMPLES samples."""
    lookups = round(pooling * SAMPLES)
    each, extra = divmod(lookups, rows)
    runs = [(each + 1, extra), (each, rows - extra)]
    groups = [(count, number) for count, number in runs if count and number]
    return AccessProfile(
        rows=rows,
        samples=SAMPLES,
        present=min(SAMPLES, lookups),
        counts=tuple(count for count, _ in groups),
        row_counts=tuple(number for _, number in groups),
    )


KEPT_BYTES = 1 << 28
"""Bytes of drawn lookups that are kept; those of further tables are drawn again."""


class ProfileBatches(BatchSource):
    """One batch: bags of Poisson lengths, rows by the profile's shares; each table's draws are its own."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.numbers = range(1)
        self._cache: dict[int, Bags] = {}
        self._left_bytes = KEPT_BYTES

    def bags(self, iteration: int, table: int) -> Bags:
        """Return the lookups of one table, the same in every call."""
        if table in self._cache:
            return self._cache[table]
        bags = self._draw(table)
        size = bags.values.nbytes + bags.offsets.nbytes
        if size <= self._left_bytes:
            self._left_bytes -= size
            self._cache[table] = bags
        return bags

    def _draw(self, table: int) -> Bags:
        shape, profile = self.problem.tables[table], self.problem.profiles[table]
        generator = np.random.default_rng(np.random.SeedSequence(entropy=0, spawn_key=(table,)))
        bags = self.problem.batch_size * shape.features
        lengths = generator.poisson(profile.mean_pooling / shape.features, size=bags)
        rows = profile.inverse_cdf(generator.random(int(lengths.sum())))
        offsets = bag_offsets(lengths)
        # The fewest rows that take a share, less one, are the row at which the share is reached.
        return Bags(values=np.maximum(rows - 1, 0), offsets=offsets, features=shape.features)

    def joined(self, batches: int, table: int) -> Bags:
        """Draw the lookups of one table in the first batch; raises BadInput for more than this one."""
        if batches != 1:
            raise BadInput("only one batch is drawn of a profile: ask for 1")
        return self.bags(0, table)
