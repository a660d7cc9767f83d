"""Text traces: parsing, refusals by line, the built-in real traces, splits."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import zstandard

from shardbench.base.errors import BadInput
from shardbench.datasets.cards.card import load_card
from shardbench.datasets.preparation import log_reader
from shardbench.datasets.trace_file import CONFIG, read_indices
from shardbench.workloads.kinds import workload_config
from shardbench.workloads.trace import Split

NOWHERE = Path("nowhere")


@pytest.mark.parametrize("pack", [None, gzip.compress, zstandard.compress])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_indices_of_plain_and_packed_files(tmp_path: Path, pack: Callable[[bytes], bytes] | None, end: str) -> None:
    content = end.join(["0", "12", "007", "499999"]).encode()
    suffix = {None: "", gzip.compress: ".gz", zstandard.compress: ".zst"}[pack]
    path = tmp_path / f"t.txt{suffix}"
    path.write_bytes(content if pack is None else pack(content))
    assert read_indices(path, 500_000).tolist() == [0, 12, 7, 499_999]


@pytest.mark.parametrize(
    ("line", "limit"),
    [
        ("-5", None),
        ("x", None),
        ("", None),
        ("1.0", None),
        ("9" * 19, None),
        (str(2**40), None),
        (str(10**18 - 1), 1000),
        ("100", 100),
        ("1 2", None),
        ("caf\u00e9", None),
    ],
)
def test_bad_index_is_refused_with_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, limit: int | None
) -> None:
    path = tmp_path / "bad.txt"
    path.write_text("1\n2\n3\n" + line + "\n5\n", encoding="utf-8")
    for size in (24, 1 << 20):
        monkeypatch.setattr(log_reader, "BLOCK_BYTES", size)
        monkeypatch.setattr(log_reader, "BATCH_ROWS", 1)
        with pytest.raises(BadInput, match=r"^bad\.txt line 4: ") as caught:
            read_indices(path, limit)
        assert "\n" not in str(caught.value)
        assert str(caught.value).isascii()


def test_missing_empty_and_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no file"):
        read_indices(tmp_path / "none.txt")
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(BadInput, match="Empty CSV file"):
        read_indices(tmp_path / "empty.txt")
    for name, packed in (
        ("a.gz", gzip.compress(b"1\n" * 9999)),
        ("a.zst", zstandard.compress(bytes(range(48, 58)) * 999)),
    ):
        for content in (packed[: len(packed) - 9], b"not packed at all"):
            (tmp_path / name).write_bytes(content)
            with pytest.raises(BadInput, match=f"{name} cannot be read"):
                read_indices(tmp_path / name)


def test_builtin_traces_have_the_cards_numbers() -> None:
    numbers = load_card("trace").numbers
    workload = CONFIG().build(NOWHERE)
    indices = workload._indices
    assert [len(i) for i in indices] == list(numbers["lookups"])
    assert [len(np.unique(i)) for i in indices] == list(numbers["distinct_rows"])
    assert [t.rows for t in workload.tables] == list(numbers["rows"])
    assert indices[0][:3].tolist() == [399_535, 452_449, 427_171]


def test_ids_are_ranked_by_the_train_split(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("\n".join(map(str, [7, 7, 3, 3, 3, 9, 5, 9, 3, 7, 1, 1])))
    workload = CONFIG(files=("a.txt",), batch_size=1, test_batches=3, pooling=2, dim=4).build(tmp_path)
    (table,) = workload.tables
    assert (table.name, table.rows, table.dim) == ("t0_a", 10, 4)
    (profile,) = workload.profiles
    assert (profile.counts, profile.row_counts, profile.samples, profile.present) == ((3, 2, 1), (1, 1, 1), 3, 3)
    train = [workload.bags(Split.TRAIN, i, 0).values.tolist() for i in range(4)]
    assert train == [[1, 1], [0, 0], [0, 2], [1, 1]]
    # Never-seen rows follow in id order: 0 1 2 4 5 6 8 become ranks 3 4 5 6 7 8 9.
    assert [workload.bags(Split.TEST, i, 0).values.tolist() for i in range(3)] == [[7, 2], [0, 1], [4, 4]]


def test_profile_is_the_whole_train_part() -> None:
    workload = CONFIG().build(NOWHERE)
    for table, profile in enumerate(workload.profiles):
        assert profile.lookups == workload.train_samples * 8
        bags = workload.bags(Split.TEST, 0, table)
        assert (np.diff(bags.offsets) == 8).all()


def test_bad_configurations(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no built-in trace 'high'"):
        CONFIG(files=("builtin:high",)).build(tmp_path)
    with pytest.raises(BadInput, match="give one per table"):
        CONFIG(rows=(500_000,)).build(tmp_path)
    with pytest.raises(BadInput, match="lower batch_size"):
        CONFIG(batch_size=100_000).build(tmp_path)
    with pytest.raises(BadInput, match="test samples do not fill 90 batches"):
        CONFIG(test_batches=90).build(tmp_path)


def write(path: Path, numbers: list[int]) -> str:
    path.write_text("\n".join(map(str, numbers)) + "\n")
    return path.name


def test_bags_of_recorded_lengths(tmp_path: Path) -> None:
    a, b = write(tmp_path / "a.txt", [5, 5, 6, 7, 5, 0, 1]), write(tmp_path / "b.txt", [1, 2, 3, 4])
    lengths = write(tmp_path / "al.txt", [3, 0, 1, 2, 0, 1]), write(tmp_path / "bl.txt", [0, 1, 1, 1, 1, 0, 0])
    config = CONFIG(files=(a, b), lengths=lengths, dims=(8, 16), batch_size=3, test_batches=1)
    workload = config.build(tmp_path)
    assert [(t.rows, t.dim) for t in workload.tables] == [(8, 8), (5, 16)]
    assert workload.samples == 6
    assert workload.bags(Split.TRAIN, 0, 0).lengths.tolist() == [3, 0, 1]
    assert workload.bags(Split.TEST, 0, 0).lengths.tolist() == [2, 0, 1]
    # Train asks for 5 5 6 7: rank 0 is row 5; rows 0 and 1 were never seen.
    assert workload.bags(Split.TEST, 0, 0).values.tolist() == [0, 3, 4]
    assert workload.bags(Split.TEST, 0, 1).lengths.tolist() == [1, 1, 0]
    assert (workload.profiles[0].present, workload.profiles[0].samples) == (2, 3)
    write(tmp_path / "al.txt", [3, 0, 2, 1, 0, 1])
    assert config.build(tmp_path).fingerprint != workload.fingerprint


def test_bag_length_of_each_table(tmp_path: Path) -> None:
    files = write(tmp_path / "a.txt", list(range(12))), write(tmp_path / "b.txt", list(range(5)))
    workload = CONFIG(files=files, poolings=(3, 1), batch_size=2, test_batches=1).build(tmp_path)
    assert [workload.bags(Split.TEST, 0, i).lengths.tolist() for i in range(2)] == [[3, 3], [1, 1]]


def test_bad_lengths_and_widths(tmp_path: Path) -> None:
    file, short = write(tmp_path / "a.txt", [1, 2, 3]), write(tmp_path / "l.txt", [1, 1])
    with pytest.raises(BadInput, match=r"^l\.txt: bag lengths add up to 2 but there are 3 lookups$"):
        CONFIG(files=(file,), lengths=(short,)).build(tmp_path)
    write(tmp_path / "l.txt", [1, -1, 3])
    with pytest.raises(BadInput, match=r"^l\.txt line 2: '-1' is not a bag length below 4"):
        CONFIG(files=(file,), lengths=(short,)).build(tmp_path)
    with pytest.raises(BadInput, match="not both"):
        CONFIG(files=(file,), lengths=(short,), poolings=(1,)).build(tmp_path)
    for field, few in (("dims", (4,)), ("poolings", (4,)), ("lengths", (short,))):
        with pytest.raises(BadInput, match=f"2 (files|tables) but 1 {field}: give one per (file|table)"):
            CONFIG(**{field: few}).build(tmp_path)
    for field, wrong in (("dims", 6), ("rows", 2**40 + 1)):
        with pytest.raises(BadInput, match=f"suite s: workload n: {field}.0: ") as caught:
            workload_config({"dataset": "trace", "name": "n", field: [wrong, 4]}, "suite s")
        assert "\n" not in str(caught.value)
