"""Every impostor is rejected by the check that the register names, or is listed as one that is not."""

import os
import re
import time
from collections import Counter
from pathlib import Path

import pytest
from impostors import FitsFirst, HangsWithChild, Honest
from register import IMPOSTORS, NOT_CAUGHT, NOTHING_THERE, Impostor
from table import TABLE, caught, lines

from shardbench.base.wall import Kind, kind
from shardbench.model.strategy import Strategy
from shardbench.runs.conformance import CHECKS, ConformanceError, check
from shardbench.workloads.trace import Split, assert_readable


@pytest.mark.parametrize("strategy", [Honest(), FitsFirst()], ids=lambda s: type(s).__name__)
def test_an_honest_strategy_passes(strategy: Strategy) -> None:
    check(strategy, plan_s=5.0)


@pytest.mark.parametrize("impostor", IMPOSTORS, ids=lambda one: one.kind.__name__)
def test_impostor_is_rejected_by_its_check(impostor: Impostor) -> None:
    if impostor.walled and kind() is Kind.UNCONFINED:
        pytest.skip("this kernel lets users make no namespaces")
    name, message = caught(impostor)
    assert name == (NOT_CAUGHT if impostor.check == NOTHING_THERE else impostor.check), message
    if name != NOT_CAUGHT:
        assert f"check '{name}'" in message
        assert re.search(impostor.words, message)
        assert "\n" not in message


def test_every_check_rejects_someone() -> None:
    assert {one.check for one in IMPOSTORS} - {NOT_CAUGHT, NOTHING_THERE} == CHECKS.keys()
    assert Counter(one.kind.__name__ for one in IMPOSTORS).most_common(1)[0][1] == 1


def test_the_table_is_the_registers() -> None:
    assert TABLE.read_text().splitlines() == lines(
        (one.kind.__name__, one.rule, one.check, one.reason) for one in IMPOSTORS
    )
    assert [one for one in IMPOSTORS if bool(one.reason) != (one.check in (NOT_CAUGHT, NOTHING_THERE))] == []


def test_a_hanging_strategy_is_killed_with_its_children(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConformanceError, match="'finishes'"):
        check(HangsWithChild(), plan_s=0.5)
    grandchild = int(capfd.readouterr().out)
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
