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
from parser import Parser, words
from problems import RandomWorkload

from shardbench.datasets import avazu, criteo_multi_hot, criteo_terabyte, taobao
from shardbench.datasets.access_log import AccessLogConfig, constraints
from shardbench.datasets.dlrm_datasets import load_triple
from shardbench.datasets.preparation import criteo_prepare
from shardbench.datasets.preparation.downloads import prepare_download
from shardbench.datasets.preparation.log_encode import Cells
from shardbench.datasets.preparation.log_profile import profile_log
from shardbench.datasets.preparation.log_reader import LogFiles
from shardbench.datasets.preparation.log_words import SampleSplit
from shardbench.datasets.preparation.prepared import read_array
from shardbench.datasets.trace_file import TraceConfig
from shardbench.learned import training
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


def _checkpoint(folder: Path) -> list[bytes]:
    contents = []
    for odd in ({}, {"weight": torch.zeros(1).expand(2, 3), "bias": torch.ones(2, dtype=torch.int8)}):
        networks = {**torch.nn.Linear(3, 2).state_dict(), **odd}
        path = folder / "k.pt"
        training.save(path, {"networks": networks, "oracle_calls": 3, "history": [{"a": 1.0}]})
        contents.append(path.read_bytes())
    return contents


def _read_checkpoint(path: Path) -> object:
    with training.opened(path) as state:
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


def _packed(name: str, parser: Parser, pack: Callable[[bytes], bytes], weight: int) -> Parser:
    """The parser whose files are packed; the ending is the packing function's name."""
    return Parser(
        name,
        f"{parser.file}.{pack.__name__}",
        lambda folder: [pack(content) for content in parser.make(folder)],
        mutations.packed(parser.change, pack),
        parser.read,
        weight,
    )


TRIPLES = Parser("dlrm_datasets .pt", "x.pt", _triples, _pt, lambda p: load_triple(p, 2), 5)
LOGS = Parser("log .csv", "log.csv", _log, mutations.lines, _profile, 4)
TRACES = Parser("trace", "x.txt", _trace, mutations.lines, _read_trace, 4)
DATA = (
    Parser("checkpoint", "k.pt", _checkpoint, mutations.zipped(mutations.some_bytes), _read_checkpoint, 5),
    TRIPLES,
    _packed("dlrm_datasets .pt.gz", TRIPLES, mutations.gz, 3),
    LOGS,
    _packed("log .csv.gz", LOGS, mutations.gz, 2),
    _packed("log .csv.zst", LOGS, mutations.zst, 2),
    Parser("log .parquet", "log.parquet", _log_parquet, mutations.some_bytes, _profile, 3),
    Parser("Criteo Kaggle", "train.txt", words(CRITEO), mutations.lines, _criteo, 2),
    Parser(
        "Criteo Kaggle archive",
        "dac.tar.gz",
        _archive,
        mutations.packed(mutations.some_bytes, mutations.gz),
        _criteo,
        2,
    ),
    Parser("Criteo Terabyte", "day_0", words(CRITEO), mutations.lines, _download(criteo_terabyte.DOWNLOAD), 1),
    Parser("Avazu", "train.csv", _avazu, mutations.lines, _download(avazu.DOWNLOAD), 1),
    Parser("Taobao", "UserBehavior.csv", _taobao, mutations.lines, _download(taobao.DOWNLOAD), 2),
    Parser(
        "multi-hot days",
        "day_0_sparse_multi_hot.npz",
        _day,
        mutations.zipped(mutations.npy),
        _download(criteo_multi_hot.DOWNLOAD),
        1,
    ),
    Parser(
        "prepared note", "prepared/prepared.json", _of_prepared("prepared.json"), mutations.as_json, _read_prepared, 4
    ),
    Parser(
        "prepared array",
        "prepared/t0_f0_values.npy",
        _of_prepared("t0_f0_values.npy"),
        mutations.npy,
        _read_prepared,
        2,
    ),
    Parser("array", "x.npy", _npy, mutations.npy, _unnoted_array, 20),
    TRACES,
    _packed("trace .gz", TRACES, mutations.gz, 2),
    Parser("bag lengths", "y.txt", _lengths, mutations.lines, _read_lengths, 4),
    Parser(
        "header of batches", "batches/batches.json", _of_batches("batches.json"), mutations.as_json, _read_batches, 10
    ),
    Parser(
        "lengths of batches", "batches/0.lengths.npy", _of_batches("0.lengths.npy"), mutations.npy, _read_batches, 10
    ),
    Parser("list of tables .csv", "tables.csv", _table_list, mutations.lines, read_table_list, 6),
    Parser("list of tables .parquet", "tables.parquet", _table_list_parquet, mutations.some_bytes, read_table_list, 10),
)
