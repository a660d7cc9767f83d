"""shardbench plan --against: the user's own plan, in whichever form it is, beside the best one."""

import io
import json
import logging
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints
from torchrec.distributed.planner.stats import EmbeddingStats
from torchrec.distributed.planner.types import Topology as TorchRecTopology
from torchrec.distributed.types import CacheParams

from shardbench.base.errors import BadInput
from shardbench.model.plan import OnRank, Plan, Replicated, RowWise, Segment, Tier, whole_table, whole_tables
from shardbench.model.sharding_plan import plan_of, read_sharding_plan
from shardbench.model.table import Table
from shardbench.report.tables.text import significant
from shardbench.torchrec import Exported, export, sharding_plan, sharding_plan_json

ROWS = {"a": 1000, "b": 2000, "c": 3000}
TABLES = tuple(Table(name=name, rows=rows, dim=64) for name, rows in ROWS.items())
WORLD = 16
WHOLE = Plan(world_size=WORLD, segments=whole_tables(TABLES, [0, 0, 1]))


def sharded(kind: str, *blocks: tuple[int, int, int, int, int], kernel: str = "fused", **more: Any) -> dict[str, Any]:
    """Return TorchRec's sharding of a table; a block is its rank, first row and column, rows and columns."""
    spec = [{"offsets": [row, column], "sizes": [rows, columns], "rank": r} for r, row, column, rows, columns in blocks]
    ranks = [block[0] for block in blocks] or list(range(WORLD))
    return {"sharding_type": kind, "compute_kernel": kernel, "ranks": ranks, "sharding_spec": spec or None, **more}


THEIRS = {
    "model.bags": {"a": sharded("table_wise", (0, 0, 0, 1000, 64)), "b": sharded("table_wise", (0, 0, 0, 2000, 64))},
    "model.more": {"c": sharded("table_wise", (1, 0, 0, 3000, 64))},
}


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    path = tmp_path / "ours.csv"
    path.write_text("name,rows,dim\n" + "".join(f"{name},{rows},64\n" for name, rows in ROWS.items()))
    return path


@pytest.fixture
def asked(tables: Path, command) -> Callable[..., str]:
    """Asks for plans beside one that is written to a file; gives what is said."""

    def ask(plan: str, *options: object, code: int = 0) -> str:
        path = tables.with_name("mine.json")
        path.write_text(plan)
        named = ("--against", path, "--batch-size", 64, "--strategy", "row-wise", "--strategy", "greedy-size")
        return command("plan", tables, "a100-40gb-2x8", *named, *options, code=code)

    return ask


@pytest.mark.parametrize(
    "written",
    [WHOLE.to_json(), export(WHOLE, devices_per_node=8).to_json(), json.dumps(THEIRS)],
    ids=["ours", "exported", "torchrec's"],
)
def test_it_is_judged_with_the_others_in_each_of_its_forms(asked: Callable[..., str], written: str) -> None:
    told = json.loads(asked(written, "--json"))
    rows = {one["strategy"]: one["step_ms"] for one in told["tried"]}
    assert rows.keys() == {"yours", "row-wise", "greedy-size"}
    best, yours = told["best"]["step_ms"], told["yours"]
    assert yours["step_ms"] == rows["yours"] > best
    assert yours["less_pct"] == pytest.approx(100 * (1 - best / rows["yours"]))
    lines = asked(written).splitlines()
    trust, less = "sure" if yours["sure"] else "not told apart", significant(yours["less_pct"], digits=2)
    said = f"yours: {rows['yours']:.4g} ms, best {best:.4g} ms ({less} % less; {trust})"
    assert lines[3] == said
    assert all(len(line) <= 80 for line in lines)


def test_the_best_plan_is_the_same_with_itself(tables: Path, asked: Callable[..., str]) -> None:
    best = tables.with_name("best.json")
    asked(WHOLE.to_json(), "--out", best)
    yours = json.loads(asked(best.read_text(), "--json"))["yours"]
    assert yours["less_pct"] == 0.0
    assert yours["sure"] is False


def test_torchrecs_own_plan_becomes_json_and_segments() -> None:
    segments = (
        Segment(table="a", row_stop=1000, column_stop=32, placement=OnRank(rank=3)),
        Segment(table="a", row_stop=1000, column_start=32, column_stop=64, placement=OnRank(rank=1)),
        whole_table(TABLES[1], RowWise(ranks=tuple(range(WORLD)))),
        whole_table(TABLES[2], OnRank(rank=2, tier=Tier.CACHED, cache_ratio=0.25)),
    )
    plan = Plan(world_size=WORLD, segments=segments)
    exported = export(plan, devices_per_node=8, in_blocks=True)
    configs = [
        EmbeddingBagConfig(name=name, feature_names=[name], num_embeddings=rows, embedding_dim=64)
        for name, rows in ROWS.items()
    ]
    model = torch.nn.ModuleDict({"bags": EmbeddingBagCollection(tables=configs, device=torch.device("meta"))})
    text = sharding_plan_json(sharding_plan(exported, model))
    assert json.loads(text)["bags"]["a"]["sharding_spec"][0] == {"offsets": [0, 0], "sizes": [1000, 32], "rank": 3}
    assert plan_of(read_sharding_plan(text), TABLES, WORLD) == plan
    assert Exported.from_json(exported.to_json()).plan() == plan


def test_copies_ranges_of_frequency_and_blocks_without_rows() -> None:
    everyone = Replicated(ranks=tuple(range(WORLD)))
    hot = Segment(table="a", row_stop=10, column_stop=64, placement=everyone)
    cold = Segment(table="a", row_start=10, row_stop=1000, column_stop=64, placement=RowWise(ranks=tuple(range(8, 16))))
    split = Plan(world_size=WORLD, segments=(hot, cold, *whole_tables(TABLES[1:], [0, 1])))
    assert export(split, devices_per_node=8).plan() == split
    table = Table(name="t", rows=3, dim=8)
    blocks = [(rank, min(rank, 3), 0, int(rank < 3), 8) for rank in range(4)]
    dealt = {"m": {"t": sharded("row_wise", *blocks, kernel="fused_uvm")}}
    made = plan_of(read_sharding_plan(json.dumps(dealt)), [table], 4)
    assert made.segments == (whole_table(table, RowWise(ranks=(0, 1, 2), tier=Tier.UVM)),)
    copied = {"m": {"t": {**sharded("data_parallel", kernel="dense"), "ranks": [0, 1]}}}
    assert plan_of(read_sharding_plan(json.dumps(copied)), [table], 2).segments[0].placement == Replicated(ranks=(0, 1))
    cached = {"m": {"t": sharded("table_wise", (0, 0, 0, 3, 8), kernel="fused_uvm_caching")}}
    placement = plan_of(read_sharding_plan(json.dumps(cached)), [table], 2).segments[0].placement
    assert placement == OnRank(rank=0, tier=Tier.CACHED, cache_ratio=0.2)  # TorchRec's UVM_CACHING_RATIO


def changed(name: str, table: dict[str, Any] | None) -> str:
    """Return THEIRS with a table of "model.bags" put in the place of another, or taken away."""
    bags = {**THEIRS["model.bags"], name: table}
    return json.dumps({**THEIRS, "model.bags": {key: value for key, value in bags.items() if value is not None}})


NINE = Table(name="d", rows=9, dim=4)
HOLE = Segment(table="a", row_start=1, row_stop=1000, column_stop=64, placement=OnRank(rank=0))


def ours(*segments: Segment, world: int = WORLD) -> str:
    return Plan(world_size=world, segments=segments).to_json()


REFUSED = {
    "missing": (ours(*WHOLE.segments[:2]), "table 'c' is not in the plan"),
    "extra": (ours(*WHOLE.segments, *whole_tables([NINE], [0])), "the plan has table 'd', which is none of yours"),
    "size": (
        ours(*whole_tables([replace(NINE, name="a"), *TABLES[1:]], [0, 0, 0])),
        "table 'a' is 9 x 4 in the plan, yours is 1000 x 64",
    ),
    "world": (ours(*WHOLE.segments, world=4), "the plan is for 4 devices, the machine has 16"),
    "hole": (ours(*WHOLE.segments[1:], HOLE), "table 'a': 64 of 64000 weights are not placed"),
    "theirs missing": (changed("a", None), "table 'a' is not in the plan"),
    "theirs extra": (changed("d", sharded("data_parallel")), "the plan has table 'd', which is none of yours"),
    "theirs twice": (changed("c", sharded("data_parallel")), "table 'c' is in two modules of the plan"),
    "theirs size": (changed("a", sharded("table_wise", (0, 0, 0, 9, 4))), "table 'a' is 9 x 4 in the plan, yours is 1"),
    "theirs world": (
        changed("a", sharded("table_wise", (99, 0, 0, 1000, 64))),
        "on rank 99: the machine has 16 devices",
    ),
    "theirs copies": (
        changed("a", {**sharded("data_parallel"), "ranks": [0, 1]}),
        "'a' is copied to 2 ranks: the mach",
    ),
    "theirs ways": (
        changed("a", sharded("row_wise", (0, 0, 0, 500, 64), (1, 500, 0, 500, 64))),
        "'a' is dealt over 2 ranks: the mac",
    ),
    "theirs hole": (
        changed("a", sharded("column_wise", (0, 0, 0, 1000, 16), (1, 0, 32, 1000, 32))),
        "do not make up its 1000 x 64",
    ),
    "theirs rows": (
        changed("a", sharded("table_wise", (0, 0, 0, 500, 64), (1, 500, 0, 500, 64))),
        "has its rows in 2 blocks",
    ),
    "theirs rank twice": (
        changed("a", sharded("table_row_wise", (0, 0, 0, 500, 64), (0, 500, 0, 500, 64))),
        "two blocks of rows on one rank",
    ),
    "theirs uneven": (
        changed("a", sharded("table_row_wise", (0, 0, 0, 600, 64), (1, 600, 0, 400, 64))),
        "table 'a' has 600 of its 1000 rows on rank 0, where an even share is 500",
    ),
    "kernel": (changed("a", sharded("data_parallel", kernel="key_value")), "compute_kernel 'key_value' is not known"),
    "type": (changed("a", sharded("magic", (0, 0, 0, 1000, 64))), "sharding_type 'magic' is not known here"),
    "field": (changed("a", {"sharding_type": "table_wise"}), "model.bags.a.ranks: Field required"),
    "no json": ("pickle", "mine.json: value: Invalid JSON"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_plan_of_these_tables_is_refused_in_one_line(asked: Callable[..., str], name: str) -> None:
    written, why = REFUSED[name]
    text = asked(written, code=2)
    assert why in text
    assert "mine.json" in text or "your plan cannot be compared" in text


def test_what_does_not_fit_or_breaks_a_constraint_is_refused(tables: Path, asked: Callable[..., str]) -> None:
    kept = tables.with_name("keep.toml")
    kept.write_text('[sharding_types]\na = ["row_wise"]\n')
    text = asked(WHOLE.to_json(), "--constraints", kept, code=2)
    assert "constraint not kept: table 'a' is table_wise, allowed are row_wise" in text
    kept.write_text(f"device_hbm_bytes = [{', '.join(['767000'] * WORLD)}]\n")
    text = asked(WHOLE.to_json(), "--constraints", kept, code=2)
    assert "device 0 needs 768000 bytes of HBM but has 767000" in text


@pytest.fixture(scope="module")
def planners_plan() -> tuple[str, Any]:
    """What TorchRec's planner prints of a plan of all types in a log, and the plan."""
    kinds = {"a": "column_wise", "b": "row_wise", "c": "data_parallel", "d": "table_wise", "e": "table_row_wise"}
    configs = [
        EmbeddingBagConfig(name=name, feature_names=[name], num_embeddings=1000, embedding_dim=64) for name in kinds
    ]
    model = torch.nn.ModuleDict({"bags": EmbeddingBagCollection(tables=configs, device=torch.device("meta"))})
    limits = {name: ParameterConstraints(sharding_types=[kind], min_partition=16) for name, kind in kinds.items()}
    limits["d"].compute_kernels = ["fused_uvm_caching"]
    limits["d"].cache_params = CacheParams(load_factor=0.25)
    topology = TorchRecTopology(world_size=WORLD, local_world_size=8, compute_device="cuda")
    logger, printed = logging.getLogger("torchrec.distributed.planner.stats"), io.StringIO()
    handler = logging.StreamHandler(printed)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        planner = EmbeddingShardingPlanner(topology=topology, constraints=limits, stats=EmbeddingStats())
        made = planner.plan(model, [EmbeddingBagCollectionSharder()])
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
    return printed.getvalue(), made


def test_what_torchrecs_planner_prints_and_what_torchrec_writes_is_read(planners_plan: tuple[str, Any]) -> None:
    printed, made = planners_plan
    tables = [Table(name=name, rows=1000, dim=64) for name in "abcde"]
    ours = plan_of(read_sharding_plan(sharding_plan_json(made)), tables, WORLD)
    theirs = plan_of(read_sharding_plan(printed), tables, WORLD)

    def as_sets(plan: Plan) -> set[Segment]:
        return {s for s in plan.segments if s.table != "a"}

    assert as_sets(theirs) == as_sets(ours)
    # Ranks are printed in their order: which of them has which columns is not.
    ranks = [sorted((s.columns, s.placement.rank) for s in plan.by_table()["a"]) for plan in (theirs, ours)]  # type: ignore[union-attr]
    assert ranks[0] == ranks[1]
    assert len(ranks[0]) == 4
    ranks_of_d = made.plan["bags"]["d"].ranks
    written = {
        name: {"sharding_type": how.sharding_type, "compute_kernel": how.compute_kernel, "ranks": how.ranks}
        for name, how in made.plan["bags"].items()
    }
    for name, how in made.plan["bags"].items():
        if how.sharding_spec is not None:
            blocks = [asdict(shard) | {"placement": str(shard.placement)} for shard in how.sharding_spec.shards]
            written[name]["shards"] = blocks
    again = plan_of(read_sharding_plan(json.dumps({"plan": {"bags": written}})), tables, WORLD)
    # TorchRec writes no share of the cache, so that its default counts.
    assert {s for s in again.segments if s.table != "d"} == {s for s in ours.segments if s.table != "d"}
    assert again.by_table()["d"][0].placement == OnRank(rank=ranks_of_d[0], tier=Tier.CACHED, cache_ratio=0.2)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda text: text[: text.index("Parameter Info") + 200], "no table under 'Parameter Info:'"),
        (lambda text: text.replace("  TW ", "  GS "), "sharding 'GS' does not say where its blocks lie"),
        (lambda text: text.replace("Hash Size", "Rows     "), "none that can be read: 'Hash Size'"),
    ],
)
def test_statistics_that_are_cut_or_unlike_are_refused(
    planners_plan: tuple[str, Any], change: Callable[[str], str], why: str
) -> None:
    with pytest.raises(BadInput, match=why):
        read_sharding_plan(change(planners_plan[0]))
