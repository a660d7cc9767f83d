"""Names on the command line: versions, help, completion, and what was meant by a mistyped one."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbench import __version__
from shardbench.base.closest import closest_name, unknown
from shardbench.cli import main as cli
from shardbench.cli.names import outcomes
from shardbench.records.trial import Outcome
from shardbench.trials.discovery import strategies

COMMANDS = sorted(str(command.name) for command in cli.app.registered_commands)
WORDS = st.text(st.characters(codec="ascii", categories=("L", "N", "P", "Z")), max_size=12)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["reprot", "quick"], "No such command 'reprot'; did you mean 'report'? (see: shardbench --help)"),
        (["quick"], "No such command 'quick'; did you mean: shardbench run quick?"),
        (["autoshard"], "did you mean: shardbench reproduce autoshard?"),
        (["run", "quick", "--bakend", "x"], "No such option: --bakend; did you mean '--backend'? (see: shardbench run"),
        (["run", "quick", "--study", "x"], "No such option: --study; reproduce has it (see: shardbench run --help)"),
        (["run", "quick", "--backend", "simulatd"], "did you mean 'simulated'? (see: shardbench run --help)"),
        (["list", "machine"], "did you mean 'machines'? (see: shardbench list --help)"),
        (["run", "quikc"], "unknown suite 'quikc'; did you mean 'quick'?"),
        (["run", "quick", "--strategy", "gredy-size"], "unknown strategy 'gredy-size'; did you mean 'greedy-size'?"),
        (["run", "quick", "--retry", "ooom"], "--retry: unknown outcome 'ooom'; did you mean 'oom'?"),
        (["reproduce", "recshad"], "unknown paper 'recshad'; did you mean 'recshard'?"),
        (["claims", "DreamShard"], "unknown paper 'DreamShard'; did you mean 'dreamshard'?"),
        (["reproduce", "recshard", "--study", "sovle"], "unknown study of recshard 'sovle'; did you mean 'solve'?"),
        (["report", "quikc"], "unknown suite or paper 'quikc'; did you mean 'quick'?"),
        (["plan", "quick", "a100-40gb-2x9"], "did you mean '"),
        (["test", "flexshrad"], "unknown strategy 'flexshrad'; did you mean 'flexshard'?"),
        # The command that takes it is named.
        (["run", "autoshard"], "is a paper's reproduction, not a suite; run: shardbench reproduce autoshard"),
        (["run", "shuffle"], "'shuffle' is a strategy, not a suite; run: shardbench run quick --strategy shuffle"),
        (["reproduce", "quick"], "'quick' is a suite, not a paper's reproduction; run: shardbench run quick"),
        (["reproduce", "shuffle"], "run: shardbench run quick --strategy shuffle"),
    ],
)
def test_what_was_meant_is_said(command, arguments: list[str], says: str) -> None:
    assert says in command(*arguments, code=2)


@given(WORDS, st.lists(WORDS))
def test_what_is_meant_is_known_and_what_is_known_is_meant(name: str, known: list[str]) -> None:
    near = closest_name(name, known)
    assert near is None or near in known
    assert all(closest_name(one, known) is not None for one in known if one)
    said = unknown("thing", name, known)
    assert said.startswith(f"unknown thing '{name}'; ")
    assert (near or ", ".join(known)) in said


@given(st.lists(st.sampled_from(list(Outcome))), st.sampled_from([",", " , ", ",,"]))
def test_outcomes_to_retry_are_those_named(named: list[Outcome], between: str) -> None:
    assert outcomes(between.join(named)) == set(named)
    assert outcomes(between.join([*named, "failed"])) == {*named, *Outcome} - ({Outcome.OK} - {*named})


@given(WORDS.filter(lambda word: not word.startswith("-") and word not in COMMANDS))
def test_any_word_that_is_no_command_gives_one_line(word: str) -> None:
    assert cli.run_command([word]) == 2


def test_version(command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "commit_here", lambda: "0123456789abcdef")
    monkeypatch.setattr(cli, "differs", lambda: True)
    assert command("--version") == f"shardbench {__version__}, commit 0123456789ab, changed since\n"
    monkeypatch.setattr(cli, "commit_here", lambda: None)
    assert command("--version") == f"shardbench {__version__}\n"


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_in_short_and_long(command, name: str) -> None:
    said = [command(*filter(None, [name]), option) for option in ("-h", "--help")]
    assert said[0] == said[1]
    assert said[0].startswith(f"Usage: shardbench {name}")


COMPLETES = """
import os, sys
from shardbench.cli.main import main
os.environ["_SHARDBENCH_COMPLETE"] = "complete_bash"
for words in sys.argv[1:]:
    os.environ.update(COMP_WORDS=words, COMP_CWORD=str(words.count(" ")))
    try:
        main()
    except SystemExit:
        print("end of", words)
print([name for name in ("torch", "jinja2") if name in sys.modules], file=sys.stderr)
"""


def test_names_are_completed_without_heavy_imports() -> None:
    wanted = {
        "shardbench repr": ["reproduce"],
        "shardbench run qu": ["quick"],
        "shardbench report recs": ["recshard"],
        "shardbench plan quick a100-40gb-2x": ["a100-40gb-2x8"],
        "shardbench run quick --retry inf": ["infeasible"],
        "shardbench run quick --strategy ": list(strategies()),
    }
    program = [sys.executable, "-c", COMPLETES, *wanted]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.splitlines()[-1] == "[]", done.stderr
    lines = [line for words, names in wanted.items() for line in (*names, f"end of {words}")]
    assert done.stdout.splitlines() == lines


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_is_shown(shell: str, monkeypatch: pytest.MonkeyPatch, command) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda *_: (shell, f"/bin/{shell}"))
    assert "_SHARDBENCH_COMPLETE=" in command("--show-completion")
