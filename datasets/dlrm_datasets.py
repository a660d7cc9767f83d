"""Meta's published lookups (facebookresearch/dlrm_datasets): one large batch of all tables a file.

A file holds (indices [lookups], offsets [tables * samples + 1], lengths [tables, samples]).
Row counts and widths are not published: rows are the largest index + 1, at least 100 (the
rule of AutoShard's and DreamShard's code), widths come from the configuration.
"""

import gzip
import io
import zipfile
import zlib
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import Field

from shardbench.base.arrays import Ints
from shardbench.base.errors import BadInput, one_line
from shardbench.base.serialise import content_hash
from shardbench.model.table import BatchSize, Name, Table
from shardbench.workloads.recorded import RecordedConfig, RecordedWorkload
from shardbench.workloads.selection import SelectedTablesConfig, Tables
from shardbench.workloads.trace import Bags

MIN_ROWS = 100
MOST_UNPACKED = 64
"""A packed file unpacks to at most so many times its size; lookups of real tables come to a tenth of that."""
_ROOM_BYTES = 1 << 20
_WHERE = (
    "download embedding_bag/2021/fbgemm_t856_bs65536.pt.gz (2.4 GB, MIT) from the GitHub project "
    "facebookresearch/dlrm_datasets (git lfs) and put it there, packed or unpacked"
)


class DlrmDatasetsConfig(SelectedTablesConfig, RecordedConfig):
    """One of Meta's files, cut into train samples (the first share) and test samples (the rest)."""

    dataset: Literal["dlrm_datasets"] = "dlrm_datasets"
    name: Name = "dlrm_datasets"
    batch_size: BatchSize = 8192
    file: str = "dlrm_datasets/fbgemm_t856_bs65536.pt.gz"
    """Relative to the data folder; .pt files are memory-mapped, .pt.gz ones unpacked into memory."""
    file_tables: Tables = 856
    """Tables in the file."""
    train_share: float = Field(default=0.5, gt=0, lt=1)

    def build(self, data: Path) -> "DlrmDatasets":
        """Load the file; raises BadInput where it is missing or its parts do not fit together."""
        return DlrmDatasets(self, data)


def load_triple(path: Path, tables: int) -> tuple[Ints, Ints]:
    """Return the indices int64 [lookups] and bag ends int64 [tables * samples + 1], checked.

    Raises BadInput where the three parts disagree, an index is negative, or the bags do not
    divide among the tables.
    """
    triple = _load(path)

    import torch  # noqa: PLC0415 - seconds, and only this workload's files need it

    if not (isinstance(triple, tuple | list) and len(triple) == 3 and all(isinstance(t, torch.Tensor) for t in triple)):
        raise BadInput(f"{path.name}: expected three tensors (indices, offsets, lengths): {_WHERE}")
    # A few bytes can stand for a tensor of any size.
    if any(
        t.layout != torch.strided
        or t.device.type != "cpu"
        or t.numel() * t.element_size() > t.untyped_storage().nbytes()
        for t in triple
    ):
        raise BadInput(f"{path.name}: holds a tensor whose numbers are not in the file: {_WHERE}")
    if any(t.is_floating_point() or t.is_complex() or t.is_quantized for t in triple):
        raise BadInput(f"{path.name}: indices, offsets and lengths must be whole numbers")
    if triple[2].ndim == 2 and triple[2].shape[0] != tables:
        raise BadInput(
            f"{path.name}: lengths are of {triple[2].shape[0]} tables: set file_tables to that, not {tables}"
        )
    indices, offsets, lengths = (t.reshape(-1).numpy().astype(np.int64, copy=False) for t in triple)
    if len(lengths) == 0 or len(lengths) % tables:
        raise BadInput(f"{path.name}: {len(lengths)} bags do not divide among {tables} tables: correct file_tables")
    if lengths.min() < 0:
        raise BadInput(f"{path.name}: bag {int(np.argmax(lengths < 0))} has a negative length")
    ends = np.concatenate([[0], np.cumsum(lengths)])
    if not (np.array_equal(offsets, ends) or np.array_equal(offsets, ends[:-1])):
        raise BadInput(f"{path.name}: offsets are not the running sum of lengths: the file is damaged, fetch it again")
    if ends[-1] != len(indices):
        raise BadInput(f"{path.name}: lengths add up to {ends[-1]} but there are {len(indices)} indices")
    if len(indices) and indices.min() < 0:
        raise BadInput(
            f"{path.name}: index {int(np.argmax(indices < 0))} is negative: the file is damaged, fetch it again"
        )
    return indices, ends


def _load(path: Path) -> Any:
    if not path.is_file():
        raise BadInput(f"no file {path}: {_WHERE}")
    try:
        import torch  # noqa: PLC0415 - as above
    except ImportError as error:
        raise BadInput(f"{path.name}: reading it needs torch, which is not installed here") from error
    source = io.BytesIO(_unpack(path)) if path.suffix == ".gz" else path
    try:
        archive = zipfile.is_zipfile(source)
        if archive:
            with zipfile.ZipFile(source) as parts:
                if any(info.compress_type != zipfile.ZIP_STORED for info in parts.infolist()):
                    raise ValueError("it is packed inside, which no torch file is")
        if isinstance(source, io.BytesIO):
            source.seek(0)
        return torch.load(source, map_location="cpu", weights_only=True, mmap=archive and source is path)
    except Exception as error:
        # Damaged bytes make torch raise all kinds of errors, of many lines.
        raise BadInput(f"{path.name}: not a readable torch file ({one_line(str(error), 80)}): {_WHERE}") from error


def _unpack(path: Path) -> bytes:
    """Unpack the whole file, because torch.load seeks and gzip would begin anew at every step back."""
    most = MOST_UNPACKED * path.stat().st_size + _ROOM_BYTES
    try:
        with gzip.open(path, "rb") as packed:
            data = packed.read(most + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(f"{path.name}: not a readable torch file ({error}): {_WHERE}") from error
    if len(data) > most:
        raise BadInput(f"{path.name}: unpacks to more than {MOST_UNPACKED} times its size: unpack it yourself")
    return data


class DlrmDatasets(RecordedWorkload):
    """Samples of Meta's file; ids re-ranked by the train samples, table by table."""

    def __init__(self, config: DlrmDatasetsConfig, data: Path) -> None:
        super().__init__(config)
        self._ids = config.table_ids(config.file_tables)
        self._indices, self._ends = load_triple(data / config.file, config.file_tables)
        self._stride = (len(self._ends) - 1) // config.file_tables
        dims = config.table_dims(config.file_tables)
        self.tables = tuple(Table(name=f"t{i:03d}", rows=self._rows(i), dim=dims[i]) for i in self._ids)
        self._split_samples(self._stride, int(self._stride * config.train_share))

    def _rows(self, table_id: int) -> int:
        start, stop = self._ends[table_id * self._stride], self._ends[(table_id + 1) * self._stride]
        return max(MIN_ROWS, int(self._indices[start:stop].max(initial=-1)) + 1)

    def _raw(self, table: int, start: int, stop: int) -> Bags:
        first = self._ids[table] * self._stride
        ends = self._ends[first + start : first + stop + 1]
        return Bags(values=self._indices[ends[0] : ends[-1]], offsets=ends - ends[0])

    def recipe(self) -> object:
        """Return the configuration and a hash of the chosen tables' bags."""
        table_bags = [self._raw(i, 0, self.samples) for i in range(len(self._ids))]
        content = content_hash(*(content_hash(bags.values, bags.offsets) for bags in table_bags))
        return {"config": self._config.model_dump(mode="json"), "bags": content}


CONFIG = DlrmDatasetsConfig
