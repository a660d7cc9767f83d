"""From logs of one's own to an exported plan that trains: the transcript of docs/from_logs_to_training.md."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torchrec")
import torch

from shardbench.cli import main as cli
from shardbench.torchrec import Exported, ranks_of

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "from_logs_to_training.md"
EXAMPLE = ROOT / "examples" / "train_with_plan.py"


def commands() -> list[list[str]]:
    """The shardbench commands of the page, in order."""
    return [line.split()[2:] for line in PAGE.read_text().splitlines() if line.startswith("$ shardbench ")]


def train(*arguments: str, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(EXAMPLE), *arguments]
    return subprocess.Popen(
        command, cwd=cwd, env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def losses(process: subprocess.Popen[str]) -> str:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out


def test_the_page_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    ids = np.minimum(generator.zipf(1.3, size=(2000, 2)) * 7919 % 100_003, 100_002)
    lines = [f"{day},{user},{item}" for day, (user, item) in enumerate(ids.tolist())]
    Path("log.csv").write_text("\n".join(["day,user,item", *lines]) + "\n")
    for command in commands():
        assert cli.run_command(command) == 0, capsys.readouterr().err
    assert "best: " in capsys.readouterr().out
    exported = Exported.from_json(Path("plan.torchrec.json").read_bytes())
    assert {table.name for table in exported.tables} == {"user", "item"}
    assert exported.remapped  # or nothing of the remap is tried
    # The page's Python: the places of ids by frequency.
    (block,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    exec(block, {"np": np, "torch": torch, "ranks_of": ranks_of})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    arguments = ["plan.torchrec.json", "--ranks", "ranks.pt"]
    ranks = [train(*arguments, cwd=tmp_path, RANK=str(r), LOCAL_RANK=str(r), **group) for r in range(2)]
    found = json.loads([losses(rank) for rank in ranks][0])["losses"]  # noqa: RUF015 - wait for both
    expected = json.loads(losses(train("plan.torchrec.json", "--unsharded", cwd=tmp_path)))["losses"]
    assert found == pytest.approx(expected, rel=1e-5)
