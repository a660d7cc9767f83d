"""Memory of this machine, and what a rank takes of it."""

import os
from pathlib import Path

from shardbench.base.reading import line_of

GIB = float(1 << 30)
RANK_BYTES = 600 * 10**6
"""Memory of one rank besides its tables: libraries, batches, the dense model."""

_GROUPS = Path("/sys/fs/cgroup")


def gib(size_bytes: float) -> str:
    """Return bytes as a number of GiB for readers: three digits, and never an exponent for what is large."""
    size = size_bytes / GIB
    return f"{size:.3g}" if abs(size) < 999.5 else f"{size:,.0f}"


def free_memory_bytes() -> int:
    """Return what new processes may take: what the machine has free, or the control group where that is less."""
    available = line_of(Path("/proc/meminfo"), "MemAvailable:")
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([int(available.split()[0]) * 1024 if available else whole, *_free_in_groups()])


def _free_in_groups(own: Path = Path("/proc/self/cgroup"), groups: Path = _GROUPS) -> list[int]:
    """Return the free bytes of every control group of this process that has a limit (a container's, a batch job's)."""
    free_bytes = []
    for line in own.read_text().splitlines() if own.is_file() else ():
        _, kinds, path = line.split(":", 2)
        if kinds == "":
            root, limit_file, usage_file = groups, "memory.max", "memory.current"
        elif "memory" in kinds.split(","):
            root, limit_file, usage_file = groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        folder = root / path.lstrip("/")
        for group in (folder, *folder.parents):
            limit, used = _number(group / limit_file), _number(group / usage_file)
            if limit is not None and used is not None:
                # Pages of files count, but make way.
                of_files = int(line_of(group / "memory.stat", "inactive_file ") or 0)
                free_bytes.append(max(limit - used + of_files, 0))
            if group == root:
                break
    return free_bytes


def _number(path: Path) -> int | None:
    text = path.read_text().strip() if path.is_file() else ""
    return int(text) if text.isdigit() else None
