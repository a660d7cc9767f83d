"""Memory of this machine, and what a rank takes of it."""

import os
from pathlib import Path

RANK_BYTES = 600 * 10**6
"""Memory of one rank besides its tables: libraries, batches, the dense model."""


def free_memory_bytes() -> int:
    """Memory that new processes may take."""
    table = Path("/proc/meminfo")
    if table.is_file():
        for line in table.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
