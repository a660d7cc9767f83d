"""What starting costs."""

import subprocess
import sys

from .made_up import cpu_s


class Importing:
    """In a fresh interpreter, whose own start is part of it."""

    params = (["shardbench.cli.main", "shardbench.report.page.write"],)
    param_names = ("module",)
    timer = staticmethod(cpu_s)

    def time_import(self, module: str) -> None:
        """CPU seconds."""
        subprocess.run([sys.executable, "-c", f"import {module}"], check=True)


class Listing:
    """What a user waits for first."""

    timer = staticmethod(cpu_s)

    def time_list_strategies(self) -> None:
        """CPU seconds of `shardbench list strategies` in a fresh interpreter."""
        code = "import sys; from shardbench.cli.main import main; sys.argv[1:] = ['list', 'strategies']; main()"
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
