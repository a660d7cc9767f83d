"""Freed memory stays with the process that trains, as a GPU's does with its caching allocator."""

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
"""Numbers of glibc's mallopt(3)."""
_NEVER, _NONE = -1, 0
_AHEAD_BYTES = 64 << 20
_USUAL = {_TRIM_THRESHOLD: 128 << 10, _TOP_PAD: 128 << 10, _MMAP_MAX: 1 << 16}
"""What glibc begins with."""


def keep_freed_memory() -> None:
    """Give nothing that is freed from now on back to the kernel, where the C library can be told so.

    Otherwise glibc returns what lies at the end of the heap, and blocks of megabytes, with each step, and the kernel
    makes the next step's pages anew. Which plans pay for that hangs on the order of their allocations, that is on
    chance.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    mallopt(_TRIM_THRESHOLD, _NEVER)
    mallopt(_TOP_PAD, _AHEAD_BYTES)
    mallopt(_MMAP_MAX, _NONE)


def give_freed_memory_back() -> None:
    """Give what is freed from now on back to the kernel, and what was freed before: the next plan's tables need it."""
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt") or not hasattr(library, "malloc_trim"):
        return
    for number, value in _USUAL.items():
        library.mallopt(number, value)
    library.malloc_trim(0)
