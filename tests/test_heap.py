"""Memory that was freed stays with the process."""

import ctypes
import resource

from shardbench.engine.heap import give_freed_memory_back, keep_freed_memory
from shardbench.engine.processes.launch import call_in_child

SIZE = 6 << 20
"""Bytes of a block, which glibc gives back by default when it is freed."""
ROUNDS = 50


def faults(keeps: bool, gives_back: bool = False) -> int:
    """Page faults of as many rounds of taking two blocks, writing them and giving them back."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes, libc.free.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_size_t],
        [ctypes.c_void_p],
    )
    if keeps:
        keep_freed_memory()
    if gives_back:
        give_freed_memory_back()

    def a_round() -> None:
        blocks = [libc.malloc(SIZE) for _ in range(2)]
        for block in blocks:
            ctypes.memset(block, 1, SIZE)
        for block in blocks:
            libc.free(block)

    a_round()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(ROUNDS):
        a_round()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def test_what_is_freed_is_not_asked_of_the_kernel_again(tmp_path) -> None:
    given_back, kept = (
        call_in_child(faults, (keeps,), timeout_s=60, phase="heap", log=tmp_path / "log") for keeps in (False, True)
    )
    assert given_back > 1000
    assert kept < 100


def test_what_is_freed_goes_back_to_the_kernel_again_where_tables_of_another_plan_need_it(tmp_path) -> None:
    assert call_in_child(faults, (True, True), timeout_s=60, phase="heap", log=tmp_path / "log") > 1000
