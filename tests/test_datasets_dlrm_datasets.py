"""Meta's file format, on a small made file."""

import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from fits.synthetic import published

from shardbench.base.errors import BadInput
from shardbench.datasets.cards.card import load_card
from shardbench.datasets.dlrm_datasets import CONFIG, DlrmDatasets, load_triple
from shardbench.workloads.trace import Split

TABLES, SAMPLES = 4, 40
FILE = "made.pt"


def triple(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, 4, (TABLES, SAMPLES))
    lengths[2] = 0
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    indices = generator.integers(0, 300, offsets[-1])
    return torch.from_numpy(indices), torch.from_numpy(offsets), torch.from_numpy(lengths)


def save(folder: Path, content: Any, *, packed: bool = False, zipped: bool = True) -> Path:
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=zipped)
    path = folder / (FILE + (".gz" if packed else ""))
    path.write_bytes(gzip.compress(buffer.getvalue()) if packed else buffer.getvalue())
    return path


def build(folder: Path, **fields: Any) -> DlrmDatasets:
    settings = {"file": FILE, "file_tables": TABLES, "tables": TABLES, "batch_size": 5, "test_batches": 4} | fields
    return CONFIG(**settings).build(folder)


@pytest.mark.parametrize(("packed", "zipped"), [(True, True), (False, True), (False, False), (True, False)])
def test_lookups_are_those_of_the_file(tmp_path: Path, packed: bool, zipped: bool) -> None:
    indices, offsets, lengths = (t.numpy() for t in triple())
    path = save(tmp_path, triple(), packed=packed, zipped=zipped)
    workload = build(tmp_path, file=path.name)
    assert [t.name for t in workload.tables] == ["t000", "t001", "t002", "t003"]
    for table in range(TABLES):
        mine = indices[offsets[table * SAMPLES] : offsets[(table + 1) * SAMPLES]]
        assert workload.tables[table].rows == max(100, mine.max(initial=0) + 1)
        ranking = workload.ranking(table)
        for batch in range(4):
            bags = workload.bags(Split.TEST, batch, table)
            first = table * SAMPLES + 20 + batch * 5
            np.testing.assert_array_equal(bags.lengths, lengths.ravel()[first : first + 5])
            np.testing.assert_array_equal(bags.values, ranking(indices[offsets[first] : offsets[first + 5]]))
        train = indices[offsets[table * SAMPLES] : offsets[table * SAMPLES + 20]]
        assert workload.profiles[table].lookups == len(train)
        assert workload.profiles[table].present == np.count_nonzero(lengths[table, :20])


def test_selected_tables_keep_their_lookups_and_fingerprint_follows_the_data(tmp_path: Path) -> None:
    save(tmp_path, triple())
    whole, part = build(tmp_path), build(tmp_path, pool="test", tables=2, dims=(8, 16))
    other = int(part.tables[1].name[1:])
    np.testing.assert_array_equal(part.bags(Split.TEST, 1, 1).values, whole.bags(Split.TEST, 1, other).values)
    before = whole.fingerprint
    assert build(tmp_path).fingerprint == before
    save(tmp_path, triple(1))
    assert build(tmp_path).fingerprint != before


def changed(part: int, change: Any) -> list[torch.Tensor]:
    parts = [t.clone() for t in triple()]
    parts[part] = change(parts[part])
    return parts


def _set(index: int, value: int) -> Any:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor.view(-1)[index] = value
        return tensor

    return change


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (changed(1, _set(3, 999)), "offsets are not the running sum"),
        (changed(1, lambda t: t[:-2]), "offsets are not the running sum"),
        (changed(0, lambda t: t[:-1]), "lengths add up to"),
        (changed(0, _set(2, -1)), "index 2 is negative"),
        (changed(2, _set(1, -1)), "bag 1 has a negative length"),
        (changed(2, lambda t: t.reshape(-1)[:-1]), "do not divide among 4 tables"),
        (changed(2, lambda t: t.reshape(8, 20)), "lengths are of 8 tables"),
        (changed(0, lambda t: t.double()), "must be whole numbers"),
        (list(triple())[:2], "expected three tensors"),
        ({"a": 1}, "expected three tensors"),
    ],
)
def test_bad_shapes_are_refused_in_one_line(tmp_path: Path, content: Any, message: str) -> None:
    path = save(tmp_path, content)
    with pytest.raises(BadInput, match=message) as caught:
        load_triple(path, TABLES)
    assert "\n" not in str(caught.value)


def test_flat_lengths_and_offsets_without_the_last_end_are_taken(tmp_path: Path) -> None:
    indices, offsets, lengths = triple()
    got = load_triple(save(tmp_path, (indices, offsets[:-1], lengths.reshape(-1))), TABLES)
    np.testing.assert_array_equal(got[1], offsets.numpy())


class Sneaky:
    def __reduce__(self) -> Any:
        return (print, ("never",))


def test_missing_damaged_and_unsafe_files_say_where_to_get_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadInput, match=r"no file .*facebookresearch/dlrm_datasets"):
        build(tmp_path)
    for packed in (False, True):
        path = save(tmp_path, triple(), packed=packed)
        whole = path.read_bytes()
        for content in (whole[: len(whole) // 2], b"a git-lfs pointer"):
            path.write_bytes(content)
            with pytest.raises(BadInput, match="not a readable torch file") as caught:
                build(tmp_path, file=path.name)
            assert "\n" not in str(caught.value)
    with pytest.raises(BadInput, match="not a readable torch file"):
        load_triple(save(tmp_path, Sneaky()), TABLES)
    assert "never" not in capsys.readouterr().out


def test_card_restates_the_published_numbers() -> None:
    numbers, facts = load_card("dlrm_datasets").numbers, published()
    pairs = {"tables": "tables", "samples": "batch_size", "lookups": "lookups", "distinct_rows": "distinct_rows"}
    assert {k: numbers[k] for k in pairs} == {k: facts[v] for k, v in pairs.items()}
    assert numbers["lookups"] / numbers["distinct_rows"] == pytest.approx(numbers["mean_reuse"], abs=0.05)
    assert CONFIG().file_tables == numbers["tables"]
