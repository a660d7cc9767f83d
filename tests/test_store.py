import errno
import multiprocessing
import os
from pathlib import Path

import pytest
import records as make
from hypothesis import given, settings
from hypothesis import strategies as st

from shardbench.base import jsonlines
from shardbench.base.errors import BadInput
from shardbench.base.jsonlines import digested, undigested
from shardbench.base.serialise import from_json, to_json
from shardbench.model.strategy import Role
from shardbench.records.record import Record
from shardbench.records.store import trial_store
from shardbench.records.trial import Outcome


@pytest.fixture
def store(tmp_path):
    return trial_store(tmp_path, "quick")


def test_absent_file_is_no_records(store):
    assert store.read() == []
    assert not store.path.exists()


@pytest.mark.parametrize("target", ["pipe", "/dev/zero"])
def test_what_never_ends_is_not_read(store, target):
    store.path.parent.mkdir(parents=True)
    os.mkfifo(store.path) if target == "pipe" else store.path.symlink_to(target)
    with pytest.raises(BadInput, match="is a folder, a pipe or a device"):
        store.read()


def test_order_is_kept_and_the_last_of_a_key_counts(store):
    first, other, again = make.failed(Outcome.OOM), make.ok("other"), make.ok()
    make.kept(store.path.parents[1], first, other, again)
    assert store.read() == [first, other, again]
    assert store.latest() == {again.key: again, other.key: other}


def test_truncated_file_is_refused_and_left_alone(store):
    store.append(make.ok("a"))
    store.append(make.ok("b"))
    data = store.path.read_bytes()[:-10]
    store.path.write_bytes(data)
    with pytest.raises(BadInput, match="line 2 is truncated") as caught:
        store.read()
    assert "\n" not in str(caught.value)
    with pytest.raises(BadInput, match="truncated"):
        store.append(make.ok("c"))
    assert store.path.read_bytes() == data


def test_a_torn_line_is_set_aside_and_nothing_else(store):
    assert store.set_aside() is None
    store.append(make.ok("a"))
    assert store.set_aside() is None
    whole = store.path.read_bytes()
    store.append(make.ok("b"))
    torn = store.path.read_bytes()[len(whole) : -10]
    store.path.write_bytes(whole + torn)
    aside = store.set_aside()
    assert aside.read_bytes() == torn
    assert aside.parent == store.path.parent
    assert store.path.read_bytes() == whole
    assert len(store.read()) == 1
    store.append(make.ok("b"))
    assert [record.spec.strategy for record in store.read()] == ["a", "b"]


@pytest.mark.parametrize("taken", [0, 7])
def test_without_room_nothing_of_a_line_stays(store, monkeypatch, taken):
    store.append(make.ok("a"))
    before = store.path.read_bytes()
    with monkeypatch.context() as full:
        if taken:
            full.setattr(jsonlines.os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left")))
        else:
            full.setattr(jsonlines, "digested", lambda line: Short(digested(line)))
        with pytest.raises(BadInput, match=r"No space left.*the trial just done is not recorded, all before it"):
            store.append(make.ok("b"))
    assert store.path.read_bytes() == before
    store.append(make.ok("b"))
    assert [record.spec.strategy for record in store.read()] == ["a", "b"]


class Short(bytes):
    """A line that the system takes a part of: its length is more than what is written."""

    def __add__(self, other):
        return Short(bytes(self) + other)

    def __len__(self):
        return super().__len__() + 1


@settings(max_examples=300)
@given(st.data())
def test_no_flipped_bit_is_accepted(data):
    line = digested(to_json(make.ok("a")).encode())
    bit = data.draw(st.integers(0, 8 * len(line) - 1))
    flipped = bytearray(line)
    flipped[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadInput, match="digest"):
        undigested(bytes(flipped), "here")
    assert undigested(line, "here") == to_json(make.ok("a")).encode()


def test_an_edited_line_is_refused_by_its_number_and_what_to_do(store):
    store.append(make.ok("a"))
    store.append(make.ok("b"))
    store.path.write_text(store.path.read_text().replace('"strategy":"b"', '"strategy":"z"'))
    with pytest.raises(BadInput, match=r"line 2: .*edited.*; restore it, or remove it, and the next run") as caught:
        store.read()
    assert "\n" not in str(caught.value)


def test_unknown_field_is_refused(store):
    line = to_json(make.ok()).replace('"schema_version"', '"bonus":1,"schema_version"')
    store.path.parent.mkdir()
    store.path.write_bytes(digested(line.encode()) + b"\n")
    with pytest.raises(BadInput, match="line 1: bonus"):
        store.read()


def _append_some(folder: str, name: str) -> None:
    store = trial_store(Path(folder), "quick")
    for repeat in range(20):
        store.append(make.ok(name, repeat=repeat))


def test_several_processes_append_whole_lines(tmp_path, store):
    context = multiprocessing.get_context("fork")
    names = ["a", "b", "c", "d"]
    writers = [context.Process(target=_append_some, args=(str(tmp_path), name)) for name in names]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
        assert writer.exitcode == 0
    found = store.read()
    assert sorted((r.spec.strategy, r.spec.repeat) for r in found) == [(n, i) for n in names for i in range(20)]


def test_removed_lines_go_whole(store):
    for name in ("a", "b", "a"):
        store.append(make.ok(name, repeat=len(store.read())))
    line = store.path.read_bytes().splitlines(keepends=True)[1]
    for _ in range(2):
        store.remove(lambda record: record.spec.strategy == "a")
        assert [path.read_bytes() for path in store.path.parent.iterdir()] == [line]
    store.remove(lambda record: True)
    assert not list(store.path.parent.iterdir())
    store.remove(lambda record: True)
    store.append(make.ok("c"))
    assert [record.spec.strategy for record in store.read()] == ["c"]


def test_a_truncated_line_is_set_aside_before_others_are_removed(store):
    store.append(make.ok("a"))
    whole = store.path.read_bytes()
    store.path.write_bytes(whole + whole[:-10])
    store.remove(lambda record: record.spec.strategy == "b")
    assert store.path.read_bytes() == whole
    (aside,) = store.path.parent.glob("*.torn-*")
    assert aside.read_bytes() == whole[:-10]


def _remove_some(folder: str) -> None:
    for _ in range(40):
        trial_store(Path(folder), "quick").remove(lambda record: record.spec.repeat % 2 == 0)


def test_nothing_else_is_lost_between_removing_and_appending(tmp_path, store):
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_append_some, args=(str(tmp_path), name)) for name in "abc"]
    remover = context.Process(target=_remove_some, args=(str(tmp_path),))
    for process in (*writers, remover):
        process.start()
    for process in (*writers, remover):
        process.join(60)
        assert process.exitcode == 0
    store.remove(lambda record: record.spec.repeat % 2 == 0)
    found = [(record.spec.strategy, record.spec.repeat) for record in store.read()]
    assert sorted(found) == [(n, i) for n in "abc" for i in range(1, 20, 2)]


times = st.floats(min_value=0, max_value=1e9)
many = st.lists(times, min_size=1, max_size=4).map(tuple)
counts = st.dictionaries(st.sampled_from(sorted(make.COLLECTIVES)), st.tuples(times, times))


@st.composite
def any_record(draw):
    trial = {"seed": draw(st.integers(0, 9)), "repeat": draw(st.integers(0, 9)), "batch_size": draw(st.integers(1, 99))}
    bad = draw(st.sampled_from([None, *(outcome for outcome in Outcome if outcome is not Outcome.OK)]))
    if bad is not None:
        return make.failed(bad, rank=draw(st.none() | st.integers(0, 9)), **trial)
    of_ranks = st.tuples(times, times)
    changes = {
        "timing": make.timing(draw(many), draw(of_ranks), lookup=draw(times)),
        "traffic": make.totals(collectives=draw(counts), distinct_rows=draw(of_ranks)),
        "measured_bytes": draw(st.none() | st.dictionaries(st.sampled_from(sorted(make.COLLECTIVES)), times)),
        "bound_ms": draw(st.none() | times),
        "provenance": draw(st.none() | st.builds(make.provenance, st.none() | st.just("c" * 16), dirty=st.booleans())),
        "planned": make.planned(notes=draw(st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=5)))),
    }
    return make.ok(role=draw(st.sampled_from(Role)), changes=changes, **trial)


@settings(max_examples=60, deadline=None)
@given(any_record())
def test_records_survive_json(record):
    text = to_json(record)
    assert from_json(Record, text) == record
    assert text.isascii()
    assert "\n" not in text
