"""Memory of this machine, and what a rank takes of it."""

import os
from pathlib import Path

RANK_BYTES = 600 * 10**6
"""Memory of one rank besides its tables: libraries, batches, the dense model."""


_GROUPS = Path("/sys/fs/cgroup")


def free_memory_bytes() -> int:
    """Return what new processes may take: what the machine has free, or the control group where that is less."""
    table = Path("/proc/meminfo")
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if table.is_file():
        for line in table.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    return min([free, *_free_in_groups()])


def _free_in_groups(own: Path = Path("/proc/self/cgroup"), groups: Path = _GROUPS) -> list[int]:
    """Return the free bytes of every control group of this process that has a limit (a container's, a batch job's)."""
    found = []
    for line in own.read_text().splitlines() if own.is_file() else ():
        _, kinds, path = line.split(":", 2)
        if kinds == "":
            root, limit, used = groups, "memory.max", "memory.current"
        elif "memory" in kinds.split(","):
            root, limit, used = groups / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        folder = root / path.lstrip("/")
        for group in (folder, *folder.parents):
            most, taken = _number(group / limit), _number(group / used)
            if most is not None and taken is not None:
                # Pages of files count, but make way.
                found.append(max(most - taken + _inactive_file_bytes(group), 0))
            if group == root:
                break
    return found


def _number(path: Path) -> int | None:
    text = path.read_text().strip() if path.is_file() else ""
    return int(text) if text.isdigit() else None


def _inactive_file_bytes(group: Path) -> int:
    path = group / "memory.stat"
    for line in path.read_text().splitlines() if path.is_file() else ():
        if line.startswith("inactive_file "):
            return int(line.split()[1])
    return 0
