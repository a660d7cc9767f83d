"""HiGHS, silent from the first solver on: import ``highspy`` from here."""

import os

import highspy

__all__ = ["highspy"]


def use_up_banner() -> None:
    """Make a solver whose output goes nowhere, since HiGHS 1.16 prints a banner with the first one of a process.

    It prints while the solver is made, so that no option can be set before, to descriptor 1 and not to ``sys.stdout``.
    """
    real_output, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        highspy.Highs()  # type: ignore[no-untyped-call]  # the package leaves its constructor untyped
    finally:
        os.dup2(real_output, 1)
        os.close(real_output)
        os.close(nowhere)


use_up_banner()
