"""Preparing logs of Criteo's form: rows per CPU second, and peak memory at one and at ten million rows.

``python tools/prepare_scale.py [OUT.csv] [ROWS ...]`` writes made-up files (labels, integers and categories
of ``criteo_like``, form kaggle, columns independent) into a temporary folder, prepares each in a process of its own as
Criteo Kaggle and as Criteo Terabyte, a million rows several times in turn, plain and packed, other numbers once, and
writes the median rate with its range, and the peak memory of the process. Making the files is not timed.
"""

import gc
import gzip
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv

from shardbench.datasets import criteo_terabyte
from shardbench.datasets.criteo_like import CONFIG
from shardbench.datasets.preparation.criteo_prepare import CATEGORIES, HEADER, INTEGERS, prepare
from shardbench.datasets.preparation.downloads import prepare_download
from shardbench.workloads.trace import Split
from shardbench.workloads.value_hash import mixed

MILLION = 10**6
REPEATS = 5
BATCH = 1 << 16
COLUMNS = ("data_set", "file", "rows", "repeats", "rows_per_cpu_s", "least", "most", "peak_bytes")
_HEX = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)


def hexadecimals(ranks: np.ndarray, lengths: np.ndarray, table: int) -> pa.Array:
    """Return eight hex digits for each rank, other ones in each table; a cell of no length is empty."""
    words = (mixed(ranks, table) >> np.uint64(32)).astype(np.uint32)
    digits = _HEX[(words[:, None] >> np.arange(28, -4, -4, dtype=np.uint32)) & 15]
    ends = np.concatenate([[0], 8 * np.cumsum(lengths)]).astype(np.int32)
    return pa.StringArray.from_buffers(len(lengths), pa.py_buffer(ends), pa.py_buffer(digits.tobytes()))


def write_log(path: Path, rows: int) -> None:
    """Write a text of Criteo's form with ``rows`` lines; cells are missing as often as in the published sample."""
    workload = CONFIG(batch_size=BATCH, column_dependence=0).build(Path())
    generator = np.random.default_rng(0)
    options = pyarrow.csv.WriteOptions(include_header=False, delimiter="\t", quoting_style="none")
    schema = pa.schema([(name, pa.int64() if i <= INTEGERS else pa.string()) for i, name in enumerate(HEADER)])
    with pyarrow.csv.CSVWriter(path, schema, write_options=options) as file:
        for batch in range(-(-rows // BATCH)):
            size = min(BATCH, rows - batch * BATCH)
            columns = [pa.array(generator.integers(0, 2, size))]
            for _ in range(INTEGERS):
                counts = generator.zipf(1.5, size) % 10**5
                columns.append(pa.array(counts, mask=generator.random(size) < 0.2))
            for table in range(CATEGORIES):
                bags = workload.bags(Split.TRAIN, batch, table).samples(0, size)
                columns.append(hexadecimals(bags.values, bags.lengths, table))
            file.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


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
    command = [sys.executable, __file__, "--one", data_set, str(source), str(target)]
    process = subprocess.run(command, check=True, capture_output=True, text=True, env=dict(os.environ))
    shutil.rmtree(target)
    seconds, peak = process.stdout.split()
    return float(seconds), int(peak)


def _row(data_set: str, kind: str, size: int, times: list[tuple[float, int]]) -> dict[str, object]:
    rates = sorted(size / seconds for seconds, _ in times)
    middle = (round(rate) for rate in (statistics.median(rates), rates[0], rates[-1]))
    return dict(zip(COLUMNS, (data_set, kind, size, len(times), *middle, max(peak for _, peak in times))))


def as_csv(rows: list[dict[str, object]]) -> str:
    """Return the rows as CSV."""
    return "\n".join([",".join(COLUMNS), *(",".join(str(row[name]) for name in COLUMNS) for row in rows)]) + "\n"


def main(arguments: list[str]) -> None:
    """Run the command line; with ``--one`` this is one of the processes that are measured."""
    if arguments[:1] == ["--one"]:
        seconds, peak = one(arguments[1], Path(arguments[2]), Path(arguments[3]))
        print(seconds, peak)
        return
    sizes = tuple(int(size) for size in arguments[1:]) or (MILLION, 10 * MILLION)
    text = as_csv(measure(sizes))
    if arguments:
        Path(arguments[0]).write_text(text)
    print(text, end="")


if __name__ == "__main__":
    main(sys.argv[1:])
