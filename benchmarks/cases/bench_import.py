"""What a user waits for before anything begins: imports, and the first command."""

import subprocess
import sys

from .case import Case


class Importing(Case):
    """Imports in a fresh interpreter, whose own start is part of it."""

    params = (["shardbench.cli.main", "shardbench.report.page.write"],)
    param_names = ("module",)

    def time_import(self, module: str) -> None:
        """Import the module in a process of its own."""
        subprocess.run([sys.executable, "-c", f"import {module}"], check=True)


class Listing(Case):
    """The command that most users type first."""

    def time_list_strategies(self) -> None:
        """Run `shardbench list strategies` in a process of its own."""
        code = "import sys; from shardbench.cli.main import main; sys.argv[1:] = ['list', 'strategies']; main()"
        subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
