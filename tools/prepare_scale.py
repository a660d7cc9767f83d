"""Preparing logs of Criteo's form: rows per CPU second, and peak memory at one and at ten million rows.

``python tools/prepare_scale.py FOLDER [NAME ...]`` writes these files, or those that are named:

- ``prepare.csv``: made-up files (labels, integers and categories of ``criteo_like``, form kaggle, columns independent),
  each prepared in a process of its own as Criteo Kaggle and as Criteo Terabyte, a million rows several times in turn,
  plain and packed, other numbers once: the median rate with its range, and the peak memory of the process. Making the
  files is not timed.
- ``profile.csv``: a log of these columns in eight parquet files, profiled on one core and on two, and DuckDB and
  Polars, where they are installed, counting the values of each of its columns.
"""

import gc
import gzip
import importlib.util
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from table_files import rows_csv, write_tables

from shardbench.datasets import criteo_terabyte
from shardbench.datasets.criteo_like import CONFIG
from shardbench.datasets.preparation.criteo_prepare import CATEGORIES, HEADER, INTEGERS, prepare
from shardbench.datasets.preparation.downloads import prepare_download
from shardbench.datasets.preparation.log_encode import Cells
from shardbench.datasets.preparation.log_profile import profile_log
from shardbench.datasets.preparation.log_reader import find_logs
from shardbench.datasets.preparation.log_words import SampleSplit
from shardbench.workloads.table_list import ListedTable
from shardbench.workloads.trace import Split
from shardbench.workloads.value_hash import mixed

MILLION = 10**6
REPEATS = 5
BATCH = 1 << 16
FILES = 8
ENGINES = ("shardbench", "duckdb", "polars")
WORKERS = (1, 2)
SCHEMA = pa.schema([(name, pa.int64() if i <= INTEGERS else pa.string()) for i, name in enumerate(HEADER)])
_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)


def hexadecimals(ranks: np.ndarray, lengths: np.ndarray, table: int) -> pa.Array:
    """Return eight hex digits for each rank, other ones in each table; a cell of no length is empty."""
    words = (mixed(ranks, table) >> np.uint64(32)).astype(np.uint32)
    digits = _HEX[(words[:, None] >> np.arange(28, -4, -4, dtype=np.uint32)) & 15]
    ends = np.concatenate([[0], 8 * np.cumsum(lengths)]).astype(np.int32)
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(ends), pa.py_buffer(digits.tobytes()))


def batches(rows: int) -> Iterator[pa.RecordBatch]:
    """Yield lines of Criteo's form; cells are missing as often as in the published sample."""
    workload = CONFIG(batch_size=BATCH, column_dependence=0).build(Path())
    generator = np.random.default_rng(0)
    for batch in range(-(-rows // BATCH)):
        size = min(BATCH, rows - batch * BATCH)
        columns = [pa.array(generator.integers(0, 2, size))]
        for _ in range(INTEGERS):
            counts = generator.zipf(1.5, size) % 10**5
            columns.append(pa.array(counts, mask=generator.random(size) < 0.2))
        for table in range(CATEGORIES):
            bags = workload.bags(Split.TRAIN, batch, table).samples(0, size)
            columns.append(hexadecimals(bags.values, bags.lengths, table))
        yield pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def write_log(path: Path, rows: int) -> None:
    """Write a text of Criteo's form with ``rows`` lines."""
    options = pyarrow.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    with pyarrow.csv.CSVWriter(path, SCHEMA, write_options=options) as file:
        for batch in batches(rows):
            file.write_batch(batch)


def write_parts(folder: Path, rows: int) -> None:
    """Write the same lines as parquet files."""
    with ExitStack() as opened:
        files = [
            opened.enter_context(pyarrow.parquet.ParquetWriter(folder / f"part-{n}.parquet", SCHEMA))
            for n in range(FILES)
        ]
        for number, batch in enumerate(batches(rows)):
            files[number % FILES].write_batch(batch)


def packed(path: Path) -> Path:
    """Pack the file with gzip, as Criteo's days are, and return the path of the packed one."""
    target = path.with_name(f"{path.name}.gz")
    with path.open("rb") as plain, gzip.open(target, "wb", compresslevel=6) as file:
        shutil.copyfileobj(plain, file, 1 << 24)
    return target


def one(data_set: str, source: Path, target: Path) -> tuple[float, int]:
    """Return the CPU seconds of one preparation in this process (all its threads), and its peak memory in bytes."""
    gc.collect()
    start = time.process_time()
    if data_set == "criteo_kaggle":
        prepare(source, target)
    else:
        prepare_download(criteo_terabyte.DOWNLOAD, [source], target)
    seconds = time.process_time() - start
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(rows: tuple[int, ...], repeats: int = REPEATS, repeated_rows: int = MILLION) -> list[dict[str, object]]:
    """Return a row for each data set, kind of file and size; ``repeated_rows`` are measured often, and packed, too."""
    times: dict[tuple[str, str, int], list[tuple[float, int]]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size in rows:
            plain = folder / "day_0"
            write_log(plain, size)
            often = size == repeated_rows
            files = [plain, packed(plain)] if often else [plain]
            for _ in range(repeats if often else 1):
                for file in files:
                    for data_set in ("criteo_kaggle", "criteo_terabyte"):
                        kind = "gz" if file.suffix == ".gz" else "text"
                        times.setdefault((data_set, kind, size), []).append(_apart(data_set, file, folder / "out"))
            for file in files:
                file.unlink()
    return [_row(*key, own_times) for key, own_times in times.items()]


def _apart(data_set: str, source: Path, target: Path) -> tuple[float, int]:
    """Run ``one`` in a process of its own, whose memory is nobody else's."""
    seconds, peak = _said("--one", data_set, str(source), str(target))
    shutil.rmtree(target)
    return float(seconds), int(peak)


def _said(*words: str) -> list[str]:
    command = [sys.executable, __file__, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True, env=dict(os.environ)).stdout.split()


def count(engine: str, folder: Path, target: Path) -> tuple[float, float, int]:
    """Return the CPU seconds, the seconds and the peak memory in bytes of one count of all values of a log.

    On the cores that this process may use. That of ``shardbench`` is the whole profile: rows, bags and profiles.
    """
    names, files = HEADER[1:], sorted(str(path) for path in folder.iterdir())
    workers = len(os.sched_getaffinity(0))
    module = importlib.import_module(engine)
    start = time.perf_counter()
    if engine == "duckdb":
        database = module.connect(config={"threads": workers})
        for name in names:
            database.execute(f"SELECT {name}, count(*) FROM read_parquet({files}) GROUP BY 1").fetchnumpy()
    elif engine == "polars":
        for name in names:
            module.scan_parquet(files).group_by(name).len().collect(engine="streaming")
    else:
        tables = [ListedTable(name=name) for name in names]
        profile_log(find_logs([str(folder)]), target, tables, cells=Cells(), cut=SampleSplit())
    took_s = time.perf_counter() - start
    own, others = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = own.ru_utime + own.ru_stime + others.ru_utime + others.ru_stime
    # What is known of the others is the peak of the largest one.
    return cpu_s, took_s, (own.ru_maxrss + (workers if workers > 1 else 0) * others.ru_maxrss) * 1024


def measure_profile(rows: int) -> Iterator[dict[str, object]]:
    """Yield a row for each engine that is installed and each number of cores."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "log"
        folder.mkdir()
        write_parts(folder, rows)
        for workers in WORKERS:
            for engine in ENGINES:
                if importlib.util.find_spec(engine) is None:
                    continue
                cpu_s, took_s, peak = _said("--count", engine, str(workers), str(folder), str(Path(name) / "out"))
                shutil.rmtree(Path(name) / "out", ignore_errors=True)
                yield {
                    "rows": rows, "files": FILES, "engine": engine, "workers": workers,
                    "cpu_s": round(float(cpu_s), 1), "wall_s": round(float(took_s), 1), "peak_bytes": int(peak),
                }  # fmt: skip


def _row(data_set: str, kind: str, size: int, times: list[tuple[float, int]]) -> dict[str, object]:
    rates = sorted(size / seconds for seconds, _ in times)
    return {
        "data_set": data_set, "file": kind, "rows": size, "repeats": len(times),
        "rows_per_cpu_s": round(statistics.median(rates)), "least": round(rates[0]), "most": round(rates[-1]),
        "peak_bytes": max(peak for _, peak in times),
    }  # fmt: skip


if __name__ == "__main__":
    # Two words begin the processes that are measured.
    if sys.argv[1] == "--one":
        print(*one(sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4])))
    elif sys.argv[1] == "--count":
        os.sched_setaffinity(0, range(int(sys.argv[3])))
        print(*count(sys.argv[2], Path(sys.argv[4]), Path(sys.argv[5])))
    else:
        write_tables(
            {
                "prepare.csv": lambda _: rows_csv(measure((MILLION, 10 * MILLION))),
                "profile.csv": lambda _: rows_csv(measure_profile(10 * MILLION)),
            }
        )
