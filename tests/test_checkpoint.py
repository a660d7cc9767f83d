"""Checkpoints: what comes back, and what is refused in one line."""

import pickle
import zipfile

import numpy as np
import pytest
import torch

from shardbench.base.errors import BadInput
from shardbench.learned.training import opened, save

STATE = {"w": torch.arange(6.0).view(2, 3), "rng": np.random.default_rng(1).bit_generator.state, "history": [0.1, None]}


@pytest.fixture
def path(tmp_path):
    save(tmp_path / "deep" / "nets-abc.pt", STATE)
    return tmp_path / "deep" / "nets-abc.pt"


def read(path):
    with opened(path) as state:
        return state


def test_round_trip(path):
    state = read(path)
    assert torch.equal(state.pop("w"), STATE["w"])
    assert state == {"rng": STATE["rng"], "history": STATE["history"], "name": path.name}
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def _packed(path):
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in parts.items():
            archive.writestr(name, part)


def _another(path):
    save(path.with_name("other.pt"), STATE)
    path.with_name("other.pt").replace(path)


def _number(path):
    content = bytearray(path.read_bytes())
    content[content.index(np.float32(5.0).tobytes()) + 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-40]),
        lambda path: path.write_text("not a checkpoint"),
        lambda path: path.write_bytes(pickle.dumps(print)),
        lambda path: torch.save({"name": path.name, "w": print}, path),
        lambda path: torch.save({"weights": torch.zeros(2)}, path),
        lambda path: torch.save([], path),
        _another,
        _packed,
        _number,
    ],
)  # fmt: skip
def test_spoiled_and_foreign_files_are_refused_in_one_line(path, spoil):
    spoil(path)
    with pytest.raises(BadInput, match=r"is broken or no checkpoint .*: delete it and train again$") as error:
        read(path)
    assert "\n" not in str(error.value)


def test_what_a_block_trips_over_is_a_broken_file(path):
    with pytest.raises(BadInput, match=r"is broken or no checkpoint"), opened(path) as state:
        torch.nn.Linear(3, 3).load_state_dict({"weight": state["w"]})


@pytest.mark.parametrize("seed", range(60))
def test_damaged_bytes_are_refused_or_harmless(path, seed):
    rng = np.random.default_rng(seed)
    content = bytearray(path.read_bytes())
    for at in rng.integers(0, len(content), int(rng.integers(1, 40))).tolist():
        content[at] = int(rng.integers(0, 256))
    path.write_bytes(bytes(content[: int(rng.integers(1, len(content)))] if seed % 4 == 0 else content))
    try:
        state = read(path)
    except BadInput as error:
        assert "\n" not in str(error)
    else:
        assert torch.equal(state["w"], STATE["w"])
        assert state["rng"] == STATE["rng"]
