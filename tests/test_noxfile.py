"""Jobs of the noxfile run what ``nox_commands.txt`` lists, pass on what they are told, or refuse it.

That file is golden: where a changed command is meant, edit it by hand.
"""

import re
import runpy
import shlex
import shutil
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parent.parent


class Refused(Exception):
    pass


class Session:
    """A nox session that keeps the commands it is to run, with a folder for its own, whose environments are folders."""

    def __init__(self, folder: Path, *posargs: str) -> None:
        self.folder, self.posargs = folder, posargs
        self.ran: list[tuple[str, ...]] = []

    def create_tmp(self) -> str:
        return str(self.folder)

    def run(self, *command, **options):
        self.ran.append(command)
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True)

    def log(self, line):
        """Nothing."""

    def error(self, line):
        raise Refused(line)


@pytest.fixture
def jobs(monkeypatch):
    """The noxfile's names in an environment that is installed; nox itself is in none of ours."""
    nox = SimpleNamespace(options=SimpleNamespace(), session=lambda job: job, Session=Session)
    monkeypatch.setitem(sys.modules, "nox", nox)
    found = runpy.run_path(str(ROOT / "noxfile.py"))
    for job in ("gpu", "publish", "reproduce", "tables", "tests"):
        monkeypatch.setitem(found[job].__globals__, "install", lambda session: None)
    return found


COMMAND = """#!/bin/sh
echo "$(basename "$0") $*" >> ran.txt
echo "hidden: ${CUDA_VISIBLE_DEVICES-no}" >> ran.txt
case "$*" in
  *"FAILS"*) echo "error: because of FAILS" >&2; echo "more words"; exit 3 ;;
  *--calibrate*--nodes\\ 2*) touch "runs/gpu/machines/cuda-2x8.toml" ;;
  *--calibrate*--quick*) touch "runs/gpu-on-cpus/machines/cpu-1x2.toml" ;;
  *--calibrate*) touch "runs/gpu/machines/cuda-1x8.toml" ;;
esac
"""


@pytest.fixture
def box(jobs, monkeypatch, tmp_path):
    """A machine with a driver, whose commands are scripts: gives a function that runs the session and what it printed.

    It gives the commands that ran, the lines of the table and why the session ended in error.
    """
    monkeypatch.chdir(tmp_path)
    names = {"VENV": tmp_path / ".nox", "ROOT": tmp_path, "install": lambda session: None}
    for name, value in names.items():
        monkeypatch.setitem(jobs["gpu"].__globals__, name, value)
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    (tmp_path / ".nox" / "bin").mkdir(parents=True)

    def run(capfd, *told, fails="nothing"):
        for name in ("shardbench", "python"):
            script = tmp_path / ".nox" / "bin" / name
            script.write_text(COMMAND.replace("FAILS", fails))
            script.chmod(0o755)
        ended = ""
        try:
            jobs["gpu"](Session(tmp_path, *told))
        except Refused as error:
            ended = str(error)
        log = tmp_path / "ran.txt"
        ran = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        return ran[::2], capfd.readouterr().out, ended, set(ran[1::2])

    return run


def rows(printed):
    """Name -> (result, what is said of it) of the table at the end."""
    table = printed.partition("or why it failed:\n")[2].split("\n\n")[0]
    cells = [line.split(None, 4) for line in table.splitlines()]
    return {name: (result, text) for name, result, _, _, text in cells}


LISTED = dict(
    re.findall(r"^nox -s (.+)\n((?:  .+\n)+)", (ROOT / "tests" / "nox_commands.txt").read_text(), re.MULTILINE)
)


def listed(told: str) -> list[str]:
    return [line.strip() for line in LISTED[told].splitlines()]


@pytest.mark.parametrize("told", [told for told in LISTED if not told.startswith("gpu")])
def test_a_job_runs_the_commands_that_are_listed(jobs, monkeypatch, tmp_path, told):
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    job, _, posargs = told.partition(" -- ")
    session = Session(tmp_path, *posargs.split())
    jobs[job](session)
    ran = "\n".join(shlex.join(map(str, command)) for command in session.ran)
    named = {f"{jobs['VENV']}/bin/": "", sys.executable: "python", str(tmp_path): "TMP", f"{ROOT}/": ""}
    for path, name in named.items():
        ran = ran.replace(path, name)
    assert re.sub(r"--numprocesses=\d", "--numprocesses=N", ran).splitlines() == listed(told)
    assert all((ROOT / script).is_file() for script in re.findall(r"\S+\.py\b", ran))
    assert not (tmp_path / "python3.12").exists()


@pytest.mark.parametrize("told", [told for told in LISTED if told.startswith("gpu")])
def test_a_gpu_box_is_tested_calibrated_measured_and_judged(box, monkeypatch, capfd, told):
    posargs = told.partition(" -- ")[2].split()
    if "--cpu" in posargs:
        monkeypatch.setattr(shutil, "which", lambda name: None)
    ran, printed, ended, hidden = box(capfd, *posargs)
    assert [f"{step}: {command}" for step, command in zip(rows(printed), ran, strict=True)] == listed(told)
    assert hidden == {"hidden: " if "--cpu" in posargs else "hidden: no"}
    assert ended == ""
    assert {result for result, _ in rows(printed).values()} == {"passed"}


@pytest.mark.parametrize(
    ("job", "told", "there", "says"),
    [
        ("page", "", "", "there is none: install one of chromium"),
        ("page", "", "chromium", "there is no npm"),
        ("publish", "recshard --strategy x", "", r"^recshard is a paper: .* takes no options, not --strategy x$"),
        ("tables", "", "", r"^say which tables to make: nox -s tables -- NAME, where"),
        ("tables", "quick", "", r"^say which tables to make: nox -s tables -- NAME, where"),
        ("tests", "latex", "", r"^there is no pdflatex and no pdftotext: install a TeX"),
        ("pythons", "", "python3.11 python3.12", r"^no Python 3\.13 on PATH; try those that are: nox -s pythons -- V"),
        ("build", "wheel", "", r"^nox -s build takes archives, engines or nothing, not wheel$"),
        ("lock", "audits", "", r"^nox -s lock takes audit or nothing, not audits$"),
        ("gpu", "", "", r"^there is no nvidia-smi: install the NVIDIA driver, or try all on CPUs"),
        *(
            ("gpu", told, "nvidia-smi", rf"^nox -s gpu takes --cpu, --nodes N and --collect, not {told}$")
            for told in ("--cpus", "--nodes", "--nodes two", "--nodes 0", "4")
        ),
    ],
)
def test_what_no_job_takes_is_refused_before_anything_runs(jobs, monkeypatch, tmp_path, job, told, there, says):
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name in there.split() else None)
    monkeypatch.chdir(tmp_path)
    session = Session(tmp_path, *told.split())
    with pytest.raises(Refused, match=says):
        jobs[job](session)
    assert session.ran == []
    assert list(tmp_path.iterdir()) == []


def test_everything_is_the_suite_quick_the_papers_and_the_leaderboard(jobs, tmp_path):
    session = Session(tmp_path, "all", "--quick")
    jobs["reproduce"](session)
    asked = [(command[1], command[2]) for command in session.ran]
    assert asked[0] == ("run", "quick")
    assert asked[-1] == ("reproduce", "leaderboard")
    papers = {"recshard", "autoshard", "dreamshard", "flexshard", "fae", "joint", "drift"}
    assert {name for _, name in asked[1:-1]} >= papers
    assert all(command == "reproduce" for command, _ in asked[1:])
    assert ["--quick" in command for command in session.ran] == [False] + [True] * (len(asked) - 1)
    assert all(command[3:6] == ("--page", "--results", "runs") for command in session.ran)


def test_every_python_that_the_readme_names_is_tried(jobs):
    named = ROOT.joinpath("README.md").read_text().partition("pip and Python ")[2].partition(".\n")[0]
    assert tuple(named.replace(" or ", ", ").split(", ")) == jobs["PYTHONS"]


def test_the_wheel_is_tried_with_what_is_newest_and_beside_each_engine(jobs, monkeypatch, tmp_path):
    tried = tmp_path / "src" / "shardbench" / "cli" / "tried.toml"
    tried.parent.mkdir(parents=True)
    shutil.copy(ROOT / tried.relative_to(tmp_path), tried)
    monkeypatch.setitem(jobs["build"].__globals__, "ROOT", tmp_path)
    session = Session(tmp_path, "engines")
    jobs["build"](session)
    wheel, python = str(tmp_path / "dist" / "*.whl"), str(tmp_path / "wheel" / "bin" / "python")
    (tools,) = (command for command in session.ran if command[-1].endswith("build.txt"))
    assert "--require-hashes" in tools
    # The wheel's own environment is given no version: what comes is what is newest.
    installed = [command for command in session.ran if command[0] == python and "install" in command]
    assert [command[-1] for command in installed] == [wheel]
    assert [word for word in installed[0] if word.startswith("-")] == ["-m", "--quiet"]
    assert any(command[1:3] == ("plan", "quick") and command[-1] == "--json" for command in session.ran)
    for engine in tomllib.loads(tried.read_text())["engines"]:
        place = tmp_path / f"torchrec-{engine['torchrec']}"
        ran = [command[1:] for command in session.ran if command[0] == str(place / "bin" / "python")]
        torch, beside, own, example, programme = ran
        assert f"torch=={engine['torch']}" in torch
        assert {"--no-deps", f"torchrec=={engine['torchrec']}"} <= set(beside)
        assert f"fbgemm-gpu-cpu=={engine['fbgemm-gpu-cpu']}" in beside
        assert own[-1] == wheel
        assert (ROOT / Path(example[0]).relative_to(tmp_path)).is_file()
        assert (ROOT / Path(programme[0]).relative_to(tmp_path) / "__main__.py").is_file()
        assert not place.exists()


@pytest.mark.parametrize(("fails", "step"), [("pytest", "tests"), ("--calibrate", "calibration"), ("run gpu", "suite")])
def test_a_step_that_fails_says_why_and_the_next_ones_run(box, capfd, fails, step):
    ran, printed, ended, _ = box(capfd, fails=fails)
    assert len(ran) == 6
    failed = {name: text for name, (result, text) in rows(printed).items() if result == "failed"}
    assert failed == {step: f"error: because of {fails} (runs/gpu/steps/{step}.log)"}
    assert ended == f"1 of 6 steps failed: {step}"
    assert Path(f"runs/gpu/steps/{step}.log").read_text() == f"error: because of {fails}\nmore words\n"


def test_no_machine_of_an_earlier_session_is_measured(box, capfd):
    box(capfd)
    ran, *_ = box(capfd, fails="--calibrate")
    assert "--machine runs/gpu/machines/not-calibrated.toml" in ran[3]


def test_several_machines_are_told_what_to_run_unless_a_step_failed(box, capfd):
    _, printed, _, _ = box(capfd, "--nodes", "2")
    said = printed.partition("Run this on each of the 2 machines")[2]
    assert ".nox/bin/torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d" in said
    assert "done < runs/gpu/steps/list.log\n" in said
    assert said.endswith("on one of them: nox -s gpu -- --collect\n")
    _, printed, ended, _ = box(capfd, "--nodes", "2", fails="--open")
    assert ended == "1 of 5 steps failed: list"
    assert "Run this" not in printed
