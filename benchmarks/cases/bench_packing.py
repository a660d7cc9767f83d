"""FAE's input processor: samples of 26 lookups, classified as hot or cold and packed, beside drawing them."""

import numpy as np

from shardbench.workloads.hotness import HotPrefix, hot_samples, pack
from shardbench.workloads.trace import Bags

from .case import Case

TABLES, SAMPLES, BATCH = 26, 262_144, 4096
ROWS, HOT = 1_000_000, 200_000
LONGEST = {"one-hot": 1, "ragged": 3}


def draw(longest: int) -> list[Bags]:
    """Return samples of bags of one lookup, or of 0 to ``longest``; most lookups are hot."""
    rng = np.random.default_rng(0)
    tables = []
    for _ in range(TABLES):
        lengths = np.ones(SAMPLES, dtype=np.int64) if longest == 1 else rng.integers(0, longest + 1, SAMPLES)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        values = (rng.random(offsets[-1]) ** 12 * ROWS).astype(np.int64)
        tables.append(Bags(values=values, offsets=offsets))
    return tables


class Packing(Case):
    """262,144 samples, by the lengths of their bags."""

    params = (list(LONGEST),)
    param_names = ("bags",)
    against = "drawing the samples"

    def setup(self, bags: str) -> None:
        """Draw the same samples every time."""
        self.longest = LONGEST[bags]
        self.tables = draw(self.longest)

    def long_pack(self, bags: str) -> tuple[int, int]:
        """Return how many samples were packed, and how many of them are hot."""
        hot = hot_samples(self.tables.__getitem__, [HotPrefix(hot=HOT, rows=ROWS)] * TABLES, SAMPLES)
        return sum(batch.fresh for batch in pack(hot, BATCH)), int(np.count_nonzero(hot))

    def check(self, counts: tuple[int, int]) -> None:
        """Raise an error where samples are missing, or none or all are hot."""
        packed, hot = counts
        assert packed == SAMPLES
        assert 0 < hot < packed

    def reference(self) -> object:
        """Draw the samples again."""
        return draw(self.longest)
