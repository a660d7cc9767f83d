"""Counting: hand-computed cases as arithmetic."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from problems import bags, machine

from shardbench.base.errors import BadInput, Unsupported
from shardbench.cost.accounting import distinct_columns
from shardbench.cost.collectives import Calls
from shardbench.cost.dense import ATTENTION_SHARE, SEQUENCE_PASSES, dense_s, sequence_s
from shardbench.cost.load import longest_lookups
from shardbench.cost.lookups import CountedLookups, ExpectedLookups
from shardbench.cost.traffic import count, expect
from shardbench.model.machine import MatrixConstants
from shardbench.model.machine_file import load_machine
from shardbench.model.plan import (
    BatchSchedule,
    DenseHome,
    GroupSharded,
    Host,
    OnLocalRank,
    OnRank,
    Phase,
    PhaseKind,
    Plan,
    Replicated,
    RowWise,
    Tier,
    deal_start,
    row_ranges,
    whole_table,
    whole_tables,
)
from shardbench.model.problem import Problem
from shardbench.model.profile import AccessProfile
from shardbench.model.table import DenseShape, Optimizer, Pooling, Precision, Table

DENSE = DenseShape(features=2, bottom=(4,), top=(1,))


# Two tables of width 4, global batch 4 on two ranks: samples 0, 1 on rank 0 and 2, 3 on rank 1.
FIRST = bags([0, 1], [1], [], [5, 0, 0])  # 3 lookups from rank 0, 3 from rank 1; rows 0, 1, 5
SECOND = bags([2], [3], [2, 2], [])  # 2 and 2; rows 2, 3


def problem(nodes=1, devices=2, **kind):
    tables = (Table(name="a", rows=6, dim=4), Table(name="b", rows=4, dim=4))
    profiles = tuple(AccessProfile(rows=t.rows, samples=4, present=0, counts=(), row_counts=()) for t in tables)
    return Problem.of("hand", tables, profiles, machine(nodes, devices), batch_size=4, **kind)


def counted(placement_a, placement_b, on=None, **kind):
    on = on or problem(**kind)
    plan = Plan(
        world_size=on.world_size,
        segments=(whole_table(on.tables[0], placement_a), whole_table(on.tables[1], placement_b)),
    )
    return count(plan, on, lambda i: (FIRST, SECOND)[i], DENSE)


def test_table_wise_by_hand():
    traffic = counted(OnRank(rank=0), OnRank(rank=1))
    assert traffic.load.lookups.tolist() == [6, 4]
    assert traffic.load.distinct.tolist() == [3, 2]
    assert traffic.load.lookup_bytes.tolist() == [6 * 16, 4 * 16]
    assert traffic.load.bags.tolist() == [4, 4]
    # Rank 0 sends its 2 lookups of b (8 bytes each) and 2 lengths (4 bytes each) to rank 1.
    sent = traffic.collectives["input_all_to_all"]
    assert sent.sent_intra.tolist() == [2 * 8 + 2 * 4, 3 * 8 + 2 * 4]
    assert sent.received_intra.tolist() == [3 * 8 + 2 * 4, 2 * 8 + 2 * 4]
    # Each owner sends the other rank's 2 samples one vector of 4 floats; gradients come back alike.
    assert traffic.collectives["output_all_to_all"].sent_intra.tolist() == [2 * 4 * 4, 2 * 4 * 4]
    assert traffic.collectives["backward_all_to_all"].sent_intra.tolist() == [2 * 4 * 4, 2 * 4 * 4]
    assert traffic.collectives["input_splits"].sent_intra.tolist() == [24, 24]
    for name in ("output_reduce_scatter", "backward_all_gather", "rows_all_reduce"):
        assert traffic.collectives[name].sent.sum() == 0
    # Bottom 2 -> 4 (12 weights); joined 4 + 3 * 2 / 2 = 7 inputs -> 1 (8 weights); ring: 2 * 1/2.
    assert traffic.collectives["dense_all_reduce"].sent.tolist() == [20 * 4, 20 * 4]


@pytest.mark.parametrize("exchange", [Precision.FP16, Precision.BF16])
def test_vectors_in_two_bytes_by_hand(exchange):
    on = problem(exchange=exchange)
    traffic, fp32 = counted(OnRank(rank=0), OnRank(rank=1), on), counted(OnRank(rank=0), OnRank(rank=1))
    # Vectors and their gradients are half as many bytes; lookups, kernels and the dense model are as they were.
    for name in ("output_all_to_all", "backward_all_to_all"):
        assert traffic.collectives[name].sent_intra.tolist() == [2 * 4 * 2, 2 * 4 * 2]
    for name in ("input_all_to_all", "input_splits", "dense_all_reduce"):
        assert traffic.collectives[name].sent.tolist() == fp32.collectives[name].sent.tolist()
    assert (traffic.load.values == fp32.load.values).all()
    # A rank gives its table's 4 vectors of 4 numbers and gets 2 samples' of both tables: 16 numbers each.
    assert traffic.converted_bytes.tolist() == [[7 * 16 + 3 * 16] * 2] * 2
    assert not fp32.converted_bytes.any()
    # Whole tables on one rank: it gives 32 numbers, and each rank gets 16.
    lone = counted(OnRank(rank=1), OnRank(rank=1), on).converted_bytes
    assert lone.tolist() == [[3 * 16, 7 * 32 + 3 * 16], [7 * 16, 3 * 32 + 7 * 16]]


def test_sums_in_two_bytes_by_hand():
    on = problem(exchange=Precision.FP16)
    dealt = RowWise(ranks=(0, 1))
    traffic = counted(dealt, dealt, on)
    for name in ("output_reduce_scatter", "backward_all_gather"):
        assert traffic.collectives[name].sent_intra.tolist() == [4 * 8 * 2 / 2] * 2
    # A rank gives parts of sums of 4 samples and 8 columns, and gets 2 samples' sums.
    assert traffic.converted_bytes.tolist() == [[7 * 32 + 3 * 16] * 2, [3 * 32 + 7 * 16] * 2]
    copies = counted(Replicated(ranks=(0, 1)), Replicated(ranks=(0, 1)), on)
    # Gradients of copies are all-reduced in the weights' own precision: 40 weights, there and back, halved.
    assert copies.collectives["rows_all_reduce"].sent.tolist() == [40 * 4] * 2
    assert not copies.converted_bytes.any()
    # Sums inside a node, then across: 2 nodes of 2, a sample a rank, table a of 4 columns in the first node.
    two = problem(nodes=2, devices=2, exchange=Precision.FP16)
    mixed = counted(RowWise(ranks=(0, 1)), Replicated(ranks=(0, 1, 2, 3)), two)
    assert mixed.collectives["output_reduce_scatter"].sent_intra.tolist() == [4 * 4 * 2 / 2] * 2 + [0, 0]
    assert mixed.collectives["output_all_to_all"].sent_inter.tolist() == [4 * 2, 4 * 2, 0, 0]
    # Given: 4 samples' parts of sums, then 2 samples' sums; got: 2 samples' sums, then each rank's own.
    forward = [7 * (16 + 8) + 3 * (8 + 4)] * 2 + [3 * 4] * 2
    assert mixed.converted_bytes[0].tolist() == forward
    alone = problem(nodes=2, devices=1, exchange=Precision.FP16)
    assert not counted(GroupSharded(), GroupSharded(), alone).converted_bytes.any()
    assert not counted(OnLocalRank(local_rank=0), OnLocalRank(local_rank=0), alone).converted_bytes.any()


def test_row_wise_deals_rows_round_robin():
    traffic = counted(RowWise(ranks=(0, 1)), RowWise(ranks=(0, 1)))
    # By their names both tables' first rows go to the second of two sharers.
    assert [deal_start(name, 2) for name in "ab"] == [1, 1]
    # a: row 0 (three lookups) on rank 1; rows 1 (two) and 5 (one) on rank 0. b: row 2 (3) on 1, row 3 (1) on 0.
    assert traffic.load.lookups.tolist() == [3 + 1, 3 + 3]
    assert traffic.load.distinct.tolist() == [2 + 1, 1 + 1]
    # Rank 0 asks rank 1 for row 0 of a and row 2 of b; two tables' lengths of two samples.
    assert traffic.collectives["input_all_to_all"].sent_intra[0] == 2 * 8 + 2 * 2 * 4
    # Reduce-scatter of [4 samples, 8 columns] over two ranks: half of it leaves.
    assert traffic.collectives["output_reduce_scatter"].sent_intra.tolist() == [4 * 8 * 4 / 2] * 2
    assert traffic.collectives["backward_all_gather"].sent_intra.tolist() == [4 * 8 * 4 / 2] * 2


def test_uvm_precision_and_state():
    load = counted(OnRank(rank=0, tier=Tier.UVM), OnRank(rank=0), precision=Precision.FP16).load
    assert load.uvm.lookup_bytes.tolist() == [6 * 8, 0]
    assert load.lookup_bytes.tolist() == [4 * 8, 0]
    assert load.state_bytes.sum() == 0
    adagrad = counted(OnRank(rank=0), OnRank(rank=1), optimizer=Optimizer.ROWWISE_ADAGRAD).load
    assert adagrad.state_bytes.tolist() == [3 * 4, 2 * 4]


def test_whole_copies_a_node_by_hand():
    # Two nodes of two devices, one sample each; a is copied to both nodes, whole on the second device.
    traffic = counted(OnLocalRank(local_rank=1), OnRank(rank=0), problem(nodes=2, devices=2))
    # Node 0 asks for rows 0, 1, 1, node 1 for rows 5, 0, 0; b is on rank 0.
    assert traffic.load.lookups.tolist() == [4, 3, 0, 3]
    assert traffic.load.distinct.tolist() == [2, 2, 0, 2]
    assert traffic.load.bags.tolist() == [4, 2, 0, 2]
    assert longest_lookups(traffic.load.chain, 4).tolist() == [2, 2, 0, 3]
    sent = traffic.collectives
    # a: ranks 0 and 2 send a length to their node's second device, rank 0 two lookups, too; b as above.
    assert sent["input_all_to_all"].sent_intra.tolist() == [2 * 8 + 4, 8 + 4, 4, 0]
    assert sent["input_all_to_all"].sent_inter.tolist() == [0, 0, 2 * 8 + 4, 4]
    # One vector of a to the node's other device; b's to three ranks.
    assert sent["output_all_to_all"].sent_intra.tolist() == [16, 16, 0, 16]
    assert sent["output_all_to_all"].sent_inter.tolist() == [2 * 16, 0, 0, 0]
    assert sent["backward_all_to_all"].sent_intra.tolist() == [16, 16, 16, 0]
    assert sent["output_reduce_scatter"].sent.sum() == 0
    # The second devices average their 6 rows: ring of two, 2 * 1/2 of 6 * 16 bytes.
    assert sent["rows_all_reduce"].sent_inter.tolist() == [0, 6 * 16, 0, 6 * 16]
    assert sent["rows_all_reduce"].sent_intra.sum() == 0
    assert sent["input_splits"].sent_intra.tolist() == sent["input_splits"].sent_inter.tolist() == [2 * 24] * 4
    # As sequences: a vector a lookup, of which rank 0 gets two and rank 2 none; only b has bags.
    sequences = counted(OnLocalRank(local_rank=1), OnRank(rank=0), unpooled(problem(nodes=2, devices=2), "a"))
    assert sequences.collectives["output_all_to_all"].sent_intra.tolist() == [16, 2 * 16, 0, 0]
    assert longest_lookups(sequences.load.chain, 4).tolist() == [2, 2, 0, 3]


@pytest.mark.parametrize("precision", Precision)
def test_node_copies_are_padded_table_by_table(precision):
    # On two devices 5 rows of a and 3 of b are dealt in blocks of 3 and 2, which are averaged whole.
    on = problem(nodes=2, devices=2, precision=precision)
    cut = {"a": 5, "b": 3}
    segments = []
    for table in on.tables:
        segments += row_ranges(table, (cut[table.name], GroupSharded()), (table.rows, OnRank(rank=0)))
    traffic = count(Plan(world_size=4, segments=tuple(segments)), on, lambda i: (FIRST, SECOND)[i], DENSE)
    # A ring of two nodes: 2 * 1/2 of (3 + 2) rows of 4 columns.
    assert traffic.collectives["rows_all_reduce"].sent_inter.tolist() == [(3 + 2) * 4 * precision.bytes] * 4
    assert traffic.collectives["rows_all_reduce"].sent_intra.tolist() == [0] * 4
    assert traffic.collectives["rows_all_reduce"].calls == Calls(cross=1)


def test_replicas_have_the_bags_of_their_own_samples():
    traffic = counted(Replicated(ranks=(0, 1)), OnRank(rank=0))
    assert longest_lookups(traffic.load.chain, 4).tolist() == [2, 3]


def unpooled(on, *names):
    """The same problem with some of its tables as sequences."""
    return replace(on, tables=tuple(replace(t, pooling=Pooling.NONE) if t.name in names else t for t in on.tables))


def test_the_dense_phase_waits_for_the_longest_histories():
    on = unpooled(problem(nodes=2, devices=2), "a")
    # A sample a rank; a has 2, 1, 0 and 3 of their lookups, of 4 columns, wherever its rows are.
    for place in (OnRank(rank=1), RowWise(ranks=(0, 1, 2, 3)), GroupSharded(), Replicated(ranks=(0, 1, 2, 3))):
        traffic = counted(place, OnRank(rank=0), on)
        assert traffic.history_columns.tolist() == [8, 4, 0, 12]
    # Bottom 2 -> 4, joined 4 + 4 + 4 -> 1, query 4 -> 4; forward 1, backward 2.
    flop = 3 * (2 * (2 * 4 + 12 * 1 + 4 * 4) + 4 * 12)
    constants = replace(on.machine.constants, dense_step_s=0.0, dense_layer_s=0.0)
    toy = replace(on.machine, constants=constants)
    seconds = dense_s(traffic.history_columns, toy, DENSE, on.tables, on.batch_size)
    assert seconds == pytest.approx(flop / constants.dense_flop_per_s)
    sequences = replace(DENSE, sequence_flops=6e9)
    with pytest.raises(BadInput, match="does not state its fp16 products"):
        dense_s(traffic.history_columns, toy, sequences, on.tables, on.batch_size)
    halves = replace(toy, matrix=MatrixConstants(dense_tf32_flop_per_s=1e12, dense_half_flop_per_s=3e12))
    longer = dense_s(traffic.history_columns, halves, sequences, on.tables, on.batch_size)
    assert longer - seconds == pytest.approx(6e9 / (0.666 * 3e12)), "a sample a rank"
    parts = sequence_s(replace(sequences, attention_flops=2e9, sequence_numbers=1e6, input_bytes=1e3), halves, 2.0)
    copied = constants.activation_bytes_per_s
    by_hand = [2 * 4e9 / (0.666 * 3e12), 2 * 2e9 / (0.574 * 3e12), 2 * 23 * 1e6 * 2 / copied, 2 * 1e3 / 2.07e9]
    assert list(parts.values()) == pytest.approx(by_hand)
    for wrong in ({"attention_flops": 7e9}, {"sequence_flops": 0.0, "input_bytes": 1.0}):
        with pytest.raises(ValueError, match="sequence_flops must be stated"):
            replace(sequences, **wrong)
    assert not counted(OnRank(rank=1), OnRank(rank=0)).history_columns.any()
    profiles = (AccessProfile(rows=6, samples=4, present=3, counts=(3, 2, 1), row_counts=(1, 1, 1)), on.profiles[1])
    plan = Plan(world_size=4, segments=tuple(whole_table(table, OnRank(rank=0)) for table in on.tables))
    # 6 lookups in 4 samples, one a rank.
    assert expect(plan, replace(on, profiles=profiles)).history_columns.tolist() == [1.5 * 4] * 4


def test_the_sequence_models_shares_are_of_the_published_phases():
    """HSTU on H100: 8 layers of width 1,024, 32 samples of 4,099 events; a backward pass is 2.5 forward ones."""
    h100, events = load_machine("h100-1x8"), 131_168
    attention_s = 1e-3 * (185.407 - 10.643 - 2.927 - 39.507 - (18.729 + 21.471 + 3.111 + 5.794))
    flops = 3.5 * 2 * (events / 32) ** 2 * 1024 * 8 * 32
    assert flops / attention_s / h100.matrix.dense_half_flop_per_s == pytest.approx(ATTENTION_SHARE, rel=2e-3)
    passes = 39.507e-3 * h100.constants.activation_bytes_per_s / (events * 8 * 1024 * 2)
    assert passes == pytest.approx(SEQUENCE_PASSES, rel=2e-3)


EVERY_RANK, NODE_1 = RowWise(ranks=(0, 1, 2, 3)), RowWise(ranks=(2, 3))
COPIES, REPLICAS, AT_HOME = GroupSharded(), Replicated(ranks=(0, 1, 2, 3)), OnRank(rank=0)
WHOLE_COPIES = OnLocalRank(local_rank=0)
# Calls (over the world, inside nodes, between nodes) of lookups, of vectors, of sums, of replicas and copies.
CALLS = [
    (AT_HOME, AT_HOME, "", (1, 0, 0), (1, 0, 0), (0, 0, 0), (0, 0, 0)),
    # Pooled and unpooled tables are in modules of their own.
    (AT_HOME, AT_HOME, "a", (2, 0, 0), (2, 0, 0), (0, 0, 0), (0, 0, 0)),
    (AT_HOME, AT_HOME, "ab", (1, 0, 0), (1, 0, 0), (0, 0, 0), (0, 0, 0)),
    (EVERY_RANK, AT_HOME, "", (2, 0, 0), (1, 0, 0), (1, 0, 0), (0, 0, 0)),
    (EVERY_RANK, AT_HOME, "a", (2, 0, 0), (2, 0, 0), (0, 0, 0), (0, 0, 0)),
    (EVERY_RANK, EVERY_RANK, "b", (2, 0, 0), (1, 0, 0), (1, 0, 0), (0, 0, 0)),
    # Sums inside the node, then vectors across.
    (NODE_1, AT_HOME, "", (2, 0, 0), (1, 0, 1), (0, 1, 0), (0, 0, 0)),
    (COPIES, AT_HOME, "", (1, 1, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1)),
    (COPIES, AT_HOME, "a", (1, 1, 0), (1, 1, 0), (0, 0, 0), (0, 0, 1)),
    (WHOLE_COPIES, AT_HOME, "", (1, 1, 0), (1, 1, 0), (0, 0, 0), (0, 0, 1)),
    # Of one module, each sharding type exchanges lookups for itself; all copies are averaged at once.
    (WHOLE_COPIES, COPIES, "", (0, 2, 0), (0, 1, 0), (0, 1, 0), (0, 0, 1)),
    (WHOLE_COPIES, WHOLE_COPIES, "b", (0, 2, 0), (0, 2, 0), (0, 0, 0), (0, 0, 1)),
    (REPLICAS, AT_HOME, "", (1, 0, 0), (1, 0, 0), (0, 0, 0), (1, 0, 0)),
    (REPLICAS, REPLICAS, "", (0, 0, 0), (0, 0, 0), (0, 0, 0), (1, 0, 0)),
    (REPLICAS, REPLICAS, "a", (0, 0, 0), (0, 0, 0), (0, 0, 0), (2, 0, 0)),
    (REPLICAS, COPIES, "", (0, 1, 0), (0, 0, 0), (0, 1, 0), (1, 0, 1)),
]


@pytest.mark.parametrize(("place_a", "place_b", "sequences", "lookups", "vectors", "sums", "weights"), CALLS)
def test_calls_by_hand(place_a, place_b, sequences, lookups, vectors, sums, weights):
    sent = counted(place_a, place_b, unpooled(problem(nodes=2, devices=2), *sequences)).collectives
    assert not any(any(collective.calls[3:]) for collective in sent.values())
    assert {name: collective.calls[:3] for name, collective in sent.items()} == {
        "input_splits": lookups,
        "input_all_to_all": tuple(2 * number for number in lookups),  # lengths, then indices
        "output_all_to_all": vectors,
        "backward_all_to_all": vectors,
        "output_reduce_scatter": sums,
        "backward_all_gather": sums,
        "rows_splits": (0, 0, 0),
        "rows_all_reduce": weights,
        "dense_all_reduce": (1, 0, 0),
    }


def test_a_group_of_one_rank_calls_nothing():
    # A device a node: nothing inside the node, but copies are averaged; a single node: nothing to average.
    apart = counted(GroupSharded(), GroupSharded(), problem(nodes=2, devices=1)).collectives
    assert {name: c.calls for name, c in apart.items() if any(c.calls)} == {
        "rows_all_reduce": Calls(world=1), "dense_all_reduce": Calls(world=1),
    }  # fmt: skip
    together = counted(GroupSharded(), GroupSharded(), problem(nodes=1, devices=2)).collectives
    assert together["output_reduce_scatter"].calls == Calls(world=1)
    assert (together["rows_all_reduce"].calls, together["rows_all_reduce"].sent.sum()) == (Calls(), 0)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 6)), max_size=6))
def test_distinct_columns_equal_a_plain_set(starts):
    ranges = [(start, start + width) for start, width in starts]
    assert distinct_columns(ranges) == len({c for low, high in ranges for c in range(low, high)})


def test_schedules_count_their_copies():
    on = problem(optimizer=Optimizer.ROWWISE_ADAGRAD)
    phases = [Phase(kind=PhaseKind(k), batches=n) for k, n in (("cold", 3), ("hot", 2), ("cold", 4), ("hot", 1))]
    plan = Plan(
        world_size=2,
        segments=(
            *row_ranges(on.tables[0], (2, Replicated(ranks=(0, 1))), (6, Host(node=0))),
            whole_table(on.tables[1], Host(node=0)),
        ),
        schedule=BatchSchedule(phases=tuple(phases)),
    )
    sync = count(plan, on, lambda i: (FIRST, SECOND)[i], DENSE).synchronisation
    # 2 hot rows of 16 bytes and 4 of state: up to both devices before each hot phase, down after each (epochs follow
    # one another, so also after the last).
    assert sync.to_device_bytes == 2 * (2 * 2 * 20) / 10
    assert sync.to_host_bytes == 2 * (2 * 20) / 10
    # A hot batch: rows 0 and 1 of a alone, on every rank's own replica; only gradients are exchanged.
    hot = (bags([0, 1], [1], [], [0, 0]), bags([], [], [], []))
    traffic = count(plan, on, lambda i: hot[i], DENSE, PhaseKind.HOT)
    assert traffic.load.lookups.tolist() == [3, 2]
    assert traffic.host.lookups.sum() == 0
    assert {n for n, c in traffic.collectives.items() if c.sent.any()} == {
        "rows_splits",
        "rows_all_reduce",
        "dense_all_reduce",
    }
    # Rank 0 touched two rows, rank 1 one: an index of 8 bytes and a gradient of 16 each.
    assert traffic.collectives["rows_all_reduce"].sent.tolist() == [2 * (8 + 16), 8 + 16]
    with pytest.raises(BadInput, match="a hot batch asks 1 times for rows of 'a' that are not replicated"):
        count(plan, on, lambda i: (FIRST, SECOND)[i], DENSE, PhaseKind.HOT)


def test_a_cold_batch_is_looked_up_where_the_masters_are():
    on = problem(nodes=2, devices=1)
    plan = Plan(
        world_size=2,
        segments=(
            *row_ranges(on.tables[0], (2, Replicated(ranks=(0, 1))), (6, Host(node=1))),
            whole_table(on.tables[1], Replicated(ranks=(0, 1))),
        ),
        schedule=BatchSchedule(phases=(Phase(kind=PhaseKind.COLD, batches=1), Phase(kind=PhaseKind.HOT, batches=1))),
    )
    traffic = count(plan, on, lambda i: (FIRST, SECOND)[i], DENSE, PhaseKind.COLD)
    # b in a replica a node: the same rows, whose master is looked up once.
    *hot, _ = plan.segments
    in_two = replace(plan, segments=(*hot, *(whole_table(on.tables[1], Replicated(ranks=(r,))) for r in (0, 1))))
    twice = count(in_two, on, lambda i: (FIRST, SECOND)[i], DENSE, PhaseKind.COLD)
    assert twice.host.lookups.tolist() == traffic.host.lookups.tolist()
    # All 6 lookups of a on node 1, where its cold rows are; b is wholly hot, its master is on the first node.
    assert traffic.host.lookups.tolist() == [4, 6]
    assert traffic.load.lookups.tolist() == [0, 0]
    assert traffic.host_to_device_bytes.tolist() == [4 * 16, 4 * 16]


def test_what_no_module_serves_is_named():
    on = problem(nodes=2, devices=2)
    hosts = Plan(world_size=4, segments=tuple(whole_table(t, Host(node=0)) for t in on.tables), dense=DenseHome.HOSTS)
    with pytest.raises(Unsupported, match="a dense model on hosts is counted on one node only"):
        expect(hosts, on)
    with pytest.raises(Unsupported, match="table 'a': row-wise runs over all ranks or all ranks of one node"):
        counted(RowWise(ranks=(0, 2)), OnRank(rank=0), on)


def test_batch_must_divide_and_rows_must_exist():
    on = problem(devices=3)
    with pytest.raises(BadInput, match="batch size 4 is not a multiple of 3 ranks"):
        count(Plan(world_size=3, segments=whole_tables(on.tables, [0, 1])), on, lambda i: FIRST, DENSE)
    with pytest.raises(BadInput, match="batch size 4 is not a multiple of 3 ranks"):
        expect(Plan(world_size=3, segments=whole_tables(on.tables, [0, 1])), on)
    with pytest.raises(BadInput, match=r"asks for row 9, the table has rows 0\.\.5"):
        CountedLookups(bags([0], [9]), 6, 2, "a")


@pytest.mark.parametrize("pooling", [Pooling.SUM, Pooling.NONE])
@pytest.mark.parametrize("place", [RowWise(ranks=tuple(range(6))), RowWise(ranks=(3, 4, 5)), GroupSharded()])
def test_expected_lookups_that_are_alike_for_all_owners_count_to_the_last_bit_as_a_matrix_does(
    place, pooling, monkeypatch
):
    tables = (Table(name="a", rows=7, dim=4, pooling=pooling),)
    profiles = (AccessProfile(rows=7, samples=9, present=9, counts=(5, 2, 1), row_counts=(1, 3, 2)),)
    on = Problem.of("alike", tables, profiles, machine(2, 3), batch_size=12)
    plan = Plan(world_size=6, segments=(whole_table(tables[0], place),))
    alike, dealt = expect(plan, on, DENSE), ExpectedLookups.dealt
    monkeypatch.setattr(ExpectedLookups, "dealt", lambda *arguments: np.array(dealt(*arguments), order="C"))
    with np.printoptions(floatmode="unique", threshold=10_000):
        assert repr(expect(plan, on, DENSE)) == repr(alike)
