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
    _tell({_TRIM_THRESHOLD: _NEVER, _TOP_PAD: _AHEAD_BYTES, _MMAP_MAX: _NONE})


def give_free_pages_back() -> None:
    """Give back to the kernel what lies free in the heap between blocks that are in use."""
    library = ctypes.CDLL(None)
    if hasattr(library, "malloc_trim"):
        library.malloc_trim(0)


def give_freed_memory_back() -> None:
    """Give what is freed from now on back to the kernel, and what was freed before: the next plan's tables need it."""
    _tell(_USUAL)
    give_free_pages_back()


def _tell(settings: dict[int, int]) -> None:
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        for number, value in settings.items():
            library.mallopt(number, value)
