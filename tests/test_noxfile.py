"""Jobs of the noxfile pass on what they are told, or refuse it."""

import runpy
import shutil
import sys
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
    for job in ("publish", "reproduce", "tables", "tests"):
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
    assert {name for _, name in asked[1:-1]} >= {"recshard", "autoshard", "dreamshard", "flexshard", "fae", "joint"}
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
    named = ROOT.joinpath("README.md").read_text().partition("with pip and Python ")[2].partition(" (those")[0]
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


def test_locking_uses_the_locked_uv(jobs, tmp_path):
    session = OnDisk(tmp_path)
    jobs["lock"](session)
    _, install, write = session.ran
    assert "--require-hashes" in install
    assert install[-1] == str(ROOT / "requirements" / "locked" / "uv.txt")
    assert write == (str(tmp_path / "uv" / "bin" / "python"), str(ROOT / "requirements" / "lock.py"))
