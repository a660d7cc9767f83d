"""Every rule has a strategy that breaks it, and a check that says so by name."""

import os
import re
import time
from pathlib import Path

import pytest
from impostors import IMPOSTORS, FitsFirst, HangsWithChild, Honest

from shardbench.model.strategy import Strategy
from shardbench.runs.conformance import CHECKS, ConformanceError, check
from shardbench.workloads.trace import Split, assert_readable


@pytest.mark.parametrize("strategy", [Honest(), FitsFirst()], ids=lambda s: type(s).__name__)
def test_an_honest_strategy_passes(strategy: Strategy) -> None:
    check(strategy, plan_s=5.0)


@pytest.mark.parametrize(("impostor", "name", "words"), IMPOSTORS, ids=lambda v: getattr(v, "__name__", None))
def test_impostor_is_rejected_by_its_check(impostor: type[Strategy], name: str, words: str) -> None:
    with pytest.raises(ConformanceError) as caught:
        check(impostor(), plan_s=0.5)
    message = str(caught.value)
    assert caught.value.check == name
    assert f"check '{name}'" in message
    assert re.search(words, message)
    assert "\n" not in message


def test_every_check_rejects_someone() -> None:
    assert {name for _, name, _ in IMPOSTORS} == CHECKS.keys()


def test_a_hanging_strategy_is_killed_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid_file = tmp_path / "pid"
    monkeypatch.setenv("SHARDBENCH_TEST_PID_FILE", str(pid_file))
    with pytest.raises(ConformanceError, match="'finishes'"):
        check(HangsWithChild(), plan_s=0.5)
    grandchild = int(pid_file.read_text())
    for _ in range(50):
        if not _runs(grandchild):
            return
        time.sleep(0.1)
    pytest.fail(f"process {grandchild} outlived its strategy")


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    # Killed but not yet reaped by whoever adopted it.
    return state != "Z" and os.getpid() != pid


def test_checking_does_not_seal_this_process() -> None:
    check(Honest(), plan_s=5.0)
    assert_readable(Split.TEST)
