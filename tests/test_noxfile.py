"""Jobs of the noxfile pass on what they are told, or refuse it."""

import runpy
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
def publish(monkeypatch):
    """The session ``publish`` in an environment that is installed; nox itself is in none of ours."""
    nox = SimpleNamespace(options=SimpleNamespace(), session=lambda job: job, Session=Session)
    monkeypatch.setitem(sys.modules, "nox", nox)
    job = runpy.run_path(str(ROOT / "noxfile.py"))["publish"]
    monkeypatch.setitem(job.__globals__, "install", lambda session: None)
    return job


def test_publish_takes_no_options_for_a_paper(publish):
    session = Session("recshard", "--strategy", "recshard")
    with pytest.raises(Refused, match=r"^recshard is a paper: .* takes no options, not --strategy recshard$"):
        publish(session)
    assert session.ran == []


@pytest.mark.parametrize("told", [["recshard"], ["quick", "--strategy", "shuffle"]])
def test_publish_archives_what_it_makes_again(publish, told):
    session = Session(*told)
    publish(session)
    name, *options = told
    archive, again = session.ran[:2]
    assert archive[1:] == ("archive", name, "--results", "results", *options)
    assert again[1:] == ("run" if options else "reproduce", name, "--results", "results", *options)
