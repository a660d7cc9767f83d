"""Plans as TorchRec's: what it can express, the remap, split collections, and an example that trains."""

import contextlib
import io
import json
import os
import runpy
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from shardbench.base.errors import BadInput, Unsupported
from shardbench.cli import main as cli
from shardbench.model.plan import (
    BatchSchedule,
    GroupSharded,
    Host,
    OnRank,
    Phase,
    PhaseKind,
    Placement,
    Plan,
    Replicated,
    RowWise,
    Segment,
    ShardingGroups,
    Tier,
)

pytest.importorskip("torchrec")
from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    KeyedJaggedTensor,
)
from torchrec.distributed.types import CacheParams
from torchrec.modules.embedding_configs import PoolingType
from torchrec_cells.models import Batch, condensed

from shardbench.engine.processes.launch import call_in_child
from shardbench.torchrec import Exported, export, ranks_of, read_tables, sharding_plan, split

EXAMPLE = Path(__file__).parent.parent / "examples" / "train_with_plan.py"


def seg(table: str, rows: tuple[int, int], columns: tuple[int, int], placement: Placement) -> Segment:
    return Segment(
        table=table,
        row_start=rows[0],
        row_stop=rows[1],
        column_start=columns[0],
        column_stop=columns[1],
        placement=placement,
    )


BOTH = (0, 1)


def everything() -> Plan:
    """Every way that two ranks of one node can hold a table, in one plan."""
    return Plan(
        world_size=2,
        segments=(
            seg("whole", (0, 50), (0, 8), OnRank(rank=1)),
            seg("columns", (0, 40), (0, 4), OnRank(rank=1)),
            seg("columns", (0, 40), (4, 16), OnRank(rank=0)),
            seg("dealt", (0, 33), (0, 8), RowWise(ranks=BOTH)),
            seg("copied", (0, 9), (0, 8), Replicated(ranks=BOTH)),
            seg("tiers", (0, 10), (0, 8), Replicated(ranks=BOTH)),
            seg("tiers", (10, 40), (0, 8), OnRank(rank=0)),
            seg("tiers", (40, 101), (0, 8), RowWise(ranks=BOTH, tier=Tier.UVM)),
            seg("boxes", (0, 5), (0, 8), OnRank(rank=0)),
            seg("boxes", (5, 20), (0, 4), OnRank(rank=0)),
            seg("boxes", (5, 20), (4, 8), RowWise(ranks=BOTH)),
        ),
    )


def test_every_segment_has_its_sharding_type_and_the_file_reads_back() -> None:
    made = export(everything())
    kinds = {name: (p.sharding_type, p.compute_kernel, p.ranks) for name, p in made.pieces.items()}
    assert kinds == {
        "whole": ("table_wise", "fused", (1,)),
        "columns": ("column_wise", "fused", (1, 0)),
        "dealt": ("row_wise", "fused", BOTH),
        "copied": ("data_parallel", "dense", BOTH),
        "tiers_s0": ("data_parallel", "dense", BOTH),
        "tiers_s1": ("table_wise", "fused", (0,)),
        "tiers_s2": ("row_wise", "fused_uvm", BOTH),
        "boxes_s0": ("table_wise", "fused", (0,)),
        "boxes_s1": ("table_wise", "fused", (0,)),
        "boxes_s2": ("row_wise", "fused", BOTH),
    }
    assert made.remapped == ("dealt", "tiers", "boxes")
    assert [(s.row, s.rows) for s in made.pieces["tiers_s2"].shards] == [(0, 31), (31, 31)]
    assert Exported.from_json(made.to_json()) == made


def test_a_cache_is_exported_with_its_load_factor() -> None:
    plan = Plan(
        world_size=2,
        segments=(
            seg("dealt", (0, 64), (0, 8), RowWise(ranks=BOTH, tier=Tier.CACHED, cache_ratio=0.25)),
            seg("beside", (0, 64), (0, 4), OnRank(rank=0, tier=Tier.CACHED, cache_ratio=0.5)),
            seg("beside", (0, 64), (4, 8), OnRank(rank=1, tier=Tier.CACHED, cache_ratio=0.5)),
            seg("apart", (0, 64), (0, 4), OnRank(rank=0, tier=Tier.CACHED, cache_ratio=0.5)),
            seg("apart", (0, 64), (4, 8), OnRank(rank=1, tier=Tier.CACHED, cache_ratio=0.25)),
            seg("host", (0, 64), (0, 8), OnRank(rank=1, tier=Tier.UVM)),
        ),
    )
    made = export(plan)
    assert {n: (p.compute_kernel, p.cache_load_factor) for n, p in made.pieces.items()} == {
        "dealt": ("fused_uvm_caching", 0.25),
        "beside": ("fused_uvm_caching", 0.5),  # one table, column-wise
        "apart_s0": ("fused_uvm_caching", 0.5),
        "apart_s1": ("fused_uvm_caching", 0.25),
        "host": ("fused_uvm", None),
    }
    assert Exported.from_json(made.to_json()) == made
    assert made.to_json().count("cache_load_factor") == 4
    shapes = {name: (p.logical().rows if p.ways > 1 else 64, p.column_stop - p.column_start)
              for name, p in made.pieces.items()}  # fmt: skip
    module = EmbeddingBagCollection(
        device=torch.device("meta"),
        tables=[
            EmbeddingBagConfig(name=n, embedding_dim=dim, num_embeddings=rows, feature_names=[n])
            for n, (rows, dim) in shapes.items()
        ],
    )
    given = sharding_plan(made, torch.nn.ModuleDict({"tables": module})).plan["tables"]
    assert {n: given[n].cache_params for n in shapes} == {
        n: CacheParams(load_factor=p.cache_load_factor) if p.cache_load_factor else None for n, p in made.pieces.items()
    }


def test_whole_tables_in_blocks_need_no_remap() -> None:
    made = export(everything(), in_blocks=True)
    assert "dealt" not in made.remapped
    assert [(s.row, s.rows) for s in made.pieces["dealt"].shards] == [(0, 17), (17, 16)]
    few = Plan(world_size=4, segments=(seg("few", (0, 9), (0, 8), RowWise(ranks=(0, 1, 2, 3))),))
    assert export(few).pieces["few"].ways == 4
    with pytest.raises(Unsupported, match=r"'few'.*3 of its 9 rows leave one of 4 ranks empty"):
        export(few, in_blocks=True)


def test_what_torchrec_cannot_express_is_said_by_segment() -> None:
    plan = Plan(
        world_size=4,
        segments=(
            seg("a", (0, 10), (0, 8), Host(node=0)),
            seg("a", (10, 20), (0, 8), GroupSharded()),
            seg("b", (0, 20), (0, 8), RowWise(ranks=(0, 2))),
            seg("c", (0, 20), (0, 8), RowWise(ranks=(2, 3))),
        ),
        schedule=BatchSchedule(phases=(Phase(kind=PhaseKind.COLD, batches=1),)),
    )
    with pytest.raises(Unsupported) as caught:
        export(plan, devices_per_node=2)
    text = str(caught.value)
    assert "batch schedule" in text
    assert "table 'a' rows 0..10 columns 0..8: rows looked up by the CPUs of node 0" in text
    assert "table 'a' rows 10..20 columns 0..8: a copy a node" in text
    assert "table 'b' rows 0..20 columns 0..8: rows are dealt over" in text
    assert "table 'c'" not in text
    with pytest.raises(BadInput, match="not on whole nodes of 3"):
        export(plan, devices_per_node=3)


@pytest.mark.parametrize(
    ("groups", "asked"),
    [
        (
            ShardingGroups(size=2, interleaved=True),
            "sharding_group_size=2, use_inter_host_allreduce=False, and sync() every 1 step",
        ),
        (
            ShardingGroups(size=1, interleaved=False, sync_every=4),
            "sharding_group_size=1, use_inter_host_allreduce=True, and sync() every 4 steps",
        ),
    ],
)
def test_sharding_groups_are_said_by_the_arguments_of_torchrecs_own(groups: ShardingGroups, asked: str) -> None:
    plan = Plan(world_size=4, segments=(seg("a", (0, 20), (0, 8), GroupSharded()),), groups=groups)
    with pytest.raises(Unsupported) as caught:
        export(plan, devices_per_node=2)
    assert str(caught.value).endswith(f"DMPCollection shards a group's plan by {asked}")


def lookups(rows: dict[str, int], *, samples: int = 7, weighted: bool = False) -> KeyedJaggedTensor:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(0, 5, (len(rows) * samples,), generator=generator)
    counts = lengths.view(len(rows), -1).sum(dim=1).tolist()
    ids = [torch.randint(0, n, (count,), generator=generator) for n, count in zip(rows.values(), counts)]
    weights = torch.rand(int(lengths.sum()), generator=generator) if weighted else None
    return KeyedJaggedTensor(keys=list(rows), values=torch.cat(ids), lengths=lengths, weights=weights)


ROWS = {"whole": 50, "columns": 40, "dealt": 33, "copied": 9, "tiers": 101, "boxes": 20}


def shuffled_ranks() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    return {name: torch.randperm(rows, generator=generator) for name, rows in ROWS.items()}


@pytest.mark.parametrize("ranks", [dict.fromkeys(ROWS), shuffled_ranks()], ids=["by-frequency", "raw"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_split_collection_gives_the_same_vectors(ranks: Any, weighted: bool) -> None:
    configs = [
        EmbeddingBagConfig(
            name=name,
            num_embeddings=rows,
            embedding_dim=16 if name == "columns" else 8,
            feature_names=[f"{name}_a", f"{name}_b"],
            pooling=PoolingType.MEAN if name == "tiers" and not weighted else PoolingType.SUM,
        )
        for name, rows in ROWS.items()
    ]
    own = EmbeddingBagCollection(tables=configs, is_weighted=weighted)
    made = split(export(everything()), own, ranks)
    asked = lookups({f"{name}_{x}": rows for name, rows in ROWS.items() for x in "ab"}, weighted=weighted)
    expected, found = own(asked), made(asked)
    assert (found.keys(), found.length_per_key()) == (expected.keys(), expected.length_per_key())
    torch.testing.assert_close(found.values(), expected.values())
    if not weighted:
        once = condensed(Batch(asked, torch.zeros(7))).lookups
        assert len(once.lengths()) < len(asked.lengths())
        torch.testing.assert_close(made(once).values(), expected.values())
    weights = read_tables(made, export(everything()))
    assert weights.keys() == ROWS.keys()
    assert all(torch.equal(weight, own.embedding_bags[name].weight) for name, weight in weights.items())
    plan = sharding_plan(export(everything()), torch.nn.ModuleDict({"tables": made}), device="cpu")
    assert set(plan.plan) == {"tables.collection"}
    assert set(plan.plan["tables.collection"]) == set(export(everything()).pieces)


def test_a_split_sequence_has_its_vectors_in_their_places() -> None:
    segments = [s for s in everything().segments if s.table in ("whole", "dealt", "tiers")]
    exported = export(Plan(world_size=2, segments=tuple(segments)))
    rows = {name: ROWS[name] for name in ("whole", "dealt", "tiers")}
    own = EmbeddingCollection(
        tables=[
            EmbeddingConfig(name=name, num_embeddings=n, embedding_dim=8, feature_names=[f"{name}_f"])
            for name, n in rows.items()
        ]
    )
    made = split(exported, own, {name: order for name, order in shuffled_ranks().items() if name in rows})
    asked = lookups({f"{name}_f": n for name, n in rows.items()})
    expected, found = own(asked), made(asked)
    assert set(found) == set(expected)
    for key, vectors in expected.items():
        assert torch.equal(found[key].values(), vectors.values())
        assert torch.equal(found[key].lengths(), vectors.lengths())


def bags(name: str, rows: int, dim: int, feature: str = "f") -> EmbeddingBagConfig:
    return EmbeddingBagConfig(name=name, num_embeddings=rows, embedding_dim=dim, feature_names=[feature])


def test_models_of_other_tables_are_refused() -> None:
    exported = export(Plan(world_size=2, segments=(seg("dealt", (0, 33), (0, 8), RowWise(ranks=BOTH)),)))
    other = EmbeddingBagCollection(tables=[bags("dealt", 34, 8)], device=torch.device("meta"))
    with pytest.raises(BadInput, match="'dealt' is 34 x 8, the plan's is 33 x 8"):
        split(exported, other)
    with pytest.raises(BadInput, match="table 'dealt', which no collection"):
        sharding_plan(exported, torch.nn.Module(), "cpu")
    strange = EmbeddingBagCollection(tables=[bags("strange", 33, 8)], device=torch.device("meta"))
    with pytest.raises(BadInput, match="'strange' of the model is not in the plan"):
        split(exported, strange)
    twice = EmbeddingBagCollection(tables=[bags("dealt", 33, 8), bags("b", 5, 8)], device=torch.device("meta"))
    beside = Plan(world_size=2, segments=(seg("b", (0, 5), (0, 8), OnRank(rank=0)), *exported.plan().segments))
    with pytest.raises(Unsupported, match="feature 'f' is looked up in two tables"):
        split(export(beside), twice)
    assert split(export(beside, in_blocks=True), twice) is twice  # nothing is remapped
    unsplit = export(everything())
    with pytest.raises(BadInput, match="call split"):
        sharding_plan(unsplit, EmbeddingBagCollection(tables=[bags("tiers", 101, 8)], device=torch.device("meta")))
    right = EmbeddingBagCollection(tables=[bags("dealt", 33, 8)], device=torch.device("meta"))
    with pytest.raises(BadInput, match="ranks of table 'dealt' are \\(3,\\)"):
        split(exported, right, {"dealt": torch.arange(3)})
    with pytest.raises(BadInput, match="table 'dealt': its hot rows are known by the ranks of its ids alone"):
        split(exported, right)


def exported_by_command(tmp_path: Path, command) -> Path:
    plan = tmp_path / "plan.json"
    plan.write_text(everything().to_json())
    assert "3 of 6 tables" in command("export", plan)
    return tmp_path / "plan.torchrec.json"


def test_the_command_refuses_what_cannot_be_expressed(
    tmp_path: Path, command, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    hosted = Plan(world_size=2, segments=(seg("a", (0, 10), (0, 8), Host(node=0)),))
    plan.write_text(hosted.to_json())
    told = json.loads(command("export", plan, "--json", code=1))
    assert told["cannot"] == [
        "table 'a' rows 0..10 columns 0..8: rows looked up by the CPUs of node 0 have no sharding type"
    ]
    assert not (tmp_path / "plan.torchrec.json").exists()
    assert cli.run_command(["export", str(plan)]) == 1
    assert capsys.readouterr().err == f"cannot: {told['cannot'][0]}\n"


def test_the_command_says_what_a_node_is_and_spares_the_remap(tmp_path: Path, command) -> None:
    plan, made = tmp_path / "plan.json", tmp_path / "made.json"
    plan.write_text(everything().to_json())
    # A node has both devices unless the option says otherwise.
    for option, per_node in (((), 2), (("--devices-per-node", "1"), 1)):
        command("export", plan, "--out", made, *option)
        assert Exported.from_json(made.read_bytes()).devices_per_node == per_node
    assert "dealt" in Exported.from_json(made.read_bytes()).remapped
    command("export", plan, "--out", made, "--in-blocks")
    assert "dealt" not in Exported.from_json(made.read_bytes()).remapped


def test_the_command_writes_the_sharding_types_as_mlperf_takes_them(tmp_path: Path, command) -> None:
    plan, made = tmp_path / "plan.json", tmp_path / "plan.mlperf.env"
    kept = [s for s in everything().segments if s.table in ("whole", "columns", "dealt", "copied")]
    plan.write_text(Plan(world_size=2, segments=tuple(kept)).to_json())
    assert json.loads(command("export", plan, "--mlperf", "--json")) == {
        "plan": str(plan), "file": str(made), "cannot": [], "remapped": [],
    }  # fmt: skip
    types = "whole=table_wise,columns=column_wise,dealt=row_wise,copied=data_parallel"
    assert made.read_text() == f"EMB_SHARDING_OVERRIDES={types}\n"
    assert "hot ids that lie together have one owner" in command("export", plan, "--mlperf")
    plan.write_text(Plan(world_size=2, segments=tuple(s for s in kept if s.table != "dealt")).to_json())
    assert "one owner" not in command("export", plan, "--mlperf")


def test_the_command_refuses_what_one_sharding_type_does_not_say(tmp_path: Path, command, capsys) -> None:
    plan, one = tmp_path / "plan.json", RowWise(ranks=(0, 1))
    tiers = (
        seg("a,b", (0, 10), (0, 8), OnRank(rank=0)),
        seg("cached", (0, 64), (0, 8), OnRank(rank=0, tier=Tier.CACHED, cache_ratio=0.2)),
        seg("cut", (0, 9), (0, 8), OnRank(rank=0)),
        seg("cut", (9, 20), (0, 8), OnRank(rank=1)),
        seg("node", (0, 64), (0, 8), one),
        seg("whole", (0, 50), (0, 8), OnRank(rank=3)),
    )
    plan.write_text(Plan(world_size=4, segments=tiers).to_json())
    assert cli.run_command(["export", str(plan), "--mlperf", "--devices-per-node", "2"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "cannot: table 'a,b': ',' and '=' part the names and types",
        "cannot: table 'cached': a sharding type does not say that its kernel is fused_uvm_caching",
        "cannot: table 'cut': it is cut by rows into 2, and has one sharding type",
        "cannot: table 'node': unpooled tables cannot be sharded table_row_wise",
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def losses(*arguments: str, **environment: str) -> list[float]:
    """What the example prints with these arguments, in this process."""
    os.environ.update(environment)
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.setattr(sys, "argv", [str(EXAMPLE), *arguments])
        runpy.run_path(str(EXAMPLE), run_name="__main__")
    return json.loads(printed.getvalue())["losses"] if printed.getvalue() else []


def rank_losses(folder: Path, arguments: tuple[str, ...], environment: dict[str, str]) -> list[float]:
    os.chdir(folder)
    return losses(*arguments, **environment)


def losses_of_two_ranks(folder: Path, *arguments: str) -> list[float]:
    """What the example prints in a folder as two ranks of torchrun, which have their imports done."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}

    def on_rank(rank: int) -> list[float]:
        given = folder, arguments, {**group, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        return call_in_child(rank_losses, given, timeout_s=120, phase="time", log=folder / f"{rank}.log")

    with ThreadPoolExecutor(2) as pool:
        found, _ = pool.map(on_rank, range(2))
    return found


def test_the_example_trains_as_the_unsharded_model(tmp_path: Path, command) -> None:
    made = exported_by_command(tmp_path, command)
    names = ("tiers", "dealt", "boxes")
    (tmp_path / "prepared.json").write_text(json.dumps({"tables": [{"name": name} for name in names]}))
    for number, name in enumerate(names):
        np.save(tmp_path / f"t{number}_order.npy", shuffled_ranks()[name].argsort().numpy())
    found = losses_of_two_ranks(tmp_path, str(made), "--profile", str(tmp_path))
    assert found == pytest.approx(losses(str(made), "--unsharded"), rel=1e-5)
    assert abs(found[0] - found[-1]) > 1e-3


def test_places_by_frequency_of_the_ids_seen() -> None:
    assert ranks_of(np.array([4, 1]), 5).tolist() == [2, 1, 3, 4, 0]
    with pytest.raises(BadInput, match="names one twice"):
        ranks_of(np.array([4, 4]), 5)
    with pytest.raises(BadInput, match="ids 1 to 5 is not of a table of 5 rows"):
        ranks_of(np.array([1, 5]), 5)
