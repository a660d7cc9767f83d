"""Starts two ranks that run cases, watches them, and starts two new ones where a case took them along."""

import gc
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path

from shardbench.engine.processes.server import FORK_SERVER

WORLD = 2
GRACE_S = 40.0
"""Seconds that a rank may go on after its peer has ended a case."""
LIMIT_S = 120.0
"""Seconds for one case."""


@dataclass(frozen=True)
class Seen:
    """What became of a case: its cell, and why."""

    outcome: str
    why: str
    trace: str = ""


Say = Callable[[str, "Seen"], object]


def run_cases(names: Sequence[str], say: Say = lambda _name, _seen: None) -> dict[str, Seen]:
    """Run the cases, and return what became of each; ``say`` is told of each as it ends."""
    found: dict[str, Seen] = {}
    left = list(names)
    while left:
        with tempfile.TemporaryDirectory(prefix="cells-") as folder:
            done = _run(Path(folder), left, say)
        found.update(done)
        left = left[len(done) :]
    return found


def _run(folder: Path, names: list[str], say: Say) -> dict[str, Seen]:
    """Run cases until all are done or one has to be ended; return those that are."""
    (folder / "cases.json").write_text(json.dumps(names))
    context = FORK_SERVER.context()
    ranks = [context.Process(target=_rank, args=(folder, rank)) for rank in range(WORLD)]
    try:
        for process in ranks:
            FORK_SERVER.start(process)
        return _watch(folder, names, ranks, say)
    finally:
        for process in ranks:
            FORK_SERVER.end(process)


def _rank(folder: Path, rank: int) -> None:
    """In a process of its own, with the engine imported."""
    output = os.open(folder / f"rank{rank}.txt", os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    from torchrec_cells.rank import run_all  # noqa: PLC0415 - whoever starts ranks need not have the engine imported

    # Each case ends with a search for garbage: what was imported is none.
    gc.freeze()
    run_all(folder, rank)


def _watch(folder: Path, names: list[str], ranks: list[BaseProcess], say: Say) -> dict[str, Seen]:
    found: dict[str, Seen] = {}
    since = time.monotonic()
    while len(found) < len(names):
        time.sleep(0.05)
        ended = [process.exitcode for process in ranks]
        lines = [_lines(folder / f"rank{rank}.jsonl") for rank in range(WORLD)]
        done = min(map(len, lines))
        if done > len(found):
            for number in range(len(found), done):
                found[names[number]] = agreed([lines[rank][number] for rank in range(WORLD)])
                say(names[number], found[names[number]])
            since = time.monotonic()
            continue
        waited = time.monotonic() - since
        late = waited > (GRACE_S if max(map(len, lines)) > done else LIMIT_S)
        if late or any(code is not None and len(own) <= done for code, own in zip(ended, lines)):
            said = [line[done] for line in lines if len(line) > done]
            found[names[done]] = _ended(folder, said, ended)
            say(names[done], found[names[done]])
            break
    return found


def _lines(path: Path) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def agreed(told: Sequence[dict[str, str]]) -> Seen:
    """Return one outcome of what all ranks say: the cause, where the others only lost the rank that failed first."""
    lost = ("Connection closed by peer", "Connection reset by peer")
    failed = [one for one in told if one["outcome"] != "works"]
    if not failed:
        return Seen("works", "")
    causes = [one for one in failed if not any(sign in one["why"] for sign in lost)] or failed
    one = next((one for one in causes if one["outcome"] == "wrong"), causes[0])
    if len(failed) < len(told):
        return Seen("wrong", f"only one rank says: {one['why']}", one["trace"])
    return Seen(one["outcome"], one["why"], one["trace"])


def _ended(folder: Path, said: list[dict[str, str]], codes: list[int | None]) -> Seen:
    """Say why the ranks were ended within a case."""
    output = "\n".join((folder / f"rank{rank}.txt").read_text(errors="replace")[-2000:] for rank in range(WORLD))
    dead = [f"rank {rank} was ended by {_name(code)}" for rank, code in enumerate(codes) if code is not None]
    if said:
        return Seen("wrong", f"one rank waits for the other, which says: {said[0]['why']}", said[0]["trace"])
    return Seen("wrong", "; ".join(dead) or "the ranks hang", output)


def _name(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
