"""Studies whose cells end in every way; a process that runs them imports this module, and nothing heavy."""

import os
import signal
import time
from dataclasses import replace
from pathlib import Path

from shardbench.studies.claim import Evidence, parse_claims
from shardbench.studies.reproduction import Reproduction
from shardbench.studies.study import Plot, Row, Study, grid

CLAIMS = """
[[claims]]
name = "doubles"
kind = "statement"
statement = "twice is twice as much"
quote = "twice"
paper = 2.0
unit = "x"
relation = "about"
scale = "ratio"
neutral = 1.0
sourced = true
source = "arithmetic"
definition_of = "ours"
definition = "twice over number"
conditions = "all numbers"
n_unit = "number"
sample = true
evidence = "counted"
judged_by = ["doubling"]
"""


THREE = 'raise ValueError("three is\\nno good")'


def twice(folder: Path, number: int) -> Row:
    if number == 3:
        raise ValueError("three is\nno good")
    return {"twice": 2.0 * number}


def end(folder: Path, kind: str) -> list[Row]:
    print(f"this is {kind}")
    if kind == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if kind == "hangs":
        time.sleep(1e6)
    if kind == "exits":
        os._exit(3)
    if kind == "leaves":
        raise SystemExit(0)
    if kind == "full":
        raise MemoryError
    return [{"pid": os.getpid()}]


DOUBLING = Study(
    name="doubling",
    title="Twice a number.",
    cells=lambda quick: grid(number=range(1, 3 if quick else 5)),
    judge=twice,
    backend="counted",
    columns=("backend",),
    plots=(Plot(title="Twice a number.", table="doubling", x="number", y="twice"),),
)
FAILING = replace(
    DOUBLING,
    title="Cells that end in every way; the last one is well.",
    timeout_s=3.0,
    cells=lambda quick: grid(kind=("killed", "hangs", "exits", "leaves", "full", "well")),
    judge=end,
)


def giving(row: Row, **more: object) -> Study:
    """The study that gives one row, whatever the cell."""
    return replace(DOUBLING, judge=lambda folder, number: row, **more)


def observe(evidence: Evidence) -> dict[str, list[float]]:
    rows = evidence.tables["doubling"]
    return {"doubles": (rows["twice"] / rows["number"]).tolist()}


def reproduction(owner: str, *studies: Study, claims: str = CLAIMS) -> Reproduction:
    return Reproduction(owner=owner, studies=studies, claims=parse_claims(claims, "x"), observe=observe, defined={})


def find_made(owner: str) -> Reproduction:
    """What a worker, which knows nothing of a test's patches, finds."""
    return {
        "mine": lambda: reproduction("mine", DOUBLING),
        "shuffles": lambda: reproduction("shuffles", giving({"strategy": "shuffle"})),
        "uses": lambda: reproduction("uses", giving({"strategy": "shuffle"}, uses=("shuffle",))),
        "no-backend": lambda: reproduction("no-backend", giving({"backend": "guessed"})),
        "twice": lambda: reproduction("twice", giving({"number": 1})),
        "faults": lambda: reproduction("faults", FAILING),
    }[owner]()
