"""Names on the command line: what completes them, and which command takes one that another command does not."""

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from shardbench.base.closest import unknown
from shardbench.base.errors import BadInput
from shardbench.base.generated import ascii_text
from shardbench.records.trial import Outcome

if TYPE_CHECKING:
    from shardbench.runs.suite import Suite

FAILED = "failed"
"""What ``--retry`` takes for all outcomes but ok."""


def suites() -> list[str]:
    """Suites that come with the project."""
    from shardbench.runs.suite import suite_names  # noqa: PLC0415

    return suite_names()


def papers() -> list[str]:
    """Baselines with a paper's studies or claims."""
    from shardbench.model.discovery import reproduction_names  # noqa: PLC0415

    return reproduction_names()


def suites_and_papers() -> list[str]:
    """Both, sorted."""
    return sorted({*suites(), *papers()})


def strategy_names() -> list[str]:
    """All strategies."""
    from shardbench.model.discovery import strategies  # noqa: PLC0415

    return list(strategies())


def machines() -> list[str]:
    """All machines, of installed packages too."""
    from shardbench.model.machine import machine_files  # noqa: PLC0415

    return list(machine_files())


def workloads() -> list[str]:
    """Workloads of the suites that come with the project."""
    from shardbench.cli.listing import list_workloads  # noqa: PLC0415

    return [entry["name"] for entry in list_workloads()]


def say_left_out() -> None:
    """Print to stderr which packages are left out and why: what they bring is missing from what follows."""
    from shardbench.model.discovery import broken_packages  # noqa: PLC0415
    from shardbench.model.machine import broken_machine_packages  # noqa: PLC0415
    from shardbench.workloads.kinds import broken_dataset_packages  # noqa: PLC0415

    for cause in (*broken_packages(), *broken_machine_packages(), *broken_dataset_packages()):
        print(f"left out: {ascii_text(cause)}", file=sys.stderr)


def retried() -> list[str]:
    """What ``--retry`` takes."""
    return [FAILED, *(outcome.value for outcome in Outcome)]


def completing(names: Callable[[], Iterable[str]]) -> Callable[[str], list[str]]:
    """For Typer's ``autocompletion``: those of the names that begin as what is typed."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def outcomes(text: str) -> frozenset[Outcome]:
    """The outcomes that ``--retry`` names, separated by commas; ``failed`` is all but ok. Raises BadInput."""
    found: set[Outcome] = set()
    for name in filter(None, (part.strip() for part in text.split(","))):
        if name not in retried():
            raise BadInput(f"--retry: {unknown('outcome', name, retried())}")
        found |= set(Outcome) - {Outcome.OK} if name == FAILED else {Outcome(name)}
    return frozenset(found)


def suite_called(name: str) -> "Suite":
    """The suite of that name or file; raises BadInput, and names the command that takes a name of something else."""
    from shardbench.runs.suite import load_suite  # noqa: PLC0415

    if not name.endswith(".toml") and name not in suites():
        _refuse_other(name, "suite")
    return load_suite(name)


def refuse_no_paper(name: str) -> None:
    """Raises BadInput for the name of something that is no paper's reproduction, naming the command that takes it."""
    if name.endswith(".toml") or name in suites():
        raise BadInput(f"'{name}' is a suite, not a paper's reproduction; run: shardbench run {name}")
    _refuse_other(name, "paper")


def _refuse_other(name: str, what: str) -> None:
    if name in papers():
        raise BadInput(f"'{name}' is a paper's reproduction, not a {what}; run: shardbench reproduce {name}")
    if name in strategy_names():
        raise BadInput(f"'{name}' is a strategy, not a {what}; run: shardbench run quick --strategy {name}")
