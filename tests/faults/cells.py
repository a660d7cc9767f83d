"""Faults of studies' cells: put in by a study that goes wrong, and by signals to the process that runs a cell."""

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from kept_folders import Silent
from misbehaving import DEEDS
from process_table import seen_from_here

from faults.case import Fault, Seen, expected, soon
from shardbench.records.cell import CellRecord, Row
from shardbench.records.store import cell_store
from shardbench.records.trial import Failure, Outcome
from shardbench.studies import session
from shardbench.studies.reproduction import Reproduction
from shardbench.studies.session import SessionOptions, run_studies
from shardbench.studies.study import Study, grid

CELL_S = 4.0
NOT_FULL = r"\(not by the kernel for want of memory\) in phase run"
ENDS = {
    "SIGKILL": (Outcome.ERROR, f"the process was killed by signal 9 {NOT_FULL}"),
    "SIGABRT": (Outcome.ERROR, "the process was killed by signal 6 in phase run"),
    "exits": (Outcome.ERROR, "the process exited with 3 in phase run"),
    "leaves": (Outcome.ERROR, "SystemExit"),
    "hangs": (Outcome.TIMEOUT, "no result from run after 4 s"),
    "all memory": (Outcome.OOM, "MemoryError"),
    "half an answer": (Outcome.TIMEOUT, "no result from run after 4 s"),
    "what is no Exception": (Outcome.ERROR, "Ends: for all"),
    "what is no text": (Outcome.ERROR, r"ValueError: byte \\udc80 of a name"),
}
"""How a cell ends, by what it does."""
SIGNALS = {
    signal.SIGKILL: (Outcome.ERROR, f"the process was killed by signal 9 {NOT_FULL}"),
    signal.SIGSEGV: (Outcome.ERROR, "the process was killed by signal 11 in phase run"),
    signal.SIGTERM: (Outcome.ERROR, "the process was killed by signal 15 in phase run"),
    signal.SIGSTOP: (Outcome.TIMEOUT, "no result from run after 4 s"),
}
"""The same by what is sent to its process."""


def _square(folder: Path, number: int, harm: str) -> Row:
    if number == 1:
        if harm in DEEDS:
            DEEDS[harm]()
        else:
            (folder / "pid").write_text(str(os.getpid()))
            time.sleep(1e6)
    return {"square": float(number) ** 2}


def _cells(harm: str) -> Study:
    return Study(
        name="cells",
        title="Three cells, of which the middle one goes wrong, or waits for what is done to it.",
        backend="counted",
        timeout_s=CELL_S,
        cells=lambda quick: grid(number=range(3)),
        judge=partial(_square, harm=harm),
    )


def find(owner: str) -> Reproduction:
    """Reproductions of plug-ins: the owner is what goes wrong."""
    return Reproduction(owner=owner, studies=(_cells(owner),), claims=(), observe=None, defined={})


def faults() -> Iterator[Fault]:
    """All of them."""
    for name in ENDS:
        yield Fault("cell", "run", name, partial(_harms, name))
    for repeat in range(3):
        for number in SIGNALS:
            yield Fault("cell", "run", f"{number.name} from outside {repeat}", partial(_signalled, number))


def _harms(name: str, folder: Path, rng: random.Random) -> Seen:
    return _seen(name, folder, *ENDS[name])


def _signalled(number: signal.Signals, folder: Path, rng: random.Random) -> Seen:
    said = folder / "cache" / "waits" / "pid"

    def send() -> None:
        if soon(lambda: said.is_file() and said.read_text() != "", 120.0):
            time.sleep(rng.uniform(0.0, 0.5))
            # The number is that of a namespace of its own.
            pid = seen_from_here(int(said.read_text()), os.getpid())
            if pid is not None:
                os.kill(pid, number)

    threading.Thread(target=send, daemon=True).start()
    return _seen("waits", folder, *SIGNALS[number])


def _seen(owner: str, folder: Path, outcome: Outcome, cause: str) -> Seen:
    before, session.find_reproduction = session.find_reproduction, find
    try:
        records = run_studies(find(owner), SessionOptions(results=folder, workers=1), Silent())
    finally:
        session.find_reproduction = before
    first, harmed, last = records
    seen = expected(_failure(harmed), outcome, cause)
    others = [record.failure for record in (first, last) if record.failure is not None]
    kept = {record.key for record in cell_store(folder, owner, "cells").read()}
    lost = len({record.key for record in records} - kept)
    return replace(
        seen, said="; ".join([seen.said, *others]), outcome_right=seen.outcome_right and not others, lost=lost
    )


def _failure(record: CellRecord) -> Failure | None:
    if record.failure is None or record.outcome is None:
        return None
    return Failure(outcome=record.outcome, cause=record.failure, phase="run")
