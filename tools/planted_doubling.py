"""What `nox -s regression` says of an edit that changes nothing, and of a function that does its work twice.

``python tools/planted_doubling.py OUT.txt`` commits both edits in a temporary clone, and writes asv's tables and what
nox said at the end. It takes twice as long as the session.
"""

import platform
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EDITED = "src/shardbench/cost/costmodel.py"
EDITS = {
    "an empty line more, which changes nothing": "\n",
    "shardbench.cost.costmodel.estimate, which does its work twice": """

_once = estimate


def estimate(*given, **told):
    _once(*given, **told)
    return _once(*given, **told)
""",
}
AUTHOR = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.com")


def git(place: Path, *arguments: str) -> str:
    """Return what git prints in the repository at ``place``."""
    return subprocess.run(["git", "-C", str(place), *arguments], check=True, capture_output=True, text=True).stdout


def telling(said: str) -> list[str]:
    """Return the lines that say how many benchmarks look worse, asv's tables and verdicts, and nox's last lines."""
    lines = said.splitlines()
    last = next((number for number, line in enumerate(lines) if line.startswith("step, result")), len(lines))
    told = [line for line in lines[:last] if line.startswith("|") or line.isupper() or "look worse at first" in line]
    return told + lines[last:]


def main(out: Path) -> None:
    """Write what is said of each edit, one after the other."""
    here = f"{platform.machine()}, Python {platform.python_version()}, {datetime.now(UTC):%Y-%m-%d}"
    parts = [f"Measured (CPU seconds and bytes of processes) on {here}; commit {git(ROOT, 'rev-parse', 'HEAD')[:10]}"]
    with tempfile.TemporaryDirectory() as folder:
        clone = Path(folder) / ROOT.name
        git(ROOT, "clone", "--quiet", "--shared", str(ROOT), str(clone))
        (clone / ".nox").symlink_to(ROOT / ".nox")
        for what, text in EDITS.items():
            with (clone / EDITED).open("a") as file:
                file.write(text)
            git(clone, *AUTHOR, "commit", "--quiet", "--all", "--message", "edit")
            command = ["nox", "--session", "regression", "--", "HEAD~1"]
            done = subprocess.run(command, cwd=clone, stdout=subprocess.PIPE, text=True, check=False)
            print(done.stdout, flush=True)
            said = done.stdout.replace(f"{clone}/", "")
            parts += ["", f"{what}: exit code {done.returncode}", *telling(said)]
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text("\n".join(parts) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
