"""Checkpoints: what comes back, and what is refused in one line."""

import pickle

import numpy as np
import pytest
import torch

from shardbench.base.errors import BadInput
from shardbench.learning.checkpoint import Checkpoint, load, path_of, save

STATE = Checkpoint(
    kind="nets", version=2, key="abc", facts={"seed": 3, "mean": [0.1]}, tensors={"w": torch.arange(6.0).view(2, 3)}
)


def test_round_trip(tmp_path):
    path = save(STATE, tmp_path / "deep")
    assert path == path_of(tmp_path / "deep", "nets", "abc")
    found = load(path, "nets", 2, "abc")
    assert found.facts == STATE.facts
    assert torch.equal(found.tensors["w"], STATE.tensors["w"])
    assert found.digest == STATE.digest
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def _truncate(path):
    path.write_bytes(path.read_bytes()[:-40])


def _text(path):
    path.write_text("not a checkpoint")


def _pickled_code(path):
    path.write_bytes(pickle.dumps(print))


def _foreign(path):
    torch.save({"weights": torch.zeros(2)}, path)


def _edited(path):
    data = torch.load(path, weights_only=True)
    data["tensors"]["w"][0, 0] = 7.0
    torch.save(data, path)


def _partial(path):
    data = torch.load(path, weights_only=True)
    del data["facts"]
    torch.save(data, path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_truncate, "is broken or no checkpoint: delete it"),
        (_text, "is broken or no checkpoint"),
        (_pickled_code, "is broken or no checkpoint"),
        (_foreign, "is not a checkpoint of this project"),
        (_edited, "does not match its own digest"),
        (_partial, "lacks a part"),
    ],
)
def test_spoiled_files_are_refused_in_one_line(tmp_path, spoil, message):
    path = save(STATE, tmp_path)
    spoil(path)
    with pytest.raises(BadInput, match=message) as error:
        load(path, "nets", 2)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "version", "key", "message"),
    [
        ("others", 2, "abc", "is of 'nets', not of 'others'"),
        ("nets", 3, "abc", "has version 2, wanted 3: train again"),
        ("nets", 2, "xyz", "was trained on other tasks or settings"),
    ],
)
def test_foreign_files_are_refused(tmp_path, kind, version, key, message):
    path = save(STATE, tmp_path)
    with pytest.raises(BadInput, match=message):
        load(path, kind, version, key)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BadInput, match=r"there is no checkpoint .*nothing\.pt: train first"):
        load(tmp_path / "nothing.pt", "nets", 2)


@pytest.mark.parametrize("seed", range(60))
def test_damaged_bytes_are_refused_or_harmless(tmp_path, seed):
    rng = np.random.default_rng(seed)
    path = save(STATE, tmp_path)
    content = bytearray(path.read_bytes())
    for at in rng.integers(0, len(content), int(rng.integers(1, 40))).tolist():
        content[at] = int(rng.integers(0, 256))
    path.write_bytes(bytes(content[: int(rng.integers(1, len(content)))] if seed % 4 == 0 else content))
    try:
        found = load(path, "nets", 2, "abc")
    except BadInput as error:
        assert "\n" not in str(error)
    else:
        assert found.digest == STATE.digest


@pytest.mark.parametrize("raised", [IndexError("list index out of range"), TypeError("x"), AttributeError("y")])
def test_whatever_reading_trips_over_is_a_broken_file(tmp_path, monkeypatch, raised):
    path = save(STATE, tmp_path)

    def trip(*args, **kwargs):
        raise raised

    monkeypatch.setattr(torch, "load", trip)
    with pytest.raises(BadInput, match="is broken or no checkpoint"):
        load(path, "nets", 2)
