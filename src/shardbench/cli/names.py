"""Names on the command line: what completes them, what they stand for, and which command takes which."""

import sys
from typing import TYPE_CHECKING

from shardbench.base.closest import unknown
from shardbench.base.errors import BadInput
from shardbench.base.generated import say
from shardbench.records.trial import Outcome

if TYPE_CHECKING:
    from shardbench.studies.reproduction import Reproduction
    from shardbench.trials.suite import Suite

FAILED = "failed"
"""The word by which ``--retry`` means all outcomes but ok."""


def suites() -> list[str]:
    """List the suites that come with the project."""
    from shardbench.trials.suite import suite_names  # noqa: PLC0415

    return suite_names()


def papers() -> list[str]:
    """List the baselines that have studies or claims of a paper."""
    from shardbench.trials.discovery import reproduction_names  # noqa: PLC0415

    return reproduction_names()


def suites_and_papers() -> list[str]:
    """List suites and papers together, in the order of their names."""
    return sorted({*suites(), *papers()})


def strategy_names() -> list[str]:
    """List the names of all strategies."""
    from shardbench.trials.discovery import strategies  # noqa: PLC0415

    return list(strategies())


def machines() -> list[str]:
    """List the names of all machines, also of installed packages."""
    from shardbench.model.machine_file import machine_files  # noqa: PLC0415

    return list(machine_files())


def workloads() -> list[str]:
    """List the workloads of the suites that come with the project."""
    from shardbench.cli.listing import list_workloads  # noqa: PLC0415

    return [entry["name"] for entry in list_workloads()]


def say_left_out() -> None:
    """Print to stderr which broken packages are left out and why; what they bring is missing from what follows."""
    from shardbench.model.machine_file import broken_machine_packages  # noqa: PLC0415
    from shardbench.trials.discovery import broken_packages  # noqa: PLC0415
    from shardbench.workloads.kinds import broken_dataset_packages  # noqa: PLC0415

    for cause in (*broken_packages(), *broken_machine_packages(), *broken_dataset_packages()):
        say(f"left out: {cause}", sys.stderr)


def retry_words() -> list[str]:
    """List the words that ``--retry`` takes."""
    return [FAILED, *(outcome.value for outcome in Outcome)]


def outcomes(text: str) -> frozenset[Outcome]:
    """Return the outcomes that ``--retry`` names, separated by commas; raises BadInput for a word that is none."""
    chosen_outcomes: set[Outcome] = set()
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name not in retry_words():
            raise BadInput(f"--retry: {unknown('outcome', name, retry_words())}")
        chosen_outcomes |= set(Outcome) - {Outcome.OK} if name == FAILED else {Outcome(name)}
    return frozenset(chosen_outcomes)


def find_named(name: str) -> "tuple[Suite | None, Reproduction | None]":
    """Find the suite and the reproduction of a name; raises BadInput where there is neither."""
    from shardbench.studies.reproduction import find_reproduction  # noqa: PLC0415
    from shardbench.trials.suite import load_suite  # noqa: PLC0415

    if not name.endswith(".toml") and name not in suites_and_papers():
        raise BadInput(unknown("suite or paper", name, suites_and_papers(), "shardbench list, or give a .toml file"))
    reproduction = find_reproduction(name) if name in papers() else None
    suite = load_suite(name) if reproduction is None or name in suites() else None
    return suite, reproduction


def suite_called(name: str) -> "Suite":
    """Load the suite of that name or file.

    Raises BadInput for another name, and says which command takes it where one does.
    """
    from shardbench.trials.suite import load_suite  # noqa: PLC0415

    if not name.endswith(".toml") and name not in suites():
        _refuse_other(name, "suite")
    return load_suite(name)


def refuse_no_paper(name: str) -> None:
    """Raise BadInput for the name of a suite or a strategy, and say which command takes it."""
    if name.endswith(".toml") or name in suites():
        raise BadInput(f"'{name}' is a suite, not a paper's reproduction; run: shardbench run {name}")
    _refuse_other(name, "paper")


def _refuse_other(name: str, kind: str) -> None:
    if name in papers():
        raise BadInput(f"'{name}' is a paper's reproduction, not a {kind}; run: shardbench reproduce {name}")
    if name in strategy_names():
        raise BadInput(f"'{name}' is a strategy, not a {kind}; run: shardbench run quick --strategy {name}")
