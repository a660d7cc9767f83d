"""What ranks left when they really failed, replayed through the handling of failures, to the lines that users read.

``failures/NAME`` has what the ranks of one fault of ``faults/ranks.py`` left (paths shortened), ``ended.json`` with
their exit codes, and ``report.txt``, the golden text. A changed text is a decision: edit the file by hand.
"""

import json
import os
import shutil
from pathlib import Path

import pytest
import records as make

from shardbench.cli.options import failure_lines
from shardbench.cli.progress import finished_line
from shardbench.engine.processes import blame
from shardbench.engine.processes.blame import fault, stalled
from shardbench.records.store import keep_log
from shardbench.records.trial import Failure

FOLDER = Path(__file__).parent / "failures"
NAMES = sorted(path.name for path in FOLDER.iterdir())


def replayed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Failure:
    """The failure of what lies in a folder."""
    ended = json.loads((folder / "ended.json").read_text())
    codes = {int(rank): code for rank, code in ended["codes"].items()}
    if ended["timeout_s"] is not None:
        return stalled(folder, dict.fromkeys(codes), ended["timeout_s"])
    before, after = ended["oom_kills"]
    monkeypatch.setattr(blame, "oom_kills", lambda: after)
    # Reports are told apart by when they were written, which a checkout forgets.
    for second, rank in enumerate(ended["order"]):
        path = folder / f"rank{rank}.error.json"
        os.utime(path, (second, second))
    found, _ = fault(folder, codes, before)
    return found


def report(failure: Failure, folder: Path) -> str:
    """What a run prints of a trial that failed so, when it is done and at the end."""
    record = make.failed().model_copy(update={"outcome": failure.outcome, "failure": failure})
    keep_log(Path("results"), record.key, sorted(folder.glob("rank*.log")))
    return "\n".join([finished_line(1, 1, record), *failure_lines([record], Path("results")), ""])


@pytest.mark.parametrize("name", NAMES)
def test_a_real_failure_is_reported_as_it_was(name, tmp_path, monkeypatch):
    folder = tmp_path / "ranks"
    shutil.copytree(FOLDER / name, folder)
    monkeypatch.chdir(tmp_path)
    failure = replayed(folder, monkeypatch)
    assert report(failure, folder) == (FOLDER / name / "report.txt").read_text()


def test_failures_of_every_kind_are_recorded():
    outcomes = {(FOLDER / name / "report.txt").read_text().split(": ")[1].split()[0] for name in NAMES}
    assert outcomes == {"error", "oom", "timeout"}
    assert len(NAMES) >= 8
