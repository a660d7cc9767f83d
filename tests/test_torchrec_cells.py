"""The support table of TorchRec: it has every cell, and the cells come out as it says."""

from dataclasses import fields
from pathlib import Path

import pytest

pytest.importorskip("torchrec")
from torchrec.distributed.embedding_types import EmbeddingComputeKernel
from torchrec.distributed.planner import ParameterConstraints
from torchrec.distributed.types import ShardingType
from torchrec_cells.__main__ import OUTCOMES, cell, read, release
from torchrec_cells.cases import CASES, PLANTED
from torchrec_cells.ranks import Seen, agreed, run_cases

from shardbench.base.reading import toml_file

TABLE = Path(__file__).parent.parent / "results" / "tables" / "torchrec" / "support.csv"
TRIED = Path(__file__).parent.parent / "src" / "shardbench" / "cli" / "tried.toml"
AGAIN = "run the cells again: nox -s tables -- support"
CHOSEN = (
    "modules: pooled: planner",
    "modules: pooled: exported",
    "modules: unpooled: remapped",
    "modules: managed collision, pooled: alone",
    "modules: feature processors: exported",
    "modules: variable batches (VBE), unpooled, evaluated: remapped",
    "modules: weighted mean pooling, on CPUs: alone",
    "modules: in-training pruning (ITEP), pooled: alone",
    "optimizers: row-wise Adagrad, fused: exported",
    "training: TrainPipelineSparseDist: remapped",
    "constraints: compute_kernels fused_uvm_caching: alone",
    "checkpoints: weights: remapped",
)
"""Cells that are run by default."""


def told(release_: str) -> dict[str, str]:
    """Return the outcomes that the table has for a release, by the names of the cells."""
    return {cell(row): row["outcome"] for row in read(TABLE) if row["torchrec"] == release_}


def test_the_table_has_every_cell_for_every_release() -> None:
    releases = {row["torchrec"] for row in read(TABLE)}
    assert releases == {engine["torchrec"] for engine in toml_file(TRIED)["engines"]}, AGAIN
    for one in releases:
        assert told(one).keys() == CASES.keys(), AGAIN
        assert set(told(one).values()) <= set(OUTCOMES)


def test_every_field_kernel_and_type_of_the_installed_release_has_a_cell() -> None:
    rows = {case.row for case in CASES.values() if case.part == "constraints"}
    assert {field.name for field in fields(ParameterConstraints)} <= {row.split()[0] for row in rows}
    assert {f"compute_kernels {one.value}" for one in EmbeddingComputeKernel} <= rows
    assert {f"sharding_types {one.value}" for one in ShardingType} <= rows


@pytest.mark.timeout(300)
def test_important_cells_come_out_as_the_table_says_and_planted_faults_do_not() -> None:
    seen = run_cases([*CHOSEN, *(name for name in PLANTED if "dies" not in name)])
    expected = {name: told(release())[name] for name in CHOSEN}
    assert {name: seen[name].outcome for name in CHOSEN} == expected, [one.trace for one in seen.values()]
    planted = {name: seen[name] for name in PLANTED if name in seen}
    assert {one.outcome for one in planted.values()} == {"wrong"}
    assert "differ from the unsharded model's" in planted["planted: other steps: exported"].why
    assert "no such thing" in planted["planted: one rank fails: exported"].why


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_cells_come_out_as_the_table_says() -> None:
    seen = run_cases([*PLANTED, *CASES])
    assert {name: seen[name].outcome for name in CASES} == told(release()), AGAIN
    assert {seen[name].outcome for name in PLANTED} == {"wrong"}


def test_what_one_rank_alone_says_is_wrong_unless_the_other_lost_it() -> None:
    def said(outcome: str, why: str = "") -> dict[str, str]:
        return {"outcome": outcome, "why": why, "trace": ""}

    lost = said("wrong", "RuntimeError: Connection closed by peer [127.0.0.1]")
    refused = said("clear error", "PlannerError: no room")
    assert agreed([refused, lost]) == Seen("clear error", "PlannerError: no room")
    assert agreed([said("works"), said("works")]).outcome == "works"
    assert agreed([said("works"), refused]).outcome == "wrong"
    assert agreed([said("works"), lost]).outcome == "wrong"
    assert agreed([lost, lost]).outcome == "wrong"
