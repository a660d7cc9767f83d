"""Hundreds of trials in one process leave nothing in it: no memory, no process, no open file."""

import gc
import os
import random
import threading
from functools import partial
from pathlib import Path

import pytest
from faults.planners import context_of, run_one
from misbehaving import Does, Honest, NoPlan
from process_table import descendants

from shardbench.engine.processes import server
from shardbench.records.trial import Outcome

TRIALS = 300
SETTLED = 60
"""Trials after which what is loaded once is loaded."""
GROWTH_BYTES = 24 << 20
"""Of this process or the fork server, over all trials that follow: 100 KB a trial would be a leak."""
ENDS = (
    (Honest, Outcome.OK),
    (NoPlan, Outcome.INVALID),
    (partial(Does, "declines"), Outcome.INFEASIBLE),
    (partial(Does, "raises"), Outcome.ERROR),
    (partial(Does, "exits"), Outcome.ERROR),
    (partial(Does, "SIGKILL"), Outcome.ERROR),
    (partial(Does, "daemon and exit"), Outcome.ERROR),
)


def resident_bytes(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


def held() -> dict[str, int]:
    gc.collect()
    own = {os.getpid(), server.server_pid()}
    return {
        "open files": len(list(Path("/proc/self/fd").iterdir())),
        "processes": len(descendants(os.getpid())),
        "threads": threading.active_count(),
        **{f"bytes of process {i}": resident_bytes(pid) for i, pid in enumerate(sorted(own))},
    }


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_hundreds_of_trials_leave_nothing(tmp_path):
    rng = random.Random(16)
    before: dict[str, int] = {}
    for number in range(TRIALS):
        folder = tmp_path / str(number % 10)
        folder.mkdir(exist_ok=True)
        make, outcome = ENDS[number % len(ENDS)] if number < len(ENDS) else rng.choice(ENDS)
        record = run_one(context_of(folder), make())
        assert record.outcome is outcome, record.summary
        if number == SETTLED:
            before = held()
    after = held()
    assert {name: after[name] for name in ("open files", "processes", "threads")} == {
        name: before[name] for name in ("open files", "processes", "threads")
    }
    grown = {name: after[name] - before[name] for name in after if "bytes" in name}
    assert max(grown.values()) < GROWTH_BYTES, grown
    print(f"{TRIALS} trials; after the first {SETTLED} grown by {grown} bytes")
