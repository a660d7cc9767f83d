"""A small share of ``nox -s tables -- fuzz`` in every run of the tests, and the proof that the fuzzer sees faults."""

import os
import signal
import time
from pathlib import Path

import fuzzing
import pytest
from fuzzing import PARSERS, Tally, fuzz, in_process, shares
from parser import Parser, words

from shardbench.base.errors import BadInput

CASES = 8


@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_wrong_files_are_read_or_refused_in_one_line(tmp_path: Path, parser: Parser) -> None:
    tally = fuzz(parser, CASES, tmp_path)
    assert tally.crashes == []
    assert tally.cases >= CASES // 2


def planted(read) -> Parser:
    return Parser("planted", "x", words("ab"), lambda data, random: data + b"c", read)


def refuse(path: Path) -> None:
    if path.read_bytes() != b"ab":
        raise BadInput("no")


def raise_key_error(path: Path) -> None:
    raise KeyError("x")


def take_memory(path: Path) -> None:
    bytes(1 << 33)


def die(path: Path) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_what_a_parser_does_wrong_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = fuzz(planted(refuse), 5, tmp_path)
    assert (good.crashes, good.clean_errors) == ([], good.cases)
    assert good.cases > 0
    assert "KeyError at test_fuzz.py" in fuzz(planted(raise_key_error), 5, tmp_path).crashes[0]
    monkeypatch.setattr(fuzzing, "SLOW_S", 1)
    assert "Hang at" in fuzz(planted(lambda path: time.sleep(9)), 1, tmp_path).crashes[0]

    def refuse_all(path: Path) -> None:
        raise BadInput("no")

    assert fuzz(planted(refuse_all), 5, tmp_path).crashes == ["a valid file is refused"]


def test_memory_and_death_of_a_parser_are_crashes() -> None:
    assert "MemoryError at" in in_process(planted(take_memory), 3).crashes[0]
    assert in_process(planted(die), 3).crashes == ["the process ended with status 9"]
    good: Tally = in_process(planted(refuse), 3)
    assert 10 < good.max_rss_mb < 4_000
    assert good.crashes == []


def test_every_parser_has_its_share() -> None:
    assert len({parser.name for parser in PARSERS}) == len(PARSERS)
    assert 100_000 <= sum(shares(100_000).values()) <= 100_000 + len(PARSERS)
    assert min(shares(100_000).values()) >= 100
