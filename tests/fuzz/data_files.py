"""Parsers of data: logs, traces, prepared folders, arrays, tensors, lists of tables."""

import contextlib
import io
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import mutations
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import torch
from learned_tasks import random_problem
from parser import Parser, words
from problems import RandomWorkload

from shardbench.datasets import avazu, criteo_multi_hot, criteo_terabyte, taobao
from shardbench.datasets.access_log import AccessLogConfig, constraints
from shardbench.datasets.dlrm_datasets import load_triple
from shardbench.datasets.preparation import criteo_prepare
from shardbench.datasets.preparation.downloads import prepare_download
from shardbench.datasets.preparation.log_encode import Cells
from shardbench.datasets.preparation.log_profile import SampleSplit, profile_log
from shardbench.datasets.preparation.log_reader import LogFiles
from shardbench.datasets.preparation.prepared import read_array
from shardbench.datasets.trace_file import TraceConfig
from shardbench.learning import checkpoint
from shardbench.tasks import pools
from shardbench.workloads.materialise import Batches, materialise
from shardbench.workloads.table_list import ListedTable, read_table_list
from shardbench.workloads.trace import Split


def _table_list(_: Path) -> list[bytes]:
    return [
        b"name,rows,dim,pooled,features,pooling\na,100,16,true,x|y,3.5\nb,20,,false,,\n",
        b"name,rows\na,100\nb,20\n",
    ]


def _table_list_parquet(_: Path) -> list[bytes]:
    columns = {"name": ["a", "b"], "rows": [100, 20], "dim": [16, None], "features": [["x", "y"], None]}
    return [_parquet(columns)]


def _parquet(columns: dict[str, Any]) -> bytes:
    made = io.BytesIO()
    pyarrow.parquet.write_table(pa.table(columns), made)
    return made.getvalue()


def _npz(arrays: dict[str, Any]) -> bytes:
    made = io.BytesIO()
    np.savez_compressed(made, **arrays)
    return made.getvalue()


def _pool(_: Path) -> list[bytes]:
    counts = [np.array([5, 2, 1]), np.array([4, 1])]
    return [
        _npz({
            "rows": np.array([30, 20]), "samples": np.array([10, 10]), "present": np.array([9, 8]),
            "runs": np.array([3, 2]), "counts": np.concatenate(counts), "row_counts": np.array([1, 2, 3, 1, 4]),
            "batch": np.ones((2, 3)),
        })
    ]  # fmt: skip


def _read_pool(path: Path) -> object:
    return pools._read(path, "train", random_problem(2).tables, 8)


def _checkpoint(folder: Path) -> list[bytes]:
    contents = []
    for odd in ({}, {"weight": torch.zeros(1).expand(2, 3), "bias": torch.ones(2, dtype=torch.int8)}):
        networks = {**torch.nn.Linear(3, 2).state_dict(), **odd}
        path = folder / "k.pt"
        checkpoint.save(path, {"networks": networks, "updates": 3, "history": [{"a": 1.0}]})
        contents.append(path.read_bytes())
    return contents


def _read_checkpoint(path: Path) -> object:
    with checkpoint.opened(path) as state:
        return torch.nn.Linear(3, 2).load_state_dict(state["networks"])


def _triple() -> tuple[torch.Tensor, ...]:
    lengths = torch.tensor([[2, 1, 0, 3], [1, 1, 1, 1]])
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.reshape(-1).cumsum(0)])
    return torch.arange(10), offsets, lengths


def _triples(_: Path) -> list[bytes]:
    made, old = io.BytesIO(), io.BytesIO()
    torch.save(_triple(), made)
    torch.save(_triple(), old, _use_new_zipfile_serialization=False)
    return [made.getvalue(), old.getvalue()]


def _packed_triples(folder: Path) -> list[bytes]:
    return [mutations.gz(one) for one in _triples(folder)]


LOG = "user,item,time\n" + "".join(f"u{i % 7},{i % 3};{i % 5},{1000 + i}\n" for i in range(40))


_LISTED = (ListedTable(name="user", rows=100), ListedTable(name="item", rows=50))


def _log(_: Path) -> list[bytes]:
    return [LOG.encode()]


def _log_parquet(_: Path) -> list[bytes]:
    rows = range(40)
    columns = {
        "user": [f"u{i % 7}" for i in rows],
        "item": [[i % 3, i % 5] for i in rows],
        "time": [1000 + i for i in rows],
    }
    return [_parquet(columns)]


def _profile(path: Path) -> object:
    with _gone(path.parent / "made") as target:
        cells, cut = Cells(delimiter=";"), SampleSplit(time="time")
        profile_log(LogFiles(files=(path,)), target, _LISTED, cells=cells, cut=cut)
        return constraints(target)


@contextlib.contextmanager
def _gone(target: Path) -> Iterator[Path]:
    try:
        yield target
    finally:
        shutil.rmtree(target, ignore_errors=True)


def _download(of: Any) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        with _gone(path.parent / "made") as target:
            return prepare_download(of, [path], target)

    return read


CRITEO = "".join(
    "\t".join(
        [str(i % 2), *(str(i * k % 50) if (i + k) % 4 else "" for k in range(13)), *(f"{i * k:x}" for k in range(26))]
    )
    + "\n"
    for i in range(12)
)


def _criteo(path: Path) -> object:
    with _gone(path.parent / "made") as target:
        return criteo_prepare.prepare(path, target, rows=100)


def _archive(_: Path) -> list[bytes]:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz", compresslevel=1) as archive:
        for name, text in (("readme.txt", "x"), ("train.txt", CRITEO)):
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return [made.getvalue()]


def _avazu(_: Path) -> list[bytes]:
    names = ["id", "click", "hour", *avazu.FEATURES]
    return [
        (
            "\n".join(
                [
                    ",".join(names),
                    *(
                        ",".join([str(i), "0", str(14102100 + i), *(f"v{i % 3}" for _ in avazu.FEATURES)])
                        for i in range(9)
                    ),
                ]
            )
            + "\n"
        ).encode()
    ]


def _taobao(_: Path) -> list[bytes]:
    return ["".join(f"{i},{i * 7},{i % 4},pv,{1511544070 + i}\n" for i in range(20)).encode()]


def _day(_: Path) -> list[bytes]:
    hot = criteo_multi_hot._PUBLISHED["multi_hot"]
    return [_npz({str(i): np.ones((4, n), dtype=np.int32) for i, n in enumerate(hot)})]


def _prepared(folder: Path) -> Path:
    (folder / "log.csv").write_text(LOG)
    target = folder / "prepared"
    if not target.exists():
        cells, cut = Cells(delimiter=";"), SampleSplit(time="time")
        profile_log(LogFiles(files=(folder / "log.csv",)), target, _LISTED, cells=cells, cut=cut)
    return target


def _of_prepared(name: str) -> Callable[[Path], list[bytes]]:
    return lambda folder: [(_prepared(folder) / name).read_bytes()]


def _read_prepared(path: Path) -> object:
    built = AccessLogConfig(prepared="prepared", batch_size=4, test_batches=1).build(path.parents[1])
    constraints(path.parent)
    return built.profiles, built.bags(Split.TRAIN, 0, 0), built.fingerprint


def _unnoted_array(path: Path) -> object:
    return np.array(read_array(path, np.int64, (5,), "make it"))


def _npy(_: Path) -> list[bytes]:
    made, small = io.BytesIO(), io.BytesIO()
    np.save(made, np.arange(5))
    np.save(small, np.arange(5), allow_pickle=False)
    return [made.getvalue(), small.getvalue()]


def _trace(_: Path) -> list[bytes]:
    return ["".join(f"{i * i % 97}\n" for i in range(60)).encode()]


def _read_trace(path: Path) -> object:
    built = TraceConfig(files=(path.name,), pooling=2, batch_size=4, test_batches=1).build(path.parent)
    return built.profiles


def _lengths(folder: Path) -> list[bytes]:
    (folder / "x.txt").write_bytes(_trace(folder)[0])
    return [b"3\n" * 20, b"0\n6\n" * 10]


def _read_lengths(path: Path) -> object:
    return TraceConfig(files=("x.txt",), lengths=(path.name,), batch_size=4, test_batches=1).build(path.parent).profiles


def _batches(folder: Path) -> Path:
    target = folder / "batches"
    if not target.exists():
        materialise(RandomWorkload([(100, 16), (50, 16)], 8), target, range(2))
    return target


def _of_batches(name: str) -> Callable[[Path], list[bytes]]:
    return lambda folder: [(_batches(folder) / name).read_bytes()]


def _read_batches(path: Path) -> object:
    found = Batches(path.parent)
    found.intact()
    return [found.bags(n, table) for n in found.numbers[:4] for table in range(2)]


def _pt(data: bytes, random: Random) -> bytes:
    if data[:2] == b"PK":
        return mutations.zipped(mutations.some_bytes)(data, random)
    return mutations.some_bytes(data, random)


DATA = (
    Parser(
        name="pool of tables",
        file="pool.npz",
        make=_pool,
        change=mutations.zipped(mutations.npy),
        read=_read_pool,
        weight=4,
    ),
    Parser(
        name="checkpoint",
        file="k.pt",
        make=_checkpoint,
        change=mutations.zipped(mutations.some_bytes),
        read=_read_checkpoint,
        weight=5,
    ),
    Parser(
        name="dlrm_datasets .pt", file="x.pt", make=_triples, change=_pt, read=lambda p: load_triple(p, 2), weight=5
    ),
    Parser(
        name="dlrm_datasets .pt.gz",
        file="x.pt.gz",
        make=_packed_triples,
        change=mutations.packed(_pt, mutations.gz),
        read=lambda p: load_triple(p, 2),
        weight=3,
    ),
    Parser(name="log .csv", file="log.csv", make=_log, change=mutations.lines, read=_profile, weight=4),
    Parser(
        name="log .csv.gz",
        file="log.csv.gz",
        make=lambda f: [mutations.gz(one) for one in _log(f)],
        change=mutations.packed(mutations.lines, mutations.gz),
        read=_profile,
        weight=2,
    ),
    Parser(
        name="log .csv.zst",
        file="log.csv.zst",
        make=lambda f: [mutations.zst(one) for one in _log(f)],
        change=mutations.packed(mutations.lines, mutations.zst),
        read=_profile,
        weight=2,
    ),
    Parser(
        name="log .parquet", file="log.parquet", make=_log_parquet, change=mutations.some_bytes, read=_profile, weight=3
    ),
    Parser(name="Criteo Kaggle", file="train.txt", make=words(CRITEO), change=mutations.lines, read=_criteo, weight=2),
    Parser(
        name="Criteo Kaggle archive",
        file="dac.tar.gz",
        make=_archive,
        change=mutations.packed(mutations.some_bytes, mutations.gz),
        read=_criteo,
        weight=2,
    ),
    Parser(
        name="Criteo Terabyte",
        file="day_0",
        make=words(CRITEO),
        change=mutations.lines,
        read=_download(criteo_terabyte.DOWNLOAD),
        weight=1,
    ),
    Parser(
        name="Avazu", file="train.csv", make=_avazu, change=mutations.lines, read=_download(avazu.DOWNLOAD), weight=1
    ),
    Parser(
        name="Taobao",
        file="UserBehavior.csv",
        make=_taobao,
        change=mutations.lines,
        read=_download(taobao.DOWNLOAD),
        weight=2,
    ),
    Parser(
        name="multi-hot days",
        file="day_0_sparse_multi_hot.npz",
        make=_day,
        change=mutations.zipped(mutations.npy),
        read=_download(criteo_multi_hot.DOWNLOAD),
        weight=1,
    ),
    Parser(
        name="prepared note",
        file="prepared/prepared.json",
        make=_of_prepared("prepared.json"),
        change=mutations.as_json,
        read=_read_prepared,
        weight=4,
    ),
    Parser(
        name="prepared array",
        file="prepared/t0_f0_values.npy",
        make=_of_prepared("t0_f0_values.npy"),
        change=mutations.npy,
        read=_read_prepared,
        weight=2,
    ),
    Parser(name="array", file="x.npy", make=_npy, change=mutations.npy, read=_unnoted_array, weight=20),
    Parser(name="trace", file="x.txt", make=_trace, change=mutations.lines, read=_read_trace, weight=4),
    Parser(
        name="trace .gz",
        file="x.txt.gz",
        make=lambda f: [mutations.gz(one) for one in _trace(f)],
        change=mutations.packed(mutations.lines, mutations.gz),
        read=_read_trace,
        weight=2,
    ),
    Parser(name="bag lengths", file="y.txt", make=_lengths, change=mutations.lines, read=_read_lengths, weight=4),
    Parser(
        name="header of batches",
        file="batches/batches.json",
        make=_of_batches("batches.json"),
        change=mutations.as_json,
        read=_read_batches,
        weight=10,
    ),
    Parser(
        name="lengths of batches",
        file="batches/0.lengths.npy",
        make=_of_batches("0.lengths.npy"),
        change=mutations.npy,
        read=_read_batches,
        weight=10,
    ),
    Parser(
        name="list of tables .csv",
        file="tables.csv",
        make=_table_list,
        change=mutations.lines,
        read=read_table_list,
        weight=6,
    ),
    Parser(
        name="list of tables .parquet",
        file="tables.parquet",
        make=_table_list_parquet,
        change=mutations.some_bytes,
        read=read_table_list,
        weight=10,
    ),
)
