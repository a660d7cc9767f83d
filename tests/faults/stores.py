"""Faults of the record file and of the disk below it; the next run goes on, and no line that was whole is lost."""

import os
import random
import re
import resource
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp

from kept_folders import Silent

from faults.case import Fault, Seen
from faults.suites import TRIALS, keys_of, suite
from shardbench.base.atomic import sole_writer
from shardbench.base.errors import BadInput
from shardbench.records.store import trial_store
from shardbench.records.trial import Outcome
from shardbench.trials.runner import RunOptions, run_suite

RECORDS = Path("records") / "tiny.jsonl"


def faults() -> Iterator[Fault]:
    """All of them."""
    for repeat in range(13):
        yield Fault("store", "next run", f"cut {repeat}", _cut)
    for repeat in range(19):
        yield Fault("store", "next run", f"flipped bit {repeat}", _flipped)
    for repeat in range(2):
        yield Fault("store", "next run", f"edited {repeat}", _edited)
        yield Fault("store", "run", f"two runs {repeat}", _two_runs)
    for repeat in range(10):
        yield Fault("disk", "append", f"no room for a line {repeat}", _no_room)
    for part in ("plans", "lookups", "environments"):
        yield Fault("disk", "run", f"no folder {part}", partial(_no_folder, part))


@cache
def _made() -> Path:
    """A folder with the suite and the results of a whole run."""
    folder = Path(mkdtemp(prefix="faults-store-", dir=os.environ["FAULTS_FOLDER"]))
    records = run_suite(suite(folder), RunOptions(results=folder / "results", data=folder), Silent())
    assert [record.outcome for record in records] == [Outcome.OK] * TRIALS
    return folder


def made_results(folder: Path) -> Path:
    shutil.copytree(_made() / "results", folder / "results")
    return folder / "results"


def _run(results: Path) -> str:
    """Run the suite; what it refuses to run with, or an empty text."""
    try:
        records = run_suite(suite(_made()), RunOptions(results=results, data=_made()), Silent())
    except BadInput as error:
        return str(error)
    bad = [record.summary for record in records if record.outcome is not Outcome.OK]
    return "; ".join(bad)


def _whole(results: Path, before: set[str], said: str) -> Seen:
    """Whether a run after the fault has all trials, each once."""
    then = _run(results)
    lines = [record.key for record in trial_store(results, "tiny").read()]
    right = not then and len(lines) == len(set(lines)) == TRIALS
    return Seen(f"{said} | {then}", right, lost=len(before - set(lines)))


def _cut(folder: Path, rng: random.Random) -> Seen:
    """The machine lost its power while the last line was written."""
    path = (results := made_results(folder)) / RECORDS
    data = path.read_bytes()
    last = data[:-1].rfind(b"\n") + 1
    path.write_bytes(data[: rng.randrange(last + 1, len(data))])
    return _whole(results, keys_of(path), "cut")


def _flipped(folder: Path, rng: random.Random) -> Seen:
    """A bit of the file is another one: it is refused, by its line, and nothing is changed or repeated."""
    path = (results := made_results(folder)) / RECORDS
    data = bytearray(path.read_bytes())
    place = rng.randrange(len(data))
    line = data[:place].count(b"\n") + 1
    data[place] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    said = _run(results)
    aside = list(path.parent.glob("*.torn-*"))
    if place == len(data) - 1:
        # Without its end the last line is a torn one: set aside and repeated.
        return Seen(said, said == "" and len(aside) == 1)
    unchanged = path.read_bytes() == data
    told = f"{path}: line {line}: " in said and "\n" not in said
    return Seen(said, said != "" and unchanged, cause_right=told, lost=0 if unchanged else 1)


def _edited(folder: Path, rng: random.Random) -> Seen:
    """Somebody gave a record another number by hand."""
    path = (results := made_results(folder)) / RECORDS
    lines = path.read_text().splitlines()
    number = rng.randrange(len(lines))
    lines[number] = lines[number].replace('"plan_s":', '"plan_s":1', 1)
    path.write_text("\n".join(lines) + "\n")
    said = _run(results)
    return Seen(said, said != "", cause_right=f"line {number + 1}: is not what its digest was made of" in said)


def _two_runs(folder: Path, rng: random.Random) -> Seen:
    """A second run begins in the same folder."""
    results = folder / "results"
    with sole_writer(results):
        said = _run(results)
    seen = _whole(results, set(), said)
    return Seen(seen.said, seen.outcome_right, cause_right="another run writes to" in said)


def _no_room(folder: Path, rng: random.Random) -> Seen:
    """The file of records cannot grow by a whole line: the trial of that line is not recorded, all before it are."""
    path = (results := made_results(folder)) / RECORDS
    store, kept = trial_store(results, "tiny"), rng.randrange(2, TRIALS)
    lines, records = path.read_bytes().splitlines(keepends=True), store.read()
    path.unlink()
    for record in records[:kept]:
        store.append(record)
    before, size = keys_of(path), path.stat().st_size
    with _largest_file(size + rng.randrange(len(lines[kept]))):
        said = _run(results)
    # None of the line, or a part of it, was taken.
    why = "(File too large|No space left on device)"
    told = re.search(f"{path}: {why}: the trial just done is not recorded, all before it are", said) is not None
    right = path.stat().st_size == size
    seen = _whole(results, before, said)
    return Seen(seen.said, right and seen.outcome_right, cause_right=told, lost=seen.lost)


def _no_folder(part: str, folder: Path, rng: random.Random) -> Seen:
    """A file lies where a folder of the results is to be."""
    results = folder / "results"
    results.mkdir()
    (results / part).write_text("in the way\n")
    try:
        said = _run(results)
    except OSError as error:
        # The command says so in one line, with the path.
        said = f"{error.filename}: {error.strerror}"
    (results / part).unlink()
    before = keys_of(results / RECORDS)
    shutil.rmtree(results / "records", ignore_errors=True)
    seen = _whole(results, set(), said)
    return Seen(f"{seen.said} ({len(before)} before)", seen.outcome_right, cause_right=part in said)


@contextmanager
def _largest_file(size: int) -> Iterator[None]:
    """This process, and none that it has, can make no file larger than ``size`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
