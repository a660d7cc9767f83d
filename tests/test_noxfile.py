"""Jobs of the noxfile pass on what they are told, or refuse it."""

import runpy
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
    """A nox session that keeps the commands it is to run."""

    def __init__(self, *posargs: str) -> None:
        self.posargs = posargs
        self.ran: list[tuple[str, ...]] = []

    def run(self, *command, **options):
        self.ran.append(command)

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


@pytest.fixture
def publish(jobs):
    return jobs["publish"]


@pytest.mark.parametrize(
    ("there", "said"), [((), "there is none: install one of chromium"), (("chromium",), "there is no npm")]
)
def test_the_page_is_not_checked_without_a_browser(jobs, monkeypatch, there, said):
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name in there else None)
    session = Session()
    with pytest.raises(Refused, match=said):
        jobs["page"](session)
    assert session.ran == []


def test_publish_takes_no_options_for_a_paper(publish):
    session = Session("recshard", "--strategy", "recshard")
    with pytest.raises(Refused, match=r"^recshard is a paper: .* takes no options, not --strategy recshard$"):
        publish(session)
    assert session.ran == []


@pytest.mark.parametrize("told", [["recshard"], ["quick", "--strategy", "shuffle"]])
def test_publish_makes_the_records_afresh(publish, told):
    session = Session(*told)
    publish(session)
    name, *options = told
    command = "run" if options else "reproduce"
    assert session.ran[0][1:] == (command, name, "--results", "results", "--fresh", *options)


@pytest.mark.parametrize(
    ("told", "ran"),
    [
        (["scale"], "tools/counting_scale.py"),
        (["prepare"], "tools/prepare_scale.py"),
        (["planners"], "tools/torchrec_planners.py"),
        (["plan", "session"], "tools/plan_command.py"),
        (["impostors"], "tests/conformance/table.py"),
        (["faults", "--seed", "3"], "faults"),
        (["fuzz", "500"], "tests/fuzz"),
    ],
)
def test_tables_are_made_by_scripts_that_are_there(jobs, tmp_path, told, ran):
    session = OnDisk(tmp_path, *told)
    jobs["tables"](session)
    for command in session.ran:
        (script,) = (word for word in command if word.removeprefix(f"{ROOT}/") == ran)
        assert script == "faults" or (ROOT / script).exists()
        assert set(told[1:]) <= set(command)
    assert set(jobs["TABLES"]) >= {told[0]}


def test_options_of_faults_leave_the_committed_table(jobs, tmp_path):
    for told, folder in ((["faults"], ROOT / "results" / "tables" / "faults"), (["faults", "--seed", "3"], tmp_path)):
        session = OnDisk(tmp_path, *told)
        jobs["tables"](session)
        assert session.ran[0][3] == str(folder / "summary.csv")


def test_tables_that_none_makes_are_refused(jobs):
    for told in ((), ("quick",)):
        with pytest.raises(Refused, match=r"^say which tables to make: nox -s tables -- NAME, where"):
            jobs["tables"](Session(*told))


@pytest.mark.parametrize(
    ("told", "asked"),
    [
        ([], ["--durations=10"]),
        (["-k", "slow"], ["--durations=10", "-k", "slow"]),
        (["slow", "tests/test_soak.py"], ["-m", "slow", "--durations=10", "tests/test_soak.py"]),
        (["gpu"], ["-m", "gpu", "--durations=10"]),
    ],
)
def test_a_mark_selects_tests_that_run_one_after_the_other(jobs, told, asked):
    session = Session(*told)
    jobs["tests"](session)
    (command,) = session.ran
    options = [word for word in command[3:] if not word.startswith(("--numprocesses", "--dist"))]
    assert options == asked
    assert ("--dist=worksteal" in command) == (told[:1] not in (["slow"], ["gpu"]))


def test_latex_is_not_compiled_without_a_tex(jobs, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    session = Session("latex")
    with pytest.raises(Refused, match=r"^there is no pdflatex and no pdftotext: install a TeX"):
        jobs["tests"](session)
    assert session.ran == []


def test_everything_is_the_suite_quick_the_papers_and_the_leaderboard(jobs):
    session = Session("all", "--quick")
    jobs["reproduce"](session)
    asked = [(command[1], command[2]) for command in session.ran]
    assert asked[0] == ("run", "quick")
    assert asked[-1] == ("reproduce", "leaderboard")
    assert {name for _, name in asked[1:-1]} >= {
        "recshard",
        "autoshard",
        "dreamshard",
        "flexshard",
        "fae",
        "joint",
        "drift",
    }
    assert all(command == "reproduce" for command, _ in asked[1:])
    assert ["--quick" in command for command in session.ran] == [False] + [True] * (len(asked) - 1)
    assert all(command[3:6] == ("--page", "--results", "runs") for command in session.ran)


class OnDisk(Session):
    """A session with a folder for its own, whose environments are folders."""

    def __init__(self, folder: Path, *posargs: str) -> None:
        super().__init__(*posargs)
        self.folder = folder

    def create_tmp(self) -> str:
        return str(self.folder)

    def run(self, *command, **options):
        super().run(*command, **options)
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True)


def test_every_python_that_the_readme_names_is_tried_on_what_is_locked(jobs, monkeypatch, tmp_path):
    named = ROOT.joinpath("README.md").read_text().partition("pip and Python ")[2].partition(".\n")[0]
    assert tuple(named.replace(" or ", ", ").split(", ")) == jobs["PYTHONS"]
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}" if name != "python3.13" else None)
    with pytest.raises(Refused, match=r"^no Python 3\.13 on PATH; try those that are: nox -s pythons -- VERSION"):
        jobs["pythons"](OnDisk(tmp_path))
    session = OnDisk(tmp_path, "3.12")
    jobs["pythons"](session)
    place = tmp_path / "python3.12"
    venv, locked, package, tried = session.ran
    assert venv == ("python3.12", "-m", "venv", "--clear", str(place))
    assert locked == (str(place / "bin" / "python"), str(ROOT / "requirements" / "install.py"), "cpu")
    assert {"--no-deps", "--no-build-isolation", "."} <= set(package)
    files = [word for word in tried if word.startswith("tests/")]
    assert files
    assert all((ROOT / name).is_file() for name in files)
    assert not place.exists()


def test_a_part_of_the_plan_tables_that_is_none_is_refused(jobs, tmp_path):
    with pytest.raises(Refused, match=r"takes speed, loaded, session or nothing, not speeds$"):
        jobs["tables"](OnDisk(tmp_path, "plan", "speeds"))


def test_the_wheel_is_tried_with_what_is_newest_and_beside_each_engine(jobs, monkeypatch, tmp_path):
    with pytest.raises(Refused, match=r"^nox -s build takes engines or nothing, not wheel$"):
        jobs["build"](OnDisk(tmp_path, "wheel"))
    tried = tmp_path / "src" / "shardbench" / "cli" / "tried.toml"
    tried.parent.mkdir(parents=True)
    shutil.copy(ROOT / tried.relative_to(tmp_path), tried)
    monkeypatch.setitem(jobs["build"].__globals__, "ROOT", tmp_path)
    session = OnDisk(tmp_path, "engines")
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


@pytest.mark.parametrize(("told", "tool", "script"), [([], "uv", "lock.py"), (["audit"], "audit", "audit.py")])
def test_locking_and_auditing_use_locked_tools(jobs, tmp_path, told, tool, script):
    session = OnDisk(tmp_path, *told)
    jobs["lock"](session)
    _, install, ran = session.ran
    assert "--require-hashes" in install
    assert install[-1] == str(ROOT / "requirements" / "locked" / f"{tool}.txt")
    assert ran == (str(tmp_path / tool / "bin" / "python"), str(ROOT / "requirements" / script))


def test_locking_refuses_other_words(jobs, tmp_path):
    with pytest.raises(Refused, match=r"^nox -s lock takes audit or nothing, not audits$"):
        jobs["lock"](OnDisk(tmp_path, "audits"))


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
            jobs["gpu"](Session(*told))
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


STEPS = ["machine", "tests", "calibration", "suite", "prediction", "page"]


def test_a_gpu_box_is_tested_calibrated_measured_and_judged(box, capfd):
    ran, printed, ended, hidden = box(capfd)
    results = "--results runs/gpu"
    assert ran == [
        "shardbench doctor",
        "python -m pytest -m gpu",
        "shardbench doctor --calibrate --nodes 1 --out runs/gpu/machines",
        f"shardbench run gpu --machine runs/gpu/machines/cuda-1x8.toml --fresh {results}",
        f"shardbench report prediction {results}",
        f"shardbench report gpu --page {results}",
    ]
    assert hidden == {"hidden: no"}
    assert ended == ""
    assert list(rows(printed)) == STEPS
    assert {result for result, _ in rows(printed).values()} == {"passed"}
    assert rows(printed)["page"][1] == "runs/gpu/pages/gpu.html"


@pytest.mark.parametrize(("fails", "step"), [("pytest", "tests"), ("--calibrate", "calibration"), ("run gpu", "suite")])
def test_a_step_that_fails_says_why_and_the_next_ones_run(box, capfd, fails, step):
    ran, printed, ended, _ = box(capfd, fails=fails)
    assert len(ran) == len(STEPS)
    failed = {name: text for name, (result, text) in rows(printed).items() if result == "failed"}
    assert failed == {step: f"error: because of {fails} (runs/gpu/steps/{step}.log)"}
    assert ended == f"1 of 6 steps failed: {step}"
    assert Path(f"runs/gpu/steps/{step}.log").read_text() == f"error: because of {fails}\nmore words\n"


def test_no_machine_of_an_earlier_session_is_measured(box, capfd):
    box(capfd)
    ran, *_ = box(capfd, fails="--calibrate")
    assert "--machine runs/gpu/machines/not-calibrated.toml" in ran[3]


def test_a_gpu_box_can_be_tried_with_cpu_ranks(box, capfd, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    ran, printed, ended, hidden = box(capfd, "--cpu")
    assert ended == ""
    assert hidden == {"hidden: "}
    assert list(rows(printed)) == STEPS
    assert ran[1:3] == [
        "python -m pytest tests/test_cuda_path.py",
        "shardbench doctor --calibrate --quick --nodes 1 --out runs/gpu-on-cpus/machines",
    ]
    assert ran[3].startswith("shardbench run quick --backend measured --strategy ")
    assert " --machine runs/gpu-on-cpus/machines/cpu-1x2.toml " in ran[3]


def test_several_machines_are_told_what_to_run(box, capfd):
    ran, printed, ended, _ = box(capfd, "--nodes", "2")
    assert ended == ""
    assert list(rows(printed)) == [*STEPS[:3], "folders", "list"]
    assert ran[2].endswith("--calibrate --nodes 2 --out runs/gpu/machines")
    assert ran[3].endswith("cuda-2x8.toml --fresh --results runs/gpu --work runs/gpu/work --no-launch")
    assert ran[4] == "shardbench collect runs/gpu/work --open"
    said = printed.partition("Run this on each of the 2 machines")[2]
    assert ".nox/bin/torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d" in said
    assert "done < runs/gpu/steps/list.log\n" in said
    assert said.endswith("on one of them: nox -s gpu -- --collect\n")
    ran, printed, ended, _ = box(capfd, "--collect")
    assert ran[0] == "shardbench collect runs/gpu/work --results runs/gpu"
    assert list(rows(printed)) == ["collect", *STEPS[4:]]


def test_machines_are_told_nothing_where_a_step_failed(box, capfd):
    _, printed, ended, _ = box(capfd, "--nodes", "2", fails="--open")
    assert ended == "1 of 5 steps failed: list"
    assert "Run this" not in printed


@pytest.mark.parametrize("told", [["--cpus"], ["--nodes"], ["--nodes", "two"], ["--nodes", "0"], ["4"]])
def test_a_gpu_session_refuses_other_options(box, capfd, told):
    ran, _, ended, _ = box(capfd, *told)
    assert ended == f"nox -s gpu takes --cpu, --nodes N and --collect, not {' '.join(told)}"
    assert ran == []


def test_a_box_without_a_driver_is_refused_before_anything_is_installed(box, capfd, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    ran, _, ended, _ = box(capfd)
    assert ended.startswith("there is no nvidia-smi: install the NVIDIA driver, or try all on CPUs")
    assert ran == []
