"""From raw logs of one's own to an exported plan that trains: the transcript of docs/from_logs_to_training.md."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torchrec")
import torch
from test_torchrec_export import losses_of_two_ranks

from shardbench.cli import main as cli
from shardbench.model.plan import OnRank, Plan, Segment
from shardbench.torchrec import Exported, export, hash_ids
from shardbench.workloads.value_hash import Missing

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "from_logs_to_training.md"
EXAMPLE = ROOT / "examples" / "train_with_plan.py"


def commands() -> list[list[str]]:
    """The commands of the page, in order."""
    return [line.split()[1:] for line in PAGE.read_text().replace("\\\n", "").splitlines() if line.startswith("$ ")]


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("train_with_plan", EXAMPLE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("starts", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_page_runs_as_it_stands(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    example: ModuleType,
    starts: bool,
) -> None:
    """By default the ranks are forks that have their imports done, as torchrun starts them in the slow test."""
    monkeypatch.chdir(tmp_path)
    Path("examples").symlink_to(EXAMPLE.parent)
    generator = np.random.default_rng(0)
    drawn = np.minimum(generator.zipf(1.3, size=(2000, 2)), 99_999).tolist()
    raw = [(f"u{user}", item * 7919 % 100_003) for user, item in drawn]
    labels = generator.integers(0, 2, size=2000).tolist()
    lines = [f"{day},{user},{item},{label}" for day, ((user, item), label) in enumerate(zip(raw, labels))]
    lines.insert(0, "day,user,item,label")
    Path("log.csv").write_text("\n".join(lines) + "\n")
    assert "```\n" + "\n".join(lines[:3]) + "\n```" in PAGE.read_text()
    for command in commands():
        if command[0] == "shardbench":
            assert cli.run_command(command[1:]) == 0, capsys.readouterr().err
    assert "best: " in capsys.readouterr().out
    # The page's Python: raw values as rows, and the places of rows by frequency.
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    made: dict[str, Any] = {}
    exec(block, made)
    exported: Exported = made["exported"]
    assert set(made["ranks"]) == set(exported.remapped) == {"user", "item"}  # or nothing of the remap is tried
    for number, name in enumerate(("user", "item")):
        profiled = np.load(f"data/mine/t{number}_f0_values.npy")
        values = [sample[number] for sample in raw]
        assert hash_ids(values, table=name, rows=made["rows"][name]).tolist() == profiled.tolist()
        hottest = np.bincount(profiled[:1600]).argmax()
        assert made["ranks"][name][hottest] == 0
    assert made["ids"].tolist() == np.load("data/mine/t0_f0_values.npy")[:2].tolist()
    torchrun, python = (command for command in commands() if command[0] != "shardbench")
    monkeypatch.setattr(sys, "argv", python[1:])
    example.main()
    expected = json.loads(capsys.readouterr().out)["losses"]
    assert torchrun[1:5] == ["--standalone", "--nproc-per-node", "2", python[1]]
    found = torchrun_losses(torchrun) if starts else losses_of_two_ranks(tmp_path, *torchrun[5:])
    assert found == pytest.approx(expected, rel=1e-5)


def torchrun_losses(command: list[str]) -> list[float]:
    program = [str(Path(sys.executable).with_name(command[0])), *command[1:]]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["losses"]


@pytest.mark.parametrize(
    ("world", "local", "says"),
    [
        ("2", "2", "the plan is for 8 ranks, this is a group of 2"),
        ("8", "4", "the plan is for nodes of 8 ranks, this one has 4: export it with --devices-per-node 4"),
        (None, None, "the plan is for 8 ranks, this is a group of 1"),
    ],
)
def test_other_ranks_than_the_plans_are_refused_before_tables_are_made(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    example: ModuleType,
    world: str | None,
    local: str | None,
    says: str,
) -> None:
    # Nobody has room for it.
    segment = Segment(
        table="vast", row_start=0, row_stop=1 << 40, column_start=0, column_stop=64, placement=OnRank(rank=0)
    )
    made = tmp_path / "made.json"
    made.write_text(export(Plan(world_size=8, segments=(segment,))).to_json())
    for name, value in (("WORLD_SIZE", world), ("LOCAL_WORLD_SIZE", local)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    monkeypatch.setattr(sys, "argv", ["train_with_plan.py", str(made)])
    with pytest.raises(SystemExit, match=says):
        example.main()


@pytest.mark.parametrize("missing", ["empty", "row"])
def test_ids_are_hashed_alike_whatever_holds_them(missing: Missing) -> None:
    told: dict[str, Any] = {"table": "t", "rows": 1000, "seed": 3, "missing": missing}
    numbers = np.array([[7, -1, 1 << 62], [0, 29, 7]])
    rows = hash_ids(numbers, **told)
    assert rows.dtype == np.int64
    assert rows.shape == numbers.shape
    assert rows[0, 0] == rows[1, 2]
    assert rows.min() >= (missing == "row")
    texts = numbers.astype(str)
    for same in (texts, texts.astype(object), texts.tolist(), numbers.tolist()):
        assert hash_ids(same, **told).tolist() == rows.tolist()
    tensor = hash_ids(torch.from_numpy(numbers), **told)
    assert tensor.dtype == torch.int64
    assert tensor.tolist() == rows.tolist()
    assert hash_ids([], **told).tolist() == []
