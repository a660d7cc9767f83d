"""Measure in minutes what one GPU says of the cost model: `python tools/gpu_box --minutes 8 --out FOLDER`.

Nothing is installed: it runs with the torch, FBGEMM and TorchRec of this Python, on one GPU without a network. `--cpu`
rehearses every part on CPUs, in the smallest sizes that touch all code. The parts run in the order below, each with its
share of the minutes; every number is in FOLDER before the next is measured. What measures is a process of its own:
where it ends, or a part hangs, the next part begins in another one.
"""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any

from log import REST, Log
from trips import COMMIT, ROOT, TRIPS
from worker import BEGINS, LOST

PARTS = {
    "smoke": 20, "card": 25, "tiers": 105, "fae": 75, "kernels": 90, "slide": 90, "distinct": 30, "captured": 10,
}  # fmt: skip
"""The parts in their order, with their seconds of eight minutes, of which imports and warm-up leave about so many."""
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
    # The one rank talks to itself.
    "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo",
    # As torch asks of whoever captures steps with collectives.
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    # What trips.py overwrote fails when it is loaded.
    "CUDA_MODULE_LOADING": "LAZY",
}  # fmt: skip
GRACE_S = 20.0
"""How long after its end a part may take for what it has begun."""
KILL_S = 10.0
"""How long a process may take to end: one whose device hangs may never."""
PACKAGES = ("torch", "torchrec", "fbgemm-gpu", "fbgemm-gpu-cpu", "fbgemm_gpu_cpu", "numpy", "tensordict")


class Interrupted(Exception):
    """A signal asked for the end."""


def main() -> int:
    """Run the programme; 0 where every part had its turn."""
    parser = argparse.ArgumentParser(prog="python tools/gpu_box", description=__doc__)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--cpu", action="store_true", help="rehearse on CPUs, in small sizes")
    parser.add_argument("--only", action="append", choices=PARTS, help="run this part alone (may be repeated)")
    arguments = parser.parse_args()
    if not 0.0 < arguments.minutes <= 60.0:
        parser.error(f"--minutes takes a number above 0 and at most 60, not {arguments.minutes:g}")
    if arguments.out.exists() and any(arguments.out.iterdir()):
        parser.error(f"{arguments.out} is not empty: name a new folder")
    until = time.monotonic() + 60.0 * arguments.minutes
    arguments.out.mkdir(parents=True, exist_ok=True)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, _interrupt)
    parts = [name for name in PARTS if not arguments.only or name in arguments.only]
    facts = _facts(arguments, parts)
    _write(arguments.out, facts)
    with tempfile.TemporaryDirectory() as scratch, (arguments.out / "printed.log").open("w") as printed:
        site = Path(scratch) / "site"
        make_importable(site)
        try:
            _run(arguments, facts, until, (site, Path(scratch)), printed)
            facts["ended"] = "all parts had their turn"
        except Interrupted as error:
            facts["ended"] = str(error)
        facts["finished_at"] = _now()
        _write(arguments.out, facts)
    print(f"{facts['ended']}: {arguments.out}", flush=True)
    return 0 if facts["ended"].startswith("all") else 1


def make_importable(folder: Path) -> None:
    """Fill ``folder``, which is to be on the path, with the package as an installation lays it out, by links."""
    folders = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-dir"]
    package = folder / "shardbench"
    package.mkdir(parents=True)
    for entry in (ROOT / folders.pop("shardbench")).iterdir():
        (package / entry.name).symlink_to(entry)
    for name, place in folders.items():
        (package / name.partition(".")[2]).symlink_to(ROOT / place)


def _run(
    arguments: argparse.Namespace, facts: dict[str, Any], until: float, places: tuple[Path, Path], printed: Any
) -> None:
    """Run the parts in processes, a new one after each that was lost; keep how each process ended."""
    site, scratch = places
    data = scratch / "data"
    data.mkdir()
    # The worker's own folder, too: Python may be told to leave that of a script out.
    path = os.pathsep.join(filter(None, [str(site), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]))
    ours = ENVIRONMENT | {"PYTHONPATH": path}
    if arguments.cpu:
        # Cores are few here. On a GPU's host, threads that wait for their next work asleep would be late for it.
        ours |= {"CUDA_VISIBLE_DEVICES": "", "OMP_WAIT_POLICY": "PASSIVE"}
    rest = list(facts["parts"])
    while rest:
        weights = {name: PARTS[name] for name in rest}
        told = {"weights": weights, "out": str(arguments.out), "data": str(data), "until": until, "cpu": arguments.cpu}
        command = [sys.executable, str(Path(__file__).with_name("worker.py")), json.dumps(told)]
        turns, code = _watch(command, os.environ | ours, until, printed)
        facts["processes"].append({"parts": turns, "exit_code": code})
        _write(arguments.out, facts)
        if not turns:
            raise Interrupted("the measuring process ended before its first part began: see printed.log")
        if code not in (0, LOST):  # what a lost device skips is in the log already
            why = "it did not end in its time" if code is None else f"its process ended with exit code {code}"
            Log(arguments.out).skip(turns[-1], REST, why)
        rest = rest[len(turns) :]


def _watch(command: list[str], environment: dict[str, str], until: float, printed: Any) -> tuple[list[str], int | None]:
    """Run a process of parts, killed where one overruns.

    Return the parts that had their turn, and its exit code; None where it was killed.
    """
    turns: list[str] = []
    signal.signal(signal.SIGALRM, _overrun)
    # A group of its own, so that what it starts ends with it. A ``with`` would wait for its end, however long.
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        # Imports come before the first part.
        signal.setitimer(signal.ITIMER_REAL, max(60.0, until - time.monotonic()))
        for line in process.stdout:
            _say(line.rstrip("\n"), printed)
            if line.startswith(BEGINS):
                name, seconds = line.removeprefix(BEGINS).split()
                turns.append(name)
                signal.setitimer(signal.ITIMER_REAL, float(seconds) + GRACE_S)
        return turns, process.wait(timeout=KILL_S)
    except (TimeoutError, subprocess.TimeoutExpired):
        _say(f"killed: {turns[-1] if turns else 'the start'} did not end in its time", printed)
        return turns, None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        _kill(process)
        process.stdout.close()


def _kill(process: "subprocess.Popen[str]") -> None:
    """End the process and all that it started, which may be there without it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=KILL_S)


def _say(line: str, printed: Any) -> None:
    print(line, flush=True)
    printed.write(line + "\n")
    printed.flush()


def _overrun(number: int, frame: FrameType | None) -> None:
    raise TimeoutError


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted(f"ended by {signal.Signals(number).name}")


def _facts(arguments: argparse.Namespace, parts: list[str]) -> dict[str, Any]:
    return {
        "commit": _commit(),
        "dirty": None if _git("rev-parse", "HEAD") is None else bool(_git("status", "--porcelain")),
        "backend": "measured",
        "cpu": arguments.cpu,
        "minutes": arguments.minutes,
        "parts": parts,
        "started_at": _now(),
        "python": platform.python_version(),
        "versions": {name: version for name in PACKAGES if (version := _version(name)) is not None},
        "cores": len(os.sched_getaffinity(0)),
        "processes": [],
        "ended": "not yet",
    }


def _write(folder: Path, facts: dict[str, Any]) -> None:
    fresh = folder / ".about"
    fresh.write_text(json.dumps(facts, indent=1) + "\n")
    fresh.replace(folder / "about.json")


def _now() -> str:
    return datetime.now(UTC).replace(microsecond=0).isoformat()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    carried = ROOT / TRIPS[0] / COMMIT
    return _git("rev-parse", "HEAD") or (carried.read_text().strip() if carried.is_file() else None)


def _git(*arguments: str) -> str | None:
    process = subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=False)
    return process.stdout.strip() if process.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
