"""Hold all that requirements/locked/ has against known advisories, by pip-audit and what PyPI has of each release.

Run by `nox -s lock -- audit`, in an environment of requirements/locked/audit.txt. Exits with 0 where the source knows
all locked releases and has no advisory about any, with 1 where it has one, and with 3 where it did not tell of all:
what nobody looked at must not pass as free of faults, and is no fault found either. (pip-audit itself ends with 0 and
"No known vulnerabilities found" where its source answers of no release.)
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

LOCKED = Path(__file__).resolve().parent / "locked"
PINNED = re.compile(r"^([A-Za-z0-9._-]+)==([^\s+;]+)", re.MULTILINE)
"""Name and release: advisories are about a release, not about one of its builds (``+cpu``)."""
AUDIT = ("-m", "pip_audit", "--disable-pip", "--no-deps", "--progress-spinner=off", "--desc=off", "--format=json")
FOUND, NOT_AUDITED = 1, 3
LONGEST = 300
"""Most characters of what pip-audit says of its failure."""
Pin = tuple[str, str]


def locked() -> dict[Pin, list[str]]:
    """The files that lock each release, whatever Python or system they lock it for."""
    files_by_pin: dict[Pin, list[str]] = {}
    for path in sorted(LOCKED.glob("*.txt")):
        for pin in dict.fromkeys(PINNED.findall(path.read_text())):
            files_by_pin.setdefault(pin, []).append(path.name)
    return files_by_pin


def lists(pins: Iterable[Pin]) -> list[str]:
    """Requirement files that have all of them, and none of which has a name twice."""
    versions: dict[str, list[str]] = {}
    for name, version in pins:
        versions.setdefault(name, []).append(f"{name}=={version}\n")
    return ["".join(filter(None, each)) for each in zip_longest(*versions.values())]


def audit(text: str) -> tuple[dict[Pin, Sequence[Mapping[str, Any]]], str]:
    """What is known about each release of a requirement file that the source knows, and why it does not know others."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "locked.txt"
        path.write_text(text)
        process = subprocess.run([sys.executable, *AUDIT, "-r", str(path)], capture_output=True, text=True, check=False)
    try:
        dependencies = json.loads(process.stdout)["dependencies"]
    except ValueError:
        return {}, (process.stderr.strip().splitlines() or [f"pip-audit ended with {process.returncode}"])[-1][:LONGEST]
    why = next((each["skip_reason"] for each in dependencies if "skip_reason" in each), "")
    return {(each["name"], each["version"]): each["vulns"] for each in dependencies if "version" in each}, why


def main() -> int:
    """Audit, and say what was found and what nobody could tell."""
    pins = locked()
    advisories_by_pin: dict[Pin, Sequence[Mapping[str, Any]]] = {}
    why = ""
    for text in lists(pins):
        audits, reason = audit(text)
        advisories_by_pin |= audits
        why = why or reason
    advisories = 0
    for (name, version), files in pins.items():
        for each in advisories_by_pin.get((name, version), ()):
            fixed = ", ".join(each["fix_versions"]) or "no release yet"
            print(f"{name} {version} ({', '.join(files)}): {each['id']}, fixed in {fixed}")
            advisories += 1
    missing = len(pins.keys() - advisories_by_pin.keys())
    print(f"{len(pins) - missing} of {len(pins)} locked releases were audited: {advisories} known advisories")
    if missing:
        print(f"NOT AUDITED: {missing} of {len(pins)} locked releases, as the source of advisories did not tell: {why}")
    return FOUND if advisories else NOT_AUDITED if missing else 0


if __name__ == "__main__":
    sys.exit(main())
