"""Small files that stand for large ones: refused in one line, before they take memory."""

import gzip
import io
import tarfile
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch
import zstandard

from shardbench.base.errors import BadInput
from shardbench.base.jsonlines import LONGEST_LINE
from shardbench.base.reading import TEXT_BYTES
from shardbench.datasets.dlrm_datasets import load_triple
from shardbench.datasets.preparation import criteo_prepare
from shardbench.datasets.trace_file import read_indices
from shardbench.learned import training
from shardbench.model.machine_file import load_machine
from shardbench.records.store import trial_store
from shardbench.workloads.table_list import read_table_list

MOST_BYTES = 300_000_000
"""What reading may add to the memory of this process."""
UNPACKED = 200_000_000


def peak_bytes() -> int:
    """Of this process, since it was last asked."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmHWM")


def forget_peak() -> int:
    Path("/proc/self/clear_refs").write_text("5")
    return peak_bytes()


def zst(path: Path) -> None:
    with path.open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as packed:
        for _ in range(UNPACKED // 20_000_000):
            packed.write(b"0\n" * 10_000_000)


def gz(path: Path) -> None:
    with gzip.open(path, "wb", 1) as packed:
        for _ in range(UNPACKED // 20_000_000):
            packed.write(b"0\n" * 10_000_000)


def wide_tensors(path: Path) -> None:
    torch.save((torch.zeros(1, dtype=torch.int64).expand(10**9), torch.zeros(1), torch.zeros((2, 1))), path)


def wide_checkpoint(path: Path) -> None:
    training.save(path, {"networks": {"weight": torch.zeros(1).expand(10**5, 10**4), "bias": torch.zeros(2)}})


def read_checkpoint(path: Path) -> None:
    with training.opened(path) as state:
        torch.nn.Linear(3, 2).load_state_dict(state["networks"])


@cache
def packed() -> bytes:
    whole, small = io.BytesIO(), io.BytesIO()
    torch.save((torch.zeros(UNPACKED // 8, dtype=torch.int64), torch.zeros(1), torch.zeros((2, 1))), whole)
    with zipfile.ZipFile(whole) as archive, zipfile.ZipFile(small, "w", zipfile.ZIP_DEFLATED) as made:
        for name in archive.namelist():
            made.writestr(name, archive.read(name))
    return small.getvalue()


def packed_torch(path: Path) -> None:
    path.write_bytes(packed())


def long_tar_header(path: Path) -> None:
    with gzip.open(path, "wb", 1) as packed:
        info = tarfile.TarInfo("x")
        info.type, info.size = tarfile.XHDTYPE, UNPACKED
        packed.write(info.tobuf())
        for _ in range(UNPACKED // 20_000_000):
            packed.write(b"0 " * 10_000_000)


def many_tables(path: Path) -> None:
    names = pa.DictionaryArray.from_arrays(pa.array(np.zeros(30_000_000, dtype=np.int8)), pa.array(["a"]))
    pyarrow.parquet.write_table(pa.table({"name": names}), path)


def long_line(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b'{"x":"' + b"y" * LONGEST_LINE + b'"}\n')


def long_text(path: Path) -> None:
    path.write_bytes(b"#" * (TEXT_BYTES + 1))


@pytest.mark.parametrize(
    ("name", "make", "read", "said"),
    [
        ("x.txt.zst", zst, read_indices, "unpack it yourself"),
        ("x.txt.gz", gz, read_indices, "unpack it yourself"),
        ("x.pt.gz", gz, lambda path: load_triple(path, 2), "unpacks to more than 64 times its size"),
        ("x.pt", wide_tensors, lambda path: load_triple(path, 2), "whose numbers are not in the file"),
        ("x.pt", packed_torch, lambda path: load_triple(path, 2), "which no torch file is"),
        ("k.pt", wide_checkpoint, read_checkpoint, "broken or no checkpoint"),
        ("k.pt", packed_torch, read_checkpoint, "broken or no checkpoint"),
        ("dac.tar.gz", long_tar_header, lambda path: criteo_prepare.prepare(path, path.with_name("x")), "50 times"),
        ("tables.parquet", many_tables, read_table_list, "more than 100000 tables"),
        ("records/quick.jsonl", long_line, lambda path: trial_store(path.parents[1], "quick").read(), "is the most"),
        ("mine.toml", long_text, lambda path: load_machine(str(path)), "is longer than"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)  # fmt: skip
def test_a_small_file_takes_no_large_memory(
    tmp_path: Path, name: str, make: Callable[[Path], None], read: Callable[[Path], object], said: str
) -> None:
    path = tmp_path / name
    make(path)
    assert path.stat().st_size < 20_000_000
    before = forget_peak()
    with pytest.raises(BadInput, match=said) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    assert peak_bytes() - before < MOST_BYTES
