"""Turns Yambda as it is downloaded into arrays of all users' events, and the runs of each day among them.

A run is what one user did on one day. Histories are not written: a sample's lies among the events of its user before
it. The file is read part by part; beside a part, some 20 bytes a run are held.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import NonNegativeInt

from shardbench.base.arrays import Ints, mapped
from shardbench.base.atomic import whole_folder
from shardbench.base.errors import BadInput
from shardbench.datasets.preparation.log_reader import LogFiles
from shardbench.datasets.preparation.prepared import NOTE, ArrayFile, Note, write_model
from shardbench.datasets.preparation.side_by_side import Tell
from shardbench.datasets.yambda_like import POOLS, ROWS
from shardbench.workloads.value_hash import is_text

Size = Literal["50m", "500m", "5b"]

EVENTS = "multi_event.parquet"
MAPPINGS = {"artist_id": "artist_item_mapping.parquet", "album_id": "album_item_mapping.parquet"}
EXPECTED = (
    f"{EVENTS} of flat/50m, flat/500m or flat/5b of Yambda, sorted by uid and timestamp, and its "
    f"{' and '.join(MAPPINGS.values())}"
)
DAY = 86_400
"""Seconds of a day."""
LISTENED_PCT = 50
"""Share of a track, in percent, from which on it was listened to; played less, it was skipped."""
EVENT_TYPES = {"listen": 0, "like": 2, "dislike": POOLS, "unlike": POOLS, "undislike": POOLS}
"""Kind of each type of event, in the order of the pools; listens of a skipped track are the second kind."""
EVENT_ARRAYS: dict[str, type[np.generic]] = {
    "items": np.int32,
    "kinds": np.uint8,
    "hours": np.uint8,
    "organic": np.uint8,
}
"""Arrays [events], by user and time."""
RUNS, STARTS = "runs", "starts"
"""int64 [runs, 3], day by day: the first event of the run and of its user, and the user's row; and int64 [runs + 1]:
how many samples come before each run."""
_LIMITS = {"uid": ROWS["uid"], "item_id": ROWS["item_id"], "timestamp": 1 << 32, "is_organic": 2}
_SECONDS = 32
"""Bits of a time."""
_SLICE = 1 << 20
"""Runs that are put in order at once."""


class Prepared(Note):
    """What ``prepared.json`` says of a prepared folder; its samples are all events."""

    size: Size
    runs: NonNegativeInt
    samples_by_day: tuple[NonNegativeInt, ...]
    """Events of each day, of which the first one and the last one have some."""


def array_file(name: str) -> str:
    """Return the name of the file of an array."""
    return f"{name}.npy"


def prepare(
    files: Sequence[Path],
    target: Path,
    *,
    mode: str | None = None,
    rows: int | None = None,
    seed: int = 0,
    progress: Tell = lambda read_bytes, rows: None,
) -> Prepared:
    """Write the folder ``target`` of the three files of Yambda, in any order, and return its description.

    Ids are rows of the benchmark's tables: ``mode`` and ``rows`` must be None, and the seed changes nothing.
    ``progress`` is called with 0 and the events read since the last call. Nothing is left of a failure; raises BadInput
    that says what the files should be.
    """
    if mode is not None or rows is not None:
        raise BadInput("its ids are rows of published tables: leave mode and rows out")
    try:
        named, size = _named(files)
        with whole_folder(target) as folder:
            owners = [_owners(named[file], column, folder) for column, file in MAPPINGS.items()]
            arrays, days = _read(named[EVENTS], folder, progress)
            runs, by_day = _by_day(folder, days)
            prepared = Prepared(
                samples=sum(by_day),
                seed=seed,
                size=size,
                runs=len(days),
                samples_by_day=by_day,
                checksums={file.path.name: file.close() for file in (*owners, *arrays, *runs)},
            )
            write_model(folder / NOTE, prepared)
    except BadInput as error:
        raise BadInput(f"{error}; expected: {EXPECTED}") from error
    return prepared


def _named(files: Sequence[Path]) -> tuple[dict[str, Path], Size]:
    """Return the files by their names, and the size that the folder of the events is called by."""
    named = {path.name: path for path in files}
    if len(files) != len(named) or named.keys() != {EVENTS, *MAPPINGS.values()}:
        raise BadInput(f"{', '.join(path.name for path in files)} are not the three files"[:200])
    size = named[EVENTS].resolve().parent.name
    if size not in get_args(Size):
        raise BadInput(f"{EVENTS} is in a folder '{size}', which is no size of the data set"[:200])
    return named, cast(Size, size)


def _owners(path: Path, column: str, folder: Path) -> ArrayFile:
    """Write the artist or album of every item int32 [items]: the first that the file has of it, 0 where it has none."""
    owners = np.zeros(ROWS["item_id"], dtype=np.int32)
    numbers = ["item_id", column]
    for name, batch in LogFiles(files=(path,)).batches(numbers, numbers):
        items, first = np.unique(_whole(batch, "item_id", ROWS["item_id"], name), return_index=True)
        new = owners[items] == 0
        owners[items[new]] = _whole(batch, column, ROWS[column], name)[first[new]]
    file = ArrayFile(folder / array_file(column), owners.dtype)
    file.append(owners)
    return file


def _read(path: Path, folder: Path, progress: Tell) -> tuple[list[ArrayFile], NDArray[np.uint16]]:
    """Write the events and, user by user, their runs; return the events' files, and the day of each run."""
    arrays = {name: ArrayFile(folder / array_file(name), kind) for name, kind in EVENT_ARRAYS.items()}
    runs = ArrayFile(_by_user(folder), np.int64, (3,))
    days: list[NDArray[np.uint16]] = []
    last, begin, events = -1, 0, 0
    columns = [*_LIMITS, "event_type", "played_ratio_pct"]
    for name, batch in LogFiles(files=(path,)).batches(columns, columns):
        uid, items, seconds, organic = (_whole(batch, column, limit, name) for column, limit in _LIMITS.items())
        for array, values in zip(arrays.values(), (items, _kinds(batch, name), seconds // 3600 % 24, organic)):
            array.append(values)
        when = (uid << _SECONDS) + seconds
        before = np.append(last, when)[:-1]
        if (when < before).any():
            at = events + int(np.argmax(when < before))
            raise BadInput(f"{name}: event {at} is of an earlier user or time than the one before it")
        of_day, before_day = seconds // DAY, (before & ((1 << _SECONDS) - 1)) // DAY
        is_user = uid != before >> _SECONDS
        number = np.arange(events, events + len(uid))
        begins = np.maximum.accumulate(np.where(is_user, number, begin))
        is_run = is_user | (of_day != before_day)
        runs.append(np.stack([number, begins, uid], axis=1)[is_run])
        days.append(of_day[is_run].astype(np.uint16))
        if len(uid):
            last, begin, events = int(when[-1]), int(begins[-1]), events + len(uid)
        progress(0, len(uid))
    if not events:
        raise BadInput(f"{path.name} has no event")
    # A last one that no sample is of, so that every run ends where the next one begins.
    runs.append(np.array([[events, events, 0]]))
    runs.close()
    return list(arrays.values()), np.concatenate(days)


def _by_day(folder: Path, days: NDArray[np.uint16]) -> tuple[list[ArrayFile], tuple[int, ...]]:
    """Write the runs day by day, users of a day in order; return their files, and the samples of each day."""
    path = _by_user(folder)
    by_user = mapped(path)
    first_day = int(days.min())
    samples = np.zeros(int(days.max()) - first_day + 1, dtype=np.int64)
    runs, starts = (
        ArrayFile(folder / array_file(RUNS), np.int64, (3,)),
        ArrayFile(folder / array_file(STARTS), np.int64),
    )
    starts.append(np.zeros(1, dtype=np.int64))
    order = np.argsort(days, kind="stable")
    for start in range(0, len(order), _SLICE):
        at = order[start : start + _SLICE]
        lengths = by_user[at + 1, 0] - by_user[at, 0]
        runs.append(by_user[at])
        starts.append(np.cumsum(lengths) + int(samples.sum()))
        np.add.at(samples, days[at].astype(np.int64) - first_day, lengths)
    path.unlink()
    return [runs, starts], tuple(samples.tolist())


def _by_user(folder: Path) -> Path:
    return folder / array_file("by_user")


def _whole(batch: pa.RecordBatch, column: str, limit: int, name: str) -> Ints:
    """Return a column of whole numbers in [0, ``limit``), none of them missing, int64 [rows]; raises BadInput."""
    values = batch.column(column)
    if values.null_count or not (pa.types.is_integer(values.type) or pa.types.is_boolean(values.type)):
        raise BadInput(f"{name} column {column}: values are {values.type}, or missing: all must be whole numbers")
    # A number beyond int64 becomes one below 0.
    numbers: Ints = values.cast(pa.int64(), safe=False).to_numpy(zero_copy_only=False)
    wrong = (numbers < 0) | (numbers >= limit)
    if wrong.any():
        raise BadInput(f"{name} column {column}: {numbers[wrong][0]} is not in 0..{limit - 1}")
    return numbers


def _kinds(batch: pa.RecordBatch, name: str) -> Ints:
    """Return the kind of every event int64 [rows]; raises BadInput for types that the data set does not have."""
    types, played = batch.column("event_type"), batch.column("played_ratio_pct")
    if not (pa.types.is_integer(played.type) or pa.types.is_floating(played.type)):
        raise BadInput(f"{name} column played_ratio_pct: values are {played.type}: all must be numbers")
    texts = types.dictionary_decode() if pa.types.is_dictionary(types.type) else types
    if not is_text(texts.type):
        raise BadInput(f"{name} column event_type: values are {texts.type}: all must be texts")
    texts = texts.cast(pa.string())
    codes = pc.index_in(texts, value_set=pa.array(EVENT_TYPES, pa.string()))
    if codes.null_count:
        strange = texts.filter(pc.is_null(codes))[0]
        raise BadInput(f"{name} column event_type: {strange} is none of {', '.join(EVENT_TYPES)}"[:200])
    kinds = np.array(list(EVENT_TYPES.values()))[codes.to_numpy(zero_copy_only=False)]
    is_short = pc.less(pc.fill_null(played, 0), LISTENED_PCT).to_numpy(zero_copy_only=False)
    return np.where((kinds == 0) & is_short, 1, kinds)
