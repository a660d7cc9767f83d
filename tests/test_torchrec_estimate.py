"""TorchRec's own estimate of a plan: against its estimator called by hand, and where it has nothing to say."""

from dataclasses import replace

import pytest
import torch
from problems import machine

from shardbench.model.plan import (
    BatchSchedule,
    GroupSharded,
    Host,
    OnRank,
    Phase,
    PhaseKind,
    Plan,
    Replicated,
    RowWise,
    Segment,
    Tier,
)
from shardbench.model.problem import Problem
from shardbench.model.table import Pooling, Precision, Table

pytest.importorskip("torchrec")
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner.shard_estimators import EmbeddingPerfEstimator
from torchrec.distributed.planner.types import Shard, ShardingOption

from shardbench.advice.torchrec.profile_batches import even_profile
from shardbench.engine.described import describe
from shardbench.engine.torchrec.estimate import sharder_data, torchrec_estimate_ms

BATCH = 1024
ROWS, DIM = 1000, 64
WORLD = 2


def problem(*poolings: float, pooling: Pooling = Pooling.SUM, nodes: int = 1, **changes) -> Problem:
    tables = tuple(Table(name=f"t{i}", rows=ROWS, dim=DIM, pooling=pooling) for i in range(len(poolings)))
    profiles = tuple(even_profile(ROWS, each) for each in poolings)
    given = Problem.of("p", tables, profiles, machine(nodes=nodes, devices=WORLD), batch_size=BATCH)
    return replace(given, **changes)


def seg(table, placement, rows=(0, ROWS), columns=(0, DIM)):
    return Segment(
        table=table, row_start=rows[0], row_stop=rows[1], column_start=columns[0], column_stop=columns[1],
        placement=placement,
    )  # fmt: skip


def plan(*segments, world=WORLD, **rest):
    return Plan(world_size=world, segments=segments, **rest)


def by_torchrec(given: Problem, name: str, kind: str, kernel: str, shards: list[tuple[int, int]], pooling: float):
    """Milliseconds of each shard (rows, columns), of a table in a collection, by the estimator itself."""
    config = EmbeddingBagConfig(name=name, num_embeddings=ROWS, embedding_dim=DIM, feature_names=["f"])
    module = EmbeddingBagCollection(tables=[config], device=torch.device("meta"))
    option = ShardingOption(
        name=name, tensor=module.embedding_bags[name].weight, module=("m", module), input_lengths=[pooling],
        batch_size=given.batch_size // given.world_size, sharding_type=kind, partition_by="device",
        compute_kernel=kernel, shards=[Shard(size=list(size), offset=[0, 0]) for size in shards],
    )  # fmt: skip
    estimator = EmbeddingPerfEstimator(topology=describe(given))
    estimator.estimate([option], {option.module_type_key: sharder_data(EmbeddingBagCollectionSharder(), estimator)})
    return [shard.perf.total for shard in option.shards]


def test_narrow_exchanges_are_cheaper_to_torchrec_as_well():
    given = problem(3.0, 5.0)
    for placed in (OnRank(rank=0), RowWise(ranks=(0, 1))):
        chosen = plan(seg("t0", placed), seg("t1", placed))
        ours = [torchrec_estimate_ms(chosen, replace(given, exchange=exchange)) for exchange in Precision]
        assert ours[1] == ours[2] < ours[0]


def test_the_estimate_is_the_slowest_ranks_sum_of_what_torchrec_gives_its_shards():
    given = problem(3.0, 5.0, 7.0, 2.0)
    everyone = (0, 1)
    mixed = plan(
        seg("t0", OnRank(rank=0)),
        seg("t1", OnRank(rank=0), columns=(0, 16)),
        seg("t1", OnRank(rank=1), columns=(16, DIM)),
        seg("t2", RowWise(ranks=everyone)),
        seg("t3", Replicated(ranks=everyone)),
    )
    whole = by_torchrec(given, "t0", "table_wise", "fused", [(ROWS, DIM)], 3.0)[0]
    narrow, wide = by_torchrec(given, "t1", "column_wise", "fused", [(ROWS, 16), (ROWS, DIM - 16)], 5.0)
    dealt = by_torchrec(given, "t2", "row_wise", "fused", [(ROWS // 2, DIM)] * 2, 7.0)[0]
    copied = by_torchrec(given, "t3", "data_parallel", "dense", [(ROWS, DIM)], 2.0)[0]
    ranks = (whole + narrow + dealt + copied, wide + dealt + copied)
    assert ranks[0] != pytest.approx(ranks[1])
    assert torchrec_estimate_ms(mixed, given) == pytest.approx(max(ranks), rel=1e-12)


def test_a_table_wise_estimate_by_hand():
    # Kernel: ids of 8 bytes, rows and vectors of 4 x 64; half a block: 1.15; backward twice as long. Bytes of all
    # ranks' samples over 1e12 bytes a second, and vectors there and back over 1e11.
    ids, rows, vectors = 3 * BATCH * 8, 3 * BATCH * 4 * DIM, BATCH * 4 * DIM
    kernels = 3 * 1.15 * (ids + rows + vectors) / 1e12
    assert torchrec_estimate_ms(plan(seg("t0", OnRank(rank=1))), problem(3.0)) == pytest.approx(
        1e3 * (kernels + 2 * vectors / 1e11)
    )


def test_host_memory_that_a_device_reads_counts_at_its_rate():
    given = problem(3.0)
    fast, slow = (
        torchrec_estimate_ms(plan(seg("t0", OnRank(rank=0, tier=tier))), given) for tier in (Tier.HBM, Tier.UVM)
    )
    expected = by_torchrec(given, "t0", "table_wise", "fused_uvm", [(ROWS, DIM)], 3.0)[0]
    assert slow == pytest.approx(expected)
    assert slow > fast


def test_parted_rows_are_several_tables_with_their_shares_of_the_lookups():
    given = problem(4.0)
    parted = plan(seg("t0", OnRank(rank=0), rows=(0, 100)), seg("t0", OnRank(rank=1), rows=(100, ROWS)))
    share = given.profiles[0].share(0, 100)
    assert share == pytest.approx(0.1, rel=0.01)
    parts = [
        by_torchrec(given, "t0", "table_wise", "fused", [(rows, DIM)], 4.0 * part)[0]
        for rows, part in ((100, share), (ROWS - 100, 1.0 - share))
    ]
    assert torchrec_estimate_ms(parted, given) == pytest.approx(max(parts))


def test_half_precision_moves_fewer_bytes():
    one = plan(seg("t0", OnRank(rank=0)))
    assert torchrec_estimate_ms(one, problem(3.0, precision=Precision.FP16)) < torchrec_estimate_ms(one, problem(3.0))


HOT = BatchSchedule(phases=(Phase(kind=PhaseKind.HOT, batches=1),))
NODES = tuple(range(2 * WORLD))


@pytest.mark.parametrize(
    ("given", "inexpressible"),
    [
        (problem(3.0), plan(seg("t0", Host(node=0)))),
        (problem(3.0), plan(seg("t0", Replicated(ranks=(0, 1))), schedule=HOT)),
        (problem(3.0, nodes=2), plan(seg("t0", GroupSharded()), world=4)),
        (problem(3.0, nodes=2), plan(seg("t0", RowWise(ranks=(0, 2))), world=4)),
        (problem(3.0, nodes=2, pooling=Pooling.NONE), plan(seg("t0", RowWise(ranks=(2, 3))), world=4)),
        (
            problem(3.0, pooling=Pooling.NONE),
            plan(seg("t0", OnRank(rank=0), columns=(0, 16)), seg("t0", RowWise(ranks=(0, 1)), columns=(16, DIM))),
        ),
    ],
    ids=["host", "schedule", "copy a node", "some ranks", "sequence on a node's ranks", "columns of a sequence"],
)
def test_a_plan_that_torchrec_cannot_express_has_none(given, inexpressible):
    assert torchrec_estimate_ms(inexpressible, given) is None


def test_a_sequence_returns_every_vector():
    one = plan(seg("t0", OnRank(rank=0)))
    assert torchrec_estimate_ms(one, problem(3.0, pooling=Pooling.NONE)) > torchrec_estimate_ms(one, problem(3.0))
    shared = plan(seg("t0", RowWise(ranks=NODES)), world=4)
    assert torchrec_estimate_ms(shared, problem(3.0, nodes=2, pooling=Pooling.NONE)) > 0
