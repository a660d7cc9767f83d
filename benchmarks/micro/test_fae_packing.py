"""Samples that FAE's input processor classifies and packs per CPU second."""

import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))
from ratios import beside

from shardbench.workloads.hotness import HotPrefix, Packer
from shardbench.workloads.trace import Bags

pytestmark = pytest.mark.benchmark(timer=time.process_time)
TABLES, CHUNK, CHUNKS, BATCH = 26, 65_536, 4, 4096
ROWS, HOT = 1_000_000, 200_000


def stream(longest):
    """Chunks of samples; bags of one lookup, or of 0 to ``longest``, of which most are hot."""
    rng = np.random.default_rng(0)
    chunks = []
    for _ in range(CHUNKS):
        tables = []
        for _ in range(TABLES):
            lengths = np.ones(CHUNK, dtype=np.int64) if longest == 1 else rng.integers(0, longest + 1, CHUNK)
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            values = (rng.random(offsets[-1]) ** 12 * ROWS).astype(np.int64)
            tables.append(Bags(values=values, offsets=offsets))
        chunks.append(tables)
    return chunks


def process(chunks):
    packer = Packer([HotPrefix(hot=HOT, rows=ROWS)] * TABLES, BATCH)
    packed = sum(len(batch.samples) for chunk in chunks for batch in packer.add(chunk))
    return packed + sum(len(batch.samples) for batch in packer.finish()), packer.hot


@pytest.mark.parametrize("longest", [1, 3], ids=["one-hot", "ragged"])
def test_classifying_and_packing(benchmark, longest):
    chunks = stream(longest)
    packed, hot = benchmark.pedantic(process, (chunks,), rounds=3, iterations=1, warmup_rounds=1)
    assert packed == CHUNK * CHUNKS
    assert 0 < hot < packed
    benchmark.extra_info["samples"] = packed
    beside(benchmark, "drawing the samples", lambda: stream(longest), rounds=3)
