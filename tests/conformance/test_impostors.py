"""Every impostor is rejected by the check that the register names, or is listed as one that is not."""

import contextlib
import os
import re
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from impostors import FitsFirst, HangsWithChild, Honest
from register import IMPOSTORS, NOT_CAUGHT, NOTHING_THERE, Impostor
from table import TABLE, caught, lines

from shardbench.base.wall import Kind, kind
from shardbench.conformance.checks import CHECKS, ConformanceError, check
from shardbench.conformance.problems import cases
from shardbench.workloads.trace import Split, assert_readable

BEHIND = (
    "MissingRows", "Raises", "DiesSilently", "IsKilled", "Hangs", "PlansByTheHome", "AnswersWithAPickle",
    "AnswersBeforeItPlanned", "ForgesItsDescription",
)  # fmt: skip
"""Of those that are caught without the wall too: one of each way to end, one that two processes tell apart, and those
that write to every pipe, of which a fork has its server's too."""


def test_honest_strategies_pass_and_checking_does_not_seal_this_process(request: pytest.FixtureRequest) -> None:
    check(Honest(), plan_s=5.0, problems=cases()[:1])
    request.getfixturevalue("unconfined")
    check(Honest(), plan_s=5.0)
    # Strategies that learn are asked all of them by test_strategies.py.
    check(FitsFirst(), plan_s=5.0, problems=cases()[:2])
    assert_readable(Split.TEST)


@pytest.mark.parametrize("impostor", IMPOSTORS, ids=lambda one: one.kind.__name__)
def test_impostor_is_rejected_by_its_check(impostor: Impostor, request: pytest.FixtureRequest) -> None:
    if impostor.walled and kind() is Kind.UNCONFINED:
        pytest.skip("bubblewrap builds no wall here")
    if not impostor.walled and impostor.kind.__name__ not in BEHIND:
        # The wall is none of what catches them; `nox -s tables -- impostors` asks all of them behind it.
        request.getfixturevalue("unconfined")
    # Those that reach for what is not theirs do so as they plan, and a description behind the wall takes as long.
    name, message = caught(impostor, apart=impostor.kind.__module__ != "impostors_reaching")
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


def test_a_hanging_strategy_is_killed_with_its_children() -> None:
    name, most = f"hangs-{os.getpid()}", 0
    with ThreadPoolExecutor(1) as pool:
        checking = pool.submit(check, HangsWithChild(name), plan_s=0.5)
        while not checking.done():
            most = max(most, _called(name))
            time.sleep(0.05)
    with pytest.raises(ConformanceError, match="'finishes'"):
        checking.result()
    assert most == 2
    for _ in range(50):
        if not _called(name):
            return
        time.sleep(0.1)
    pytest.fail(f"{name} outlived its strategy")


def _called(name: str) -> int:
    """Count the processes of a name."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/comm"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found += path.read_text().strip() == name
    return found
