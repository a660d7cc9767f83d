"""HiGHS, silent from the first solver on: import ``highspy`` from here."""

import highspy

from shardbench.base.generated import silence

__all__ = ["highspy"]


def use_up_banner() -> None:
    """Make a solver whose output goes nowhere, since HiGHS 1.16 prints a banner with the first one of a process.

    It prints while the solver is made, so that no option can be set before, to descriptor 1 and not to ``sys.stdout``.
    """
    with silence():
        highspy.Highs()  # type: ignore[no-untyped-call]  # the package leaves its constructor untyped


use_up_banner()
