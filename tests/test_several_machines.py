"""A kept folder on several machines: torchrun's agents, the SLURM script, and the page that shows both."""

import os
import re
import shlex
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import kept_folders
import pytest
from kept_folders import Silent, content, only, without_times

from shardbench.base.host import cores
from shardbench.cli.main import run_command
from shardbench.engine.processes.job import Ran
from shardbench.engine.processes.launch import call_in_child
from shardbench.engine.processes.server import FORK_SERVER
from shardbench.engine.rank import run_rank
from shardbench.records.trial import Outcome
from shardbench.trials.runner import run_suite

# Fixtures.
kept, prepared = kept_folders.kept, kept_folders.prepared

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "slurm" / "trials.sbatch"
PAGE = ROOT / "docs" / "several_machines.md"

AGENTS = """#!/bin/bash
# In place of srun: the command twice, as two nodes would start it.
while [[ $1 == --* ]]; do shift; done
"$@" & one=$!
"$@" & two=$!
wait $one && wait $two
"""


@pytest.mark.slow
def test_two_agents_run_a_folder_from_the_slurm_script_and_it_equals_a_local_run(prepared, kept, tmp_path):
    suite, options, _ = prepared
    folder, results = kept
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("srun", AGENTS), ("scontrol", "#!/bin/bash\necho 127.0.0.1\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (tmp_path / "folders.txt").write_text(f"{folder}\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = {
        **os.environ, "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "FOLDERS": str(tmp_path / "folders.txt"), "RANKS_PER_NODE": "1", "INTERFACE": "lo", "PORT": str(port),
        "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "one", "SLURM_NNODES": "2", "PET_LOCAL_ADDR": "127.0.0.1",
    }  # fmt: skip
    done = subprocess.run(["bash", SCRIPT], check=False, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "0 of these trials failed" in done.stdout, done.stderr
    found = only(folder, results)
    assert found.record.outcome is Outcome.OK, found.text
    (local,) = run_suite(suite, replace(options, results=tmp_path / "local", work=None, launch=True), Silent())
    assert without_times(found.record) == without_times(local)
    assert found.record.measured_bytes == local.measured_bytes != {}
    assert found.record.provenance.made_by == local.provenance.made_by
    # Whoever starts it again changes nothing.
    before = content(folder)
    again = subprocess.run(["bash", SCRIPT], check=False, env=environment, capture_output=True, text=True, timeout=300)
    assert "1 of these trials failed" in again.stdout
    assert content(folder) == before


def the_page() -> tuple[str, list[str], str]:
    """Its suite, its commands, and what it shows of the last one."""
    text = PAGE.read_text()
    (suite,) = re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL)
    console = re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL)[0].replace("\\\n    ", "").splitlines()
    shown = "\n".join(console[console.index("$ shardbench collect work") + 1 :])
    return suite, [line[2:] for line in console if line.startswith("$ ")], shown


def but_for_keys_and_times(said: str) -> str:
    return re.sub(r"[0-9a-f]{16}|[0-9.]+ ms", "...", said).strip()


def a_rank(folder: Path, rank: int, world: int, here: int) -> int:
    """In a process of its own: what torchrun starts."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world), LOCAL_WORLD_SIZE=str(here), GLOO_SOCKET_IFNAME="lo")
    return run_rank(folder, Ran.begin())


def ranks_of(torchrun: list[str], log: Path) -> None:
    """The ranks of such a command of every machine, but from processes that have their imports done."""
    options = dict(zip(torchrun, torchrun[1:]))
    here = int(options["--nproc-per-node"])
    world = int(options["--nnodes"]) * here
    assert options["-m"] == "shardbench.engine.rank"
    ranks = [(Path(torchrun[-1]), rank, world, here) for rank in range(world)]
    FORK_SERVER.context()
    with ThreadPoolExecutor(world) as pool:
        codes = pool.map(lambda rank: call_in_child(a_rank, rank, timeout_s=100, phase="rank", log=log), ranks)
    assert list(codes) == [0] * world, log.read_text()


def test_the_pages_commands_give_what_it_shows(tmp_path, monkeypatch, capsys):
    """The ranks' own start apart, which test_runs_under_torchrun has, and the slow test below for two machines."""
    suite, commands, shown = the_page()
    monkeypatch.chdir(tmp_path)
    Path("two-nodes.toml").write_text(suite)
    for line in commands:
        program, *arguments = shlex.split(line.replace("$(cat folders.txt)", "FOLDERS"))
        if program == "torchrun":
            (folder,) = Path("folders.txt").read_text().split()
            ranks_of([folder if word == "FOLDERS" else word for word in arguments], tmp_path / "log")
            continue
        assert program == "shardbench"
        to = arguments.index(">") if ">" in arguments else len(arguments)
        assert run_command(arguments[:to]) == 0
        said = capsys.readouterr().out
        for name in arguments[to + 1 :]:
            Path(name).write_text(said)
    # The page is of two cores: with a core a rank, times would be compared.
    if cores() < 4:
        assert but_for_keys_and_times(said) == but_for_keys_and_times(shown)


@pytest.mark.slow
def test_the_page_runs_as_it_stands(tmp_path):
    suite, commands, shown = the_page()
    (tmp_path / "two-nodes.toml").write_text(suite)
    programs = tmp_path / "bin"
    programs.mkdir()
    main = "import sys; from shardbench.cli.main import main; main()"
    (programs / "shardbench").write_text(f"#!/bin/bash\nexec {sys.executable} -c '{main}' \"$@\"\n")
    (programs / "shardbench").chmod(0o755)
    environment = {
        **os.environ, "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "GLOO_SOCKET_IFNAME": "lo", "PET_LOCAL_ADDR": "127.0.0.1",
    }  # fmt: skip
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    said = ""
    for line in (line.replace("29400", port) for line in commands):
        # Every machine starts torchrun; here are two agents.
        agents = 2 if line.startswith("torchrun ") else 1
        started = [
            subprocess.Popen(
                ["bash", "-c", line], cwd=tmp_path, env=environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
            for _ in range(agents)
        ]  # fmt: skip
        ended = [process.communicate(timeout=150) for process in started]
        assert [process.returncode for process in started] == [0] * agents, (line, ended)
        said = ended[0][0]
    if cores() < 4:
        assert but_for_keys_and_times(said) == but_for_keys_and_times(shown)


def test_the_slurm_script_starts_every_folder_of_its_task(tmp_path):
    programs = tmp_path / "bin"
    programs.mkdir()
    said = tmp_path / "said.txt"
    fails_on_b = f'#!/bin/bash\necho "$GLOO_SOCKET_IFNAME $@" >> {said}\n[[ "${{@: -1}}" != b ]]\n'
    for name, text in (("srun", fails_on_b), ("scontrol", "#!/bin/bash\necho first\necho second\n")):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    (tmp_path / "folders.txt").write_text("a\nb\nc\nd\ne\n")
    (tmp_path / "setup.sh").write_text("export INTERFACE=ib0\n")
    environment = {
        **os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "SETUP": str(tmp_path / "setup.sh"),
        "FOLDERS": str(tmp_path / "folders.txt"), "RANKS_PER_NODE": "8", "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "two", "SLURM_NNODES": "2", "SLURM_ARRAY_TASK_ID": "1", "SLURM_ARRAY_TASK_COUNT": "2",
    }  # fmt: skip
    done = subprocess.run(["bash", SCRIPT], check=True, env=environment, capture_output=True, text=True)
    lines = said.read_text().splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == ["b", "d"]
    assert "ib0 --ntasks-per-node=1 --kill-on-bad-exit=1 torchrun --nnodes 2 --nproc-per-node 8 " in lines[1]
    assert "--rdzv-id 7.3 --rdzv-endpoint first:29503 -m shardbench.engine.rank d" in lines[1]
    assert done.stdout.splitlines()[-1] == "1 of these trials failed; now: shardbench collect"
    lacking = {name: value for name, value in environment.items() if name != "RANKS_PER_NODE"}
    refused = subprocess.run(["bash", SCRIPT], check=False, env=lacking, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "RANKS_PER_NODE: how many ranks a node has" in refused.stderr


def test_the_slurm_script_is_bash_and_says_its_variables():
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)
    text = SCRIPT.read_text()
    comments = "\n".join(line for line in text.splitlines() if line.startswith("# "))
    for name in ("FOLDERS", "RANKS_PER_NODE", "SETUP", "INTERFACE", "PORT"):
        assert f"#   {name} " in comments
        assert f"{{{name}:" in text.replace(comments, "")
