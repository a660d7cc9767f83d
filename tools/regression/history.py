"""Results of benchmarks at commits: a file for each commit, in a folder for each kind of machine."""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from judging import Kind, Level
from running import Listed
from trees import Stopped, git


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What absolute numbers depend on: the processor and the versions of what runs on it."""

    cpu: str
    cores: int
    python: str
    torch: str

    @classmethod
    def of(cls, environment: dict[str, Any]) -> "Machine":
        """Return the machine of a worker's environment."""
        torch = environment["versions"].get("torch") or "none"
        return cls(cpu=environment["cpu"], cores=environment["cores"], python=environment["python"], torch=torch)

    @property
    def kind(self) -> str:
        """The name of the folder of such machines."""
        text = f"{self.cpu} {self.cores} cores python {self.python} torch {self.torch}"
        return re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-")


@dataclass(frozen=True, kw_only=True)
class CommitResults:
    """What the benchmarks came to at one commit on one machine."""

    machine: Machine
    commit: str
    committed: str
    """When it was committed, ISO 8601 in UTC: files lie in that order."""
    levels: dict[str, Level]
    listed: dict[str, Listed]
    """The benchmarks as they were then."""

    def write(self, folder: Path) -> Path:
        """Write a line for each benchmark, sorted by name; returns the path."""
        rows = []
        for name, level in sorted(self.levels.items()):
            rounded = {"median": float(f"{level.median:.6g}"), "spread": round(level.spread, 4), "n": level.n}
            rows.append(json.dumps({**asdict(self.listed[name]), **rounded}))
        head = {"machine": asdict(self.machine), "commit": self.commit, "committed": self.committed}
        day = re.sub(r"[^0-9T]", "", self.committed)[:15]
        path = folder / self.machine.kind / f"{day}-{self.commit[:10]}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(head)[:-1] + ',\n"benchmarks": [\n' + ",\n".join(rows) + "\n]}\n")
        return path

    @classmethod
    def read(cls, path: Path) -> "CommitResults":
        """Read a file that was written so; raises Stopped for another one."""
        try:
            data = json.loads(path.read_text())
            rows = {row["name"]: row for row in data["benchmarks"]}
            return cls(
                machine=Machine(**data["machine"]),
                commit=data["commit"],
                committed=data["committed"],
                levels={name: Level(median=r["median"], spread=r["spread"], n=r["n"]) for name, r in rows.items()},
                listed={
                    name: Listed(name=name, kind=Kind(r["kind"]), unit=r["unit"], version=r["version"])
                    for name, r in rows.items()
                },
            )
        except (ValueError, LookupError, TypeError) as error:
            raise Stopped(f"{path} is no file of regression results: take it from git again") from error


def latest(folder: Path, root: Path, machine: Machine | None = None) -> CommitResults | None:
    """Return the last results of a commit that HEAD comes from, on that kind of machine, or on any where it is None."""
    pattern = f"{machine.kind}/*.json" if machine else "*/*.json"
    for path in sorted(folder.glob(pattern), key=lambda path: path.name, reverse=True):
        results = CommitResults.read(path)
        try:
            git(root, "merge-base", "--is-ancestor", results.commit, "HEAD")
        except Stopped:
            continue
        return results
    return None
