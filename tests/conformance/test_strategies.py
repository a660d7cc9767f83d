"""Every strategy that discovery finds, by no name, passes every check on every problem.

Variants, which run only where a suite or study names them, are left to the slow tests: they are as many again. So are
some problems for who learns or searches, a second a problem: their own tests are on such shapes.
"""

from collections.abc import Iterator

import pytest

from shardbench.conformance import checks
from shardbench.conformance.checks import CHECKS, check
from shardbench.conformance.problems import cases
from shardbench.model.strategy import Strategy
from shardbench.trials.discovery import strategies
from shardbench.trials.planning import learns

LEFT = {
    "more-tables-than-devices", "fewer-tables-than-devices", "one-device", "two-nodes", "no-access-at-all",
}  # fmt: skip

LEARN_S, SLACK = 2.0, 20.0
"""Seconds to learn, of which a training plans its updates, and how many times as long a busy machine may take."""


def params() -> Iterator[object]:
    for one in strategies().values():
        is_long = learns(one) or one.name in ("joint", "torchrec-fused")
        if not one.role.named_only:
            yield pytest.param(one, LEFT if is_long else set(), id=one.name)
        if is_long or one.role.named_only:
            yield pytest.param(one, set(), id=f"{one.name}-whole", marks=pytest.mark.slow)


@pytest.mark.parametrize(("strategy", "left"), list(params()))
def test_strategy_conforms(strategy: Strategy, left: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if learns(strategy):
        monkeypatch.setattr(checks, "SLACK", SLACK)
    # Not skipped where a package is missing: the test environment installs what all strategies need.
    check(strategy, fit_s=LEARN_S, problems=[case for case in cases() if case.problem.name not in left])


def test_problems_cover_what_they_say() -> None:
    named = {case.problem.name: case for case in cases()}
    assert named.keys() > LEFT
    assert len(named) == len(cases())
    crowded = named["forces-host-memory"].problem
    total = sum(crowded.weight_bytes(t) for t in crowded.tables)
    hbm = crowded.world_size * crowded.topology.hbm_bytes
    assert hbm < total < hbm + crowded.world_size * crowded.topology.uvm_bytes
    nowhere = named["fits-nowhere"].problem
    assert max(nowhere.topology.hbm_bytes, nowhere.topology.uvm_bytes, nowhere.topology.host_bytes) < min(
        nowhere.weight_bytes(t) for t in nowhere.tables
    )
    assert named["two-nodes"].problem.topology.nodes == 2
    assert all(p.lookups == 0 for p in named["no-access-at-all"].problem.profiles)
    assert min(t.rows for t in named["one-row-tables"].problem.tables) == 1
    assert all(case.problem.batch_size % case.problem.world_size == 0 for case in cases())
    assert all(len(text) > 10 for text in CHECKS.values())
