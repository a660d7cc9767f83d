"""Runs parts of the programme one after the other, in a process that the programme watches.

It says on standard output which part begins. A part that raises is skipped with its reason; a device that is lost ends
the process, and the programme goes on with the next part in another one.
"""

import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path

from log import REST, Log

LOST = 3
"""The exit code of a process whose device is lost."""
BEGINS = "== part"
"""Begins a line that names the part whose turn it is, and the seconds that it has."""


def main(weights: dict[str, float], out: str, data: str, until: float, *, cpu: bool) -> int:
    """Run parts, each for its share of the time that is left until the end, by the system's monotonic clock."""
    from box import Box, CardLost, ManagedMemory  # noqa: PLC0415 - torch is imported with them

    box = Box(Log(Path(out)), cpu=cpu, data=Path(data))
    if not cpu:
        import fbgemm_gpu  # noqa: F401, PLC0415 - makes the operators
        import torch  # noqa: PLC0415

        from shardbench.base.memory import free_memory_bytes  # noqa: PLC0415

        ManagedMemory(lambda: torch.cuda.mem_get_info()[0], free_memory_bytes).guard(torch.ops.fbgemm)
    for name in list(weights):
        seconds = max(0.0, until - time.monotonic()) * weights[name] / sum(weights.values())
        del weights[name]
        print(f"{BEGINS} {name} {seconds:.1f}", flush=True)
        box.begin(name, seconds)
        try:
            # A part that fails does not keep the next one from its turn.
            with box.attempt(REST):
                importlib.import_module(name).measure(box)
                box.free()
        except CardLost as error:
            box.skip(REST, error)
            return LOST
    return 0


def _end(code: int) -> None:
    """End this process at once: what libraries do at the end may wait for a device that is lost."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    try:
        _end(main(**json.loads(sys.argv[1])))
    except Exception:
        traceback.print_exc()
        _end(1)
